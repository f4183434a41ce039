"""Delayed records of a producer: computes when they are due and finds the partition of ``__scheduled`` for them.

A delay counts by the scheduler's clock; the difference to the clock of this machine is measured once a minute. Owned by
the producer's engine. Belongs to the client's loop. May touch: the network through `ClusterClient`, the clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from raylog.base.errors import (
    DelayDisabled,
    DelayTooLong,
    InvalidConfig,
    InvalidRecord,
    InvalidTxnState,
    UnknownTopicOrPartition,
)
from raylog.client.arguments import Headers, checked_headers, checked_topic, now_ms
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.config import ProducerConfig
from raylog.client.producer.batch import Batch
from raylog.client.producer.columns import AsyncSentBatch, BatchMetadata, SentBatch, is_column
from raylog.client.producer.futures import AsyncSendFuture, SendFuture
from raylog.client.scheduling import (
    DELAY_MAX_MS,
    Delay,
    Handle,
    Moment,
    checked_schedule_id,
    delay_ms,
    moment_ms,
    shard_of_half,
)
from raylog.client.types import Header, RecordMetadata
from raylog.core.dead_letters import TTL
from raylog.core.forwarding.settings import NEVER
from raylog.core.scheduling.envelope import (
    BY_KEY,
    ID_HEADER,
    OWN_HEADERS,
    SCHEDULED_TOPIC,
    Envelope,
    HalfId,
    is_internal,
)
from raylog.core.scheduling.keys import HELD_MS, NAMED_MS
from raylog.protocol.admin import ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest
from raylog.protocol.scheduling import DESCRIBE_SCHEDULER, DescribeSchedulerRequest
from raylog.storage.batch.key_hash import hash_of_key

CLOCK_S: Final = 60.0
"""How long a measured difference of the clocks is used."""
SLOW_S, SLOW_CLOCK_S = 0.02, 2.0
"""If the request for it took longer than `SLOW_S`, the difference is inexact, and used for `SLOW_CLOCK_S` only."""


class When(NamedTuple):
    """The arguments of `send` that say when a record is due, and its schedule id."""

    delay: Delay | None
    deliver_at: Moment | None
    schedule_id: str | None

    @property
    def is_stated(self) -> bool:
        """Whether a delay or a time was given."""
        return self.delay is not None or self.deliver_at is not None


def default_when(delay_ms: int, given: When | None) -> When:
    """`When` of a record that is delayed only because its topic has `delay.default.ms`."""
    return When(delay_ms, None, None if given is None else given.schedule_id)


def not_delayed() -> ValueError:
    """The error for a schedule id without a delay."""
    return ValueError("schedule_id names a delayed record: give delay or deliver_at, too, or leave it out.")


def check_no_timestamp(timestamp_ms: Any) -> None:
    """Raise ValueError if a delayed record has a timestamp: it would be lost, as the due time takes its place."""
    if timestamp_ms is not None:
        raise ValueError(
            "A delayed record has the time when it is due as its timestamp: leave out timestamp_ms, and put a time of "
            "its own into a header or the value."
        )


class Due(NamedTuple):
    """The headers and the timestamp with which a delayed record is stored, and its due time (ms since 1970)."""

    pairs: list[Header]
    timestamp_ms: int
    due_ms: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Where the delayed records of a topic wait, which delays the topic allows, and the scheduler's clock."""

    topic: str
    topic_id: str
    partitions: int
    shard: int
    """The partition of ``__scheduled``."""
    shards: int
    """How many partitions ``__scheduled`` has."""
    ahead_ms: int
    """How far the scheduler's clock is ahead of this machine's, at most."""
    took_ms: int
    """How long its answer took; the scheduler's clock may be up to so much less ahead."""
    delay_max_ms: int
    is_enabled: bool
    until_s: float
    """When this has to be looked up again, by the monotonic clock."""
    failures: int = 0
    """How many delayed records of this producer had failed at the look-up; after another failure it is repeated."""

    def due_ms(self, delay: Delay | None, deliver_at: Moment | None) -> int:
        """When a record is due (ms since 1970); a past time becomes now.

        Raises DelayTooLong, DelayDisabled, ValueError, TypeError.
        """
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
        # With an old timestamp retention would remove the record as soon as it is delivered. Without `took_ms` a time
        # slightly ahead might be changed, if the scheduler was slow to answer (as a waking one is).
        return max(moment - self.took_ms, due)

    def due(self, pairs: list[Header] | None, partition: int | None, when: When) -> Due:
        """How to store a delayed record. Raises as `due_ms`; UnknownTopicOrPartition; InvalidRecord for own headers."""
        check_own(pairs)
        due_ms = self.due_ms(when.delay, when.deliver_at)
        if when.schedule_id is None:
            return Due([*(pairs or ()), self.header(partition)], due_ms, due_ms)
        named = (ID_HEADER, checked_schedule_id(when.schedule_id))
        return Due([*(pairs or ()), self.header(partition), named], NAMED_MS + due_ms, due_ms)

    def dues_ms(self, count: int, delay: Any, deliver_at: Any) -> list[int] | int:
        """When `count` records are due: one time for all, or a list with one for each. Raises as `due_ms`."""
        given = delay if delay is not None else deliver_at
        if not is_column(given):
            return self.due_ms(delay, deliver_at)
        rows = given.to_pylist() if hasattr(given, "to_pylist") else given
        if len(rows) != count:
            raise ValueError(f"There are {count} values, but {len(rows)} {'delays' if delay is not None else 'times'}.")
        if delay is not None:
            return [self.due_ms(0 if each is None else each, deliver_at) for each in rows]
        return [self.due_ms(None, 0 if each is None else each) for each in rows]

    def headers(
        self, count: int, headers: Any, partition: int | None, ids: Sequence[bytes | None] | None
    ) -> list[list[Header]]:
        """The headers of `count` records, with those added that carry the target and the schedule id.

        Raises TypeError, ValueError, InvalidRecord.
        """
        mine = self.header(partition)
        if headers is None and ids is None:
            return [[mine]] * count
        if headers is not None and len(headers) != count:
            raise ValueError(f"There are {count} values, but {len(headers)} headers.")
        rows = [[mine]] * count if headers is None else [[*_checked(each), mine] for each in headers]
        if ids is None:
            return rows
        return [row if name is None else [*row, (ID_HEADER, name)] for row, name in zip(rows, ids, strict=True)]

    def held_ms(self) -> int:
        """The timestamp for a record of a half message that is prepared now."""
        return HELD_MS + now_ms() + self.ahead_ms

    def shard_of(self, name: HalfId) -> int:
        """The partition of ``__scheduled`` that holds all records of a half message."""
        return shard_of_half(name, self.shards)

    def header(self, partition: int | None) -> Header:
        """The header that carries a record's target. Raises UnknownTopicOrPartition."""
        if partition is not None and not 0 <= partition < self.partitions:
            raise UnknownTopicOrPartition(
                f"Topic {self.topic!r} has partitions 0 to {self.partitions - 1}, not {partition}.", topic=self.topic
            )
        return Envelope(self.topic, self.topic_id, BY_KEY if partition is None else partition, now_ms()).header()


