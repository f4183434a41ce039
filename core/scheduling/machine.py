"""The scheduler as a state machine: one partition of ``__scheduled``, at its leader. Pure.

The log decides. What producers and owners appended is read back in log order, and only that changes what waits and what
is sent; a new leader that reads the same log comes to the same state. So an append of unknown outcome does no harm, and
a row of a deposed leader either is in the log, then all see it at its place, or it is nowhere (ADR 0056).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from raylog.core.invariants import require
from raylog.core.outbox import Outbox
from raylog.core.scheduling.commands import Commands
from raylog.core.scheduling.events import (
    Append,
    CancelReceived,
    DataRead,
    DecideReceived,
    Deliver,
    Delivered,
    Effect,
    Event,
    Loaded,
    MoveReceived,
    NotDelivered,
    Outcome,
    Resolve,
    Resolved,
    RowRead,
    Target,
    Tick,
    Trim,
    Trouble,
)
from raylog.core.scheduling.halves import Halves, Standing
from raylog.core.scheduling.keys import HELD_MS, key_of, offset_of
from raylog.core.scheduling.lanes import RETRY_LAST_MS, UNKNOWN_PARTITION, Lane
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.rounds import compose
from raylog.core.scheduling.rows import (
    Cancelled,
    Checkpoint,
    Decision,
    HalvesDecided,
    Identity,
    LaneId,
    LaneLost,
    Moved,
    Noted,
    Rebased,
    Round,
    Row,
    RunWritten,
)
from raylog.core.scheduling.runs import ReadBlock, Run, encode_run

NO_PRODUCER: Final = -1
MOVES_REMEMBERED: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Sizes and times of the scheduler."""

    round_keys: int = 4_096
    """Most records that one round takes."""
    batch_keys: int = 2_048
    batch_bytes: int = 512 * 1024
    """Most records, and bytes of them, in one batch; one record may be larger."""
    seal_keys: int = 100_000
    """A run is written for so many keys."""
    seal_margin_ms: int = 5_000
    """What is due sooner is not sealed: it leaves soon."""
    checkpoint_bytes: int = 16 * 1024 * 1024
    """A checkpoint follows so many bytes of log, which bounds what a new leader reads."""
    checkpoint_rows: int = 20_000
    note_within_ms: int = 1_000
    """A delivered batch is noted so soon, also where no round follows."""


