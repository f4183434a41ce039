"""Delayed records of a producer: when they are due, by which clock, and where they wait.

Owned by the producer's engine. A delay is counted by the scheduler's clock, which this one is compared with once a
minute. Belongs to the client's loop. May touch: the network through `ClusterClient`, the clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from raylog.client.arguments import Headers, checked_headers, checked_topic, now_ms
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.config import ProducerConfig
from raylog.client.producer.futures import AsyncSendFuture, SendFuture
from raylog.client.scheduling import DELAY_MAX_MS, SCHEDULED_TOPIC, Delay, Handle, Moment, delay_ms, moment_ms
from raylog.client.types import Header, RecordMetadata
from raylog.core.dead_letters import TTL
from raylog.core.errors import (
    DelayDisabled,
    DelayTooLong,
    InvalidConfig,
    InvalidRecord,
    InvalidTxnState,
    UnknownTopicOrPartition,
)
from raylog.core.scheduling.envelope import BY_KEY, Envelope, HalfId
from raylog.core.scheduling.keys import HELD_MS
from raylog.protocol.admin import ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest
from raylog.protocol.scheduling import DESCRIBE_SCHEDULER, DescribeSchedulerRequest
from raylog.storage.batch.key_hash import hash_of_key

CLOCK_S: Final = 60.0
"""How long the difference of the clocks is believed."""
SLOW_S, SLOW_CLOCK_S = 0.02, 2.0
"""A difference that took so long to find is believed for less time."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where the delayed records of a topic wait, and what its settings allow."""

    topic: str
    topic_id: str
    partitions: int
    shard: int
    """Partition of ``__scheduled``."""
    shards: int
    """How many there are."""
    ahead_ms: int
    """How far the scheduler's clock is ahead of this one."""
    delay_max_ms: int
    is_enabled: bool
    until_s: float
    """When this has to be found again, by the monotonic clock."""

    def due_ms(self, delay: Delay | None, deliver_at: Moment | None) -> int:
        """When a record is due; a past time is now. Raises DelayTooLong, DelayDisabled, ValueError, TypeError."""
        if delay is not None and deliver_at is not None:
            raise ValueError("A record has a delay or a time when it is due, not both: leave out delay or deliver_at.")
        moment = now_ms() + self.ahead_ms
        due = moment + delay_ms(delay) if delay is not None else moment_ms(deliver_at or 0)
        if not self.is_enabled:
            raise DelayDisabled(f"{self.topic} has delay.enable=false; send the record without delay, or change that.")
        if due - moment > self.delay_max_ms:
            raise DelayTooLong(
                f"The record would be due in {due - moment} ms, and delay.max.ms of {self.topic} is "
                f"{self.delay_max_ms}; send it later, or raise that (to ten years at most)."
            )
        return max(moment, due)  # with an old time it would fall to retention as soon as it is delivered

    def held_ms(self) -> int:
        """The timestamp of a record of a half message that is prepared now."""
        return HELD_MS + now_ms() + self.ahead_ms

    def shard_of(self, name: HalfId) -> int:
        """The partition of ``__scheduled`` that holds a half message: all its records are in one."""
        return shard_of_half(name, self.shards)

    def header(self, partition: int | None) -> Header:
        """The header that names a record's target. Raises UnknownTopicOrPartition."""
        if partition is not None and not 0 <= partition < self.partitions:
            raise UnknownTopicOrPartition(
                f"Topic {self.topic!r} has partitions 0 to {self.partitions - 1}, not {partition}.", topic=self.topic
            )
        return Envelope(self.topic, self.topic_id, BY_KEY if partition is None else partition, now_ms()).header()


