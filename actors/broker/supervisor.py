"""Keeps the replica actors of one broker in line with the metadata. Owned by the broker's shell.

Wanted is one actor for each replica that the metadata places on this broker, if its partition is awake (``wanted.py``).
The supervisor starts missing actors, ends those that are no longer wanted, and removes the folders of deleted topics
and of replicas that a reassignment moved away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from raylog.actors.actor_specs import BrokerSpec, ReplicaSpec
from raylog.actors.broker.wanted import WantedReplicas, holds, replica_named
from raylog.actors.clock import monotonic_ms
from raylog.actors.naming import partition_of_replica, replica_name
from raylog.actors.replica.set_aside import clear_half_deleted, clear_replaced, remove_partition_folder, topic_id_of
from raylog.actors.settings import REPLICA_KEYS
from raylog.base.ids import BrokerId, Incarnation, TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.touched import Touched
from raylog.storage.directory import parse_partition_folder, partition_folder
from raylog.storage.files import is_folder, list_files
from raylog.storage.log.checkpoints import Checkpoints

logger = logging.getLogger(__name__)

CHECK_S: Final = 1.0
MISSING_AFTER_MS: Final = 5_000
"""After so long without a registration a replica is looked up, and made again if its actor has ended."""


Instructions = tuple[Mapping[str, str], int, int, Mapping[str, str]]
"""Settings that may change while a replica runs: topic configuration, replication factor, bytes per second of catching
up, and the cluster's settings that apply to it."""


class NewestImage:
    """Queries the controller once for all callers that came before that query began."""

    def __init__(self, query: Callable[[], Awaitable[MetadataImage]]) -> None:
        """``query`` returns metadata as new as the controller's at its call, or newer."""
        self._query = query
        self._lock = asyncio.Lock()
        self._begun = 0
        self._answered = 0
        """Number of the last query that was answered."""
        self._image: MetadataImage | None = None

    async def get(self) -> MetadataImage:
        """Return metadata that is as new as the controller's at this call, or newer; raises what the query raises."""
        wanted = self._begun + 1
        async with self._lock:
            if self._answered < wanted or self._image is None:
                self._begun = number = self._begun + 1
                self._image = await self._query()
                self._answered = number
            return self._image


class ReplicaFactory(Protocol):
    """Makes and ends replica actors; Ray in production, plain tasks in tests."""

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Make the replica's actor unless one of its name runs."""

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Send the replica's actor the part of ``spec`` that may change while it runs."""

    async def end(self, name: str) -> None:
        """End the actor of this name for good; no error when there is none."""

    async def living(self, broker: int) -> Collection[str]:
        """Return the names of this broker's replicas that have an actor."""


