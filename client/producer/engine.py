"""The core of a producer, shared by `Producer` and `AsyncProducer`: all but waiting for buffer memory and futures.

Each of the two owns one. The coroutines belong on the client's loop; other methods may be called from any thread. May
touch: the network through `ClusterClient`, the clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from raylog.base.errors import BufferExhausted, ClientClosed, InvalidTxnState, RaylogError, RequestTimedOut
from raylog.client.arguments import as_bytes, check_place, checked_timestamp, checked_topic, now_ms
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.config import ProducerConfig
from raylog.client.guard import Home
from raylog.client.interceptors import ProducerInterceptors, interceptors_of, refuse_columns
from raylog.client.metrics import ClientMetrics
from raylog.client.producer.batch import Batch
from raylog.client.producer.columns import Columns, checked_columns, distinct_of, is_column, planned
from raylog.client.producer.futures import SendFuture
from raylog.client.producer.partition_queues import TopicQueues
from raylog.client.producer.scheduling import Scheduling, Waiting, When, checked_schedule_ids, named_stamps
from raylog.client.producer.sender import Sender
from raylog.client.producer.transactions.manager import TransactionManager
from raylog.client.serializers import serializer
from raylog.client.tasks import Ending
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.storage.batch.compression import COMPRESSIONS

if TYPE_CHECKING:  # pyarrow and numpy are loaded with the first Arrow columns
    from raylog.client.producer.arrow_columns import ArrowColumns


class ProducerEngine:
    """One producer. `start()` before use, `stop()` at the end."""

    def __init__(self, config: ProducerConfig) -> None:
        """Raises InvalidConfig for an unknown serializer, partitioner or interceptor."""
        self.config = config
        self._serialize_key = serializer(config.key_serializer)
        self._serialize_value = serializer(config.value_serializer)
        self.serializes = self._serialize_key is not None or self._serialize_value is not None
        """Whether keys or values have a serializer; if not, they have to be bytes."""
        chain = interceptors_of(config.interceptors, "on_send", "on_acknowledgement")
        self.interceptors = ProducerInterceptors(chain) if chain else None
        self.cluster = ClusterClient(config)
        self._sender = Sender(config, self.cluster)
        self.accumulator = self._sender.accumulator
        self.scheduling = Scheduling(config, self.cluster, lambda: self._sender.failed_of(SCHEDULED_TOPIC))
        self._transactions: TransactionManager | None = None
        if config.transactional_id is not None:
            self._transactions = TransactionManager(config, self.cluster, self._sender, self.check_usable)
            self._sender.use(self._transactions)
        self.max_block_s = config.max_block_ms / 1000
        self.is_usable = False
        self.home: Home | None = None
        """The loop of an AsyncProducer; None for a Producer, whose engine is on the clients' shared loop."""
        self.is_closed = False
        self._ending = Ending()

    async def start(self) -> None:
        """Find the cluster. Raises NoClusterFound, ConnectionFailed, AuthenticationFailed."""
        if self.is_closed:
            raise closed_error()
        if not self.is_usable:
            try:
                await self.cluster.start(max(1.0, self.max_block_s))
            except BaseException:  # cancelled or refused: close the connections already opened
                await self.cluster.close()
                raise
            self._sender.start(threading.get_ident())
            self.is_usable = True

    async def stop(self, timeout_s: float | None = None) -> None:
        """Send pending records, for at most `timeout_s` seconds (None = `delivery_timeout_ms`), then close.

        An open transaction is aborted instead. Records that are not stored by then fail with ClientClosed. Idempotent.
        """
        was_started, self.is_closed, self.is_usable = self.is_usable, True, False
        limit_s = self.config.delivery_timeout_ms / 1000 if timeout_s is None else timeout_s
        await self._ending.run(self._close, partial(self._send_rest, limit_s) if was_started else None)

    async def _send_rest(self, limit_s: float) -> None:
        try:
            if self._transactions is not None:
                await self._transactions.close(limit_s)
            else:
                async with asyncio.timeout(limit_s):
                    await self._sender.flush()
        except TimeoutError:
            pass  # pending records fail now, each with its own future

    async def _close(self) -> None:
        await self._sender.close(closed_error())
        await self.cluster.close()
        if self.interceptors is not None:
            self.interceptors.close()

    def forget(self) -> None:
        """Fail all records that are not stored, because the loop has ended and an orderly end is impossible."""
        self.is_closed, self.is_usable = True, False
        self._sender.abandon(closed_error())

    @property
    def transactions(self) -> TransactionManager:
        """The producer's transactions. Raises InvalidTxnState without a transactional id."""
        if self._transactions is None:
            raise InvalidTxnState("This producer has no transactional_id; give it one to use transactions.")
        return self._transactions

    def check_usable(self) -> None:
        """Raise ClientClosed before the start, after the end, and on a loop other than that of the start."""
        if self.home is not None and self.home.loop is not None:
            self.home.check()
        if self.is_closed:
            raise closed_error()
        if self.home is not None:
            self.home.started()

    @property
    def failed_records(self) -> int:
        """How many records have failed so far."""
        return self._sender.failed_records

    async def flush(self, timeout_s: float | None) -> None:
        """Wait until all records sent before are stored or have failed. Raises RequestTimedOut after `timeout_s`."""
        self.check_usable()
        try:
            async with asyncio.timeout(timeout_s):
                await self._sender.flush()
        except TimeoutError:
            raise RequestTimedOut(
                f"flush() did not end within {timeout_s} seconds; the records are still being sent."
            ) from None

    async def partitions_for(self, topic: str) -> set[int]:
        """The topic's partition numbers. Raises UnknownTopicOrPartition."""
        self.check_usable()
        check_place(topic, None)
        info = await self.cluster.topic(topic, timeout_s=self.max_block_s)
        return {partition.partition for partition in info.partitions}

    async def route(self, topic: str, partition: int | None) -> TopicQueues:
        """Look up a topic, again if it does not have `partition`, which may be new; return its queues.

        Waits up to `max_block_ms` for all its requests. Raises UnknownTopicOrPartition.
        """
        self.check_usable()
        deadline = Deadline(self.max_block_s)
        self.cluster.watch((checked_topic(topic),))
        self._sender.forget_deleted()
        try:
            if partition is None or partition < 0:  # a negative one is refused later, by the topic's queues
                info = await self.cluster.topic(topic, timeout_s=deadline.left_s)
            else:  # it may have grown since the look-up
                info = await self.cluster.topic_with(topic, partition, timeout_s=deadline.left_s)
        except RaylogError:
            self.cluster.unwatch((topic,))
            raise
        return self.accumulator.topic_queues(info)

    async def route_of_delayed(self, topic: str, partition: int | None = None) -> tuple[Waiting, TopicQueues]:
        """Find where a topic's delayed records wait, and the queues of ``__scheduled``.

        Waits up to `max_block_ms` for all its requests. Raises UnknownTopicOrPartition if the topic lacks `partition`.
        """
        self.check_usable()
        check_place(topic, partition)
        self.scheduling.check()
        deadline = Deadline(self.max_block_s)
        waiting = self.scheduling.known(topic, partition)
        if waiting is None:
            waiting = await self.scheduling.find(topic, deadline.left_s, partition)
        queues = self.accumulator.topic_queues_by_name.get(SCHEDULED_TOPIC)
        if queues is None or waiting.shards > queues.count:
            queues = await self.route(SCHEDULED_TOPIC, waiting.shards - 1)
        return waiting, queues

    def checked_key(self, key: Any) -> bytes | None:
        """The key's bytes, from its serializer if there is one. Raises TypeError, and as the serializer."""
        if self._serialize_key is not None and key is not None:
            key = self._serialize_key(key)
        return key if key is None or type(key) is bytes else as_bytes("key", key)

    def checked_value(self, value: Any) -> bytes | None:
        """The value's bytes, from its serializer if there is one. Raises TypeError, and as the serializer."""
        if self._serialize_value is not None and value is not None:
            value = self._serialize_value(value)
        return value if value is None or type(value) is bytes else as_bytes("value", value)

    def appends(
        self,
        topic_queues: TopicQueues,
        values: Any,
        keys: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: Any,
    ) -> list[tuple[Callable[[], Batch | None], int]]:
        """The calls that queue columns, one per batch, each with its count of records.

        A call returns None if there is no buffer memory. Raises TypeError, ValueError, RecordTooLarge,
        UnknownTopicOrPartition, before anything is queued.
        """
        interceptors = self.interceptors
        if interceptors is None:
            return self._appends(topic_queues, values, keys, headers, partition, timestamp_ms)
        given = (values, keys, headers, timestamp_ms)
        values, keys, headers, timestamp_ms = interceptors.on_columns(topic_queues.topic, partition, given)
        try:
            calls = self._appends(topic_queues, values, keys, headers, partition, timestamp_ms)
        except Exception as error:
            interceptors.refused(len(values), error)
            raise
        return [(partial(_followed, interceptors, append, count), count) for append, count in calls]

    async def delayed_appends(
        self, topic: str, values: Any, keys: Any, headers: Any, partition: int | None, when: When
    ) -> tuple[list[tuple[Callable[[], Batch | None], int]], list[int]]:
        """As `appends` for delayed records; also returns when each is due (ms since 1970). Raises as `send`."""
        waiting, queues = await self.route_of_delayed(topic, partition)
        count = len(values)
        given = waiting.dues_ms(count, when.delay, when.deliver_at)
        dues = [given] * count if isinstance(given, int) else given
        ids = checked_schedule_ids(when.schedule_id, count)
        stamps: Any = given if ids is None else named_stamps(dues, ids)
        rows = waiting.headers(count, headers, partition, ids)
        return self.appends(queues, values, keys, rows, waiting.shard, stamps), dues

    async def delayed_arrow_appends(
        self, topic: str, columns: ArrowColumns, partitions: Any, delay_ms: int
    ) -> tuple[list[tuple[Callable[[], Batch | None], int]], list[int]]:
        """As `delayed_appends` for Arrow columns of a topic with `delay.default.ms`. Makes Python objects per record.

        The timestamps in the columns do not count: that of a delayed record is its due time.
        """
        if self.interceptors is not None:
            raise refuse_columns("send_arrow()", "send_batch()")
        waiting, queues = await self.route_of_delayed(topic, max(distinct_of(partitions), default=None))
        count, due_ms = len(columns.values), waiting.due_ms(delay_ms, None)
        of_partitions = {number: waiting.header(number) for number in (None, *distinct_of(partitions))}
        targets = [None] * count if partitions is None else partitions.to_pylist()
        headers = columns.headers_of_rows()
        rows = [[*(row or ()), of_partitions[number]] for row, number in zip(headers, targets, strict=True)]
        checked = checked_columns(columns.values, columns.keys, None, None, headers=rows)
        return self._planned(queues, checked, waiting.shard, due_ms), [due_ms] * count

    def _appends(
        self,
        topic_queues: TopicQueues,
        values: Any,
        keys: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: Any,
    ) -> list[tuple[Callable[[], Batch | None], int]]:
        stamps = timestamp_ms if is_column(timestamp_ms) else None
        shared_ms = checked_timestamp(timestamp_ms) if stamps is None else None
        moment_ms = now_ms() if shared_ms is None else shared_ms
        columns = checked_columns(
            values,
            keys,
            None if self._serialize_value is None else self.checked_value,
            None if self._serialize_key is None else self.checked_key,
            headers=headers,
            timestamps=stamps,
        )
        return self._planned(topic_queues, columns, partition, moment_ms)

    def _planned(
        self, topic_queues: TopicQueues, columns: Columns, partition: int | None, moment_ms: int
    ) -> list[tuple[Callable[[], Batch | None], int]]:
        append = partial(self.accumulator.append_batch, topic_queues)
        calls: list[tuple[Callable[[], Batch | None], int]] = []
        for queue, (part, size) in planned(self.accumulator, topic_queues, columns, partition):
            add = partial(append, queue, part.keys, part.values, part.stamps(moment_ms), size, part.headers)
            calls.append((add, len(part.values)))
        return calls

    def arrow_appends(
        self, topic_queues: TopicQueues, columns: ArrowColumns, partitions: Any
    ) -> Iterator[tuple[Callable[[], Batch | None], int]]:
        """As `appends` for Arrow columns, as an iterator: a batch is encoded while those before it are sent.

        Raises UnknownTopicOrPartition before anything is queued, RecordTooLarge before anything of that partition is.
        """
        from raylog.client.producer.arrow_columns import STICKY, bodies_of, by_partition, partitions_of

        if self.interceptors is not None:
            raise refuse_columns("send_arrow()", "send_batch()")
        chosen = partitions_of(columns.keys, partitions, len(columns.values), topic_queues.count)
        if len(chosen):
            topic_queues.queue(max(0, int(chosen.max())))  # raises if the highest partition does not exist
        compression = COMPRESSIONS[self.config.compression_type]
        for number, part in by_partition(columns, chosen):
            queue = None if number == STICKY else topic_queues.queue(number)
            bodies = bodies_of(
                part,
                limit=topic_queues.largest,
                largest=topic_queues.largest_record,
                compression=compression,
                now_ms=now_ms(),
            )
            for body in bodies:
                yield partial(self.accumulator.append_body, topic_queues, queue, body), body.records

    def exhausted(self) -> BufferExhausted:
        """The error when the buffer stayed full for `max_block_ms`."""
        return BufferExhausted(
            f"The producer's buffer of {self.config.buffer_memory} bytes stayed full for {self.config.max_block_ms} ms:"
            " send more slowly, or raise buffer_memory or max_block_ms."
        )

    def metrics(self) -> ClientMetrics:
        """Metrics since the start, by Kafka's names, and those of each topic; times in milliseconds, sizes in bytes."""
        of_transactions = {} if self._transactions is None else self._transactions.metrics()
        values = self._sender.metrics() | of_transactions
        return ClientMetrics(values, time.monotonic(), topics=self._sender.topic_metrics())


def _followed(interceptors: ProducerInterceptors, append: Callable[[], Batch | None], count: int) -> Batch | None:
    """Append a batch, and have the outcome of its records reported to the interceptors."""
    batch = append()
    if batch is not None:
        for index in range(count):
            interceptors.follow(SendFuture(batch, index))
    return batch


def closed_error() -> ClientClosed:
    """The error for calls after `close()`, and for records that were pending then."""
    return ClientClosed("The producer was closed; make a new one.")
