"""Keeps the replica actors of one broker in line with the metadata. Owned by the broker's shell.

Wanted: one actor per partition replica that the metadata places on this broker. It starts what is missing, ends what
is no longer wanted, and removes the folders of deleted topics and of replicas that a reassignment took away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from raylog.actors.actor_specs import BrokerSpec, ReplicaSpec
from raylog.actors.broker.set_aside import clear_half_deleted, clear_replaced, remove_partition_folder, topic_id_of
from raylog.actors.clock import monotonic_ms
from raylog.actors.naming import replica_name
from raylog.actors.settings import catch_up_rate
from raylog.core.ids import BrokerId, Incarnation, TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.partition import ReplicaPlace
from raylog.storage.directory import parse_partition_folder, partition_folder
from raylog.storage.log.checkpoints import Checkpoints
from raylog.storage.log.files import is_folder, list_files

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0
MISSING_AFTER_MS: Final = 5_000
"""After so long without a registration a replica is looked up, and made again when its actor has stopped."""


Instructions = tuple[Mapping[str, str], int, int]
"""What may change while a replica runs: topic configuration, replication factor, pace of catching up."""


class ReplicaFactory(Protocol):
    """Makes and ends replica actors; Ray in production, plain tasks in tests."""

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Make the replica's actor unless one of its name runs."""

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Send the replica's actor the part of ``spec`` that may change while it runs."""

    async def end(self, name: str) -> None:
        """End the actor of this name for good; no error when there is none."""


