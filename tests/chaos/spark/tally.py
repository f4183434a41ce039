"""Counts the copies of each record: exactly one each, or what is wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import raylog
from tests.chaos.copies.worker import source_of
from tests.chaos.evidence.checker import Anomaly

Source = tuple[int, int]
"""Partition and offset of a record of the source."""
Records = Mapping[raylog.TopicPartition, Mapping[int, bytes]]


@dataclass(slots=True)
class Tally:
    """What a comparison has found."""

    once: int = 0
    """Records with one copy that has their value."""
    lost: list[Source] = field(default_factory=list)
    repeated: list[Source] = field(default_factory=list)
    invented: list[Source] = field(default_factory=list)
    """Copies of what is no committed record."""
    changed: list[Source] = field(default_factory=list)

    def anomalies(self) -> list[Anomaly]:
        """One for each record that is not there exactly once as it was."""
        kinds = (
            ("record lost", self.lost),
            ("record repeated", self.repeated),
            ("record invented", self.invented),
            ("record changed", self.changed),
        )
        return [
            Anomaly(kind, f"offset {offset} of partition {partition} of the source")
            for kind, sources in kinds
            for partition, offset in sources
        ]


def tally(inputs: Records, results: Records) -> Tally:
    """Compare the committed records of a source with the committed copies."""
    wanted = {(place.partition, offset): value for place, some in inputs.items() for offset, value in some.items()}
    copies = [value for some in results.values() for value in some.values()]
    counts = Counter(source_of(copy) for copy in copies)
    found = Tally(
        lost=sorted(source for source in wanted if source not in counts),
        repeated=sorted(source for source, count in counts.items() if count > 1 and source in wanted),
        invented=sorted(source for source in counts if source not in wanted),
        changed=sorted({source_of(copy) for copy in copies if _is_changed(copy, wanted)}),
    )
    found.once = len(wanted) - len({*found.lost, *found.repeated, *found.changed})
    return found


def _is_changed(copy: bytes, wanted: Mapping[Source, bytes]) -> bool:
    """Whether a copy of a record has another value: that is behind its second bar."""
    value = wanted.get(source_of(copy))
    return value is not None and copy.split(b"|", 2)[2] != value
