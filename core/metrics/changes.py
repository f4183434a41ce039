"""Counts changes of partitions from metadata records: elections, shrinking and expanding ISRs. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord, PartitionChanged, TopicDeleted


class PartitionChanges:
    """Counters of one process since its start of counting; no figure falls."""

    def __init__(self, broker: int | None = None) -> None:
        """``broker``: count ISRs of the partitions that this broker leads only, as Kafka's brokers do; None = all."""
        self.broker = broker
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.elections = 0
        self.unclean_elections = 0
        self._known: dict[tuple[str, int], tuple[int, int]] = {}
        """Leader epoch and size of the ISR, by topic and partition number."""

    def begin(self, image: MetadataImage) -> None:
        """Compare with this image from now on; the counters stay."""
        self._known = {
            (state.partition.topic, state.partition.partition): (state.leader_epoch, len(state.isr))
            for state in image.partitions()
        }

    def note(self, records: Iterable[MetadataRecord]) -> None:
        """Count records that are about to be applied."""
        for record in records:
            if isinstance(record, PartitionChanged):
                self._changed(record)
            elif isinstance(record, TopicDeleted):  # a later topic may have its name, or none may
                for key in [entry for entry in self._known if entry[0] == record.topic]:
                    del self._known[key]

    def _changed(self, record: PartitionChanged) -> None:
        key = record.topic, record.partition
        epoch, size = self._known.get(key, (0, 0))
        self._known[key] = record.leader_epoch, len(record.isr)
        if record.leader >= 0 and record.leader_epoch > epoch:
            self.elections += 1
            self.unclean_elections += record.unclean_leader_epoch == record.leader_epoch
        if size and (self.broker is None or record.leader == self.broker):
            self.isr_shrinks += len(record.isr) < size
            self.isr_expands += len(record.isr) > size