class ReplicaSupervisor:
    """Compares wanted with running replicas whenever the metadata changes, and once a second.

    Each replica has at most one piece of work under way, in a task of its own: one that is slow to start or to end
    delays no other. Failures are retried at the next check.
    """

    def __init__(
        self,
        spec: BrokerSpec,
        broker: int,
        factory: ReplicaFactory,
        newest: Callable[[], Awaitable[MetadataImage]],
    ) -> None:
        """Idle until :meth:`start`. ``newest`` queries the controller; errors that it raises are retried."""
        self._spec = spec
        self._broker = broker
        self._factory = factory
        self._newest = newest
        self._image: MetadataImage | None = None
        self._changed = asyncio.Event()
        self._started: dict[str, ReplicaSpec] = {}
        self._sent: dict[str, tuple[Incarnation, Instructions]] = {}
        self._missing_since_ms: dict[str, int] = {}
        self._swept = False
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run(), name=f"supervisor of broker {self._broker}")

    async def stop(self) -> None:
        """Stop comparing; the replicas stay as they are."""
        tasks = [*self._busy.values(), *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def reconcile(self, image: MetadataImage) -> None:
        """Store new metadata; the supervisor's own tasks act on it."""
        self._image = image
        self._changed.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):  # asyncio.wait_for of Python 3.11 can swallow a cancellation
                    await self._changed.wait()
            self._changed.clear()
            if self._image is not None:
                if not self._swept:
                    await self._sweep(self._wanted(self._image), self._image)
                try:
                    self._compare(self._image)
                except Exception:  # any error: the next check may succeed, and nothing else checks the replicas
                    logger.exception("broker %d: replicas were not compared, trying again", self._broker)

    async def _sweep(self, wanted: Container[str], image: MetadataImage) -> None:
        """Remove what was deleted or moved elsewhere while this broker was away, or halfway when it crashed.

        A folder that the metadata does not name as deleted is left alone: the metadata may be an old copy.
        """
        deleted = image.deleted_topics
        try:
            await asyncio.to_thread(clear_replaced, self._spec.folder, deleted)
            await asyncio.to_thread(clear_half_deleted, self._spec.folder)
            for topic, partition, folder in await asyncio.to_thread(partition_folders, self._spec.folder):
                topic_id = await asyncio.to_thread(topic_id_of, folder)
                name = replica_name(topic, partition, self._broker, topic_id)
                if name in wanted:
                    continue
                moved = await asyncio.to_thread(moved_away, folder, topic, partition, topic_id, self._broker, image)
                if topic_id not in deleted and not moved:
                    logger.warning("%s is of no partition that is known here (id %s)", folder, topic_id or "missing")
                    continue
                logger.info("%s belongs to a %s", folder.name, "replica that was moved" if moved else "deleted topic")
                await self._factory.end(name)
                if name not in self._wanted(await self._newest()):
                    await asyncio.to_thread(remove_partition_folder, folder, topic_id)
            self._swept = True
        except Exception as error:  # any error (disk, Ray, timeout): the wanted replicas must start
            logger.warning("leftovers in %s were not removed, trying again: %r", self._spec.folder, error)

    def _compare(self, image: MetadataImage) -> None:
        wanted = self._wanted(image)
        now = monotonic_ms()
        for name, spec in self._started.items():
            if name not in wanted and name not in self._busy:
                self._work(name, self._remove(name, spec))
        if image.is_stopped(BrokerId(self._broker)):
            self._retire_all()
            return
        for name, (spec, place) in wanted.items():
            if name in self._busy:
                continue
            if self._needs_start(name, online=place.port != 0, now_ms=now):
                self._work(name, self._start(name, spec))
            elif place.port and self._sent.get(name) != (place.incarnation, instructions(spec)):
                self._work(name, self._send_instructions(name, spec, place.incarnation))

    def _retire_all(self) -> None:
        """End the replicas of a broker that was stopped on purpose; their folders stay for its return."""
        for name in list(self._started):
            if name not in self._busy:
                self._work(name, self._retire(name))

    async def _retire(self, name: str) -> None:
        await self._factory.end(name)
        for notes in (self._started, self._sent, self._missing_since_ms):
            notes.pop(name, None)

    def _work(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"work on {name}")
        self._busy[name] = task
        task.add_done_callback(lambda done: self._worked(name, done))

    def _worked(self, name: str, done: asyncio.Task[None]) -> None:
        self._busy.pop(name, None)
        if done.cancelled():
            return
        trouble = done.exception()
        if trouble is None:
            self._changed.set()  # the metadata may have moved on meanwhile
        else:
            logger.warning("replica %s: trying again in a second: %r", name, trouble)

    async def _start(self, name: str, spec: ReplicaSpec) -> None:
        await self._factory.ensure(spec)
        deleted = () if self._image is None else self._image.deleted_topics
        await asyncio.to_thread(clear_replaced, self._spec.folder, deleted)
        self._started[name] = spec
        self._missing_since_ms[name] = monotonic_ms()

    async def _send_instructions(self, name: str, spec: ReplicaSpec, incarnation: Incarnation) -> None:
        """Send a replica its current instructions, which may have changed while the actor ran or was away.

        Ray restarts an actor with its first constructor arguments, so each incarnation gets them once.
        """
        await self._factory.reconfigure(spec)
        self._sent[name] = (incarnation, instructions(spec))

    def _needs_start(self, name: str, *, online: bool, now_ms: int) -> bool:
        if online:
            self._missing_since_ms.pop(name, None)
            return name not in self._started
        if name not in self._started:
            return True
        return now_ms - self._missing_since_ms.setdefault(name, now_ms) >= MISSING_AFTER_MS

    def _wanted(self, image: MetadataImage) -> dict[str, tuple[ReplicaSpec, ReplicaPlace]]:
        wanted: dict[str, tuple[ReplicaSpec, ReplicaPlace]] = {}
        turns: dict[str, int] = {}
        mine = self._broker
        added = sum(mine in state.adding and mine not in state.isr for state in image.partitions())
        pace = catch_up_rate(image.config, added)
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
                    replication_factor=state.replication_factor,
                    topic_config=dict(topic.config),
                    cluster_config=dict(image.config),
                    host=self._spec.host,
                    allow_plaintext=self._spec.allow_plaintext,
                    catch_up_bytes_per_s=pace if mine in state.adding else 0,
                )
                wanted[_name(spec)] = (spec, place)
                turns[_name(spec)] = state.replicas.index(BrokerId(mine))
        # Starting a process takes its time. A partition serves when its leader and enough followers are there, so all
        # brokers start their leaders first, then the first follower of each partition, and so on.
        return {name: wanted[name] for name in sorted(wanted, key=turns.__getitem__)}

    async def _remove(self, name: str, spec: ReplicaSpec) -> None:
        """End a replica and remove its folder, unless it was assigned to this broker again.

        The local metadata may be stale: the replica may have been added again and be in the ISR because of this folder.
        So the supervisor queries the controller once no process that it did not start can register any more.
        """
        logger.info("replica %s is no longer wanted", name)
        await self._factory.end(name)
        if name not in self._wanted(await self._newest()):
            folder = partition_folder(spec.data_directory, spec.topic, spec.partition)
            await asyncio.to_thread(remove_partition_folder, folder, spec.topic_id)
        for notes in (self._started, self._sent, self._missing_since_ms):
            notes.pop(name, None)


def instructions(spec: ReplicaSpec) -> Instructions:
    """Return the part of a specification that may change while the replica runs."""
    return spec.topic_config, spec.replication_factor, spec.catch_up_bytes_per_s


def moved_away(folder: Path, topic: str, partition: int, topic_id: str, broker: int, image: MetadataImage) -> bool:
    """Return whether, by the metadata, a reassignment moved the replica in this folder away from this broker.

    A log with a leader epoch later than the removal is unknown to the metadata: it stays.
    """
    removed = image.removed_replicas.get((TopicPartition(topic, partition), BrokerId(broker)))
    if removed is None or image.topic(topic, topic_id) is None:
        return False
    epochs = Checkpoints(folder).read_epochs()
    return epochs is None or not epochs.entries or epochs.entries[-1][0] <= removed


def partition_folders(directory: Path) -> list[tuple[str, int, Path]]:
    """Return topic, partition and folder of everything kept in a broker's data directory."""
    found = []
    for folder in list_files(directory):
        parsed = parse_partition_folder(folder.name)
        if parsed is not None and is_folder(folder):
            found.append((*parsed, folder))
    return found


def _name(spec: ReplicaSpec) -> str:
    return replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
