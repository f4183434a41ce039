"""What is claimed of a topic that is deleted and created again: W70 of docs/protocol.md. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tests.chaos.everything.claims.book import Book, Claim, each_once
from tests.chaos.everything.journal import Lived, Seen, number_of
from tests.chaos.evidence.checker import Anomaly

FEATURE: Final = "churn"
LATE: Final = "late"
"""Feature of records that a life sends with a delay beyond its end: none has to come, and none may in a later life."""
ASSIGNED: Final = "churn-reader"
"""A reader without a group, for the whole run."""
SUBSCRIBED: Final = "churn-group"
"""The member of a group, for the whole run."""
READERS: Final = (ASSIGNED, SUBSCRIBED)


def life_of(name: str) -> int:
    """The life in which a record was sent."""
    return int(name.split("/")[1])


def claims(book: Book) -> list[Claim]:
    """All claims."""
    stored = book.stored(FEATURE)
    seen = [event for event in book.of_churn if isinstance(event, Seen)]
    found: dict[str, set[str]] = defaultdict(set)
    for row in seen:
        found[row.reader].add(row.name)
    known = book.sent[FEATURE].keys() | book.sent[LATE].keys()
    lives = sum(isinstance(event, Lived) and event.what == "created" for event in book.of_churn)
    missed = [
        Anomaly("life lost", f"{reader} never got {name}")
        for reader in READERS
        for name in stored
        if name not in found[reader]
    ]
    return [
        Claim("churn: readers get each record of each life", 2 * len(stored), missed, f"{lives:,} lives"),
        _nothing_old(book),
        each_once("churn: none is at two places", "life twice", seen),
        Claim(
            "churn: only what was sent is there",
            len(seen),
            [Anomaly("life invented", f"{row.name} at {row.offset}") for row in seen if row.name not in known],
        ),
        _in_order(book),
    ]


def _nothing_old(book: Book) -> Claim:
    """No record of an earlier life comes to any reader once the topic was created again."""
    life: dict[str, int] = {}
    wrong = []
    count = 0
    for event in book.of_churn:
        if isinstance(event, Lived):
            if event.what == "created":
                life[event.topic] = event.life
            continue
        count += 1
        if life_of(event.name) < life.get(event.topic, 0):
            wrong.append(
                Anomaly("old life", f"{event.reader} got {event.name} at {event.offset} in life {life[event.topic]}")
            )
    return Claim("churn: no record of an earlier life is there", count, wrong)


def _in_order(book: Book) -> Claim:
    """In a life, each reader gets records in the order of their numbers; a group's member may get some again."""
    last: dict[tuple[str, str, int], int] = {}
    again: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    wrong = []
    count = 0
    for event in book.of_churn:
        if isinstance(event, Lived) or event.name in book.sent[LATE]:
            continue
        count += 1
        place = (event.reader, event.topic, life_of(event.name))
        number = number_of(event.name)
        if number <= last.get(place, -1) and (event.reader == ASSIGNED or number not in again[place]):
            wrong.append(Anomaly("life out of order", f"{event.reader} got {event.name} after number {last[place]}"))
        again[place].add(number)
        last[place] = max(number, last.get(place, -1))
    return Claim("churn: each life is read in its order", count, wrong)
