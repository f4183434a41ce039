"""A broker's metrics and readiness, with those of its replicas. Owned by the broker's shell, collected on demand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raylog.actors.clock import wall_ms
from raylog.actors.metrics.collector import CachedResult, MetricsClient, ReplicaCollector
from raylog.actors.metrics.process import damaged_count, disk_figures, usage_of
from raylog.actors.resting import DozingReplica
from raylog.base.ids import TopicPartition
from raylog.core.configuration.config import ClusterConfig
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord
from raylog.core.metrics.changes import PartitionChanges
from raylog.core.metrics.exposition import Family
from raylog.core.metrics.families import BrokerView, ReplicaFigures, broker_families
from raylog.rpc import RpcServer, Secret

DISK_FULL_BYTES: Final = 1 << 20
"""A disk counts as full when it has no room for a batch of the default size."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLooks:
    """What the metrics need from their broker; functions return the present value."""

    folder: Path
    secret: Secret = field(repr=False)
    server: RpcServer
    broker: Callable[[], int]
    image: Callable[[], MetadataImage]
    is_registered: Callable[[], bool]
    dozing: Callable[[], Mapping[str, DozingReplica]] = dict
    """Replicas whose processes are stopped, by name."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """Metrics of one broker, and the reasons why it is not ready; without reasons it is ready."""

    families: list[Family]
    reasons: list[str]

    def to_wire(self) -> dict[str, object]:
        """Return the msgpack form: the answer to ``broker_metrics``."""
        return {"families": [family.to_wire() for family in self.families], "reasons": list(self.reasons)}


class BrokerMetrics:
    """Metrics of one broker and its replicas; a report is cached for a second."""

    def __init__(self, looks: BrokerLooks) -> None:
        """Make it; no process is queried before the first :meth:`report`."""
        self._looks = looks
        self._changes = PartitionChanges()
        self._client = MetricsClient(looks.secret)
        self._collector = ReplicaCollector(self._client)
        self._held: CachedResult[BrokerReport] = CachedResult(self._look)

    def close(self) -> None:
        """Close the connections to the replicas."""
        self._client.close()

    def begin(self, image: MetadataImage) -> None:
        """Count changes of partitions from this image on, because the metadata was read from scratch."""
        self._changes.broker = self._looks.broker()
        self._changes.begin(image)

    def note(self, record: MetadataRecord) -> None:
        """Take in a metadata record that is about to be applied."""
        self._changes.note((record,))

    async def report(self) -> BrokerReport:
        """Return metrics and readiness, at most a second old. Takes about six seconds at most."""
        return await self._held.get()

    async def _look(self) -> BrokerReport:
        looks = self._looks
        image, broker = looks.image(), looks.broker()
        dozing = looks.dozing()
        replicas = await self._collector.look(image, broker, dozing)
        self._client.keep(_endpoints(image, broker))
        try:
            disk = await asyncio.to_thread(disk_figures, looks.folder)
            set_aside = await asyncio.to_thread(damaged_count, looks.folder)
        except OSError as error:
            logger.warning("the disk of %s has no figures: %s", looks.folder, error)
            disk, set_aside = None, 0
        view = BrokerView(
            broker=broker,
            image=image,
            replicas=replicas,
            totals=self._collector.totals,
            changes=self._changes,
            dozing=len(dozing),
            usage=usage_of(looks.server),
            controller_connected=looks.is_registered(),
            disk=disk,
            set_aside=set_aside,
            per_partition=ClusterConfig.from_dict(image.config).metrics_per_partition,
            now_ms=wall_ms(),
        )
        return BrokerReport(broker_families(view), unready(broker, looks.is_registered(), replicas, disk))


def _endpoints(image: MetadataImage, broker: int) -> Iterable[tuple[str, int]]:
    for topic in image.topics.values():
        for state in topic.partitions:
            for place in state.places:
                if place.broker == broker and place.port:
                    yield place.host, place.port


def unready(
    broker: int,
    is_registered: bool,
    replicas: Mapping[TopicPartition, ReplicaFigures | None],
    disk: tuple[int, int] | None,
) -> list[str]:
    """Return the reasons why a broker is not ready. Pure.

    It is not registered, its disk is full, or a replica does not answer, neither leads nor follows, or has a damaged
    log that was not copied again yet.
    """
    reasons = [] if is_registered else [f"broker {broker} is not registered with the controller"]
    if disk is not None and disk[0] < DISK_FULL_BYTES:
        reasons.append(f"the disk of broker {broker} is full: {disk[0]} of {disk[1]} bytes are free")
    for partition, figures in sorted(replicas.items()):
        if figures is None:
            reasons.append(f"{partition} on broker {broker} does not answer")
        elif figures.role not in ("leader", "follower"):
            reasons.append(f"{partition} on broker {broker} neither leads nor follows yet: it is {figures.role}")
        if figures is not None and figures.damage:
            reasons.append(f"{partition} on broker {broker} has a damaged log: {figures.damage}")
    return reasons