class ReplicaSupervisor:
    """Compares wanted with running replicas: after each change of the metadata, and once a second for missing ones.

    Each replica has at most one piece of work under way, in a task of its own, so a replica that is slow to start or
    end delays no other. Failures are retried at the next check.
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
        self._newest = NewestImage(newest)
        self._image: MetadataImage | None = None
        self._wanted = WantedReplicas(spec, broker)
        self._touched = Touched(everything=True)
        self._changed = asyncio.Event()
        self._started: dict[str, ReplicaSpec] = {}
        self._may_run: set[str] = set()
        """Names that may have a process. A name that is not in ``_started`` may have one because an earlier process of
        this broker requested it, because Ray started it again after its node was away, or because a start failed
        halfway."""
        self._sent: dict[str, tuple[Incarnation, Instructions]] = {}
        self._missing_since_ms: dict[str, int] = {}
        self._due: set[str] = set()
        """Names to compare at the next check: something about them has changed, or they do not run yet."""
        self._sweeps: set[str] | None = None
        """Topics whose unwanted folders are to be removed; None = of all topics, and leftover processes as well."""
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

    def reconcile(self, image: MetadataImage, touched: Touched | None = None) -> None:
        """Take new metadata; the supervisor's own tasks act on it. ``touched`` None: everything may have changed."""
        self._image = image
        self._touched.add(Touched(everything=True) if touched is None else touched)
        self._changed.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHECK_S):  # asyncio.wait_for of Python 3.11 can swallow a cancellation
                    await self._changed.wait()
            self._changed.clear()
            if self._image is not None:
                try:
                    self._take_in(self._image)
                    if self._sweeps is None or self._sweeps:
                        await self._sweep(self._image)
                    self._compare(self._image)
                except Exception:  # any error: the next check may succeed, and nothing else checks the replicas
                    logger.exception("broker %d: replicas were not compared, trying again", self._broker)

    def _take_in(self, image: MetadataImage) -> None:
        touched, self._touched = self._touched, Touched()
        found = self._wanted.update(image, touched)
        self._due |= found
        if not image.is_stopped(BrokerId(self._broker)):
            self._may_run |= found & self._wanted.by_name.keys()
        if touched.everything:
            self._due |= self._started.keys() | self._wanted.by_name.keys()
        if self._sweeps is not None:
            self._sweeps |= touched.deleted
            moved = (part for part in touched.partitions if (part, BrokerId(self._broker)) in image.removed_replicas)
            self._sweeps |= {partition.topic for partition in moved}

    async def _sweep(self, image: MetadataImage) -> None:
        """Remove folders of partitions that were deleted or moved away while no process here could remove them.

        A folder that the metadata does not show as deleted or moved stays: the metadata may be an old copy.
        """
        topics, self._sweeps = self._sweeps, set()
        try:
            await asyncio.to_thread(clear_replaced, self._spec.folder, image.deleted_topics)
            await asyncio.to_thread(clear_half_deleted, self._spec.folder)
            if topics is None:
                await self._find_leftovers(image)
            # A replica that is just being started is ended later, and its folder removed then, see _start.
            busy = frozenset(self._busy)
            doomed = await asyncio.to_thread(self._doomed, topics, image, busy)
            for name, _, _, _ in doomed:
                await self._factory.end(name)
            newest = await self._newest.get() if doomed else image
            for _, folder, (topic, partition), topic_id in doomed:
                if not holds(newest, topic, partition, topic_id, self._broker):
                    await asyncio.to_thread(remove_partition_folder, folder, topic_id)
        except Exception as error:  # any error (disk, Ray, timeout): the wanted replicas must start
            self._sweeps = None if topics is None else self._sweeps | topics
            logger.warning("leftovers in %s were not removed, trying again: %r", self._spec.folder, error)

    async def _find_leftovers(self, image: MetadataImage) -> None:
        """Find unwanted processes that an earlier process of this broker has left or requested.

        Their partitions fell asleep, moved away or were deleted while this broker was away. Neither the metadata nor
        the data directory needs to show them: a process may start long after it was requested.
        """
        running = set(await self._factory.living(self._broker))
        wanted = () if image.is_stopped(BrokerId(self._broker)) else self._wanted.by_name
        leftovers = running.difference(wanted, self._started, self._busy)
        self._may_run |= leftovers
        self._due |= leftovers

    def _doomed(
        self, topics: Collection[str] | None, image: MetadataImage, busy: Collection[str]
    ) -> list[tuple[str, Path, tuple[str, int], str]]:
        """Return replica, folder, partition and topic id of each folder to remove. Runs in a thread."""
        found = []
        for topic, partition, folder in partition_folders(self._spec.folder):
            if topics is not None and topic not in topics:
                continue
            topic_id = topic_id_of(folder)
            name = replica_name(topic, partition, self._broker, topic_id)
            if holds(image, topic, partition, topic_id, self._broker) or name in self._started or name in busy:
                continue
            moved = moved_away(folder, topic, partition, topic_id, self._broker, image)
            if topic_id not in image.deleted_topics and not moved:
                logger.warning("%s is of no partition that is known here (id %s)", folder, topic_id or "missing")
                continue
            logger.info("%s belongs to a %s", folder.name, "replica that was moved" if moved else "deleted topic")
            found.append((name, folder, (topic, partition), topic_id))
        return found

    def _compare(self, image: MetadataImage) -> None:
        is_stopped = image.is_stopped(BrokerId(self._broker))
        wanted, now = self._wanted.by_name, monotonic_ms()
        due, self._due = self._due, set()
        for name in sorted(due, key=lambda name: (wanted[name].turn if name in wanted else 0, name)):
            found = wanted.get(name)
            if name in self._busy:
                continue  # looked at again when that work is done
            if found is None or is_stopped:
                if name in self._started:
                    self._work(name, self._end(name))
                elif name in self._may_run:
                    self._work(name, self._end_unknown(name))
                continue
            spec = self._wanted.spec(name)
            if spec is None:
                continue  # compared again once the newer metadata, which no longer has it, is taken in
            online = found.place.port != 0
            if self._needs_start(name, online=online, now_ms=now):
                self._work(name, self._start(name, spec))
            elif online and self._sent.get(name) != (found.place.incarnation, instructions(spec)):
                self._work(name, self._send_instructions(name, spec, found.place.incarnation))
            if not online:
                self._due.add(name)

    async def _end(self, name: str) -> None:
        """End a replica. Its folder stays if the partition sleeps, or if this broker was stopped on purpose.

        Otherwise the folder is removed, unless the partition was assigned to this broker again: the local metadata may
        be stale, and the replica may be in the ISR because of this folder. So the supervisor first ends the process,
        which then cannot register any more, and then queries the controller.
        """
        spec = self._started[name]
        await self._factory.end(name)
        if self._image is None or not self._holds(spec, self._image):
            logger.info("replica %s is no longer wanted", name)
            if not self._holds(spec, await self._newest.get()):
                folder = partition_folder(spec.data_directory, spec.topic, spec.partition)
                await asyncio.to_thread(remove_partition_folder, folder, spec.topic_id)
        for notes in (self._started, self._sent, self._missing_since_ms):
            notes.pop(name, None)
        self._may_run.discard(name)

    async def _end_unknown(self, name: str) -> None:
        """End a replica that this supervisor has not started, unless the newest metadata wants it running.

        If this broker holds no replica of the partition, the folder that the process may have made is removed by
        another sweep: it may have been made after the last one.
        """
        newest, partition = await self._newest.get(), partition_of_replica(name)
        state = replica_named(newest, name, self._broker)
        if state is None or state.asleep is not None or newest.is_stopped(BrokerId(self._broker)):
            await self._factory.end(name)
        if state is None and partition is not None and self._sweeps is not None:
            self._sweeps.add(partition.topic)
        self._may_run.discard(name)

    def _work(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"work on {name}")
        self._busy[name] = task
        task.add_done_callback(lambda done: self._worked(name, done))

    def _worked(self, name: str, done: asyncio.Task[None]) -> None:
        self._busy.pop(name, None)
        if done.cancelled():
            return
        self._due.add(name)  # the metadata may have moved on meanwhile
        trouble = done.exception()
        if trouble is None:
            self._changed.set()
        else:
            logger.warning("replica %s: trying again in a second: %r", name, trouble)

    async def _start(self, name: str, spec: ReplicaSpec) -> None:
        self._may_run.add(name)
        try:
            await self._factory.ensure(spec)
        except Exception:  # any error: of Ray, or that the replica could not start
            if self._sweeps is not None and self._image is not None and not self._holds(spec, self._image):
                self._sweeps.add(spec.topic)  # deleted meanwhile: only a sweep removes the folder it may have made
            raise
        deleted = () if self._image is None else self._image.deleted_topics
        await asyncio.to_thread(clear_replaced, self._spec.folder, deleted)
        self._started[name] = spec
        self._missing_since_ms[name] = monotonic_ms()

    async def _send_instructions(self, name: str, spec: ReplicaSpec, incarnation: Incarnation) -> None:
        """Send a replica the settings that may change while it runs.

        Ray restarts an actor with its first constructor arguments, so each incarnation gets the settings once.
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

    def _holds(self, spec: ReplicaSpec, image: MetadataImage) -> bool:
        return holds(image, spec.topic, spec.partition, spec.topic_id, self._broker)


def instructions(spec: ReplicaSpec) -> Instructions:
    """Return the settings of a specification that may change while the replica runs."""
    cluster = {key: value for key, value in spec.cluster_config.items() if key in REPLICA_KEYS}
    return spec.topic_config, spec.replication_factor, spec.catch_up_bytes_per_s, cluster


def moved_away(folder: Path, topic: str, partition: int, topic_id: str, broker: int, image: MetadataImage) -> bool:
    """Return whether, by the metadata, a reassignment moved the replica in this folder away from this broker.

    False for a log with a leader epoch later than that of the removal: this metadata does not know that log.
    """
    removed = image.removed_replicas.get((TopicPartition(topic, partition), BrokerId(broker)))
    if removed is None or image.topic(topic, topic_id) is None:
        return False
    epochs = Checkpoints(folder).read_epochs()
    return epochs is None or not epochs.entries or epochs.entries[-1][0] <= removed


def partition_folders(directory: Path) -> list[tuple[str, int, Path]]:
    """Return topic, partition and folder of each partition folder in a broker's data directory."""
    found = []
    for folder in list_files(directory):
        parsed = parse_partition_folder(folder.name)
        if parsed is not None and is_folder(folder):
            found.append((*parsed, folder))
    return found
