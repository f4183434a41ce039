"""The scheduler as a state machine: one partition of ``__scheduled``, at its leader. Pure.

The log decides. What producers and owners appended is read back in log order, and nothing else changes what waits and
what is sent: a new leader that reads the same log comes to the same state. So an append of unknown outcome is harmless.
A row of a deposed leader is either in the log, where each leader reads it at the same place, or nowhere (ADR 0056).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never, overload

from raylog.base.errors import InvalidRequest
from raylog.core.decision import Refuse
from raylog.core.lane import Remedy
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.core.scheduling.commands import row_of
from raylog.core.scheduling.envelope import HalfOutcome
from raylog.core.scheduling.events import (
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
from raylog.core.scheduling.keys import HELD_MS, key_of, offset_of
from raylog.core.scheduling.lanes import UNKNOWN_PARTITION, TargetLane
from raylog.core.scheduling.rounds import SchedulerRounds
from raylog.core.scheduling.rows import (
    Batch,
    Cancelled,
    Checkpoint,
    CheckpointEnd,
    CheckpointPart,
    HalfDecision,
    HalvesDecided,
    LaneId,
    LaneLost,
    Moved,
    Parked,
    ProducerIdAdded,
    Rebased,
    Refused,
    Relocated,
    Round,
    RunWritten,
    sealed,
)
from raylog.core.scheduling.runs import Run
from raylog.core.scheduling.state import EPOCHS, NO_PRODUCER
from raylog.core.scheduling.state import SchedulerSettings as SchedulerSettings

MOVES_REMEMBERED: Final = 100_000
"""Most keys in ``moved``."""


class SchedulerMachine(SchedulerRounds):
    """The records of one partition of ``__scheduled``, from the log to their targets."""

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
                self._round(event, out)
            case Delivered():
                self._delivered(event)
            case NotDelivered():
                if (lane := self.lanes.get(event.lane)) is not None:
                    lane.answered(event)
            case Received():
                self._received(event, out)
            case _:
                assert_never(event)
        self._decide(event.now_ms, out)
        return out

    def next_due_ms(self) -> int | None:
        """Return when a :class:`Tick` has something to do if no other event comes first; None = never."""
        if not self._is_loaded or self._appending is not None or self._resolving:
            return None
        moments = [self.pending.next_due_ms(), self._ack_at_ms]
        if self.mover.end is not None or self._frees_space or self._looks_for_space:
            moments.append(self._space_at_ms)
        for lane in self.lanes.values():
            if lane.id[1] == UNKNOWN_PARTITION and lane.waiting:
                moments.append(self._resolve_again_ms)
            else:
                moments.append(lane.open.due_ms())
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
        earlier = self.names.waiting(name, self._taken)
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
                self._round_read(row)
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

    def _round_read(self, row: Round) -> None:
        keys: list[int] = []
        for batch in map(self._uncancelled, row.batches):
            lane = self._lane(batch.topic, batch.lane)
            if batch.keys and lane.opened(batch):
                keys += self._leave(lane, batch.keys)
                self.names.delivered(batch.keys)
        for parked in map(self._uncancelled, row.parked):
            lane = self._lane(parked.topic, parked.lane)
            keys += self._leave(lane, parked.keys)
            lane.parked(parked.keys, self._sizes, self._limits.get(lane.id, 0))
            self.names.parked(parked.keys, parked.names)
        if not self._is_loaded:  # in a replay; a live owner took them when it began the round
            for key in sorted(keys):
                self.pending.taken(key)
        self._taken.clear()
        self._sizes.clear()
        self._limits.clear()
        self.pending.drop_exhausted()
        for ack in row.acked:
            acked_lane = self.lanes.get(ack.lane)
            if acked_lane is not None:
                self._done(acked_lane.acked(ack))

    def _done(self, keys: Iterable[int]) -> None:
        """Note that targets have these records."""
        done = tuple(keys)
        self.undeliverable.difference_update(done)
        self.unresolved.difference_update(done)
        for key in done:
            self._left(offset_of(key))

    @overload
    def _uncancelled(self, part: Batch) -> Batch: ...
    @overload
    def _uncancelled(self, part: Parked) -> Parked: ...
    def _uncancelled(self, part: Batch | Parked) -> Batch | Parked:
        """Return a part of a round without the records that were replaced while its row was on the way."""
        cut = self.pending.cut
        if cut.isdisjoint(part.keys):
            return part
        return part.without(cut)

    def _leave(self, lane: TargetLane, keys: Sequence[int]) -> list[int]:
        """Remove keys that wait in a lane, or for metadata; return the others, which come from the pending ones."""
        waited: set[int] = set()
        for each in self.lanes.values():
            if each.waiting and (each is lane or each.id[1] == UNKNOWN_PARTITION):
                waited |= each.no_longer_waits(keys)
        return [key for key in keys if key not in waited]

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
        for lane in self.lanes.values():
            if lane.waiting and lane.no_longer_waits((key,)):
                self.pending.cut.add(key)
                return Outcome.DONE
        if key in self._taken:  # its round is not in the log yet, so the cancellation comes first
            self._taken.remove(key)
            self.pending.cut.add(key)
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

    def _lane(self, topic: str, lane: LaneId) -> TargetLane:
        found = self.lanes.get(lane)
        if found is None:
            found = self.lanes[lane] = TargetLane(topic, lane)
        return found

    def _lane_lost(self, row: LaneLost) -> None:
        lane = self.lanes.pop(row.lane, None)
        if lane is not None:
            self._done(lane.done(row.delivered_sequence))
            self._again([*(key for batch in lane.batches for key in batch.keys), *lane.waiting])

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
        self._again(blamed)

    # ------------------------------------------------------------ checkpoints

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

    def _delivered(self, event: Delivered) -> None:
        lane = self.lanes.get(event.lane)
        batch = None if lane is None else lane.answered(event)
        if batch is None:
            return
        self.delivered_count += len(batch.keys)
        if self._ack_at_ms is None:
            self._ack_at_ms = event.now_ms + self.settings.ack_within_ms

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
        if self._appending is not None or self._resolving:
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
        keys = self._take(now_ms)
        if keys:
            self._resolving = keys
            out.now.append(Resolve(keys=keys))
        elif not self._round_of((), now_ms, out):
            self._tidy(now_ms, out)

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