class Scheduling:
    """The topics to which a producer sends delayed records."""

    def __init__(self, config: ProducerConfig, cluster: ClusterClient, failures: Callable[[], int]) -> None:
        """`failures` returns how many delayed records have failed so far."""
        self._failures = failures
        self._config = config
        self._cluster = cluster
        self._known: dict[str, Waiting] = {}

    def check(self) -> None:
        """Raise for a producer that may not send delayed records, because they could be lost or duplicated.

        Raises InvalidTxnState with a transactional id, InvalidConfig without acks=all and idempotence.
        """
        if self._config.transactional_id is not None:
            raise InvalidTxnState(
                "A delayed record cannot be part of a transaction; send it with a producer without transactional_id."
            )
        if self._config.acks != "all" or not self._config.enable_idempotence:
            raise InvalidConfig(
                f"Delayed records need acks='all' and enable_idempotence=True, not acks={self._config.acks!r} and "
                f"enable_idempotence={self._config.enable_idempotence}."
            )

    def known(self, topic: str, partition: int | None = None) -> Waiting | None:
        """The last look-up of a topic, if it is still valid; else None.

        It is not valid if the metadata have another topic id, or records have failed since: the topic may have been
        created again. Nor if it lacks the partition: the topic may have more partitions by now.
        """
        found = self._known.get(topic)
        if found is not None and partition is not None and partition >= found.partitions:
            return None
        if found is None or time.monotonic() >= found.until_s or found.failures != self._failures():
            return None
        info = self._cluster.metadata.topic(topic)
        return found if info is None or info.topic_id == found.topic_id else None

    async def find(self, topic: str, timeout_s: float, partition: int | None = None) -> Waiting:
        """Look up where a topic's delayed records wait; creates ``__scheduled`` if it does not exist.

        Raises UnknownTopicOrPartition, RequestTimedOut, InvalidRecord for an internal topic.
        """
        deadline = Deadline(timeout_s)
        failures = self._failures()
        if is_internal(topic):
            raise InvalidRecord(f"{topic} is a topic of Raylog's own: no delayed record can go there.")
        await self._cluster.refresh((checked_topic(topic),), timeout_s=deadline.left_s)
        if partition is None or partition < 0:  # a negative one is refused later, by `Waiting.header`
            info = await self._cluster.topic(topic, timeout_s=deadline.left_s)
        else:
            info = await self._cluster.topic_with(topic, partition, timeout_s=deadline.left_s)
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
            # As if the scheduler had read its clock when the request was sent: so a delay may become longer by the
            # time of the request, but never shorter.
            ahead_ms=reply.clock_ms - began_ms,
            took_ms=math.ceil(took_s * 1000),
            delay_max_ms=int(info.config.get("delay.max.ms", DELAY_MAX_MS)),
            is_enabled=str(info.config.get("delay.enable", "true")).lower() == "true",
            until_s=time.monotonic() + (CLOCK_S if took_s < SLOW_S else SLOW_CLOCK_S),
            failures=failures,
        )
        self._known[topic] = found
        return found


