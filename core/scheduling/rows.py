"""The rows that the owner of a partition of ``__scheduled`` writes beside the records, as messages. Pure.

Each row is one record without a producer id: that distinguishes it from the producers' records. The record's key is the
row, its kind in front; its value, where it has one, is the bytes of a run or of a piece of a checkpoint. A kind that
this release does not know ends the replay, because the state would lack what the row decided.

Keys and names of scheduled records have more bits than a number in a message, and are read by the million: a row has
them as columns.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, overload
from zlib import crc32

from raylog.core.scheduling.keys import due_of, key_of, offset_of
from raylog.core.scheduling.runs import RunFacts, encode_run, page_sums
from raylog.protocol.message import Message

LaneId = tuple[str, int]
"""Topic id and partition of a target; partition -1: the topic's partitions were not known when the record was due."""
_NAME_BYTES: Final = 16


class Column(Sequence[int]):
    """Numbers that a row stores in a form of their own."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        """Hold the numbers in their order."""
        self._numbers = tuple(numbers)

    @abstractmethod
    def to_wire(self) -> object:
        """Return the stored form."""

    @classmethod
    @abstractmethod
    def from_wire(cls, wire: Any) -> Column:
        """Return the column of a stored form."""

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        return self._numbers[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Column | tuple) and self._numbers == tuple(other)

    def __hash__(self) -> int:
        return hash(self._numbers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._numbers})"


class Keys(Column):
    """Keys without tombstones, stored as due times and offsets."""

    __slots__ = ()

    def to_wire(self) -> list[Any]:
        """Return the due times and the offsets."""
        return [[due_of(key) for key in self], [offset_of(key) for key in self]]

    @classmethod
    def from_wire(cls, wire: Any) -> Keys:
        """Return the keys."""
        dues, offsets = wire
        if len(dues) != len(offsets):
            raise ValueError("columns of keys differ in length")
        return cls(map(key_of, dues, offsets))


class Frontier(Column):
    """One key, which may be a tombstone, or none."""

    __slots__ = ()

    def to_wire(self) -> list[Any]:
        """Return the tombstone bit, the due time and the offset; an empty list for none."""
        return [self[0] & 1, [due_of(self[0])], [offset_of(self[0])]] if self else []

    @classmethod
    def from_wire(cls, wire: Any) -> Frontier:
        """Return the key."""
        return cls(key_of(wire[1][0], wire[2][0]) | wire[0] for _ in wire[:1])


class NameColumn(Column):
    """Names of schedule ids, 0 = none; an empty one: no record has a name."""

    __slots__ = ()

    def to_wire(self) -> bytes:
        """Return 16 bytes for each name."""
        return b"".join(name.to_bytes(_NAME_BYTES, "little") for name in self)

    @classmethod
    def from_wire(cls, wire: Any) -> NameColumn:
        """Return the names."""
        places = range(0, len(wire), _NAME_BYTES)
        return cls(int.from_bytes(wire[at : at + _NAME_BYTES], "little") for at in places)


class OfLane(Message, frozen=True):
    """What concerns one target."""

    topic_id: str
    partition: int

    @property
    def lane(self) -> LaneId:
        """The target."""
        return self.topic_id, self.partition


class OfTopic(Message, frozen=True):
    """What concerns one target, with the name of its topic."""

    topic: str
    topic_id: str
    partition: int

    @property
    def lane(self) -> LaneId:
        """The target."""
        return self.topic_id, self.partition


class Batch(OfTopic, frozen=True):
    """What goes to one target in one round: one batch with exactly these sequences."""

    epoch: int
    base_sequence: int
    keys: Keys

    def without(self, cut: set[int]) -> Batch:
        """Return the batch without some keys."""
        if cut.isdisjoint(self.keys):
            return self
        kept = Keys(key for key in self.keys if key not in cut)
        return Batch(self.topic, *self.lane, self.epoch, self.base_sequence, kept)


class Parked(OfTopic, frozen=True):
    """Records that are due, and wait for their target."""

    keys: Keys
    names: NameColumn = NameColumn()
    """The names of the keys; empty: none has one."""

    def without(self, cut: set[int]) -> Parked:
        """Return the part without some keys."""
        if cut.isdisjoint(self.keys):
            return self
        kept = [index for index, key in enumerate(self.keys) if key not in cut]
        names = NameColumn(self.names[index] for index in kept) if self.names else self.names
        return Parked(self.topic, *self.lane, Keys(self.keys[index] for index in kept), names)


class Acked(OfLane, frozen=True):
    """A target has everything below a sequence in a lane's epoch."""

    epoch: int
    sequence: int


