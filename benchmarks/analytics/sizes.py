"""How much each row measures, in a full run and in a quick one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of records, and seconds of streams."""

    records: int
    """Records of 100 bytes in the topic of a batch read; a tenth as many of 1,000 bytes."""
    ray_records: int
    """Records that Ray Data reads; its reader for Kafka takes ten times as long as others."""
    write_records: int
    """Records that Ray Data writes."""
    stream_s: float
    """How long each stream is measured."""
    stream_rate: int = 1_000
    """Records a second that a stream is sent."""
    batch_records: int = 500_000
    """Records of each micro-batch of a stream that writes."""
    partitions: int = 6

    def with_records(self, records: int) -> Sizes:
        """The same with another number of records, in proportion."""
        factor = records / self.records
        return replace(
            self,
            records=records,
            ray_records=max(1, int(self.ray_records * factor)),
            write_records=max(1, int(self.write_records * factor)),
        )


FULL = Sizes(records=10_000_000, ray_records=1_000_000, write_records=300_000, stream_s=30.0)
QUICK = Sizes(records=1_000_000, ray_records=100_000, write_records=30_000, stream_s=8.0, batch_records=200_000)


def sizes_for(*, quick: bool) -> Sizes:
    """The sizes of a full or of a quick run."""
    return QUICK if quick else FULL