class SchedulerMachine:
    """The records of one partition of ``__scheduled``, from the log to their targets."""

    def __init__(self, read: ReadBlock, settings: SchedulerSettings) -> None:
        """``read`` returns a part of a run in the log."""
        self.settings = settings
        self.pending = Pending(read)
        self.lanes: dict[LaneId, Lane] = {}
        self.halves = Halves()
        self.producer_id = NO_PRODUCER
        self.read_end = 0
        """Offset behind what was read of the log."""
        self.alone: set[int] = set()
        """Records whose batch was refused: each is sent in a batch of its own, to find the one to blame."""
        self.undeliverable: set[int] = set()
        """Records that their target refused for good, and those in ``unresolved``."""
        self.unresolved: set[int] = set()
        """Records of half messages that had no decision after the last check."""
        self.delivered_count = self.cancelled_count = 0
        """Since this leadership began."""
        self.moved: dict[int, None] = {}
        """Keys that moved records got, the newest last, for requests that come after they were delivered."""
        self._checkpoint_number = 0
        self._bytes_since = self._rows_since = 0
        self._is_loaded = False
        self._appending: Row | None = None
        self._resolving: tuple[int, ...] = ()
        self._commands = Commands()
        self._note_at_ms: int | None = None
        self._resolve_again_ms = 0

    # ------------------------------------------------------------ events

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event."""
        out: Outbox[Effect] = Outbox()
        match event:
            case DataRead():
                dues = enumerate(event.dues, event.base_offset)
                self.pending.add(key_of(due, offset) for offset, due in dues if due < HELD_MS)
                for held in event.held:
                    timestamp_ms = event.dues[held.offset - event.base_offset]
                    self.halves.prepared(held.name, held.offset, timestamp_ms, held.check_after_ms)
                self._bytes_since += event.size_bytes
                self.read_end = event.base_offset + len(event.dues)
                return out
            case RowRead():
                self._row_read(event, out)
                return out
            case Loaded():
                self._loaded(event, out)
            case Tick():
                pass
            case Resolved():
                self._round(event, out)
            case Delivered():
                self._delivered(event)
            case NotDelivered():
                self._not_delivered(event, out)
            case CancelReceived():
                self._commands.add(event.request, Cancelled(event.keys))
            case MoveReceived():
                self._commands.add(event.request, Moved(((event.key, event.due_ms),)))
            case DecideReceived():
                self._commands.add(event.request, HalvesDecided(event.decisions, event.now_ms))
            case _:
                assert_never(event)
        self._decide(event.now_ms, out)
        return out

    def next_due_ms(self) -> int | None:
        """Return when a :class:`Tick` has something to do, if nothing else happens; None = not by itself."""
        if not self._is_loaded or self._appending is not None or self._resolving:
            return None
        moments = [self.pending.next_due_ms(), self._note_at_ms]
        for lane in self.lanes.values():
            if lane.id[1] == UNKNOWN_PARTITION and lane.waiting:
                moments.append(self._resolve_again_ms)
            elif lane.batches and lane.sending is None and lane.next_sequence > lane.delivered_sequence:
                moments.append(lane.retry_at_ms)
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def is_busy(self) -> bool:
        """Whether records wait or are on their way."""
        if not self._is_loaded or self.pending.count > 0 or self.halves.held:
            return True
        return any(not lane.is_done for lane in self.lanes.values())

    # ------------------------------------------------------------ the log

    def _loaded(self, event: Loaded, out: Outbox[Effect]) -> None:
        self._is_loaded = True
        self.pending.align()
        if self.producer_id == NO_PRODUCER:
            self._append(Identity(event.producer_id), out)

    def _row_read(self, event: RowRead, out: Outbox[Effect]) -> None:
        row = event.row
        self._bytes_since += event.size_bytes
        self._rows_since += 1
        self.read_end = event.offset + 1
        outcomes: Sequence[tuple[Outcome | Standing, int]] = ()
        match row:
            case Identity():
                if self.producer_id == NO_PRODUCER:
                    self.producer_id = row.producer_id
            case Round():
                self._round_read(row)
            case Cancelled():
                outcomes = cancelled = [(self._cancel(key), key) for key in row.keys]
                self.cancelled_count += sum(outcome is Outcome.DONE for outcome, _ in cancelled)
            case Moved():
                outcomes = [self._move(key, due_ms) for key, due_ms in row.moves]
            case HalvesDecided():
                outcomes = [self._decided(decision, row.at_ms) for decision in row.decisions]
            case LaneLost():
                self._lane_lost(row)
            case Rebased():
                self._rebased(row)
            case RunWritten():
                self.pending.add_run(Run.read(event.offset, row.data, row.lowest_offset))
            case Checkpoint():
                self._checkpoint_read(row, out)
            case _:
                assert_never(row)
        if self._is_loaded and self._appending is not None:
            self._appending = None
            out.now.extend(self._commands.answers(outcomes))

    def _round_read(self, row: Round) -> None:
        keys: list[int] = []
        for batch in row.batches:
            lane = self._lane(batch.topic, batch.lane)
            if lane.opened(batch):
                keys += self._leave(lane, batch.keys)
        for parked in row.parked:
            lane = self._lane(parked.topic, parked.lane)
            keys += self._leave(lane, parked.keys)
            lane.waiting.extend(parked.keys)
        if not self._is_loaded:  # this owner took them from their order before
            for key in sorted(keys):
                self.pending.taken(key)
        for note in row.noted:
            done = tuple(self.lanes[note.lane].noted(note))
            self.undeliverable.difference_update(done)
            self.unresolved.difference_update(done)

    def _leave(self, lane: Lane, keys: Sequence[int]) -> list[int]:
        """Take keys out of what waits for a lane, or for metadata; returns the others, which come from their order."""
        waited: set[int] = set()
        for each in self.lanes.values():
            if each.waiting and (each is lane or each.id[1] == UNKNOWN_PARTITION):
                waited |= each.no_longer_waits(keys)
        self.alone.difference_update(keys)
        return [key for key in keys if key not in waited]

    def _cancel(self, key: int) -> Outcome:
        if self.pending.holds(key):
            self.pending.cancel(key)
            return Outcome.DONE
        for lane in self.lanes.values():
            if key in lane.waiting:
                lane.waiting.remove(key)
                self.pending.cut.add(key)
                return Outcome.DONE
        return Outcome.ALREADY_CANCELLED if self.pending.was_cancelled(key) else Outcome.ALREADY_DELIVERED

    def _move(self, key: int, due_ms: int) -> tuple[Outcome, int]:
        outcome = self._cancel(key)
        if outcome is Outcome.DONE:
            key = self.pending.free_key(due_ms, offset_of(key))
            self.pending.add([key])
            self.moved[key] = None
            if len(self.moved) > MOVES_REMEMBERED:
                del self.moved[next(iter(self.moved))]
        return outcome, key

    def _decided(self, decision: Decision, at_ms: int) -> tuple[Standing, int]:
        decided = self.halves.decide(decision, at_ms)
        keys = [key_of(at_ms, offset) for offset in decided.released]
        self.pending.add(keys)
        if decided.is_dead:
            self.undeliverable.update(keys)
            self.unresolved.update(keys)
        return decided.standing, decided.records

    def _lane(self, topic: str, lane: LaneId) -> Lane:
        found = self.lanes.get(lane)
        if found is None:
            found = self.lanes[lane] = Lane(topic, lane)
        return found

    def _lane_lost(self, row: LaneLost) -> None:
        lane = self.lanes.pop(row.lane, None)
        if lane is not None:
            keys = [
                key for batch in lane.batches if batch.base_sequence >= row.delivered_sequence for key in batch.keys
            ]
            self._again([*keys, *lane.waiting])

    def _rebased(self, row: Rebased) -> None:
        lane = self.lanes[row.lane]
        if row.epoch <= lane.epoch:
            return
        refused = list(lane.rebase(row.epoch, row.delivered_sequence, row.refused_sequence))
        if len(refused) == 1:
            self.undeliverable.update(refused)
        else:
            self.alone.update(refused)
        self._again(refused)

    def _again(self, keys: Iterable[int]) -> None:
        """Let records that were taken be due once more."""
        self.pending.add(keys)

    # ------------------------------------------------------------ checkpoints

    def _checkpoint_read(self, row: Checkpoint, out: Outbox[Effect]) -> None:
        self._checkpoint_number = row.number
        self._bytes_since = self._rows_since = 0
        if self._is_loaded:
            out.now.append(Trim(before_offset=min(row.covers, self._lowest_offset(row.covers))))

    def restore(self, row: Checkpoint, directory: Callable[[int], bytes]) -> None:
        """Begin with a checkpoint; the log is to be read from its ``covers`` on.

        ``directory`` returns the beginning of the run at an offset, with all of its directory.
        """
        require(not self._is_loaded, "a checkpoint is where a replay begins")
        self.producer_id, self._checkpoint_number, self.read_end = row.producer_id, row.number, row.covers
        runs = [Run.read(at, directory(at), lowest) for at, lowest in row.runs]
        self.pending.restore(runs, row.frontier, row.fresh, row.cut, row.count)
        self.lanes = {state.lane: Lane.restored(state) for state in row.lanes}
        self.alone, self.undeliverable = set(row.alone), set(row.undeliverable)
        self.unresolved = set(row.unresolved)
        self.halves.restore(row.halves)

    def checkpoint(self) -> Checkpoint:
        """Return the state as a row."""
        pending = self.pending
        return Checkpoint(
            number=self._checkpoint_number + 1,
            covers=self.read_end,
            producer_id=self.producer_id,
            runs=tuple((run.offset, run.lowest_offset) for run in pending.runs.values()),
            frontier=pending.frontier,
            fresh=tuple(sorted(pending.fresh)),
            cut=tuple(sorted(pending.cut)),
            count=pending.count,
            lanes=tuple(lane.state() for lane in self.lanes.values()),
            alone=tuple(sorted(self.alone)),
            undeliverable=tuple(sorted(self.undeliverable)),
            halves=self.halves.state(),
            unresolved=tuple(sorted(self.unresolved)),
        )

    def _lowest_offset(self, otherwise: int) -> int:
        needed = [offset_of(key) for key in self.pending.fresh]
        needed += self.halves.offsets
        for run in self.pending.runs.values():
            needed += [run.offset, run.lowest_offset]
        for lane in self.lanes.values():
            needed += [offset_of(key) for batch in lane.batches for key in batch.keys]
            needed += [offset_of(key) for key in lane.waiting]
        return min(needed, default=otherwise)

    # ------------------------------------------------------------ deliveries

    def _delivered(self, event: Delivered) -> None:
        lane = self.lanes.get(event.lane)
        if lane is None or lane.epoch != event.epoch or lane.sending != event.base_sequence:
            return
        batch = next(batch for batch in lane.batches if batch.base_sequence == event.base_sequence)
        lane.answered(event.now_ms, is_delivered=True)
        self.delivered_count += len(batch.keys)
        if self._note_at_ms is None:
            self._note_at_ms = event.now_ms + self.settings.note_within_ms

    def _not_delivered(self, event: NotDelivered, out: Outbox[Effect]) -> None:
        lane = self.lanes.get(event.lane)
        if lane is None or lane.epoch != event.epoch or lane.sending != event.base_sequence:
            return
        lane.answered(event.now_ms, is_delivered=False)
        if event.trouble is Trouble.UNREACHABLE or self._appending is not None:
            return  # the same is sent again; with a row under way the decision comes then
        match event.trouble:
            case Trouble.DELETED:
                self._append(LaneLost(lane.id, lane.delivered_sequence), out)
            case Trouble.FORGOTTEN:
                self._append(Rebased(lane.id, lane.epoch + 1, lane.delivered_sequence), out)
            case Trouble.REFUSED:
                self._append(Rebased(lane.id, lane.epoch + 1, lane.delivered_sequence, event.base_sequence), out)

    # ------------------------------------------------------------ decisions

    def _decide(self, now_ms: int, out: Outbox[Effect]) -> None:
        if not self._is_loaded:
            return
        for lane in self.lanes.values():
            batch = lane.to_send(now_ms)
            if batch is not None:
                out.now.append(Deliver(batch=batch))
        if self._appending is not None or self._resolving:
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

    def _take(self, now_ms: int) -> tuple[int, ...]:
        keys: list[int] = []
        if now_ms >= self._resolve_again_ms:
            for lane in list(self.lanes.values()):
                if lane.id[1] == UNKNOWN_PARTITION and lane.waiting:
                    self._resolve_again_ms = now_ms + RETRY_LAST_MS // 4
                    keys.extend(list(lane.waiting)[: self.settings.round_keys - len(keys)])
        return (*keys, *self.pending.take_due(now_ms, self.settings.round_keys - len(keys)))

    def _round(self, event: Resolved, out: Outbox[Effect]) -> None:
        require(tuple(target.key for target in event.targets) == self._resolving, "all of a round are resolved")
        self._resolving = ()
        self._round_of(event.targets, event.now_ms, out)

    def _round_of(self, targets: Sequence[Target], now_ms: int, out: Outbox[Effect]) -> bool:
        """Append a round of what is resolved and what waits; False where there is nothing to decide."""
        batches, parked = compose(
            self.lanes,
            targets,
            self.alone,
            batch_keys=self.settings.batch_keys,
            batch_bytes=self.settings.batch_bytes,
        )
        noted = self._notes(now_ms, has_round=bool(batches or parked))
        if not (batches or parked or noted):
            return False
        self._append(Round(tuple(batches), tuple(parked), noted), out)
        return True

    def _notes(self, now_ms: int, *, has_round: bool) -> tuple[Noted, ...]:
        """Return what is to be noted now: with a round, when it is time, or when a target waits for its first note."""
        is_time = has_round or (self._note_at_ms is not None and now_ms >= self._note_at_ms)
        holds_up = any(lane.waiting and not lane.has_room and lane.note_due for lane in self.lanes.values())
        if not (is_time or holds_up):
            return ()
        self._note_at_ms = None
        return tuple(note for lane in self.lanes.values() if (note := lane.note_due) is not None)

    def _tidy(self, now_ms: int, out: Outbox[Effect]) -> None:
        """Seal a run or write a checkpoint, if one is due."""
        settings = self.settings
        if self.pending.fresh_count >= settings.seal_keys:
            keys = self.pending.to_seal(now_ms + settings.seal_margin_ms, settings.seal_keys)
            if len(keys) >= settings.seal_keys // 2:
                self._append(RunWritten(min(offset_of(key) for key in keys), encode_run(keys)), out)
                return
        if self._bytes_since >= settings.checkpoint_bytes or self._rows_since >= settings.checkpoint_rows:
            self.pending.forget_cancelled(now_ms)
            self.halves.forget(now_ms)
            self._append(self.checkpoint(), out)

    def _append(self, row: Row, out: Outbox[Effect]) -> None:
        require(self._appending is None, "one row is appended at a time")
        self._appending = row
        out.now.append(Append(row=row))
