"""The journal, indexed for the claims, and the claims that several features share. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.chaos.everything.journal import Event, Handed, Kept, Lived, Ruled, Seen, Sent, Withdrawn
from tests.chaos.evidence.checker import Anomaly

Spans: TypeAlias = Sequence[tuple[int, int]]
"""From and to, in milliseconds since 1970: the times in which something was broken."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One promise, the number of cases in which it was looked at, and those in which it was broken."""

    text: str
    count: int
    wrong: list[Anomaly]
    note: str = ""
    needs_cases: bool = True
    """Whether a run without any case proves nothing."""

    def __str__(self) -> str:
        """Return it as a line of the report."""
        found = f"{len(self.wrong)} times not" if self.wrong else "kept"
        return f"{self.text}: {found}, of {self.count:,}{'; ' + self.note if self.note else ''}"


@dataclass(slots=True)
class Book:
    """All events by their kinds, each in the order in which it was noted."""

    sent: dict[str, dict[str, Sent]] = field(default_factory=lambda: defaultdict(dict))
    """By feature and name."""
    seen: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    """By topic."""
    of_queue: dict[str, list[Handed | Ruled | Kept]] = field(default_factory=lambda: defaultdict(list))
    """By group."""
    of_churn: list[Seen | Lived] = field(default_factory=list)
    withdrawn: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By feature."""
    doubtful: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By feature: records that may or may not be there, whatever became of their sends."""

    @classmethod
    def of(cls, events: Iterable[Event]) -> Book:
        """Index a journal."""
        book = cls()
        lives: set[str] = set()
        for event in events:
            match event:
                case Sent():
                    book.sent[event.feature][event.name] = event
                case Seen():
                    book.seen[event.topic].append(event)
                    if event.topic in lives:
                        book.of_churn.append(event)
                case Lived():
                    lives.add(event.topic)
                    book.of_churn.append(event)
                case Withdrawn():
                    (book.withdrawn if event.is_sure else book.doubtful)[event.feature].add(event.name)
                case Handed() | Ruled() | Kept():
                    book.of_queue[event.group].append(event)
        return book

    def stored(self, feature: str) -> dict[str, Sent]:
        """The records of a feature that were acknowledged."""
        return {name: sent for name, sent in self.sent[feature].items() if sent.outcome == "ok"}


def none_lost(text: str, kind: str, wanted: Collection[str], found: Collection[str]) -> Claim:
    """Each of the wanted is among those found."""
    return Claim(text, len(wanted), [Anomaly(kind, f"{name} was never there") for name in wanted if name not in found])


def each_once(text: str, kind: str, seen: Iterable[Seen]) -> Claim:
    """No record is at two places."""
    places: dict[str, dict[tuple[str, int, int], None]] = defaultdict(dict)
    for row in seen:
        places[row.name][row.topic, row.partition, row.offset] = None
    wrong = [
        Anomaly(kind, f"{name} is at {', '.join(f'{topic}-{part}@{offset}' for topic, part, offset in found)}")
        for name, found in places.items()
        if len(found) > 1
    ]
    return Claim(text, len(places), wrong)


def none_invented(
    text: str, kind: str, seen: Iterable[Seen], sent: Mapping[str, Sent], withdrawn: Collection[str] = ()
) -> Claim:
    """Each record that is there was sent, and neither refused nor withdrawn."""
    wrong = []
    names = {row.name: row for row in seen}
    for name, row in names.items():
        where = f"{name}, at {row.topic}-{row.partition}@{row.offset},"
        if name in withdrawn:
            wrong.append(Anomaly(kind, f"{where} was withdrawn"))
        elif name not in sent:
            wrong.append(Anomaly(kind, f"{where} was never sent"))
        elif sent[name].outcome == "fail":
            wrong.append(Anomaly(kind, f"{where} was refused: {sent[name].error}"))
    return Claim(text, len(names), wrong)


def read_forward(text: str, kind: str, seen: Iterable[Seen]) -> Claim:
    """A reader that stays gets the offsets of a partition in their order, and none again."""
    last: dict[tuple[str, str, int], int] = {}
    wrong = []
    count = 0
    for row in seen:
        count += 1
        place = (row.reader, row.topic, row.partition)
        if row.offset <= last.get(place, -1):
            wrong.append(
                Anomaly(kind, f"{row.reader} got {row.topic}-{row.partition}@{row.offset} after {last[place]}")
            )
        last[place] = max(row.offset, last.get(place, -1))
    return Claim(text, count, wrong)


def in_order(text: str, kind: str, rows: Iterable[tuple[object, int, str]]) -> Claim:
    """In each chain the numbers rise. Of each row: its chain, its number, and what it is."""
    last: dict[object, tuple[int, str]] = {}
    wrong = []
    count = 0
    for chain, number, what in rows:
        count += 1
        before = last.get(chain)
        if before is not None and number < before[0]:
            wrong.append(Anomaly(kind, f"{what} came after {before[1]}"))
        else:
            last[chain] = (number, what)
    return Claim(text, count, wrong)


def is_within(at_ms: int, spans: Spans) -> bool:
    """Whether a moment is in one of the spans."""
    return any(begin <= at_ms <= end for begin, end in spans)


def is_touched(begin_ms: int, end_ms: int, spans: Spans) -> bool:
    """Whether a time from one moment to another has a part of one of the spans."""
    return any(begin <= end_ms and begin_ms <= end for begin, end in spans)