class ProducerIdAdded(Message, frozen=True, tag=0):
    """A producer id under which this partition delivers; the next one follows when a target has used up all epochs."""

    producer_id: int


class Round(Message, frozen=True, tag=1):
    """A decision on what is delivered: only what a committed round names is sent."""

    batches: tuple[Batch, ...]
    parked: tuple[Parked, ...]
    acked: tuple[Acked, ...]


class Cancelled(Message, frozen=True, tag=2):
    """Records to cancel, if they still wait at this point of the log."""

    keys: Keys


class Moved(Message, frozen=True, tag=3):
    """Records whose due time changes, if they still wait at this point of the log."""

    keys: Keys
    dues: tuple[int, ...]
    """The new due time of each."""
    names: NameColumn = NameColumn()
    """The names of the records; empty: none has one."""


class LaneLost(OfLane, frozen=True, tag=4):
    """A target does not exist any more: the records on the way to it are decided again.

    They may include records that a deposed owner had delivered without a row that says so. Those become dead letters
    although the topic had them before its deletion.
    """

    delivered_sequence: int
    """The target had everything below."""


class Rebased(OfLane, frozen=True, tag=5):
    """A target lost the producer's state: its open batches begin again at sequence 0."""

    epoch: int
    delivered_sequence: int
    """The target had everything below, in the epoch before."""


class Refused(OfLane, frozen=True, tag=10):
    """A target refuses a batch for good: its halves, and the open batches behind it, begin again at sequence 0.

    A batch of one record has no halves: that record is undeliverable.
    """

    epoch: int
    delivered_sequence: int
    """The target had everything below, in the epoch before."""
    refused_sequence: int
    """Base sequence of the refused batch."""


class RunWritten(Message, frozen=True, tag=6):
    """A run; its bytes are the record's value."""

    lowest_offset: int
    """This field, the next three and ``check``: see :class:`RunFacts`."""
    highest_offset: int
    has_tombstones: bool
    names: int
    replaces: int
    """Offset of an older copy of this run, which is not needed any more; -1 = the run is new."""
    check: int
    sums: bytes
    """The checksums of its pages."""

    @property
    def facts(self) -> RunFacts:
        """What is known of the run without opening it."""
        return RunFacts(self.lowest_offset, self.highest_offset, self.has_tombstones, self.names, self.check)


def row_of_run(facts: RunFacts, data: bytes, replaces: int = -1) -> RunWritten:
    """Return the row of a run with these bytes."""
    bounds = facts.lowest_offset, facts.highest_offset
    return RunWritten(*bounds, facts.has_tombstones, facts.names, replaces, facts.check, page_sums(data))


def sealed(keys: Sequence[int], names: Mapping[int, int]) -> tuple[RunWritten, bytes]:
    """Return the row and the bytes of a run of sorted keys; ``names``: name by key, for those that have one."""
    data = encode_run(keys, names)
    return row_of_run(replace(RunFacts.of(keys, names), check=crc32(page_sums(data))), data), data


class Relocated(Message, frozen=True, tag=9):
    """Copies of records, which follow this row in its batch; their old places are not needed any more.

    A record keeps its first offset as its identity: ``offsets`` are these, ascending.
    """

    offsets: tuple[int, ...]
    upto: int
    """How far the copying got: of what it is copied from, every needed record with a lower first offset is here."""
    replaces: tuple[int, ...] = ()
    """Offsets of the older rows with copies that it is copied from; empty: from the records' first places."""


class Verdict(StrEnum):
    """What a sender, a checker or the policy states about a half message."""

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"
    """It was checked, and is not decided yet."""
    DEAD_LETTER = "DEAD_LETTER"
    """It was checked in vain as often as allowed: it is rolled back, and its records become dead letters."""


