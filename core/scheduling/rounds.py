"""How rounds are made: which records are resolved, and one batch for each target that has room, in order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from raylog.base.invariants import require
from raylog.core.scheduling.events import Delivered, NotDelivered, Resolved, Target
from raylog.core.scheduling.keys import offset_of
from raylog.core.scheduling.lanes import RETRY_LAST_MS, UNKNOWN_PARTITION, TargetLane
from raylog.core.scheduling.mover import Mover
from raylog.core.scheduling.names import Names
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.rows import Acked, Batch, Checkpoint, Keys, LaneId, NameColumn, Parked, Round
from raylog.core.scheduling.settings import SchedulerSettings

BATCH_HEAD_BYTES: Final = 256
"""Room for a batch's header and other bytes besides its records."""


def compose(
    lanes: Mapping[LaneId, TargetLane],
    targets: Sequence[Target],
    *,
    batch_keys: int,
    batch_bytes: int,
) -> tuple[list[Batch], list[Parked]]:
    """Return the batches, of resolved records and of those that wait in lanes, and the resolved records that must wait.

    A batch ends in front of a record whose size is not known. It is not longer than ``batch_bytes`` and its target's
    limit, unless it has one record.
    """
    batches: list[Batch] = []
    parked: list[Parked] = []
    by_lane: dict[LaneId, list[Target]] = {}
    for target in targets:
        by_lane.setdefault(target.lane, []).append(target)
    ready = {lane.id for lane in lanes.values() if lane.waiting and lane.has_room}
    for lane_id in [*by_lane, *sorted(ready - set(by_lane))]:
        new = by_lane.get(lane_id, [])
        topic = new[0].topic if new else lanes[lane_id].topic
        lane = lanes.get(lane_id) or TargetLane(topic, lane_id)
        known = set(lane.waiting) if new and lane.waiting else set()
        fresh = [target for target in new if target.key not in known]
        chosen = _chosen(lane, fresh, batch_keys, batch_bytes) if lane.has_room else []
        if chosen:
            batches.append(Batch(topic, *lane_id, lane.epoch, lane.next_sequence, Keys(chosen)))
        taken = set(chosen)
        if left := [target for target in fresh if target.key not in taken]:
            names = [target.name for target in left] if any(target.name for target in new) else ()
            parked.append(Parked(topic, *lane_id, Keys(target.key for target in left), NameColumn(names)))
    return batches, parked


def limit_of(lane: TargetLane, batch_bytes: int, stated_bytes: int = 0) -> int:
    """Return how many bytes of records a batch may have; ``stated_bytes``: the target's limit, 0 = use the lane's."""
    target_bytes = stated_bytes or lane.limit_bytes
    return min(batch_bytes, target_bytes - BATCH_HEAD_BYTES) if target_bytes else batch_bytes


def _chosen(lane: TargetLane, fresh: Sequence[Target], batch_keys: int, batch_bytes: int) -> list[int]:
    if lane.parts:
        return list(islice(lane.waiting, min(lane.parts[0], batch_keys)))
    sizes = {target.key: target.size_bytes for target in fresh}
    limit_bytes = limit_of(lane, batch_bytes, fresh[0].limit_bytes if fresh else 0)
    chosen: list[int] = []
    total = 0
    for key in islice((*islice(lane.waiting, batch_keys), *sizes), batch_keys):
        size = sizes.get(key) or lane.sizes.get(key)
        if size is None:
            break
        total += size
        if chosen and total > limit_bytes:
            break
        chosen.append(key)
    return chosen


