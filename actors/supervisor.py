"""Keeps the replica actors of one broker in line with the metadata. Owned by the broker's shell.

Wanted: one actor per partition replica that the metadata places on this broker. It starts what is missing, ends what
is no longer wanted, and removes the folders of deleted topics.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from raylog.actors.clock import monotonic_ms, wall_ms
from raylog.actors.naming import replica_name
from raylog.actors.specs import BrokerSpec, ReplicaSpec
from raylog.core.controller.image import MetadataImage
from raylog.core.ids import BrokerId
from raylog.storage.directory import parse_partition_folder, partition_folder

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0
MISSING_AFTER_MS: Final = 5_000
"""A replica that is not registered for so long is looked for, and made again when its actor is gone."""


class ReplicaWorkshop(Protocol):
    """Makes and ends replica actors; Ray in production, plain tasks in tests."""

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Make the replica's actor unless one of its name runs."""

    async def end(self, name: str) -> None:
        """End the actor of this name for good; no error when there is none."""


class ReplicaSupervisor:
    """Compares wanted with running replicas whenever the metadata changes, and once a second."""

    def __init__(self, spec: BrokerSpec, broker: int, workshop: ReplicaWorkshop) -> None:
        """Nothing happens before :meth:`start`."""
        self._spec = spec
        self._broker = broker
        self._workshop = workshop
        self._image: MetadataImage | None = None
        self._changed = asyncio.Event()
        self._started: dict[str, ReplicaSpec] = {}
        self._missing_since_ms: dict[str, int] = {}
        self._swept = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run(), name=f"supervisor of broker {self._broker}")

    async def stop(self) -> None:
        """Stop comparing; the replicas stay as they are."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def reconcile(self, image: MetadataImage) -> None:
        """Take note of new metadata; the work is done by the supervisor's own task."""
        self._image = image
        self._changed.set()

    async def _run(self) -> None:
        while True:
            try:
                await asyncio.wait_for(self._changed.wait(), CHECK_S)
            except TimeoutError:
                pass
            self._changed.clear()
            if self._image is not None:
                await self._compare(self._image)

    async def _sweep(self, wanted: Iterable[str]) -> None:
        """Remove what a topic left here that was deleted while this broker was away."""
        for topic, partition, folder in await asyncio.to_thread(partition_folders, self._spec.folder):
            topic_id = topic_id_of(folder)
            name = replica_name(topic, partition, self._broker, topic_id)
            if topic_id and name not in wanted:
                logger.info("%s belongs to a topic that was deleted", folder.name)
                await self._workshop.end(name)
                await asyncio.to_thread(remove_partition_folder, folder, topic_id)

    async def _compare(self, image: MetadataImage) -> None:
        wanted = self._wanted(image)
        if not self._swept:
            await self._sweep(wanted)
            self._swept = True
        gone = [name for name in self._started if name not in wanted]
        for name in gone:
            await self._remove(name, self._started.pop(name))
        now = monotonic_ms()
        to_start = [
            spec for name, (spec, online) in wanted.items() if self._needs_start(name, online=online, now_ms=now)
        ]
        outcomes = await asyncio.gather(*(self._workshop.ensure(spec) for spec in to_start), return_exceptions=True)
        for spec, outcome in zip(to_start, outcomes, strict=True):
            name = _name(spec)
            if isinstance(outcome, BaseException):
                logger.warning("replica %s was not started, trying again: %r", name, outcome)
            else:
                self._started[name] = spec
                self._missing_since_ms[name] = now

    def _needs_start(self, name: str, *, online: bool, now_ms: int) -> bool:
        if online:
            self._missing_since_ms.pop(name, None)
            return name not in self._started
        if name not in self._started:
            return True
        return now_ms - self._missing_since_ms.setdefault(name, now_ms) >= MISSING_AFTER_MS

    def _wanted(self, image: MetadataImage) -> dict[str, tuple[ReplicaSpec, bool]]:
        wanted: dict[str, tuple[ReplicaSpec, bool]] = {}
        mine = self._broker
        for topic in image.topics.values():
            for state in topic.partitions:
                place = state.place(BrokerId(mine))
                if place is None:
                    continue
                spec = ReplicaSpec(
                    topic_id=topic.topic_id,
                    topic=state.partition.topic,
                    partition=state.partition.partition,
                    broker=mine,
                    data_directory=self._spec.folder,
                    secret=self._spec.secret,
                    replication_factor=len(state.replicas),
                    topic_config=dict(topic.config),
                    cluster_config=dict(image.config),
                    host=self._spec.host,
                )
                wanted[_name(spec)] = (spec, place.port != 0)
        return wanted

    async def _remove(self, name: str, spec: ReplicaSpec) -> None:
        logger.info("replica %s is no longer wanted", name)
        self._missing_since_ms.pop(name, None)
        await self._workshop.end(name)
        folder = partition_folder(spec.data_directory, spec.topic, spec.partition)
        await asyncio.get_running_loop().run_in_executor(None, remove_partition_folder, folder, spec.topic_id)


def partition_folders(directory: Path) -> list[tuple[str, int, Path]]:
    """Return topic, partition and folder of everything kept in a broker's data directory."""
    found = []
    for folder in sorted(directory.iterdir()):
        parsed = parse_partition_folder(folder.name)
        if parsed is not None and folder.is_dir():
            found.append((*parsed, folder))
    return found


def topic_id_of(folder: Path) -> str:
    """Return the topic id that a partition folder was made for; "" when it cannot be told."""
    about = folder / "partition.metadata"
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("topic_id: ")), "")


def remove_partition_folder(folder: Path, topic_id: str) -> None:
    """Remove the folder of a deleted partition, unless another topic of the same name has it by now."""
    if not folder.exists() or topic_id_of(folder) != topic_id:
        return
    doomed = folder.with_name(f"{folder.name}.deleted-{wall_ms()}")
    folder.rename(doomed)
    shutil.rmtree(doomed, onerror=_report)


def _report(function: Callable[..., object], path: str, _: object) -> None:
    logger.warning("could not remove %s (%s); it can be removed by hand", path, function.__name__)


def _name(spec: ReplicaSpec) -> str:
    return replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
