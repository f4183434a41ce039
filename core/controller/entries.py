"""What the metadata image is made of: one broker, one coordinator, one topic. Plain values, changed by records only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.core.features import FIRST, LevelRange
from raylog.core.ids import BrokerId, Incarnation, ProducerId
from raylog.core.replication.state import PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One broker: its last registration, and whether it runs now."""

    broker: BrokerId
    incarnation: Incarnation
    node_id: str
    host: str
    port: int
    directory_id: str
    levels: LevelRange = FIRST
    """The feature levels that its release knows."""
    online: bool = True
    stopped: bool = False
    """Somebody asked it to stop, and nobody asked for it again since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinator:
    """One coordinator: kind "group" or "transaction", index of its partition, number of its life, and its endpoint."""

    kind: str
    index: int
    epoch: int
    producer_id: ProducerId
    host: str
    port: int
    """0 = it does not run."""


@dataclass(slots=True)
class TopicImage:
    """One topic: identity, own configuration (explicit settings only), and the state of each partition by number."""

    topic_id: str
    name: str
    config: Mapping[str, str]
    partitions: list[PartitionState]

    @property
    def internal(self) -> bool:
        """Tell whether the topic is Raylog's own."""
        return self.name.startswith("__")
