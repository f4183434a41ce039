"""The rows that the owner of a partition of ``__scheduled`` writes beside the records, as wire lists. Pure.

Each row is one record without a producer id: that distinguishes it from the producers' records. Its first field is its
kind. A kind that this release does not know ends the replay, because the state would lack what the row decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from zlib import crc32

from raylog.core.scheduling.keys import due_of, key_of, offset_of
from raylog.core.scheduling.runs import RunFacts, encode_run, page_sums

Wire = list[Any]
LaneId = tuple[str, int]
"""Topic id and partition of a target; partition -1: the topic's partitions were not known when the record was due."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A producer id under which this partition delivers; the next one follows when a target has used up all epochs."""

    producer_id: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes to one target in one round: one batch with exactly these sequences."""

    topic: str
    lane: LaneId
    epoch: int
    base_sequence: int
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parked:
    """Records that are due, and wait for their target."""

    topic: str
    lane: LaneId
    keys: tuple[int, ...]
    names: tuple[int, ...] = ()
    """The names of the keys, 0 = none; empty: none has one."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A target has everything below a sequence in a lane's epoch."""

    lane: LaneId
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Round:
    """A decision on what is delivered: only what a committed round names is sent."""

    batches: tuple[Batch, ...] = ()
    parked: tuple[Parked, ...] = ()
    noted: tuple[Noted, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Records to cancel, if they still wait at this point of the log."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """Records whose due time changes, if they still wait at this point of the log."""

    moves: tuple[tuple[int, int], ...]
    """Key, and the new due time."""
    names: tuple[int, ...] = ()
    """The names of the records, 0 = none; empty: none has one."""


@dataclass(frozen=True, slots=True)
class LaneLost:
    """A target does not exist any more: the records on the way to it are decided again.

    They may include records that a deposed owner had delivered without noting it. Those become dead letters although
    the topic had them before its deletion.
    """

    lane: LaneId
    delivered_sequence: int
    """The target had everything below."""


@dataclass(frozen=True, slots=True)
class Rebased:
    """A target lost the producer's state: its open batches begin again at sequence 0."""

    lane: LaneId
    epoch: int
    delivered_sequence: int
    """The target had everything below, in the epoch before."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A target refuses a batch for good: its halves, and the open batches behind it, begin again at sequence 0.

    A batch of one record has no halves: that record is undeliverable.
    """

    lane: LaneId
    epoch: int
    delivered_sequence: int
    """The target had everything below, in the epoch before."""
    refused_sequence: int
    """Base sequence of the refused batch."""


@dataclass(frozen=True, slots=True)
class RunWritten:
    """A run; its bytes are the value of the record."""

    facts: RunFacts
    data: bytes = field(repr=False, default=b"")
    replaces: int = -1
    """Offset of an older copy of this run, which is not needed any more; -1 = the run is new."""


def sealed(keys: Sequence[int], names: Mapping[int, int]) -> RunWritten:
    """Return the row of a run of sorted keys; ``names``: name by key, for those that have one."""
    data = encode_run(keys, names)
    return RunWritten(replace(RunFacts.of(keys, names), check=crc32(page_sums(data))), data)


def sums_of(wire: Sequence[Any]) -> bytes:
    """Return the page checksums in a stored run row; empty for other rows."""
    return bytes(wire[7]) if wire[0] == _RUN else b""


@dataclass(frozen=True, slots=True)
class Relocated:
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


@dataclass(frozen=True, slots=True)
class Decision:
    """What is stated about one half message; it has no effect on one that is already decided."""

    group: str
    txid: str
    verdict: Verdict
    check: int = -1
    """With UNKNOWN: how many checks had been answered before this one. If more have been, it is a repetition."""
    next_check_ms: int = 0
    """With UNKNOWN: when the half message is checked again."""


@dataclass(frozen=True, slots=True)
class HalvesDecided:
    """Decisions about half messages; what is committed is due at ``at_ms``."""

    decisions: tuple[Decision, ...]
    at_ms: int


@dataclass(frozen=True, slots=True)
class HalfState:
    """A half message in a checkpoint: held, or decided if it has a ``standing``."""

    group: str
    txid: str
    at_ms: int
    """When it was prepared, or decided."""
    next_check_ms: int
    checks: int
    offsets: tuple[int, ...]
    standing: str = ""
    records: int = 0
    """Of a decided one: how many records it had."""


@dataclass(frozen=True, slots=True)
class LaneState:
    """A target in a checkpoint."""

    topic: str
    lane: LaneId
    epoch: int
    next_sequence: int
    noted_sequence: int
    batches: tuple[Batch, ...] = ()
    waiting: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()
    """How many of the first waiting keys each of the next batches has."""


@dataclass(frozen=True, slots=True)
class SpaceState:
    """Where the bytes of the log are, in a checkpoint."""

    native_from: int = 0
    """Each needed record below this offset has a copy behind a :class:`Relocated`."""
    stretches: tuple[tuple[int, int, int, int, int], ...] = ()
    """Of each: its first offset, its bytes, its bytes of batches with records, its records, and its needed records."""
    places: tuple[tuple[int, int, int], ...] = ()
    """Of each row with copies: the lowest and highest first offset of its records, and its own offset."""

    def wire(self) -> Wire:
        """Return the stored form."""
        return [self.native_from, [list(each) for each in self.stretches], [list(each) for each in self.places]]

    @classmethod
    def of(cls, wire: Sequence[Any]) -> SpaceState:
        """Return the state."""
        native_from, stretches, places = wire
        return cls(native_from, tuple(tuple(each) for each in stretches), tuple(tuple(each) for each in places))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state without the contents of runs. A replay begins with it, and reads the log from ``covers`` on."""

    number: int
    covers: int
    """Everything below this offset is in it. Records from here to its own offset came while it was being appended."""
    producer_id: int
    runs: tuple[tuple[int, RunFacts], ...] = ()
    """Offset of each run, and its facts."""
    frontier: int = -1
    """Like the next three, as in :class:`~raylog.core.scheduling.pending.Pending`."""
    fresh: tuple[int, ...] = ()
    cut: tuple[int, ...] = ()
    count: int = 0
    lanes: tuple[LaneState, ...] = ()
    undeliverable: tuple[int, ...] = ()
    halves: tuple[HalfState, ...] = ()
    unresolved: tuple[int, ...] = ()
    """Those of the undeliverable that are records of half messages without a decision after the last check."""
    named: tuple[tuple[int, int], ...] = ()
    """Name and key of each record with a schedule id that is in no run."""
    replaced: tuple[tuple[int, bool], ...] = ()
    """Of the last records with names: the offset, and whether the record replaced one that waited under its name."""
    space: SpaceState = field(default_factory=SpaceState)
    more_producers: tuple[int, ...] = ()
    """The producer ids that follow the first one, in the order in which they are used."""


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """A piece of a checkpoint that is too large for one row; its bytes are the value of the record."""

    number: int
    """The checkpoint's number."""
    index: int
    """The piece's number, from 0."""
    data: bytes = field(repr=False, default=b"")


@dataclass(frozen=True, slots=True)
class CheckpointEnd:
    """The end of a checkpoint in pieces. Pieces without this row are an unfinished checkpoint, and are ignored."""

    number: int
    covers: int
    """As in :class:`Checkpoint`."""
    places: tuple[int, ...]
    """Offsets of the pieces, in order."""


Row = (
    Identity
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

(
    _IDENTITY,
    _ROUND,
    _CANCELLED,
    _MOVED,
    _LOST,
    _REBASED,
    _RUN,
    _CHECKPOINT,
    _HALVES,
    _RELOCATED,
    _REFUSED,
    _PART,
    _END,
) = range(13)
_NAME_BYTES: Final = 16


def _wire_keys(keys: Sequence[int]) -> Wire:
    return [[due_of(key) for key in keys], [offset_of(key) for key in keys]]


def _keys(wire: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(key_of(due, offset) for due, offset in zip(wire[0], wire[1], strict=True))


def _wire_names(names: Sequence[int]) -> bytes:
    return b"".join(name.to_bytes(_NAME_BYTES, "little") for name in names)


def _names(wire: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(wire[at : at + _NAME_BYTES], "little") for at in range(0, len(wire), _NAME_BYTES))


def _wire_facts(facts: RunFacts) -> Wire:
    return [facts.lowest_offset, facts.highest_offset, facts.has_tombstones, facts.names]


def _facts(wire: Sequence[Any], check: int) -> RunFacts:
    return replace(RunFacts(*wire), check=check)


def _wire_batch(batch: Batch) -> Wire:
    return [batch.topic, *batch.lane, batch.epoch, batch.base_sequence, _wire_keys(batch.keys)]


def _batch(wire: Sequence[Any]) -> Batch:
    topic, topic_id, partition, epoch, base_sequence, keys = wire
    return Batch(topic, (topic_id, partition), epoch, base_sequence, _keys(keys))


def to_wire(row: Row) -> Wire:
    """Return a row as it is stored; the data of a run or of a piece goes into the record's value."""
    match row:
        case Identity():
            return [_IDENTITY, row.producer_id]
        case Round():
            parked = [[each.topic, *each.lane, _wire_keys(each.keys), _wire_names(each.names)] for each in row.parked]
            noted = [[*each.lane, each.epoch, each.sequence] for each in row.noted]
            return [_ROUND, [_wire_batch(each) for each in row.batches], parked, noted]
        case Cancelled():
            return [_CANCELLED, _wire_keys(row.keys)]
        case Moved():
            keys = _wire_keys([key for key, _ in row.moves])
            return [_MOVED, keys, [due for _, due in row.moves], _wire_names(row.names)]
        case LaneLost():
            return [_LOST, *row.lane, row.delivered_sequence]
        case Rebased():
            return [_REBASED, *row.lane, row.epoch, row.delivered_sequence]
        case Refused():
            return [_REFUSED, *row.lane, row.epoch, row.delivered_sequence, row.refused_sequence]
        case RunWritten():
            return [_RUN, *_wire_facts(row.facts), row.replaces, row.facts.check, page_sums(row.data)]
        case Checkpoint():
            return _wire_checkpoint(row)
        case HalvesDecided():
            decisions = [
                [each.group, each.txid, each.verdict, each.check, each.next_check_ms] for each in row.decisions
            ]
            return [_HALVES, decisions, row.at_ms]
        case CheckpointPart():
            return [_PART, row.number, row.index]
        case CheckpointEnd():
            return [_END, row.number, row.covers, list(row.places)]
        case Relocated():
            return [_RELOCATED, list(row.offsets), row.upto, list(row.replaces)]


def _wire_checkpoint(row: Checkpoint) -> Wire:
    frontier = [] if row.frontier < 0 else [row.frontier & 1, *_wire_keys([row.frontier])]
    lanes = [
        [
            lane.topic,
            *lane.lane,
            lane.epoch,
            lane.next_sequence,
            lane.noted_sequence,
            [_wire_batch(batch) for batch in lane.batches],
            _wire_keys(lane.waiting),
        ]
        for lane in row.lanes
    ]
    return [
        _CHECKPOINT,
        row.number,
        row.covers,
        row.producer_id,
        [[offset, *_wire_facts(facts)] for offset, facts in row.runs],
        frontier,
        _wire_keys(row.fresh),
        _wire_keys(row.cut),
        row.count,
        lanes,
        _wire_keys(row.undeliverable),
        [_wire_half(half) for half in row.halves],
        _wire_keys(row.unresolved),
        [_wire_names([name for name, _ in row.named]), _wire_keys([key for _, key in row.named])],
        [list(each) for each in row.replaced],
        row.space.wire(),
        [facts.check for _, facts in row.runs],
        list(row.more_producers),
        [list(lane.parts) for lane in row.lanes],
    ]


def _wire_half(half: HalfState) -> Wire:
    offsets = list(half.offsets)
    return [half.group, half.txid, half.at_ms, half.next_check_ms, half.checks, offsets, half.standing, half.records]


def from_wire(wire: Sequence[Any], data: bytes = b"") -> Row:
    """Return the row; ``data`` is the record's value. Raises ValueError for a kind that this release does not know."""
    kind, *fields = wire
    match kind:
        case 0:
            return Identity(fields[0])
        case 1:
            batches, parked, noted = fields[:3]
            return Round(
                tuple(_batch(each) for each in batches),
                tuple(
                    Parked(topic, (topic_id, number), _keys(keys), _names(rest[0]) if rest else ())
                    for topic, topic_id, number, keys, *rest in parked
                ),
                tuple(Noted((topic_id, number), epoch, end) for topic_id, number, epoch, end in noted),
            )
        case 2:
            return Cancelled(_keys(fields[0]))
        case 3:
            names = _names(fields[2]) if len(fields) > 2 else ()
            return Moved(tuple(zip(_keys(fields[0]), fields[1], strict=True)), names)
        case 4:
            return LaneLost((fields[0], fields[1]), fields[2])
        case 5:
            return Rebased((fields[0], fields[1]), fields[2], fields[3])
        case 6:
            return RunWritten(_facts(fields[:4], fields[5]), data, fields[4])
        case 7:
            return _checkpoint(fields)
        case 8:
            decisions = tuple(
                Decision(group, txid, Verdict(verdict), check, next_ms)
                for group, txid, verdict, check, next_ms in fields[0]
            )
            return HalvesDecided(decisions, fields[1])
        case 9:
            return Relocated(tuple(fields[0]), fields[1], tuple(fields[2]))
        case 10:
            return Refused((fields[0], fields[1]), fields[2], fields[3], fields[4])
        case 11:
            return CheckpointPart(fields[0], fields[1], data)
        case 12:
            return CheckpointEnd(fields[0], fields[1], tuple(fields[2]))
    raise ValueError(f"A row of kind {kind!r} is in __scheduled; a newer release is needed to read it.")


def _checkpoint(fields: Sequence[Any]) -> Checkpoint:
    number, covers, producer_id, runs, frontier, fresh, cut, count, lanes = fields[:9]
    undeliverable, halves, unresolved, (names, named), replaced, space, checks, more_producers, parts = fields[9:18]
    return Checkpoint(
        number=number,
        covers=covers,
        producer_id=producer_id,
        runs=tuple((at, _facts(facts, check)) for (at, *facts), check in zip(runs, checks, strict=True)),
        frontier=_keys(frontier[1:])[0] | frontier[0] if frontier else -1,
        fresh=_keys(fresh),
        cut=_keys(cut),
        count=count,
        lanes=tuple(_lane_state(lane, each) for lane, each in zip(lanes, parts, strict=True)),
        undeliverable=_keys(undeliverable),
        halves=tuple(_half_state(half) for half in halves),
        unresolved=_keys(unresolved),
        named=tuple(zip(_names(names), _keys(named), strict=True)),
        replaced=tuple((offset, bool(was)) for offset, was in replaced),
        space=SpaceState.of(space),
        more_producers=tuple(more_producers),
    )


def _half_state(wire: Sequence[Any]) -> HalfState:
    group, txid, at_ms, next_check_ms, checks, offsets, standing, records = wire
    return HalfState(group, txid, at_ms, next_check_ms, checks, tuple(offsets), standing, records)


def _lane_state(wire: Sequence[Any], parts: Sequence[int]) -> LaneState:
    topic, topic_id, partition, epoch, next_sequence, noted, batches, waiting = wire
    return LaneState(
        topic,
        (topic_id, partition),
        epoch,
        next_sequence,
        noted,
        tuple(_batch(each) for each in batches),
        _keys(waiting),
        tuple(parts),
    )
