"""Judges a history from the outside, after the "kafka" workload of Jepsen.

Called by the run with the clients' observations and with the logs found on disk afterwards. Pure.

Not checked, because not promised: gap-free polls across a rebalance. Cycles between transactions neither: those of the
part ``copies`` are judged by their results (``tests/chaos/copies``).
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from tests.chaos.evidence.history import Commit, History, Moved, Poll, Send

EXAMPLES_MAX = 20
Readers: TypeAlias = Mapping[str, Collection[int] | None]


class Verdict(Enum):
    """How a run ended."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    """A promise was broken."""
    UNKNOWN = "UNKNOWN"
    """The checker could not decide."""
    HANG = "HANG"
    """The cluster or a client made no progress after the heal."""
    NODATA = "NODATA"
    """Too few operations: a silent cluster must not pass."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One broken promise, as text."""

    kind: str
    what: str


@dataclass(slots=True)
class Analysis:
    """The checker's findings: a count of each kind, and some examples as text."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[Anomaly] = field(default_factory=list)

    def add(self, anomaly: Anomaly) -> None:
        """Count it, and keep it if it is among the first of its kind."""
        self.counts[anomaly.kind] += 1
        if self.counts[anomaly.kind] <= EXAMPLES_MAX:
            self.examples.append(anomaly)


class _View:
    """The history indexed for the checks; the normal case is stored once and in few bytes."""

    def __init__(self, history: History, readers: Readers) -> None:
        self.readers = readers
        self.sends = history.of(Send)
        self.polls = history.of(Poll)
        self.operations = list(history.operations)
        self.by_value = {send.value: send for send in self.sends}
        self.at: dict[int, dict[int, str]] = defaultdict(dict)
        """partition -> offset -> the first value reported there."""
        self.others_at: dict[tuple[int, int], dict[str, str]] = defaultdict(dict)
        """(partition, offset) -> another value -> its source."""
        self.place: dict[str, tuple[int, int]] = {}
        """value -> the first place reported for it."""
        self.other_places: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.read_by: dict[str, set[str]] = {reader: set() for reader in readers}
        self.highest_read: dict[tuple[str, int], int] = {}
        self.readers_of: dict[str, str] = {}
        for send in self.sends:
            if send.outcome == "ok" and send.offset >= 0:
                self._note(send.partition, send.offset, send.value, f"the answer to {send.process}")
        for poll in self.polls:
            values = self.read_by.get(poll.reader, set())
            for partition, offset, value in poll.records:
                values.add(value)
                self.readers_of.setdefault(value, poll.client)
                place = (poll.reader, partition)
                if offset > self.highest_read.get(place, -1):
                    self.highest_read[place] = offset
                self._note(partition, offset, value, poll.client)
        self.offsets = {partition: sorted(known) for partition, known in sorted(self.at.items())}

    def _note(self, partition: int, offset: int, value: str, names: str) -> None:
        if self.at[partition].setdefault(offset, value) != value:
            self.others_at[partition, offset].setdefault(value, names)
        place = self.place.get(value)
        if place is None:
            self.place[value] = (partition, offset)
        elif place != (partition, offset):
            self.other_places[value].add((partition, offset))

    def places(self, value: str) -> list[tuple[int, int]]:
        """Every place reported for a value: none, one, or several in error."""
        first = self.place.get(value)
        return [] if first is None else [first, *self.other_places.get(value, ())]

    def sources(self, partition: int, offset: int) -> str:
        """Return the source of the first value at this place: the answer to its send, or the client that read it."""
        value = self.at[partition][offset]
        send = self.by_value.get(value)
        if send is not None and (send.outcome, send.partition, send.offset) == ("ok", partition, offset):
            return f"the answer to {send.process}"
        return self.readers_of.get(value, "nobody")

    def those_to_have(self, send: Send) -> Iterator[tuple[str, set[str], int]]:
        """Yield each reader that must get this record, the values it got, and its highest offset in the partition."""
        for reader, values in self.read_by.items():
            partitions = self.readers[reader]
            if partitions is None or send.partition in partitions:
                yield reader, values, self.highest_read.get((reader, send.partition), -1)

    def next_known(self, partition: int, offset: int) -> int | None:
        """The next known offset after this one that holds a record."""
        offsets = self.offsets.get(partition, [])
        index = bisect_right(offsets, offset)
        return offsets[index] if index < len(offsets) else None


def analyse(history: History, *, readers: Readers, drained: bool, contiguous: bool = True) -> Analysis:
    """Look for every kind of anomaly.

    ``readers`` must get everything from the first record on, in the named or (None) in all partitions: groups, single
    readers, and the logs on disk. ``drained``: the readers had the time to read to the end, so a record that they lack
    is lost.
    ``contiguous``: offsets have no holes (no compaction, no control records).
    """
    view = _View(history, readers)
    analysis = Analysis()
    checks: list[Callable[[_View], Iterator[Anomaly]]] = [
        _inconsistent_offsets,
        _duplicates,
        _aborted_reads,
        _unknown_values,
        _lost_writes,
        _poll_order,
        _send_order,
        _commits_moved_back,
        _refused_positions,
    ]
    if drained:
        checks.append(_unseen)
    if contiguous:
        checks.append(_gaps)
    for check in checks:
        for anomaly in check(view):
            analysis.add(anomaly)
    return analysis


def judge(
    analysis: Analysis, *, hangs: Sequence[str], doubts: Sequence[str], sent: int, read: int, enough: int
) -> Verdict:
    """The verdict: a broken promise outweighs a hang, and a hang outweighs a doubt."""
    if analysis.counts:
        return Verdict.FAILED
    if hangs:
        return Verdict.HANG
    if sent < enough or read < enough:
        return Verdict.NODATA
    return Verdict.UNKNOWN if doubts else Verdict.PASSED


def _inconsistent_offsets(view: _View) -> Iterator[Anomaly]:
    for (partition, offset), others in view.others_at.items():
        values = {view.at[partition][offset]: view.sources(partition, offset), **others}
        values_read = ", ".join(f"{value!r} by {names}" for value, names in values.items())
        yield Anomaly("inconsistent offsets", f"partition {partition}, offset {offset}: {values_read}")


def _duplicates(view: _View) -> Iterator[Anomaly]:
    for value in view.other_places:
        where = ", ".join(f"{partition}@{offset}" for partition, offset in sorted(view.places(value)))
        yield Anomaly("duplicate", f"{value!r} is stored at {where}")


def _aborted_reads(view: _View) -> Iterator[Anomaly]:
    for send in view.sends:
        if send.outcome == "fail" and send.value in view.readers_of:
            names = view.readers_of[send.value]
            yield Anomaly("aborted read", f"{send.value!r} was refused ({send.error}), yet {names} read it")


def _unknown_values(view: _View) -> Iterator[Anomaly]:
    for value, names in view.readers_of.items():
        if value not in view.by_value:
            yield Anomaly("unknown value", f"{names} read {value!r}, which no producer sent")


def _lost_writes(view: _View) -> Iterator[Anomaly]:
    """An acknowledged record below a reader's highest offset, which that reader never got."""
    for send in view.sends:
        if send.outcome != "ok" or send.offset < 0:
            continue
        for reader, values, highest in view.those_to_have(send):
            if send.value not in values and send.offset <= highest:
                yield Anomaly("lost write", f"{send.value!r}, {_place(send)}, was passed over by {reader}")


