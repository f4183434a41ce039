"""What is claimed of queues: W40 to W44 of docs/protocol.md, and the order of first hand-outs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.chaos.everything.claims.book import Book, Claim, each_once, in_order, none_invented, none_lost
from tests.chaos.everything.journal import Handed, Kept, Ruled, Seen
from tests.chaos.evidence.checker import Anomaly

FEATURE: Final = "jobs"
KEYED: Final = "keyed"
FREE: Final = "free"
GROUPS: Final = (KEYED, FREE)
GIVEN_UP: Final = "delivery_limit"
"""The reason of a dead letter that was handed out too often, as by members that lost their connections."""
CLOCKS_MS: Final = 2
"""By how much a pause may seem too short: client and leader read whole milliseconds of clocks of their own, and the
next leader makes its clock from the time of day that was stored."""


def letters_of(group: str) -> str:
    """The topic of a group's dead letters."""
    return f"dlq-{group}"


def claims(book: Book) -> list[Claim]:
    """All claims, of each group."""
    return [claim for group in GROUPS for claim in _of_group(book, group)]


def _of_group(book: Book, group: str) -> Iterable[Claim]:
    title = f"queue in order {'of keys' if group == KEYED else 'none'}"
    events, letters = book.of_queue[group], book.seen[letters_of(group)]
    stored, sent = book.stored(FEATURE), book.sent[FEATURE]
    acked = {event.name for event in events if isinstance(event, Ruled) and event.verdict == "ack"}
    rejected = {event.name for event in events if isinstance(event, Ruled) and event.verdict == "reject"}
    given_up = {row.name for row in letters if row.reason == GIVEN_UP}
    yield none_lost(
        f"{title}: each job is done, or a dead letter", "job lost", stored, acked | {r.name for r in letters}
    )
    yield _handed_twice(title, events)
    yield _retried_early(title, events)
    handed = [event for event in events if isinstance(event, Handed)]
    invented = [event for event in handed if event.name not in sent or sent[event.name].outcome == "fail"]
    yield Claim(
        f"{title}: only jobs that were sent are handed out",
        len(handed),
        [Anomaly("job invented", f"{event.name} at {event.partition}@{event.offset}") for event in invented],
    )
    yield none_lost(f"{title}: what is rejected is a dead letter", "dead letter lost", rejected, _names(letters))
    yield each_once(f"{title}: a dead letter is there once", "dead letter twice", letters)
    yield none_invented(f"{title}: dead letters are jobs", "dead letter invented", letters, sent)
    wrong = [
        Anomaly("dead letter of no reject", f"{row.name}: {row.reason}")
        for row in letters
        if row.name not in rejected and row.name not in given_up
    ]
    yield Claim(f"{title}: what is not rejected is none", len(letters), wrong, f"{len(given_up)} tried too often")
    if group == KEYED:
        yield _first_hand_outs(title, handed)


def _names(rows: Iterable[Seen]) -> set[str]:
    return {row.name for row in rows}


def _first_hand_outs(title: str, handed: Iterable[Handed]) -> Claim:
    first: dict[str, Handed] = {}
    for event in handed:
        first.setdefault(event.name, event)
    rows = (
        ((event.partition, event.key), event.offset, f"{event.name} ({event.partition}@{event.offset}, {event.member})")
        for event in first.values()
    )
    return in_order(f"{title}: first hand-outs of a key are in its order", "jobs out of order", rows)


def _handed_twice(title: str, events: Iterable[Handed | Ruled | Kept]) -> Claim:
    """No record is handed out again once the broker has answered that its acknowledgement, or reject, is stored."""
    verdicts: dict[str, str] = {}
    finished: set[str] = set()
    wrong = []
    for event in events:
        match event:
            case Ruled():
                verdicts[event.name] = event.verdict
            case Kept():
                finished.update(name for name in event.names if verdicts.get(name) in ("ack", "reject"))
            case Handed() if event.name in finished:
                wrong.append(Anomaly("job done twice", f"{event.name} was handed to {event.member} once more"))
            case _:
                pass
    return Claim(f"{title}: none is handed out again after its acknowledgement", len(finished), wrong)


def _retried_early(title: str, events: Iterable[Handed | Ruled | Kept]) -> Claim:
    """What is to be retried, and is stored so, is not handed out before its pause is over."""
    ruled: dict[str, Ruled] = {}
    until_ms: dict[str, int] = {}
    wrong = []
    count = 0
    for event in events:
        match event:
            case Ruled():
                ruled[event.name] = event
            case Kept():
                for name in event.names:
                    if name in ruled and ruled[name].verdict == "retry":
                        until_ms[name] = ruled[name].at_ms + ruled[name].pause_ms
            case Handed() if event.name in until_ms:
                count += 1
                early_ms = until_ms.pop(event.name) - event.at_ms
                if early_ms > CLOCKS_MS:
                    wrong.append(Anomaly("retried early", f"{event.name} came back {early_ms} ms early"))
            case _:
                pass
    return Claim(f"{title}: none is retried before its pause is over", count, wrong)
