"""A log, an owner and targets on a desk: what the scheduler's machine needs, as plain values.

The log is a list of what was committed. Targets keep producers' sequences as partitions do: the last five batches of an
epoch are known again, an unknown producer may begin anywhere, and a gap is refused. An owner can be replaced at any
moment; the next one reads the log from its newest checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from raylog.actors.scheduling.rows import decode_key, encode_key, joined, pieces
from raylog.core.lane import Trouble
from raylog.core.received import Received
from raylog.core.scheduling.envelope import HalfId, HalfOutcome
from raylog.core.scheduling.events import (
    Append,
    DataRead,
    Deliver,
    Delivered,
    Effect,
    Event,
    HeldRecord,
    Loaded,
    MoveReceived,
    NotDelivered,
    Outcome,
    ProducerTaken,
    Reply,
    Resolve,
    Resolved,
    RowRead,
    TakeProducer,
    Target,
    Tick,
    Trim,
)
from raylog.core.scheduling.halves import HalfPolicy
from raylog.core.scheduling.keys import HELD_MS, due_of, key_of, offset_of
from raylog.core.scheduling.machine import SchedulerMachine
from raylog.core.scheduling.mover import shortened
from raylog.core.scheduling.rounds import BATCH_HEAD_BYTES
from raylog.core.scheduling.rows import (
    Batch,
    Checkpoint,
    CheckpointEnd,
    HalfDecision,
    LaneId,
    Relocated,
    Row,
)
from raylog.core.scheduling.runs import Run
from raylog.core.scheduling.settings import SchedulerSettings
from raylog.protocol.halves import DecideHalvesReply, DecideHalvesRequest
from raylog.protocol.message import Message
from raylog.protocol.scheduling import (
    CancelScheduledReply,
    CancelScheduledRequest,
    MoveScheduledReply,
    MoveScheduledRequest,
)

RECORD_BYTES = 30
ROWS_OF_A_RUN = 3_000

SMALL = SchedulerSettings(
    round_keys=8,
    batch_keys=4,
    seal_keys=6,
    seal_margin_ms=10,
    checkpoint_bytes=40 * RECORD_BYTES,
    checkpoint_rows=12,
    ack_within_ms=50,
    stretch_bytes=6 * RECORD_BYTES,
    space_min_bytes=30 * RECORD_BYTES,
    look_ms=5,
    area_records=20,
    move_records=3,
    move_pause_ms=1,
)


@dataclass
class Partition:
    """A target partition."""

    records: list[tuple[int, int]] = field(default_factory=list)
    """(offset in the log, due time) of each record, in order."""
    epoch: int = -1
    known: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=5))
    """First and next sequence of the last batches."""
    is_up: bool = True
    is_deleted: bool = False
    refuses: set[int] = field(default_factory=set)
    """Offsets of records that it never takes."""
    limit_bytes: int = 1 << 20
    """The most that it takes in one batch."""
    refusals: int = 0

    def produce(self, batch: Batch, size_bytes: int = 0) -> Trouble | None:
        """Take a batch as a leader does; None = it is stored."""
        if self.is_deleted:
            return Trouble.DELETED
        if not self.is_up:
            return Trouble.UNREACHABLE
        base, end = batch.base_sequence, batch.base_sequence + len(batch.keys)
        if batch.epoch < self.epoch:
            return Trouble.UNREACHABLE  # of a deposed owner
        if batch.epoch == self.epoch:
            if (base, end) in self.known:
                return None
            if self.known and base != self.known[-1][1]:
                return Trouble.FORGOTTEN
        elif self.epoch >= 0 and base != 0:
            return Trouble.FORGOTTEN
        if size_bytes > self.limit_bytes or any(offset_of(key) in self.refuses for key in batch.keys):
            self.refusals += 1
            return Trouble.REFUSED
        if batch.epoch != self.epoch:
            self.epoch = batch.epoch
            self.known.clear()
        self.known.append((base, end))
        self.records += [(offset_of(key), due_of(key)) for key in batch.keys]
        return None


@dataclass
class Desk:
    """Everything around the machine."""

    settings: SchedulerSettings = SMALL
    now_ms: int = 1_000
    log: list[tuple[int, DataRead | tuple[bytes, bytes]]] = field(default_factory=list)
    """(offset, a batch of records as its event, or the stored form of a row with its value)."""
    end: int = 0
    start: int = 0
    targets: dict[LaneId, Partition] = field(default_factory=dict)
    to: dict[int, LaneId] = field(default_factory=dict)
    """Where the record at an offset goes; the first target otherwise."""
    unplaced: set[LaneId] = field(default_factory=set)
    """Targets whose topics' metadata is not known at the moment."""
    answers: dict[int, tuple[tuple[Outcome, int], ...]] = field(default_factory=dict)
    standings: dict[int, tuple[HalfOutcome, ...]] = field(default_factory=dict)
    policy: HalfPolicy = field(default_factory=HalfPolicy)
    held: list[Effect] = field(default_factory=list)
    """Effects that are not carried out yet, where a test holds them."""
    holds: bool = False
    requests: int = 0
    requested: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The keys of each request to cancel or move."""
    name_of: dict[int, int] = field(default_factory=dict)
    """Names of records, by offset."""
    size_of: dict[int, int] = field(default_factory=dict)
    """Sizes of records, by offset; those of others are RECORD_BYTES."""
    part_bytes: int = 1 << 20
    """A checkpoint that is larger has several rows."""
    dies_at_piece: int = -1
    """The owner dies before it appends this piece of a checkpoint; -1 = it does not."""
    read_bytes: int = 1 << 30
    """So much is read of records to find their targets, at most, or one record."""
    producers: int = 7
    """Last producer id that was taken."""
    batches: list[Batch] = field(default_factory=list)
    """What was sent, in order."""
    copies: dict[int, set[int]] = field(default_factory=dict)
    """First offsets of the records behind rows that move them."""
    copied_bytes: int = 0
    machine: SchedulerMachine = field(init=False)
    _inbox: deque[Event] = field(default_factory=deque)
    _is_feeding: bool = False

    def __post_init__(self) -> None:
        """Begin with one target and an owner."""
        self.targets.setdefault(("t" * 4, 0), Partition())
        self.targets.setdefault(("undeliverable", 0), Partition())
        self.replace_owner()

    # ------------------------------------------------------------ the log

    def read_run(self, run: Run, start: int, stop: int) -> bytes:
        return self.run_at(run.offset)[start:stop]

    def run_at(self, offset: int) -> bytes:
        for at, entry in self.log:
            if at == offset:
                assert isinstance(entry, tuple)
                assert offset >= self.start, "a run that is needed was deleted"
                return entry[1]
        raise AssertionError(f"no run at {offset}")

    def schedule(self, *dues: int, to: LaneId | None = None, names: dict[int, int] | None = None) -> list[int]:
        """Append records that are due at these times; returns their keys. ``names``: those of some, by their index."""
        base, self.end = self.end, self.end + len(dues)
        named = tuple((base + index, name) for index, name in sorted((names or {}).items()))
        self.name_of |= dict(named)
        size = RECORD_BYTES * len(dues)
        self.log.append((base, DataRead(base_offset=base, dues=tuple(dues), size_bytes=size, names=named)))
        for index in range(len(dues)):
            if to is not None:
                self.to[base + index] = to
        self._read_on()
        return [key_of(due, base + index) for index, due in enumerate(dues)]

    def prepare(
        self, name: HalfId, *, check_after_ms: int = 100, records: int = 1, to: LaneId | None = None
    ) -> list[int]:
        """Append records of a half message, one batch; returns their offsets."""
        base, self.end = self.end, self.end + records
        offsets = list(range(base, self.end))
        held = tuple(HeldRecord(offset, name, check_after_ms) for offset in offsets)
        dues = (HELD_MS + self.now_ms,) * records
        self.log.append((base, DataRead(base_offset=base, dues=dues, size_bytes=RECORD_BYTES * records, held=held)))
        if to is not None:
            self.to |= dict.fromkeys(offsets, to)
        self._read_on()
        return offsets

    def decide(self, *decisions: HalfDecision) -> int:
        """Request decisions about half messages; the answer comes to ``standings`` under the number returned."""
        each = [(decision.txid, decision.verdict, decision.check) for decision in decisions]
        return self._request(DecideHalvesRequest("", 0, -1, decisions[0].group, *map(list, zip(*each, strict=True))))

    def _request(self, message: Message, keys: tuple[int, ...] = (), name: int = 0) -> int:
        self.requests += 1
        self.requested[self.requests] = keys
        given = {"message": message, "cause": "test", "request": self.requests, "now_ms": self.now_ms}
        is_move = isinstance(message, MoveScheduledRequest)
        self._feed(MoveReceived(**given, name=name) if is_move else Received(**given))  # type: ignore[arg-type]
        return self.requests

    def append(self, row: Row, value: bytes = b"") -> None:
        if isinstance(row, Checkpoint) and (parts := pieces(row, self.part_bytes)):
            places = []
            for part, data in parts:
                if part.index == self.dies_at_piece:
                    self.dies_at_piece = -1
                    return
                places.append(self.end)
                self.append(part, data)
            row = CheckpointEnd(row.number, row.covers, tuple(places))
        base, self.end = self.end, self.end + 1
        if isinstance(row, Relocated):
            if base % 2:
                row = shortened(row, 2)  # as if no more had room in a batch
            for offset in row.offsets:
                assert self.place_of(offset) >= self.start, "a record that is moved was deleted"
            self.copies[base] = set(row.offsets)
            self.copied_bytes += RECORD_BYTES * len(row.offsets)
            self.end += len(row.offsets)
        self.log.append((base, (encode_key(row), value)))
        self._read_on()

    def _read_on(self) -> None:
        while self._read < len(self.log):
            offset, entry = self.log[self._read]
            self._read += 1
            self._feed(self._event(offset, entry))
        self._feed(Tick(now_ms=self.now_ms))

    def _event(self, offset: int, entry: DataRead | tuple[bytes, bytes]) -> DataRead | RowRead:
        if isinstance(entry, DataRead):
            return entry
        row, value = decode_key(entry[0]), entry[1]
        records = len(row.offsets) if isinstance(row, Relocated) else 0
        return RowRead(offset=offset, row=row, size_bytes=RECORD_BYTES * (1 + records) + len(value), value=value)

    def _read_at(self, offset: int) -> RowRead:
        (read,) = (self._event(*entry) for entry in self.log if entry[0] == offset)
        assert isinstance(read, RowRead)
        return read

    def row_at(self, offset: int) -> Row:
        return self._read_at(offset).row

    def place_of(self, offset: int) -> int:
        """Where the record with a first offset can be read, as the machine knows."""
        row = self.machine.space.row_of(offset)
        if row is None:
            return offset
        assert offset in self.copies[row], "a record is not in the row that should have it"
        return row

    # ------------------------------------------------------------ owners

    def replace_owner(self) -> None:
        """Begin the next leadership: what the last owner had under way is lost, or comes late."""
        self.held = []
        self.machine = machine = SchedulerMachine(self.read_run, self.settings)
        machine.halves.follow(self.policy)
        self._read = 0
        for index in range(len(self.log) - 1, -1, -1):
            read = self._event(*self.log[index])
            if isinstance(read, RowRead):
                row = read.row
                if isinstance(row, CheckpointEnd):
                    assert row.places[0] >= self.start, "a piece of the newest checkpoint was deleted"
                    row = joined(row, [self._read_at(place) for place in row.places])
                if isinstance(row, Checkpoint):
                    machine.restore(row, lambda at, _: self.run_at(at))
                    assert row.covers >= self.start
                    self._read = next(number for number, (at, _) in enumerate(self.log) if at >= row.covers)
                    break
        self._read_on()
        self._feed(Loaded(now_ms=self.now_ms, producer_id=7))

    def cancel(self, *keys: int) -> int:
        """Request a cancellation; its answer comes to ``answers`` under the number returned."""
        dues, places = [due_of(key) for key in keys], [offset_of(key) for key in keys]
        return self._request(CancelScheduledRequest("", 0, -1, dues, places), keys)

    def move(self, key: int, due_ms: int) -> int:
        message = MoveScheduledRequest("", 0, -1, due_of(key), offset_of(key), due_ms)
        return self._request(message, (key,), self.name_of.get(offset_of(key), 0))

    def tick(self, ms: int = 0) -> None:
        """Let time pass, in one step."""
        self.now_ms += ms
        self._feed(Tick(now_ms=self.now_ms))

    def run(self, ms: int) -> None:
        """Let time pass as a timer would: the machine says when it wants to be called.

        A machine that appends row after row (the most seen in sound histories is 350) is stopped here: it would
        take minutes to show what it does at once.
        """
        until = self.now_ms + ms
        most = len(self.log) + ROWS_OF_A_RUN
        while self.now_ms < until:
            due = self.machine.next_due_ms()
            self.now_ms = until if due is None else min(until, max(due, self.now_ms + 1))
            self.tick()
            assert len(self.log) <= most, "D11: the machine appends without end"

    def _feed(self, event: Event) -> None:
        """Take an event; those that its effects bring come after it, as in the shell."""
        self._inbox.append(event)
        if self._is_feeding:
            return
        self._is_feeding = True
        most = len(self.log) + ROWS_OF_A_RUN
        try:
            while self._inbox:
                assert len(self.log) <= most, "D11: the machine appends without end"
                for effect in self.machine.step(self._inbox.popleft()).now:
                    if self.holds and isinstance(effect, Deliver | Append):
                        self.held.append(effect)
                    else:
                        self.carry_out(effect)
        finally:
            self._inbox.clear()
            self._is_feeding = False

    def release(self, count: int | None = None) -> None:
        """Carry out what is held, the oldest first."""
        now, self.held = self.held[:count], [] if count is None else self.held[count:]
        for effect in now:
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Append():
                self.append(effect.row, effect.value)
            case Resolve():
                self._feed(Resolved(now_ms=self.now_ms, targets=self.resolved(effect.keys)))
            case TakeProducer():
                self.producers += 1
                self._feed(ProducerTaken(now_ms=self.now_ms, producer_id=self.producers))
            case Deliver():
                self.deliver(effect.batch)
            case Reply(message=DecideHalvesReply(standings=words)):
                self.standings[effect.request] = tuple(map(HalfOutcome, words))
            case Reply(message=MoveScheduledReply() as moved):
                (key,) = self.requested[effect.request]
                self.answers[effect.request] = ((Outcome(moved.outcome), key_of(moved.due_ms, offset_of(key))),)
            case Reply(message=CancelScheduledReply(outcomes=words)):
                keys = self.requested[effect.request]
                self.answers[effect.request] = tuple(zip(map(Outcome, words), keys, strict=True))
            case Trim():
                self.start = max(self.start, effect.before_offset)

    def deliver(self, batch: Batch) -> None:
        for key in batch.keys:
            assert self.place_of(offset_of(key)) >= self.start, "a record that is delivered was deleted"
        self.batches.append(batch)
        trouble = self.targets[batch.lane].produce(batch, self.bytes_of(batch))
        at = {"now_ms": self.now_ms, "lane": batch.lane, "epoch": batch.epoch, "base_sequence": batch.base_sequence}
        if trouble is None:
            self._feed(Delivered(**at))  # type: ignore[arg-type]
        else:
            self._feed(NotDelivered(**at, trouble=trouble))  # type: ignore[arg-type]

    def bytes_of(self, batch: Batch) -> int:
        return sum(self.size_of.get(offset_of(key), RECORD_BYTES) for key in batch.keys)

    def resolved(self, keys: tuple[int, ...]) -> tuple[Target, ...]:
        """The targets of the first keys, as far as one turn reads them."""
        found: list[Target] = []
        left = self.read_bytes
        for key in keys:
            found.append(self.target(key))
            left -= found[-1].size_bytes
            if left <= 0:
                break
        return tuple(found)

    def target(self, key: int) -> Target:
        assert self.place_of(offset_of(key)) >= self.start, "a record that is needed was deleted"
        lane = self.to.get(offset_of(key), ("tttt", 0))
        name = self.name_of.get(offset_of(key), 0)
        if key in self.machine.undeliverable or self.targets[lane].is_deleted:
            lane, name = ("undeliverable", 0), 0
        elif lane in self.unplaced:
            lane = (lane[0], -1)
        size = self.size_of.get(offset_of(key), RECORD_BYTES)
        limit = self.targets[lane].limit_bytes + BATCH_HEAD_BYTES if lane in self.targets else 0
        return Target(key=key, topic=lane[0], lane=lane, size_bytes=size, name=name, limit_bytes=limit)

    # ------------------------------------------------------------ what can be seen

    def got(self, lane: LaneId = ("tttt", 0)) -> list[int]:
        """Offsets of the records that a target has."""
        return [offset for offset, _ in self.targets[lane].records]

    def everywhere(self) -> list[int]:
        return sorted(offset for target in self.targets.values() for offset, _ in target.records)


def offsets(keys: Iterable[int]) -> list[int]:
    return [offset_of(key) for key in keys]


def with_settings(**changed: int) -> Desk:
    return Desk(settings=replace(SMALL, **changed))