def _unseen(view: _View) -> Iterator[Anomaly]:
    """An acknowledged record above everything a reader got, or one with an unknown offset."""
    for send in view.sends:
        if send.outcome != "ok":
            continue
        for reader, values, highest in view.those_to_have(send):
            if send.value not in values and (send.offset < 0 or send.offset > highest):
                yield Anomaly("unseen", f"{send.value!r}, {_place(send)}, was never read by {reader}")


def _place(send: Send) -> str:
    where = f"offset {send.offset}" if send.offset >= 0 else "an unreported offset"
    return f"acknowledged in partition {send.partition} at {where} after {send.completed_s:.2f} s"


def _poll_order(view: _View) -> Iterator[Anomaly]:
    """Within a client's assignment, offsets rise, and no existing record is skipped."""
    last: dict[str, dict[int, int]] = defaultdict(dict)
    for operation in view.operations:
        if isinstance(operation, Moved):
            if operation.kind == "seek":
                for partition in operation.partitions:
                    last[operation.client].pop(partition, None)
            else:
                last[operation.client].clear()
        elif isinstance(operation, Poll):
            positions = last[operation.client]
            for partition, offset, _ in operation.records:
                before = positions.get(partition)
                positions[partition] = offset
                if before is None or offset == before + 1:
                    continue
                where = f"{operation.client} got {partition}@{offset} after {partition}@{before}"
                if offset <= before:
                    yield Anomaly("nonmonotonic poll", f"{where} ({operation.completed_s:.2f} s)")
                    continue
                following = view.next_known(partition, before)
                if following is not None and following < offset:
                    yield Anomaly("poll skip", f"{where}, jumping over {partition}@{following}")


