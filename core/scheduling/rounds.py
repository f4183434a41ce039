"""What a round takes for each target: one batch, in order, as far as it has room. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from raylog.core.scheduling.events import Target
from raylog.core.scheduling.lanes import UNKNOWN_PARTITION, Lane
from raylog.core.scheduling.rows import Batch, LaneId, Parked


def compose(
    lanes: Mapping[LaneId, Lane],
    targets: Sequence[Target],
    alone: Collection[int],
    *,
    batch_keys: int,
    batch_bytes: int,
) -> tuple[list[Batch], list[Parked]]:
    """Return the batches of what is resolved and what waits for its target, and what has to wait.

    Records in ``alone`` get a batch of their own.
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
        lane = lanes.get(lane_id)
        known = set(lane.waiting) if lane is not None else set()
        fresh = [target.key for target in new if target.key not in known]
        chosen: list[int] = []
        if (lane is None or lane.has_room) and lane_id[1] != UNKNOWN_PARTITION:
            sizes = {target.key: target.size_bytes for target in new}
            queue = [*(lane.waiting if lane is not None else ()), *fresh][:batch_keys]
            chosen = _fitting(queue, sizes, alone, batch_bytes)
        if chosen:
            epoch, base = (0, 0) if lane is None else (lane.epoch, lane.next_sequence)
            batches.append(Batch(topic, lane_id, epoch, base, tuple(chosen)))
        taken = set(chosen)
        if left := tuple(key for key in fresh if key not in taken):
            # One whose batch was refused counts as delivered: its name may have another record by now.
            names = {target.key: target.name for target in new if target.name and target.key not in alone}
            parked.append(Parked(topic, lane_id, left, tuple(names.get(key, 0) for key in left) if names else ()))
    return batches, parked


def _fitting(queue: Sequence[int], sizes: Mapping[int, int], alone: Collection[int], limit_bytes: int) -> list[int]:
    chosen: list[int] = []
    total = 0
    for key in queue:
        if key in alone:
            return chosen or [key]
        total += sizes.get(key, 0)
        if chosen and total > limit_bytes:
            break
        chosen.append(key)
    return chosen
