"""Partitions of the simulated cluster: the shipped state of producers, logs of event numbers, and a bad network."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raylog.base.errors import (
    ConnectionFailed,
    NotEnoughReplicas,
    RaylogError,
    RecordTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.cluster.metadata import TopicInfo
from raylog.client.producer.resumed import KnownSequence
from raylog.storage.batch.header import LASTING_PRODUCERS, parse_header
from raylog.storage.batch.records import decode_batch
from raylog.storage.log.producer_state import ProducerState
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.outbox.world import OutboxWorld, RelayProcess

IDLE_MS = 3_000
"""After so long partitions forget an ordinary producer."""


@dataclass
class Leader:
    """One partition, under all of its leaders: what is stored is committed."""

    world: OutboxWorld
    where: TopicPartition
    producers: ProducerState = field(default_factory=ProducerState)
    log: list[int] = field(default_factory=list)
    refuses_until_s: float = 0.0
    message_bytes: int = 100_000

    def append(self, payload: bytes) -> int:
        """Store a batch, or recognise it; returns its first offset. Raises what a leader refuses it with."""
        world = self.world
        now_ms = int(world.now_s * 1000)
        self.producers.expire(now_ms, IDLE_MS)
        header = parse_header(payload)
        duplicate = self.producers.check(header)
        if duplicate is not None:
            world.duplicates += 1
            return duplicate.first_offset
        if world.now_s < self.refuses_until_s:
            raise NotEnoughReplicas("not enough replicas")
        if len(payload) > self.message_bytes:
            raise RecordTooLarge("too large")
        first = len(self.log)
        values = decode_batch(payload, 0, header).values or []
        self.producers.apply(header._replace(base_offset=first), now_ms, None)
        for value in values:
            self._store(int((value or b"").split()[0]))
        return first

    def _store(self, number: int) -> None:
        world = self.world
        if number not in world.committed:
            raise Violation("O1", f"event {number} is in the topic, and its transaction did not commit")
        if not world.is_restored:  # the database has forgotten what is in the topic, so it may come again
            self._check(number)
        world.places.setdefault(number, []).append((self.where, len(self.log)))
        self.log.append(number)

    def _check(self, number: int) -> None:
        world, key = self.world, self.world.key_of(number)
        if number in world.places:
            raise Violation("O1", f"event {number} is in the topic twice: {world.places[number]} and {self.where}")
        before = world.newest_of_key.get(key, -1)
        if number < before:
            raise Violation("O3", f"event {number} of key {key} comes behind event {before}")
        failed = [other for other in world.oversized if world.key_of(other) == key and other <= number]
        if failed:
            raise Violation("O3", f"event {number} of key {key} is not held up by event {failed[0]}, which has failed")
        world.newest_of_key[key] = number


class _Cluster:
    """The part of a client's view of the cluster that a relay uses; also its metadata."""

    def __init__(self, world: OutboxWorld, process: RelayProcess) -> None:
        self._world, self._process = world, process
        self.metadata = self
        self.cluster_id = "c"

    def topic(self, name: str) -> TopicInfo | None:
        """Describe the only topic."""
        found = self._world.topic
        return found if name == found.name else None

    def watch(self, _: object) -> None:
        """Metadata is always new."""

    async def refresh(self, _: object) -> None:
        """Take a while."""
        await self._process.step()


class SimProducer:
    """In place of a resumed producer: the same calls, over the virtual network."""

    def __init__(self, world: OutboxWorld, process: RelayProcess) -> None:
        self._world, self._process = world, process
        self.cluster: Any = _Cluster(world, process)

    async def new_producer_id(self) -> int:
        """A lasting id."""
        await self._process.step()
        self._world.producer_ids += 1
        return LASTING_PRODUCERS + self._world.producer_ids

    async def known_sequence(self, where: TopicPartition, producer_id: int) -> KnownSequence | None:
        """What the leader knows."""
        await self._process.step()
        if self._world.random.random() < self._world.loss:
            raise ConnectionFailed("lost")
        entry = self._world.leaders[where].producers.producers.get(producer_id)
        if entry is None:
            return None
        return KnownSequence(entry.epoch, entry.batches[-1].last_sequence if entry.batches else -1)

    async def send(self, where: TopicPartition, topic_id: str, batch: bytes) -> int:
        """Send once: it may arrive late, twice or never, and so may its answer."""
        world = self._world
        await self._process.awake()
        if topic_id != world.topic.topic_id:
            raise UnknownTopicOrPartition("another topic", topic=where.topic)
        if world.random.random() < world.duplication:
            world.later(world.random.uniform(0.0, 5.0), self._arrive, where, batch, None)
        answer: asyncio.Future[int | RaylogError] = asyncio.get_running_loop().create_future()
        if world.random.random() >= world.loss:
            world.later(world.travel_s(), self._arrive, where, batch, answer)
        try:
            async with asyncio.timeout(1.0):
                found = await answer
        except TimeoutError:
            raise RequestTimedOut("no answer") from None
        await self._process.awake()
        if isinstance(found, RaylogError):
            raise found
        return found

    def _arrive(self, where: TopicPartition, batch: bytes, answer: asyncio.Future[int | RaylogError] | None) -> None:
        world = self._world
        found: int | RaylogError
        try:
            found = world.leaders[where].append(batch)
        except RaylogError as error:
            found = error
        except Violation as violation:
            world.violated(violation)
            return
        if answer is not None and world.random.random() >= world.loss:
            world.later(world.travel_s(), lambda: None if answer.done() else answer.set_result(found))

    async def find_leader_again(self, _: object, __: object) -> None:
        """Take a while."""
        await self._process.step()

    async def make_scheduled_topic(self) -> None:
        """There is none here."""
        await self._process.step()
