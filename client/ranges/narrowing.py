"""Bounds that narrow a planned read to the records that can match a query. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from raylog.storage.batch.times import TimeBounds

OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """Bounds on the records to read. Ends (`..._end`) are exclusive; None = no bound."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_low: int = 0
    partition_end: int = OFFSET_MAX
    offset_low: int = 0
    offset_end: int = OFFSET_MAX
    time_low_ms: int | None = None
    """Only records with this timestamp or a later one; reading begins at the first such record."""
    time_end_ms: int | None = None
    """Only records with an earlier timestamp. Timestamps need not ascend: older records may follow the first younger
    one. So this bounds a range only if it is known how late a record can be (`RangesWanted.lateness_ms`). In any case
    tasks skip batches by `times`."""

    @property
    def times(self) -> TimeBounds | None:
        """The time bounds, for the tasks; None = none."""
        if self.time_low_ms is None and self.time_end_ms is None:
            return None
        return TimeBounds(self.time_low_ms, self.time_end_ms)

    def keeps(self, topic: str, partition: int) -> bool:
        """Whether records of this partition could match."""
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.partition_low <= partition < self.partition_end
        )