def _send_order(view: _View) -> Iterator[Anomaly]:
    """Records from one process to one partition are stored in send order, retries included."""
    last: dict[tuple[str, int], tuple[int, str]] = {}
    for send in sorted(view.sends, key=lambda send: (send.process, send.number)):
        first: dict[int, int] = {}
        for partition, offset in view.places(send.value):  # a duplicate is an anomaly of its own
            first[partition] = min(offset, first.get(partition, offset))
        for partition, offset in first.items():
            before = last.get((send.process, partition))
            if before is not None and offset <= before[0]:
                yield Anomaly(
                    "nonmonotonic send",
                    f"{send.process} sent {send.value!r} after {before[1]!r}, but they lie in partition {partition} at "
                    f"{offset} and {before[0]}",
                )
            else:
                last[send.process, partition] = (offset, send.value)


def _commits_moved_back(view: _View) -> Iterator[Anomaly]:
    """A client that is assigned a partition after a successful commit begins at that offset, or above it."""
    committed: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
    assigned_s: dict[str, float] = {}
    began: set[tuple[str, int]] = set()
    for operation in view.operations:
        if isinstance(operation, Commit) and operation.outcome == "ok":
            for partition, offset in operation.offsets.items():
                committed[operation.reader, partition].append((operation.completed_s, offset))
        elif isinstance(operation, Moved):
            assigned_s[operation.client] = operation.at_s
            began = {item for item in began if item[0] != operation.client}
        elif isinstance(operation, Poll) and operation.client in assigned_s:
            for partition, offset, _ in operation.records:
                if (operation.client, partition) in began:
                    continue
                began.add((operation.client, partition))
                before_s = assigned_s[operation.client]
                known = [to for at_s, to in committed[operation.reader, partition] if at_s < before_s]
                if known and offset < max(known):
                    yield Anomaly(
                        "commit moved back",
                        f"{operation.client}, assigned partition {partition} of {operation.reader} after "
                        f"{before_s:.2f} s, began at {offset}, but {max(known)} had been committed",
                    )


def _refused_positions(view: _View) -> Iterator[Anomaly]:
    """A position that was valid is refused: the log was truncated below a reader's position."""
    for poll in view.polls:
        if poll.outcome != "ok" and poll.error.startswith("OffsetOutOfRange"):
            yield Anomaly("position lost", f"{poll.client} after {poll.completed_s:.2f} s: {poll.error}")


def _gaps(view: _View) -> Iterator[Anomaly]:
    for partition, offsets in view.offsets.items():
        expected = 0
        for offset in offsets:
            if offset != expected:
                yield Anomaly("offset gap", f"partition {partition}: nothing at {expected} to {offset - 1}")
            expected = offset + 1