class Rounds:
    """Records on their way from being due to their targets: resolved, then in a batch or waiting in a lane.

    Invariants:

    - A key in ``taken`` is neither pending nor in a lane; it leaves when its round is read from the log.
    - While ``resolving`` has keys, no round is made: at most one is under way.
    """

    def __init__(self, pending: Pending, names: Names, mover: Mover, settings: SchedulerSettings) -> None:
        """Begin without lanes; records come from ``pending``."""
        self._pending = pending
        self._names = names
        self._mover = mover
        self._settings = settings
        self.lanes: dict[LaneId, TargetLane] = {}
        self.resolving: tuple[int, ...] = ()
        """Keys whose targets are being found."""
        self.taken: set[int] = set()
        """Keys that were taken from the pending ones, and are in no round of the log yet."""
        self._sized: dict[int, LaneId] = {}
        """Keys being resolved that wait in a lane already: only their sizes are needed."""
        self._sizes: dict[int, int] = {}
        """Bytes of each record in the round that is being appended."""
        self._limits: dict[LaneId, int] = {}
        """The most bytes that each target of that round takes in one batch."""
        self._ack_at_ms: int | None = None
        self._resolve_again_ms = 0

    @property
    def is_done(self) -> bool:
        """Whether no record is on its way."""
        return not self.taken and all(lane.is_done for lane in self.lanes.values())

    def waits(self, key: int) -> bool:
        """Whether a record is in no batch yet."""
        return key in self.taken or any(key in lane.waiting for lane in self.lanes.values())

    def needed(self) -> Iterator[int]:
        """Return the first offsets of the records on their way."""
        yield from (offset_of(key) for key in self.taken)
        for lane in self.lanes.values():
            yield from (offset_of(key) for batch in lane.batches for key in batch.keys)
            yield from (offset_of(key) for key in lane.waiting)

    def moments(self) -> Iterator[int | None]:
        """Return when a :class:`Tick` has something to do here."""
        yield self._ack_at_ms
        for lane in self.lanes.values():
            is_unknown = lane.id[1] == UNKNOWN_PARTITION and lane.waiting
            yield self._resolve_again_ms if is_unknown else lane.open.due_ms()

    def restore(self, row: Checkpoint) -> None:
        """Begin with what a checkpoint holds."""
        lanes = zip(row.lanes, row.parts, strict=True)
        self.lanes = {state.lane: TargetLane.restored(state, parts) for state, parts in lanes}

    # ------------------------------------------------------------ the next round

    def take(self, now_ms: int) -> tuple[int, ...]:
        """Return the keys to resolve next: some that wait in lanes, and some of the pending ones that are due.

        If there are any, :meth:`resolved` has to follow.
        """
        keys: list[int] = []
        room = self._settings.round_keys - self._settings.round_keys // 4  # a quarter is left for keys that become due
        for lane_id in [*self.lanes]:
            lane = self.lanes.pop(lane_id)
            self.lanes[lane_id] = lane  # to the end of the order: lanes take turns
            if len(keys) >= room:
                break
            for key in lane.unsized(
                min(self._settings.batch_keys, room - len(keys)), limit_of(lane, self._settings.batch_bytes)
            ):
                self._sized[key] = lane_id
                keys.append(key)
        if now_ms >= self._resolve_again_ms:
            for lane in self.lanes.values():
                if lane.id[1] == UNKNOWN_PARTITION and lane.waiting:
                    self._resolve_again_ms = now_ms + RETRY_LAST_MS // 4
                    keys.extend(islice(lane.waiting, max(0, room - len(keys))))
        due = self._pending.take_due(now_ms, self._settings.round_keys - len(keys))
        self.taken.update(due)
        self._mover.kept(due)
        self.resolving = (*keys, *due)
        return self.resolving

    def resolved(self, event: Resolved) -> Round | None:
        """Return the round of the keys whose targets were found; the others are pending again."""
        count = len(event.targets)
        requested, self.resolving = self.resolving, ()
        require(count > 0 and tuple(target.key for target in event.targets) == requested[:count], "a round is in order")
        placed: list[Target] = []
        for target in event.targets:
            lane_id = self._sized.get(target.key)
            if lane_id is None:
                placed.append(target)
                self._sizes[target.key] = target.size_bytes
            elif (waits_for := self.lanes.get(lane_id)) is not None:
                waits_for.measured(target.key, target.size_bytes)
                waits_for.limit_bytes = target.limit_bytes
        self._sized.clear()
        left = [key for key in requested[count:] if key in self.taken]
        self.taken.difference_update(left)
        self._pending.add(left)
        self._mover.kept(left)
        self._limits = {target.lane: target.limit_bytes for target in placed}
        return self.make(placed, event.now_ms)

    def make(self, targets: Sequence[Target], now_ms: int) -> Round | None:
        """Return a round of resolved and waiting records, with acknowledgements; None = there is nothing to append."""
        batches, parked = compose(
            self.lanes,
            targets,
            batch_keys=self._settings.batch_keys,
            batch_bytes=self._settings.batch_bytes,
        )
        acked = self._acks(now_ms, has_round=bool(batches or parked))
        if not (batches or parked or acked):
            return None
        return Round(tuple(batches), tuple(parked), acked)

    def _acks(self, now_ms: int, *, has_round: bool) -> tuple[Acked, ...]:
        """Return what to acknowledge now: in a round with batches, when time is up, or if a full lane needs it."""
        is_time = has_round or (self._ack_at_ms is not None and now_ms >= self._ack_at_ms)
        holds_up = any(lane.waiting and not lane.has_room and lane.ack_due for lane in self.lanes.values())
        if not (is_time or holds_up):
            return ()
        self._ack_at_ms = None
        return tuple(ack for lane in self.lanes.values() if (ack := lane.ack_due) is not None)

    # ------------------------------------------------------------ what happens to records on their way

    def committed(self, row: Round, *, is_replay: bool) -> list[int]:
        """Take a round that is in the log, without the records that were replaced while it was on the way.

        Return the keys that targets have now.
        """
        cut = self._pending.cut
        keys: list[int] = []
        for batch in (each.without(cut) for each in row.batches):
            lane = self._lane(batch.topic, batch.lane)
            if batch.keys and lane.opened(batch):
                keys += self._leave(lane, batch.keys)
                self._names.delivered(batch.keys)
        for parked in (each.without(cut) for each in row.parked):
            lane = self._lane(parked.topic, parked.lane)
            keys += self._leave(lane, parked.keys)
            lane.parked(parked.keys, self._sizes, self._limits.get(lane.id, 0))
            self._names.parked(parked.keys, parked.names)
        if is_replay:  # a live owner took them when it began the round
            for key in sorted(keys):
                self._pending.taken(key)
        self.taken.clear()
        self._sizes.clear()
        self._limits.clear()
        self._pending.drop_exhausted()
        acked = ((self.lanes.get(ack.lane), ack) for ack in row.acked)
        return [key for lane, ack in acked if lane is not None for key in lane.acked(ack)]

    def _leave(self, lane: TargetLane, keys: Sequence[int]) -> list[int]:
        """Remove keys that wait in a lane, or for metadata; return the others, which come from the pending ones."""
        waited: set[int] = set()
        for each in self.lanes.values():
            if each.waiting and (each is lane or each.id[1] == UNKNOWN_PARTITION):
                waited |= each.no_longer_waits(keys)
        return [key for key in keys if key not in waited]

    def _lane(self, topic: str, lane: LaneId) -> TargetLane:
        found = self.lanes.get(lane)
        if found is None:
            found = self.lanes[lane] = TargetLane(topic, lane)
        return found

    def cancel(self, key: int) -> bool:
        """Cancel a record that is in no batch yet; False = it is not here."""
        for lane in self.lanes.values():
            if lane.waiting and lane.no_longer_waits((key,)):
                self._pending.cut.add(key)
                return True
        if key in self.taken:  # its round is not in the log yet, so the cancellation comes first
            self.taken.remove(key)
            self._pending.cut.add(key)
            return True
        return False

    def answered(self, event: Delivered | NotDelivered) -> Batch | None:
        """Note a target's answer, and return the batch that it is about; None = it is to an earlier one."""
        lane = self.lanes.get(event.lane)
        batch = None if lane is None else lane.answered(event)
        if batch is not None and isinstance(event, Delivered) and self._ack_at_ms is None:
            self._ack_at_ms = event.now_ms + self._settings.ack_within_ms
        return batch