def check_own(pairs: Sequence[Header] | None) -> None:
    """Raise InvalidRecord for headers that only Raylog adds to a delayed record."""
    for name, _ in pairs or ():
        if name in OWN_HEADERS:
            raise InvalidRecord(
                f"The header {name} of a delayed record is Raylog's own: it says where the record goes. Leave it out, "
                "or give it another name."
            )


def _checked(headers: Any) -> list[Header]:
    pairs = checked_headers(headers) or []
    check_own(pairs)
    return pairs


def checked_schedule_ids(schedule_ids: Any, count: int) -> list[bytes | None] | None:
    """The bytes of a column of schedule ids. Raises ValueError, TypeError."""
    if schedule_ids is None:
        return None
    if not is_column(schedule_ids):
        raise TypeError("schedule_id is a list with the id of each record or None here: one id names one record.")
    rows = schedule_ids.to_pylist() if hasattr(schedule_ids, "to_pylist") else schedule_ids
    if len(rows) != count:
        raise ValueError(f"There are {count} values, but {len(rows)} schedule ids.")
    return [None if each is None else checked_schedule_id(each) for each in rows]


def named_stamps(dues: Sequence[int], ids: Sequence[bytes | None]) -> list[int]:
    """The timestamps with which records with these due times and schedule ids are stored."""
    return [due_ms if name is None else NAMED_MS + due_ms for due_ms, name in zip(dues, ids, strict=True)]


def with_ttl(headers: Headers | None, ttl: Delay | None) -> Headers | None:
    """A record's headers, with one added for its time to live, if any; -1 = none, as for `ttl.ms`.

    Raises ValueError for another negative value, TypeError; InvalidRecord if the header exists already.
    """
    if ttl is None or (isinstance(ttl, int) and ttl == NEVER):
        return headers
    is_negative = ttl < timedelta(0) if isinstance(ttl, timedelta) else isinstance(ttl, int) and ttl < 0
    if is_negative:
        raise ValueError(f"ttl={ttl!r}: a time to live is not negative; -1 is none of its own.")
    pairs = checked_headers(headers) or []
    if any(name == TTL for name, _ in pairs):
        raise InvalidRecord(f"The record has the header {TTL} already: leave out ttl, or the header.")
    return [*pairs, (TTL, str(delay_ms(ttl)).encode())]


