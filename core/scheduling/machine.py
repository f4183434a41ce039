"""The scheduler as a state machine: one partition of ``__scheduled``, at its leader. Pure.

The log decides. What producers and owners appended is read back in log order, and nothing else changes what waits and
what is sent: a new leader that reads the same log comes to the same state. So an append of unknown outcome is harmless.
A row of a deposed leader is either in the log, where each leader reads it at the same place, or nowhere (ADR 0056).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, assert_never

from raylog.base.errors import InvalidRequest
from raylog.base.invariants import require
from raylog.core.decision import Refuse
from raylog.core.lane import Remedy
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.core.scheduling.commands import Commands, row_of
from raylog.core.scheduling.envelope import HalfOutcome
from raylog.core.scheduling.events import (
    Append,
    Command,
    DataRead,
    Deliver,
    Delivered,
    Effect,
    Event,
    Loaded,
    NotDelivered,
    Outcome,
    ProducerTaken,
    Resolve,
    Resolved,
    RowRead,
    TakeProducer,
    Tick,
    Trim,
    Unreadable,
)
from raylog.core.scheduling.halves import Halves
from raylog.core.scheduling.keys import HELD_MS, key_of, offset_of
from raylog.core.scheduling.lanes import TargetLane
from raylog.core.scheduling.mover import Mover
from raylog.core.scheduling.names import Names
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.rounds import Rounds
from raylog.core.scheduling.rows import (
    Cancelled,
    Checkpoint,
    CheckpointEnd,
    CheckpointPart,
    Frontier,
    HalfDecision,
    HalvesDecided,
    Keys,
    LaneId,
    LaneLost,
    Moved,
    NameColumn,
    NamedKeys,
    ProducerIdAdded,
    Rebased,
    Refused,
    Relocated,
    Round,
    Row,
    RunState,
    RunWritten,
    sealed,
)
from raylog.core.scheduling.runs import ReadBlock, Run, RunFacts
from raylog.core.scheduling.settings import SchedulerSettings
from raylog.core.scheduling.space import Space

NO_PRODUCER: Final = -1
EPOCHS: Final = 1 << 15
"""Epochs of one producer id. A lane that used all of them goes on with the next id."""
MOVES_REMEMBERED: Final = 100_000
"""Most keys in ``moved``."""


class SchedulerMachine:
    """The records of one partition of ``__scheduled``, from the log to their targets."""

    def __init__(self, read: ReadBlock, settings: SchedulerSettings) -> None:
        """Begin with an empty log; ``read`` returns a part of a run."""
        self.settings = settings
        self.pending = Pending(read)
        self.names = Names(self.pending, read)
        self.halves = Halves()
        self.space = Space(settings.stretch_bytes)
        self.mover = Mover(self.pending, self.space, read, self.needed, settings.move_records)
        self.rounds = Rounds(self.pending, self.names, self.mover, settings)
        self.producer_ids: list[int] = []
        """The ids under which this partition delivers: a lane in epoch ``e`` uses the one at ``e // EPOCHS``."""
        self.read_end = 0
        """Next offset of the log to read."""
        self.undeliverable: set[int] = set()
        """Keys whose targets refused them for good, and those in ``unresolved``: they become dead letters."""
        self.unresolved: set[int] = set()
        """Keys of half messages that had no decision after the last check."""
        self.unreadable_count = 0
        """How many records of the log could not be opened, of those that this leadership has read."""
        self.delivered_count = self.cancelled_count = 0
        """Since this leadership began."""
        self.moved: dict[int, None] = {}
        """Keys that records got by changes of their due time, newest last: known even after their delivery."""
        self._checkpoint_number = 0
        self._bytes_since = self._rows_since = 0
        self._checkpoint_bytes = 0
        """Bytes of the newest checkpoint's pieces, which the log has to keep; 0 = it is one row."""
        self._is_loaded = False
        self._appending: Row | None = None
        self._takes_producer = False
        self._spare_producer = NO_PRODUCER
        """A new producer id that is in no row yet."""
        self._commands = Commands()
        self._space_at_ms = 0
        """When the next step towards freeing space may be taken."""
        self._frees_space = False
        """Whether a checkpoint is due so that the beginning of the log can be deleted."""
        self._looks_for_space = False
        """Whether records have left since the length of the log was last checked."""

    @property
    def is_busy(self) -> bool:
        """Whether records wait or are on their way: the partition must not fall asleep, since nothing would wake it."""
        return not self._is_loaded or self.pending.count > 0 or bool(self.halves.held) or not self.rounds.is_done

    @property
    def lanes(self) -> dict[LaneId, TargetLane]:
        """The targets' lanes."""
        return self.rounds.lanes

    def writer(self, epoch: int) -> tuple[int, int]:
        """Return the producer id and producer epoch for the batches of a lane's epoch."""
        return self.producer_ids[epoch // EPOCHS], epoch % EPOCHS

    def waits(self, key: int) -> bool:
        """Whether a record is neither cancelled nor on its way to its target."""
        return self.rounds.waits(key) or self.pending.holds(key)

    # ------------------------------------------------------------ events

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event."""
        out: Outbox[Effect] = Outbox()
        match event:
            case DataRead():
                self._data_read(event)
                return out
            case Unreadable():
                self._unreadable_read(event)
                return out
            case RowRead():
                self._row_read(event, out)
                return out
            case Loaded():
                self._loaded(event, out)
            case Tick():
                pass
            case ProducerTaken():
                self._takes_producer, self._spare_producer = False, event.producer_id
            case Resolved():
                self._append_round(self.rounds.resolved(event), out)
            case Delivered():
                batch = self.rounds.answered(event)
                self.delivered_count += 0 if batch is None else len(batch.keys)
            case NotDelivered():
                self.rounds.answered(event)
            case Received():
                self._received(event, out)
            case _:
                assert_never(event)
        self._decide(event.now_ms, out)
        return out

    def next_due_ms(self) -> int | None:
        """Return when a :class:`Tick` has something to do if no other event comes first; None = never."""
        if not self._is_loaded or self._appending is not None or self.rounds.resolving:
            return None
        moments = [self.pending.next_due_ms(), *self.rounds.moments()]
        if self.mover.end is not None or self._frees_space or self._looks_for_space:
            moments.append(self._space_at_ms)
        return min((moment for moment in moments if moment is not None), default=None)

    def _received(self, command: Command, out: Outbox[Effect]) -> None:
        try:
            self._commands.add(command.request, row_of(command, self.halves.policy.interval_ms))
        except InvalidRequest as error:
            out.now.append(Refuse(cause=command.cause, request=command.request, error=error))

    # ------------------------------------------------------------ the log

    def _loaded(self, event: Loaded, out: Outbox[Effect]) -> None:
        self._is_loaded = True
        self.pending.align()
        if not self.producer_ids:
            self._append(ProducerIdAdded(event.producer_id), out)

    def _data_read(self, event: DataRead) -> None:
        self.space.appended(event.base_offset, event.size_bytes, len(event.dues))
        dues = enumerate(event.dues, event.base_offset)
        self.pending.add(key_of(due, offset) for offset, due in dues if due < HELD_MS)
        for offset, name in event.names:
            self._named(name, key_of(event.dues[offset - event.base_offset], offset))
        for held in event.held:
            timestamp_ms = event.dues[held.offset - event.base_offset]
            if not self.halves.prepared(held.name, held.offset, timestamp_ms, held.check_after_ms):
                self._left(held.offset)
        self._bytes_since += event.size_bytes
        self.read_end = event.base_offset + len(event.dues)

    def _unreadable_read(self, event: Unreadable) -> None:
        self.space.appended(event.base_offset, event.size_bytes)
        self._bytes_since += event.size_bytes
        self.read_end = event.base_offset + event.records
        self.unreadable_count += event.records

    def _named(self, name: int, key: int) -> None:
        """Have a record replace the one that waits under its name."""
        earlier = self.names.waiting(name, self.rounds.taken)
        is_replaced = earlier is not None and self._cancel(earlier) is Outcome.DONE
        if earlier is not None and is_replaced:
            self._left(offset_of(earlier))
        self.names.set(name, key)
        self.names.answer(offset_of(key), is_replaced=is_replaced)

    def _left(self, offset: int) -> None:
        """Note that a record is not needed any more."""
        self.space.left(offset)
        self.mover.left(offset)
        self._looks_for_space = True

    def _row_read(self, event: RowRead, out: Outbox[Effect]) -> None:
        row = event.row
        if not isinstance(row, Relocated):
            self.space.appended(event.offset, event.size_bytes)
        self._bytes_since += event.size_bytes
        self._rows_since += 1
        self.read_end = event.offset + 1
        if isinstance(row, CheckpointPart):  # its checkpoint is being appended until CheckpointEnd is read
            self._checkpoint_bytes = event.size_bytes + (self._checkpoint_bytes if row.index else 0)
            return
        outcomes: Sequence[tuple[Outcome | HalfOutcome, int]] = ()
        match row:
            case ProducerIdAdded():
                if row.producer_id not in self.producer_ids:
                    self.producer_ids.append(row.producer_id)
            case Round():
                self._done(self.rounds.committed(row, is_replay=not self._is_loaded))
            case Cancelled():
                outcomes = [(self._cancelled(key), key) for key in row.keys]
            case Moved():
                names = row.names or (0,) * len(row.keys)
                outcomes = [self._move(*move) for move in zip(row.keys, row.dues, names, strict=True)]
            case HalvesDecided():
                outcomes = [self._decided(decision, row.at_ms) for decision in row.decisions]
            case LaneLost():
                self._lane_lost(row)
            case Rebased():
                self._rebased(row)
            case Refused():
                self._refused(row)
            case RunWritten():
                self._run_read(Run.read(event.offset, event.value, row.facts), row.replaces)
            case Relocated():
                self.space.relocated(event.offset, row, event.size_bytes)
                self.read_end += len(row.offsets)
            case Checkpoint() | CheckpointEnd():
                self._checkpoint_read(row, out)
            case _:
                assert_never(row)
        if self._is_loaded and self._appending is not None:
            self._appending = None
            out.now.extend(self._commands.replies(outcomes))

    def _done(self, keys: Iterable[int]) -> None:
        """Note that targets have these records."""
        done = tuple(keys)
        self.undeliverable.difference_update(done)
        self.unresolved.difference_update(done)
        for key in done:
            self._left(offset_of(key))

    def _run_read(self, run: Run, replaces: int) -> None:
        if replaces >= 0:
            self.pending.replace_run(replaces, run)
        else:
            self.names.forget(self.pending.add_run(run))

    def _cancelled(self, key: int) -> Outcome:
        outcome = self._cancel(key)
        if outcome is Outcome.DONE:
            self.cancelled_count += 1
            self._left(offset_of(key))
        return outcome

    def _cancel(self, key: int) -> Outcome:
        if self.pending.holds(key):
            self.pending.cancel(key)
            return Outcome.DONE
        if self.rounds.cancel(key):
            return Outcome.DONE
        return Outcome.ALREADY_CANCELLED if self.pending.was_cancelled(key) else Outcome.ALREADY_DELIVERED

    def _move(self, key: int, due_ms: int, name: int) -> tuple[Outcome, int]:
        outcome = self._cancel(key)
        if outcome is Outcome.DONE:
            key = self.pending.free_key(due_ms, offset_of(key))
            self.pending.add([key])
            self.mover.kept([key])
            if name:
                self.names.set(name, key)
            self.moved[key] = None
            if len(self.moved) > MOVES_REMEMBERED:
                del self.moved[next(iter(self.moved))]
        return outcome, key

    def _decided(self, decision: HalfDecision, at_ms: int) -> tuple[HalfOutcome, int]:
        decided = self.halves.decide(decision, at_ms)
        keys = [key_of(at_ms, offset) for offset in decided.released]
        self.pending.add(keys)
        for offset in decided.dropped:
            self._left(offset)
        if decided.is_dead:
            self.undeliverable.update(keys)
            self.unresolved.update(keys)
        return decided.outcome, decided.records

    def _lane_lost(self, row: LaneLost) -> None:
        lane = self.lanes.pop(row.lane, None)
        if lane is not None:
            self._done(lane.done(row.delivered_sequence))
            self.pending.add([*(key for batch in lane.batches for key in batch.keys), *lane.waiting])

    def _rebased(self, row: Rebased) -> None:
        lane = self.lanes.get(row.lane)
        if lane is None or row.epoch <= lane.epoch:
            return
        self._done(lane.done(row.delivered_sequence))
        lane.rebase(row.epoch)

    def _refused(self, row: Refused) -> None:
        lane = self.lanes.get(row.lane)
        if lane is None or row.epoch <= lane.epoch:
            return
        self._done(lane.done(row.delivered_sequence))
        blamed = lane.halve(row)
        self.undeliverable.update(blamed)
        self.pending.add(blamed)

    # ------------------------------------------------------------ what is needed

    def needed(self) -> Iterator[int]:
        """Return the first offsets of the needed records whose keys are in no run."""
        yield from (offset_of(key) for key in self.pending.fresh)
        yield from self.halves.offsets
        yield from self.rounds.needed()

    def lowest_offset(self, otherwise: int) -> int:
        """Return the lowest offset of the log that is needed; ``otherwise`` if nothing is."""
        space = self.space
        places = [space.place_of(offset) for offset in self.needed()]
        for run in self.pending.runs.values():
            places.append(run.offset)
            if run.facts.highest_offset >= space.native_from:
                places.append(max(run.facts.lowest_offset, space.native_from))
        if space.places.lowest is not None:
            places.append(space.places.lowest)
        return min(places, default=otherwise)

    def _area(self) -> int | None:
        """Return the offset up to which the log is to be cleared; None = it is not too long."""
        space = self.space
        if space.size < self.settings.space_min_bytes:
            return None
        return space.area(self._runs_bytes + self._checkpoint_bytes, self.settings.area_records)

    def _is_worth_a_checkpoint(self) -> bool:
        """Return whether enough can be freed: twice the bytes of the checkpoint that has to precede it."""
        least = 2 * self._checkpoint_bytes
        return least == 0 or self.space.bytes_before(self.lowest_offset(self.read_end)) >= least

    @property
    def _runs_bytes(self) -> int:
        return sum(run.size for run in self.pending.runs.values())

    @property
    def dead_bytes(self) -> int:
        """About how many bytes of the log are not needed."""
        return max(0, self.space.size - self.space.live_bytes - self._runs_bytes - self._checkpoint_bytes)

    # ------------------------------------------------------------ checkpoints

    def restore(self, row: Checkpoint, directory: Callable[[int, RunFacts], bytes]) -> None:
        """Begin with a checkpoint; the log is to be read from its ``covers`` on.

        ``directory`` returns the first bytes of the run at an offset, at least up to the end of its directory.
        """
        require(not self._is_loaded, "a checkpoint is where a replay begins")
        self._checkpoint_number, self.read_end = row.number, row.covers
        self.producer_ids = [] if row.producer_id == NO_PRODUCER else [row.producer_id, *row.more_producers]
        known = ((run.offset, run.facts(check)) for run, check in zip(row.runs, row.checks, strict=True))
        runs = (Run.read(at, directory(at, facts), facts) for at, facts in known)
        self.pending.restore(runs, row.frontier[0] if row.frontier else -1, row.fresh, row.cut, row.count)
        self.names.restore(zip(row.named.names, row.named.keys, strict=True), row.replaced)
        self.rounds.restore(row)
        self.undeliverable, self.unresolved = set(row.undeliverable), set(row.unresolved)
        self.halves.restore(row.halves)
        self.space.restore(row.space)
        self.space.freed(min(row.covers, self.lowest_offset(row.covers)))

    def checkpoint(self) -> Checkpoint:
        """Return the state as a row."""
        pending = self.pending
        runs = [(run.offset, run.facts) for run in pending.runs.values()]
        named, replaced = self.names.state()
        return Checkpoint(
            number=self._checkpoint_number + 1,
            covers=self.read_end,
            producer_id=self.producer_ids[0] if self.producer_ids else NO_PRODUCER,
            runs=tuple(
                RunState(offset, facts.lowest_offset, facts.highest_offset, facts.has_tombstones, facts.names)
                for offset, facts in runs
            ),
            frontier=Frontier([pending.frontier] if pending.frontier >= 0 else ()),
            fresh=Keys(sorted(pending.fresh)),
            cut=Keys(sorted(pending.cut)),
            count=pending.count,
            lanes=tuple(lane.state() for lane in self.lanes.values()),
            undeliverable=Keys(sorted(self.undeliverable)),
            halves=self.halves.state(),
            unresolved=Keys(sorted(self.unresolved)),
            named=NamedKeys(NameColumn(name for name, _ in named), Keys(key for _, key in named)),
            replaced=replaced,
            space=self.space.state(),
            checks=tuple(facts.check for _, facts in runs),
            more_producers=tuple(self.producer_ids[1:]),
            parts=tuple(tuple(lane.parts) for lane in self.lanes.values()),
        )

    def _checkpoint_read(self, row: Checkpoint | CheckpointEnd, out: Outbox[Effect]) -> None:
        self._checkpoint_number = row.number
        if isinstance(row, Checkpoint):
            self._checkpoint_bytes = 0
        self._bytes_since = self._rows_since = 0
        before = min(row.covers, self.lowest_offset(row.covers))
        if self._is_loaded:
            self._frees_space = False
            self.space.freed(before)
            out.now.append(Trim(before_offset=before))

    # ------------------------------------------------------------ deliveries

    def _settle(self, lane: TargetLane, remedy: Remedy, out: Outbox[Effect]) -> bool:
        """Append the row that decides what becomes of a batch that its target did not take; False = not yet."""
        delivered, epoch = lane.delivered_sequence, lane.epoch + 1
        if remedy is Remedy.REROUTE:
            self._append(LaneLost(*lane.id, delivered), out)
        elif epoch // EPOCHS >= len(self.producer_ids):
            return self._next_producer(out)
        elif remedy is Remedy.REBASE:
            self._append(Rebased(*lane.id, epoch, delivered), out)
        else:  # batches are sent in order: the refused one begins where the delivered ones end
            self._append(Refused(*lane.id, epoch, delivered, delivered), out)
        return True

    def _next_producer(self, out: Outbox[Effect]) -> bool:
        """Go on with another producer id: a target used up the epochs of the last one. False = it is not here yet."""
        if self._spare_producer != NO_PRODUCER:
            self._append(ProducerIdAdded(self._spare_producer), out)
            self._spare_producer = NO_PRODUCER
            return True
        if not self._takes_producer:
            self._takes_producer = True
            out.now.append(TakeProducer())
        return False

    # ------------------------------------------------------------ decisions

    def _decide(self, now_ms: int, out: Outbox[Effect]) -> None:
        if not self._is_loaded:
            return
        for lane in self.lanes.values():
            for batch in lane.open.sendable(now_ms):
                out.now.append(Deliver(batch=batch))
        if self._appending is not None or self.rounds.resolving:
            return
        for lane in self.lanes.values():
            if (remedy := lane.open.remedy) is not None and self._settle(lane, remedy, out):
                return
        if self._commands:
            self._append(self._commands.row(now_ms), out)
            return
        if settled := self.halves.to_settle():
            self._append(HalvesDecided(settled, now_ms), out)
            return
        if keys := self.rounds.take(now_ms):
            out.now.append(Resolve(keys=keys))
        elif not self._append_round(self.rounds.make((), now_ms), out):
            self._tidy(now_ms, out)

    def _append(self, row: Row, out: Outbox[Effect], value: bytes = b"") -> None:
        require(self._appending is None, "one row is appended at a time")
        self._appending = row
        out.now.append(Append(row=row, value=value))

    def _append_round(self, row: Round | None, out: Outbox[Effect]) -> bool:
        if row is not None:
            self._append(row, out)
        return row is not None

    def _tidy(self, now_ms: int, out: Outbox[Effect]) -> None:
        """Seal a run, write a checkpoint, or free space: the first of these that is due."""
        settings = self.settings
        self.pending.drop_exhausted()
        if self.pending.fresh_count >= settings.seal_keys:
            keys = self.pending.to_seal(now_ms + settings.seal_margin_ms, settings.seal_keys)
            if len(keys) >= settings.seal_keys // 2:
                run, data = sealed(keys, self.names.of_keys)
                self._append(run, out, data)
                return
        # A large checkpoint is written again only after as many bytes of log: its own cost stays below half.
        is_long = (
            self._bytes_since >= max(settings.checkpoint_bytes, self._checkpoint_bytes)
            or self._rows_since >= settings.checkpoint_rows
        )
        if is_long or self._frees_space:
            self.names.forget(self.pending.forget_cancelled(now_ms))
            self.halves.forget(now_ms)
            self._append(self.checkpoint(), out)
            return
        self._free_space(now_ms, out)

    def _free_space(self, now_ms: int, out: Outbox[Effect]) -> None:
        """Take one step towards deleting the beginning of the log, if the log is too long."""
        if now_ms < self._space_at_ms:
            return
        if self.mover.end is None:
            self._looks_for_space = False
            area = self._area()
            if area is None:
                self._space_at_ms = now_ms + self.settings.look_ms
                return
            self.mover.begin(area)
        row = self.mover.step()
        self._space_at_ms = now_ms + self.settings.move_pause_ms
        if row is not None:
            self._append(row[0], out, row[1])
        elif self.mover.end is None:
            self._looks_for_space = True
            self._frees_space = self._is_worth_a_checkpoint()
            if not self._frees_space:
                self._space_at_ms = now_ms + self.settings.look_ms
