"""`Producer` and `AsyncProducer`: sending records.

The synchronous one wraps the asynchronous one on the process's shared client loop (`runtime`); `send()` itself runs in
the caller's thread and only fills batches. May touch: the network through `ClusterClient`, the clock, one daemon
thread.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from time import time as now_s
from types import TracebackType
from typing import Any, Self, TypeVar

from raylog.client import runtime
from raylog.client.arguments import Headers, as_bytes, checked_headers, checked_timestamp, checked_topic, now_ms
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ProducerConfig, load
from raylog.client.producer.batch import Batch
from raylog.client.producer.columns import AsyncSentBatch, Planned, SentBatch, checked_columns, planned
from raylog.client.producer.futures import AsyncSendFuture, SendFuture
from raylog.client.producer.queues import TopicQueues
from raylog.client.producer.sender import Sender, closed_error
from raylog.client.producer.sizes import RECORD_OVERHEAD_BYTES
from raylog.client.serializers import serializer
from raylog.client.types import RecordMetadata
from raylog.core.errors import BufferExhausted, ClientClosed, RaylogError, RequestTimedOut

__all__ = ["AsyncProducer", "AsyncSendFuture", "AsyncSentBatch", "Producer", "SendFuture", "SentBatch"]

Appended = TypeVar("Appended", SendFuture, Batch)
_EXIT_TIMEOUT_S = 1.0
_CLOSE_EXTRA_S = 10.0  # for closing sockets, after the wait for records


class AsyncProducer:
    """Sends records from an event loop. `await start()` and `stop()`, or `async with`.

    Keyword arguments, or `config` with dotted keys, are those of `ProducerConfig`; an unknown one raises InvalidConfig.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self.config = load(ProducerConfig, config, keywords)
        self._serialize_key = serializer(self.config.key_serializer)
        self._serialize_value = serializer(self.config.value_serializer)
        self.cluster = ClusterClient(self.config)
        self.sender = Sender(self.config, self.cluster)
        self._max_block_s = self.config.max_block_ms / 1000
        self._is_started = False
        self._is_closed = False

    async def start(self) -> None:
        """Find the cluster. Raises NoClusterFound, ConnectionFailed, AuthenticationFailed."""
        if self._is_closed:
            raise closed_error()
        if not self._is_started:
            try:
                await self.cluster.start(max(1.0, self._max_block_s))
            except BaseException:  # cancelled or refused: close the connections already opened
                await self.cluster.close()
                raise
            self.sender.start(threading.get_ident())
            self._is_started = True

    async def stop(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name users know
        """Send pending records, for at most `timeout` seconds (else `delivery_timeout_ms`), then close.

        Records that are not stored by then fail with ClientClosed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._is_started:
                limit_s = self.config.delivery_timeout_ms / 1000 if timeout is None else timeout
                await asyncio.wait_for(self.sender.flush(), limit_s)
        except TimeoutError:
            pass  # pending records fail now, each with its own future
        finally:
            await self.sender.close(closed_error())
            await self.cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AsyncSendFuture:
        """Queue a record; await the returned future for where it was stored.

        Waits for metadata or buffer memory up to `max_block_ms`. Raises UnknownTopicOrPartition, RecordTooLarge,
        BufferExhausted, ClientClosed, TypeError for a key or value that is not bytes after its serializer, TypeError
        or ValueError for headers or a timestamp that cannot be stored.
        """
        self._check_usable()
        accumulator = self.sender.accumulator
        key, value = self.checked_key(key), self.checked_value(value)
        # Checked here, and not in a callee: most records have neither, and calls dominate the cost of a record.
        pairs = None if headers is None else checked_headers(headers)
        if timestamp_ms is not None:
            timestamp_ms = checked_timestamp(timestamp_ms)
        topic_queues = accumulator.topic_queues_by_name.get(topic) or await self._route(topic)
        if partition is not None and partition >= topic_queues.count:
            topic_queues = await self._route(topic, at_least=partition + 1)
        future = accumulator.append(topic_queues, key, value, pairs, partition, timestamp_ms)
        if future is None:
            moment_ms = now_ms() if timestamp_ms is None else timestamp_ms
            future = await self._when_room(
                partial(accumulator.append, topic_queues, key, value, pairs, partition, moment_ms)
            )
        return AsyncSendFuture(future._batch, future._index)

    async def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AsyncSentBatch:
        """Queue whole columns of records; await the result for where they were stored.

        `values` and `keys` are lists of bytes (or None) or Arrow arrays, of equal length. Records with keys go to their
        keys' partitions; without keys and `partition` all of a batch goes to one. Otherwise as `send`.
        """
        self._check_usable()
        timestamp_ms = checked_timestamp(timestamp_ms)
        topic_queues = self.sender.accumulator.topic_queues_by_name.get(topic) or await self._route(topic)
        if partition is not None and partition >= topic_queues.count:
            topic_queues = await self._route(topic, at_least=partition + 1)
        moment = now_ms() if timestamp_ms is None else timestamp_ms
        batches, counts = [], []
        for item in self.plan(topic_queues, values, keys, partition):
            append = self.appending(topic_queues, item, moment)
            batches.append(append() or await self._when_room(append))
            counts.append(len(item.piece.columns.values))
        return AsyncSentBatch(batches, counts)

    async def _when_room(self, append: Callable[[], Appended | None]) -> Appended:
        """Append as soon as there is buffer memory. Raises BufferExhausted, and what `append` raises."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._max_block_s
        while True:
            room: asyncio.Future[None] = loop.create_future()
            if self.sender.accumulator.when_room(lambda room=room: room.done() or room.set_result(None)):  # type: ignore[misc]
                await asyncio.wait([room], timeout=max(0.0, deadline_s - loop.time()))
            appended = append()
            if appended is not None:
                return appended
            if loop.time() >= deadline_s:
                raise self.exhausted()

    async def send_and_wait(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> RecordMetadata:
        """Send a record and wait until it is stored. Arguments and errors as of `send`, and the record's own error."""
        return await (await self.send(topic, value, key, **options))

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name users know
        """Wait until everything sent before is stored or has failed. Raises RequestTimedOut after `timeout` seconds."""
        self._check_usable()
        try:
            await asyncio.wait_for(self.sender.flush(), timeout)
        except TimeoutError:
            raise late_flush(timeout) from None

    async def partitions_for(self, topic: str) -> set[int]:
        """The topic's partition numbers. Raises UnknownTopicOrPartition."""
        self._check_usable()
        info = await self.cluster.topic(topic, timeout_s=self._max_block_s)
        return {partition.partition for partition in info.partitions}

    def metrics(self) -> dict[str, float]:
        """Metrics since the start, by Kafka's names; times in milliseconds, sizes in bytes."""
        return self.sender.metrics()

    # Shared with the synchronous producer

    async def _route(self, topic: str, at_least: int = 0) -> TopicQueues:
        """Fetch a topic's partitions."""
        self._check_usable()
        self.cluster.watch((checked_topic(topic),))
        try:
            info = await self.cluster.topic(topic, timeout_s=self._max_block_s)
            if len(info.partitions) < at_least:  # it may have grown since the look-up
                await self.cluster.refresh((topic,), timeout_s=self._max_block_s)
                info = await self.cluster.topic(topic, timeout_s=self._max_block_s)
        except RaylogError:
            self.cluster.unwatch((topic,))
            raise
        return self.sender.accumulator.topic_queues(info)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise closed_error()
        if not self._is_started:
            raise ClientClosed("The producer is not started; `await start()` or use `async with`.")

    def checked_key(self, key: Any) -> bytes | None:
        """The key's bytes, by its serializer."""
        if self._serialize_key is not None and key is not None:
            key = self._serialize_key(key)
        return key if key is None or type(key) is bytes else as_bytes("key", key)

    def checked_value(self, value: Any) -> bytes | None:
        """The value's bytes, by its serializer."""
        if self._serialize_value is not None and value is not None:
            value = self._serialize_value(value)
        return value if value is None or type(value) is bytes else as_bytes("value", value)

    def plan(self, topic_queues: TopicQueues, values: Any, keys: Any, partition: int | None) -> list[Planned]:
        """The batches that columns become. Raises TypeError, ValueError, RecordTooLarge, UnknownTopicOrPartition."""
        columns = checked_columns(
            values,
            keys,
            None if self._serialize_value is None else self.checked_value,
            None if self._serialize_key is None else self.checked_key,
        )
        return planned(self.sender.accumulator, topic_queues, columns, partition)

    def appending(self, topic_queues: TopicQueues, one: Planned, timestamp_ms: int) -> Callable[[], Batch | None]:
        """The call that queues a planned batch; it returns None while there is no memory."""
        (values, keys), size = one.piece
        return lambda: self.sender.accumulator.append_batch(topic_queues, one.queue, keys, values, timestamp_ms, size)

    def exhausted(self) -> BufferExhausted:
        """The error for a buffer that stayed full."""
        return BufferExhausted(
            f"The producer's buffer of {self.config.buffer_memory} bytes stayed full for {self.config.max_block_ms} ms:"
            " send more slowly, or raise buffer_memory or max_block_ms."
        )


class Producer:
    """Sends records from any thread. Close it, or use `with`; one producer per process serves best.

    Keyword arguments, or `config` with dotted keys, are those of `ProducerConfig`; an unknown one raises InvalidConfig.
    Raises NoClusterFound, ConnectionFailed or AuthenticationFailed when no cluster can be reached.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self._twin = AsyncProducer(config, **keywords)
        self.config = self._twin.config
        self._runtime = runtime.shared()
        self._accumulator = self._twin.sender.accumulator
        self._topic_queues = self._accumulator.topic_queues_by_name
        self._turn = self._accumulator.turn
        has_ways_of_its_own = self._twin._serialize_key or self._twin._serialize_value or self._accumulator.chooses
        self._fast_topic_queues = {} if has_ways_of_its_own else self._topic_queues
        self._runtime.run(self._twin.start())
        _open_twins.add(self._twin)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> SendFuture:
        """Queue a record and return at once; the future holds where it was stored.

        Blocks only for a topic's first metadata or a full buffer, up to `max_block_ms`. `timestamp_ms` is the current
        time by default. Raises UnknownTopicOrPartition, RecordTooLarge, BufferExhausted, ClientClosed, TypeError for
        a key or value that is not bytes after its serializer, TypeError or ValueError for headers or a timestamp that
        cannot be stored.
        """
        # An inlined `_send` for the usual record, bytes that fit into an open batch: without calls of our own, which
        # halves the cost of a record.
        is_usual = type(value) is bytes and headers is None and partition is None and timestamp_ms is None
        if not is_usual or (key is not None and type(key) is not bytes):
            return self._send(topic, value, key, headers, partition, timestamp_ms)
        size = len(value) + RECORD_OVERHEAD_BYTES
        try:
            if key is None:
                queue = self._fast_topic_queues[topic].sticky
            else:
                queue = self._fast_topic_queues[topic].queues_of_keys[key]
                size += len(key)
        except KeyError:  # not in the cache
            return self._send(topic, value, key, headers, partition, timestamp_ms)
        added, index = None, 0
        moment_s = now_s()
        turn = self._turn
        while True:
            try:
                del turn.free
                break
            except AttributeError:
                turn.pause()
        try:
            batch = queue.open
            if batch is not None and moment_s < batch.quick_until_s and moment_s >= batch.quick_from_s:
                room, keys = batch.room - size, batch.keys
                if room > 0 and (not keys if key is None else keys):
                    batch.room, values = room, batch.values
                    index = len(values)
                    if key is not None:
                        keys.append(key)
                    values.append(value)
                    added = batch
        except BaseException:  # Ctrl-C may come between the two columns; the record was not added then
            if queue.open is not None:
                queue.open.even_out()
            raise
        finally:
            turn.free = True
        if added is not None:
            return SendFuture(added, index)
        return self._send(topic, value, key, headers, partition, timestamp_ms)

    def _send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> SendFuture:
        pairs = None if headers is None else checked_headers(headers)
        checked = self._twin.checked_key(key), self._twin.checked_value(value), pairs
        if timestamp_ms is not None:
            timestamp_ms = checked_timestamp(timestamp_ms)
        topic_queues = self._topic_queues.get(topic)
        if topic_queues is None or (partition is not None and partition >= topic_queues.count):
            topic_queues = self._route(topic, partition)
        future = self._accumulator.append(topic_queues, *checked, partition, timestamp_ms)
        if future is None:
            timestamp_ms = now_ms() if timestamp_ms is None else timestamp_ms
            future = self._when_room(partial(self._accumulator.append, topic_queues, *checked, partition, timestamp_ms))
        return future

    def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> SentBatch:
        """Queue whole columns of records and return; the future holds where they were stored.

        `values` and `keys` are lists of bytes (or None) or Arrow arrays, of equal length. Records with keys go to their
        keys' partitions; without keys and `partition` all of a batch goes to one. All get the same timestamp. Costs
        much less for each record than `send`; blocks and raises as that does. After BufferExhausted some of the records
        may be sent nevertheless.
        """
        timestamp_ms = checked_timestamp(timestamp_ms)
        topic_queues = self._topic_queues.get(topic)
        if topic_queues is None or (partition is not None and partition >= topic_queues.count):
            topic_queues = self._route(topic, partition)
        moment = now_ms() if timestamp_ms is None else timestamp_ms
        batches, counts = [], []
        for item in self._twin.plan(topic_queues, values, keys, partition):
            append = self._twin.appending(topic_queues, item, moment)
            batches.append(append() or self._when_room(append))
            counts.append(len(item.piece.columns.values))
        return SentBatch(batches, counts)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent before is stored or has failed. Raises RequestTimedOut after `timeout` seconds."""
        self._check_usable()
        try:
            self._runtime.run(self._twin.sender.flush(), timeout)
        except TimeoutError:
            raise late_flush(timeout) from None

    def close(self, timeout: float | None = None) -> None:
        """Send pending records, for at most `timeout` seconds (else `delivery_timeout_ms`), then close.

        Records that are not stored by then fail with ClientClosed. Idempotent.
        """
        if self._is_closed:
            return
        _open_twins.discard(self._twin)
        limit_s = self.config.delivery_timeout_ms / 1000 if timeout is None else timeout
        self._runtime.run(self._twin.stop(limit_s), limit_s + _CLOSE_EXTRA_S)

    def partitions_for(self, topic: str) -> set[int]:
        """The topic's partition numbers. Raises UnknownTopicOrPartition."""
        self._check_usable()
        return self._runtime.run(self._twin.partitions_for(topic))

    def metrics(self) -> dict[str, float]:
        """Metrics since the start, by Kafka's names; times in milliseconds, sizes in bytes."""
        return self._twin.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        twin = getattr(self, "_twin", None)  # none, when its configuration was refused
        if twin in _open_twins and self._runtime.thread.is_alive():
            _open_twins.discard(twin)
            warnings.warn(f"{self!r} was not closed; records may be lost.", ResourceWarning, stacklevel=2, source=self)
            asyncio.run_coroutine_threadsafe(twin.stop(_EXIT_TIMEOUT_S), self._runtime.loop)

    def __repr__(self) -> str:
        return f"<Producer {self.config.client_id!r}{', closed' if self._is_closed else ''}>"

    @property
    def _is_closed(self) -> bool:
        return self._twin not in _open_twins

    def _route(self, topic: str, partition: int | None) -> TopicQueues:
        self._check_usable()
        return self._runtime.run(self._twin._route(topic, 0 if partition is None else partition + 1))

    def _when_room(self, append: Callable[[], Appended | None]) -> Appended:
        """Append as soon as there is buffer memory, waiting in this thread."""
        if self._runtime.is_current_thread():
            raise self._twin.exhausted()  # a callback that waited here would block the thread that frees memory
        deadline_s = time.monotonic() + self._twin._max_block_s
        while True:
            room = threading.Event()
            if self._accumulator.when_room(room.set):
                room.wait(max(0.0, deadline_s - time.monotonic()))
            appended = append()
            if appended is not None:
                return appended
            if time.monotonic() >= deadline_s:
                raise self._twin.exhausted()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise closed_error()


def late_flush(timeout: float | None) -> RequestTimedOut:
    """The error for a flush that timed out."""
    return RequestTimedOut(f"flush() did not end within {timeout} seconds; the records are still being sent.")


_open_twins: set[AsyncProducer] = set()
"""Of open producers, not the producers themselves: those dropped unclosed are left to `Producer.__del__`."""


def _close_at_exit() -> None:
    for twin in list(_open_twins):
        _open_twins.discard(twin)
        name = twin.config.client_id
        warnings.warn(f"<Producer {name!r}> was not closed; records may be lost.", ResourceWarning, stacklevel=1)
        try:
            runtime.shared().run(twin.stop(_EXIT_TIMEOUT_S), _EXIT_TIMEOUT_S + _CLOSE_EXTRA_S)
        except (RaylogError, TimeoutError, RuntimeError):
            pass  # the process ends in any case, and the warning was issued


def _disown_after_fork() -> None:
    """In a forked child the producer's thread and sockets belong to the parent."""
    for twin in _open_twins:
        twin.sender.accumulator.disown(
            ClientClosed("The producer was made before the fork; make a new one in the child process.")
        )
    _open_twins.clear()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_disown_after_fork)