class ScheduledBatch(SentBatch):
    """The outcome of a `send_batch()` with delays, which is known when all records are stored in ``__scheduled``.

    The pieces of its `result` are in ``__scheduled``, not in the target topic.
    """

    __slots__ = ("_dues",)

    def __init__(self, batches: list[Batch], counts: list[int], dues: list[int]) -> None:
        super().__init__(batches, counts)
        self._dues = dues

    def schedules(self, timeout: float | None = None) -> list[str]:
        """The handle of each record, in order; "" = not known. Waits and raises as `result`."""
        return _handles(self.result(timeout), self._dues)

    def replaced(self, timeout: float | None = None) -> list[bool | None]:
        """For each record the value of `RecordMetadata.replaced`. Waits and raises as `result`."""
        self.result(timeout)
        return _replaced(self._batches, self._counts)


class AsyncScheduledBatch(AsyncSentBatch):
    """The outcome of an `AsyncProducer.send_batch` with delays: it can be awaited."""

    __slots__ = ("_dues",)

    def __init__(self, batches: list[Batch], counts: list[int], dues: list[int]) -> None:
        super().__init__(batches, counts)
        self._dues = dues

    async def schedules(self) -> list[str]:
        """The handle of each record, in order; "" = not known. Raises the first error of a record."""
        return _handles(await self, self._dues)

    async def replaced(self) -> list[bool | None]:
        """For each record the value of `RecordMetadata.replaced`. Raises the first error of a record."""
        await self
        return _replaced(self._batches, self._counts)


def _replaced(batches: Sequence[Batch], counts: Sequence[int]) -> list[bool | None]:
    return [_was_replaced(batch, index) for batch, count in zip(batches, counts, strict=True) for index in range(count)]


def _was_replaced(batch: Batch, index: int) -> bool | None:
    batch, index = batch.leaf_of(index)
    return bool(batch.replaced[index]) if batch.replaced and batch.replaced[index] >= 0 else None


def _handles(pieces: list[BatchMetadata], dues: list[int]) -> list[str]:
    rows = ((piece, number) for piece in pieces for number in range(piece.count))
    return [
        "" if piece.offset < 0 else str(Handle(piece.partition, piece.offset + number, due_ms))
        for (piece, number), due_ms in zip(rows, dues, strict=True)
    ]


class ScheduledFuture(SendFuture, frozen=True, eq=False):
    """The outcome of a `send()` with a delay: known when the record is stored to wait, not when it is delivered.

    Its metadata has the target topic and partition, and the record's handle in `schedule`.
    """

    _topic: str
    _partition: int
    _due_ms: int

    def _metadata(self) -> RecordMetadata:
        is_replaced = _was_replaced(self._batch, self._index)
        return _waiting_metadata(SendFuture._metadata(self), self._topic, self._partition, self._due_ms, is_replaced)


class AsyncScheduledFuture(AsyncSendFuture, frozen=True, eq=False):
    """The outcome of an `AsyncProducer.send` with a delay: it can be awaited."""

    _topic: str
    _partition: int
    _due_ms: int

    def _metadata(self) -> RecordMetadata:
        is_replaced = _was_replaced(self._batch, self._index)
        return _waiting_metadata(SendFuture._metadata(self), self._topic, self._partition, self._due_ms, is_replaced)


def _waiting_metadata(
    stored: RecordMetadata, topic: str, partition: int, due_ms: int, is_replaced: bool | None
) -> RecordMetadata:
    handle = "" if stored.offset < 0 else str(Handle(stored.partition, stored.offset, due_ms))
    return RecordMetadata(topic, partition, -1, due_ms, handle, is_replaced)
