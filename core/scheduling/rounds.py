"""How rounds are made: which records are resolved, and one batch for each target that has room, in order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from raylog.base.invariants import require
from raylog.core.outbox import Outbox
from raylog.core.scheduling.events import Append, Effect, Resolved, Target
from raylog.core.scheduling.lanes import RETRY_LAST_MS, UNKNOWN_PARTITION, TargetLane
from raylog.core.scheduling.rows import Acked, Batch, Keys, LaneId, NameColumn, Parked, Round, Row
from raylog.core.scheduling.state import SchedulerState

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


class SchedulerRounds(SchedulerState):
    """The state, and the making of rounds."""

    def _take(self, now_ms: int) -> tuple[int, ...]:
        """Return the keys to resolve next: some that wait in lanes, and some of the pending ones that are due."""
        keys: list[int] = []
        room = self.settings.round_keys - self.settings.round_keys // 4  # a quarter is left for keys that become due
        for lane_id in [*self.lanes]:
            lane = self.lanes.pop(lane_id)
            self.lanes[lane_id] = lane  # to the end of the order: lanes take turns
            if len(keys) >= room:
                break
            for key in lane.unsized(
                min(self.settings.batch_keys, room - len(keys)), limit_of(lane, self.settings.batch_bytes)
            ):
                self._sized[key] = lane_id
                keys.append(key)
        if now_ms >= self._resolve_again_ms:
            for lane in self.lanes.values():
                if lane.id[1] == UNKNOWN_PARTITION and lane.waiting:
                    self._resolve_again_ms = now_ms + RETRY_LAST_MS // 4
                    keys.extend(islice(lane.waiting, max(0, room - len(keys))))
        due = self.pending.take_due(now_ms, self.settings.round_keys - len(keys))
        self._taken.update(due)
        self.mover.kept(due)
        return (*keys, *due)

    def _round(self, event: Resolved, out: Outbox[Effect]) -> None:
        count = len(event.targets)
        requested, self._resolving = self._resolving, ()
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
        left = [key for key in requested[count:] if key in self._taken]
        self._taken.difference_update(left)
        self._again(left)
        self.mover.kept(left)
        self._limits = {target.lane: target.limit_bytes for target in placed}
        self._round_of(placed, event.now_ms, out)

    def _round_of(self, targets: Sequence[Target], now_ms: int, out: Outbox[Effect]) -> bool:
        """Append a round of resolved and waiting records, with acknowledgements; False = there is nothing to append."""
        batches, parked = compose(
            self.lanes,
            targets,
            batch_keys=self.settings.batch_keys,
            batch_bytes=self.settings.batch_bytes,
        )
        acked = self._acks(now_ms, has_round=bool(batches or parked))
        if not (batches or parked or acked):
            return False
        self._append(Round(tuple(batches), tuple(parked), acked), out)
        return True

    def _acks(self, now_ms: int, *, has_round: bool) -> tuple[Acked, ...]:
        """Return what to acknowledge now: in a round with batches, when time is up, or if a full lane needs it."""
        is_time = has_round or (self._ack_at_ms is not None and now_ms >= self._ack_at_ms)
        holds_up = any(lane.waiting and not lane.has_room and lane.ack_due for lane in self.lanes.values())
        if not (is_time or holds_up):
            return ()
        self._ack_at_ms = None
        return tuple(ack for lane in self.lanes.values() if (ack := lane.ack_due) is not None)

    def _again(self, keys: Iterable[int]) -> None:
        """Put records that were taken back among the pending ones."""
        self.pending.add(keys)

    def _append(self, row: Row, out: Outbox[Effect], value: bytes = b"") -> None:
        require(self._appending is None, "one row is appended at a time")
        self._appending = row
        out.now.append(Append(row=row, value=value))