class HalfDecision(Message, frozen=True):
    """What is stated about one half message; it has no effect on one that is already decided."""

    group: str
    txid: str
    verdict: Verdict
    check: int = -1
    """With UNKNOWN: how many checks had been answered before this one. If more have been, it is a repetition."""
    next_check_ms: int = 0
    """With UNKNOWN: when the half message is checked again."""


class HalvesDecided(Message, frozen=True, tag=8):
    """Decisions about half messages; what is committed is due at ``at_ms``."""

    decisions: tuple[HalfDecision, ...]
    at_ms: int


class HalfState(Message, frozen=True):
    """A half message in a checkpoint: held, or decided if it has an ``outcome``."""

    group: str
    txid: str
    at_ms: int
    """When it was prepared, or decided."""
    next_check_ms: int
    checks: int
    offsets: tuple[int, ...]
    outcome: str = ""
    records: int = 0
    """Of a decided one: how many records it had."""


class LaneState(OfTopic, frozen=True):
    """A target in a checkpoint."""

    epoch: int
    next_sequence: int
    acked_sequence: int
    batches: tuple[Batch, ...]
    waiting: Keys


class SpaceState(Message, frozen=True):
    """Where the bytes of the log are, in a checkpoint."""

    native_from: int = 0
    """Each needed record below this offset has a copy behind a :class:`Relocated`."""
    stretches: tuple[tuple[int, int, int, int, int], ...] = ()
    """Of each: its first offset, its bytes, its bytes of batches with records, its records, and its needed records."""
    places: tuple[tuple[int, int, int], ...] = ()
    """Of each row with copies: the lowest and highest first offset of its records, and its own offset."""


class RunState(Message, frozen=True):
    """A run in a checkpoint."""

    offset: int
    """Of its record in the log."""
    lowest_offset: int
    """Like the next three, as in :class:`RunFacts`."""
    highest_offset: int
    has_tombstones: bool
    names: int

    def facts(self, check: int) -> RunFacts:
        """Return what is known of the run without opening it."""
        return RunFacts(self.lowest_offset, self.highest_offset, self.has_tombstones, self.names, check)


class NamedKeys(Message, frozen=True):
    """Names, and the key of each."""

    names: NameColumn
    keys: Keys


class Checkpoint(Message, frozen=True, tag=7):
    """The state without the contents of runs. A replay begins with it, and reads the log from ``covers`` on."""

    number: int
    covers: int
    """Everything below this offset is in it. Records from here to its own offset came while it was being appended."""
    producer_id: int
    runs: tuple[RunState, ...]
    frontier: Frontier
    """Like the next three, as in :class:`~raylog.core.scheduling.pending.Pending`."""
    fresh: Keys
    cut: Keys
    count: int
    lanes: tuple[LaneState, ...]
    undeliverable: Keys
    halves: tuple[HalfState, ...]
    unresolved: Keys
    """Those of the undeliverable that are records of half messages without a decision after the last check."""
    named: NamedKeys
    """Each record with a schedule id that is in no run."""
    replaced: tuple[tuple[int, bool], ...]
    """Of the last records with names: the offset, and whether the record replaced one that waited under its name."""
    space: SpaceState
    checks: tuple[int, ...]
    """The ``check`` of each run."""
    more_producers: tuple[int, ...]
    """The producer ids that follow the first one, in the order in which they are used."""
    parts: tuple[tuple[int, ...], ...]
    """Of each lane: how many of the first waiting keys each of the next batches has."""


class CheckpointPart(Message, frozen=True, tag=11):
    """A piece of a checkpoint that is too large for one row; its bytes are the record's value."""

    number: int
    """The checkpoint's number."""
    index: int
    """The piece's number, from 0."""


class CheckpointEnd(Message, frozen=True, tag=12):
    """The end of a checkpoint in pieces. Pieces without this row are an unfinished checkpoint, and are ignored."""

    number: int
    covers: int
    """As in :class:`Checkpoint`."""
    places: tuple[int, ...]
    """Offsets of the pieces, in order."""


Row = (
    ProducerIdAdded
    | Round
    | Cancelled
    | Moved
    | LaneLost
    | Rebased
    | Refused
    | RunWritten
    | Checkpoint
    | CheckpointPart
    | CheckpointEnd
    | HalvesDecided
    | Relocated
)