class Scheduling:
    """The topics to which a producer sends delayed records."""

    def __init__(self, config: ProducerConfig, cluster: ClusterClient) -> None:
        self._config = config
        self._cluster = cluster
        self._known: dict[str, Waiting] = {}

    def check(self) -> None:
        """Raise for a producer whose delayed records could be lost or come twice."""
        if self._config.transactional_id is not None:
            raise InvalidTxnState(
                "A delayed record cannot be part of a transaction; send it with a producer without transactional_id."
            )
        if self._config.acks != "all" or not self._config.enable_idempotence:
            raise InvalidConfig(
                f"Delayed records need acks='all' and enable_idempotence=True, not acks={self._config.acks!r} and "
                f"enable_idempotence={self._config.enable_idempotence}."
            )

    def known(self, topic: str) -> Waiting | None:
        """What is known of a topic and still valid."""
        found = self._known.get(topic)
        return found if found is not None and time.monotonic() < found.until_s else None

    async def find(self, topic: str, timeout_s: float) -> Waiting:
        """Where a topic's delayed records wait. Raises UnknownTopicOrPartition, UnsupportedVersion, RequestTimedOut."""
        deadline = Deadline(timeout_s)
        await self._cluster.refresh((checked_topic(topic),), timeout_s=deadline.left_s)
        info = await self._cluster.topic(topic, timeout_s=deadline.left_s)
        made = await self._cluster.call_broker(
            ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest(SCHEDULED_TOPIC), timeout_s=deadline.left_s
        )
        shard = hash_of_key(topic.encode()) % made.partitions
        began_s, began_ms = time.monotonic(), now_ms()
        reply, _ = await self._cluster.call_leader(
            SCHEDULED_TOPIC,
            shard,
            DESCRIBE_SCHEDULER,
            DescribeSchedulerRequest,
            timeout_s=deadline.left_s,
        )
        took_s = time.monotonic() - began_s
        found = Waiting(
            topic=topic,
            topic_id=info.topic_id,
            partitions=len(info.partitions),
            shard=shard,
            shards=made.partitions,
            # As if the clock had been read when the request left: a delay may turn out longer by its way, not shorter.
            ahead_ms=reply.clock_ms - began_ms,
            delay_max_ms=int(info.config.get("delay.max.ms", DELAY_MAX_MS)),
            is_enabled=str(info.config.get("delay.enable", "true")).lower() == "true",
            until_s=time.monotonic() + (CLOCK_S if took_s < SLOW_S else SLOW_CLOCK_S),
        )
        self._known[topic] = found
        return found


def shard_of_half(name: HalfId, shards: int) -> int:
    """The partition of ``__scheduled`` that holds a half message."""
    return hash_of_key("\0".join(name).encode()) % shards


def with_ttl(headers: Headers | None, ttl: Delay) -> list[Header]:
    """A record's headers with its time to live. Raises ValueError, TypeError; InvalidRecord for a second one."""
    pairs = checked_headers(headers) or []
    if any(name == TTL for name, _ in pairs):
        raise InvalidRecord(f"The record has the header {TTL} already: leave out ttl, or the header.")
    return [*pairs, (TTL, str(delay_ms(ttl)).encode())]


class ScheduledFuture(SendFuture, frozen=True, eq=False):
    """The outcome of a `send()` with a delay: known when the record waits, not when it is delivered.

    Its metadata has the target, and the record's handle in `schedule`.
    """

    _topic: str
    _partition: int
    _due_ms: int

    def _metadata(self) -> RecordMetadata:
        return _waiting_metadata(SendFuture._metadata(self), self._topic, self._partition, self._due_ms)


class AsyncScheduledFuture(AsyncSendFuture, frozen=True, eq=False):
    """The same for AsyncProducer: it can be awaited."""

    _topic: str
    _partition: int
    _due_ms: int

    def _metadata(self) -> RecordMetadata:
        return _waiting_metadata(SendFuture._metadata(self), self._topic, self._partition, self._due_ms)


def _waiting_metadata(stored: RecordMetadata, topic: str, partition: int, due_ms: int) -> RecordMetadata:
    handle = "" if stored.offset < 0 else str(Handle(stored.partition, stored.offset, due_ms))
    return RecordMetadata(topic, partition, -1, due_ms, handle)
