"""How much a micro-batch reads: `maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxTriggerDelay`, as Kafka's source.

Used by stream_reader.py. Pure: the time is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from raylog.base.errors import InvalidConfig
from raylog.base.ids import TopicPartition
from raylog.spark.reading.stream_offsets import StreamOffsets, backlog, following

DEFAULT_MAX_TRIGGER_DELAY = "15m"
_UNITS_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_DURATION = re.compile(r"(-?[0-9]+)([a-z]+)?")


def parse_duration_ms(option: str, text: str) -> int:
    """Parse a duration as Spark writes it (`30s`, `15m`); a bare number is milliseconds. Raises InvalidConfig."""
    found = _DURATION.fullmatch(text.strip().lower())
    unit_us = None if found is None else _UNITS_US.get(found[2] or "ms")
    if found is None or unit_us is None:
        raise InvalidConfig(
            f"{option} must be a whole number and a unit of {', '.join(_UNITS_US)}, as in 30s or 15m, not {text!r}."
        )
    if int(found[1]) < 0:
        raise InvalidConfig(f"{option} must not be negative, as {text!r} is.")
    return int(found[1]) * unit_us // 1_000


def limited(
    limit: int, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Ends of a batch of about `limit` offsets, shared in proportion to what each partition has to read.

    Each partition with something to read gets at least one offset, so that none waits indefinitely behind large ones.
    This can exceed the limit by at most one offset for each partition. A partition with nothing to read keeps its end.
    """
    backlog = {place: end - begins[place] for place, end in ends.items() if end > begins[place]}
    total = sum(backlog.values())
    if total <= limit:
        return dict(ends)
    return {
        place: begins[place] + max(1, limit * backlog[place] // total) if place in backlog else end
        for place, end in ends.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one trigger may read; None = no limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 0
    """How long a batch may wait for `min_offsets`."""


class Admission:
    """Decides where each micro-batch of one query ends. The first trigger never waits for a minimum."""

    def __init__(self) -> None:
        self._passed_ms: int | None = None

    def end(
        self,
        start: StreamOffsets,
        now: StreamOffsets,
        begins: Mapping[TopicPartition, int],
        limits: Limits,
        now_ms: int,
    ) -> StreamOffsets:
        """The end of the batch from `start`; `start` itself, the same object, when there is no batch.

        `now` has the end of each partition's log, `begins` the offset from which each is read: that of `start`, or the
        earliest. `now_ms` must never go back.
        """
        available = backlog(begins, now.offsets)
        if limits.min_offsets is not None and not self._passes(available, limits.min_offsets, limits, now_ms):
            return start
        if limits.max_offsets is None:
            return following(start, now, now.offsets)
        return following(start, now, limited(limits.max_offsets, begins, now.offsets))

    def _passes(self, available: int, minimum: int, limits: Limits, now_ms: int) -> bool:
        is_due = self._passed_ms is None or now_ms - self._passed_ms >= limits.max_delay_ms
        if not is_due and available < minimum:
            return False
        self._passed_ms = now_ms
        return True
