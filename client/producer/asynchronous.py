"""`AsyncProducer`: sends records from the user's own event loop.

It adds awaitable futures and waiting to a `ProducerEngine`. May touch: the network, the clock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import warnings
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from raylog.client.arguments import Headers, check_place, checked_headers, checked_timestamp, now_ms
from raylog.client.checked import checks_arguments
from raylog.client.config import ProducerConfig, load, show_keys
from raylog.client.guard import Home, NotPickled
from raylog.client.interceptors import ProducerInterceptors, ProducerRecord
from raylog.client.keywords import ProducerKeywords
from raylog.client.metrics import ClientMetrics
from raylog.client.producer.batch import Batch
from raylog.client.producer.columns import AsyncSentBatch
from raylog.client.producer.engine import ProducerEngine
from raylog.client.producer.exits import INTERRUPTED_S, at_exit, cover_child, log_lost, send_rest
from raylog.client.producer.futures import AsyncSendFuture, SendFuture
from raylog.client.producer.scheduling import (
    AsyncScheduledBatch,
    AsyncScheduledFuture,
    When,
    check_no_timestamp,
    default_when,
    not_delayed,
    with_ttl,
)
from raylog.client.producer.transaction_calls import AsyncTransactions
from raylog.client.scheduling import Delay, Moment
from raylog.client.tasks import AGAIN_S, mark_seen
from raylog.client.types import Header, RecordMetadata

Appended = TypeVar("Appended", SendFuture, Batch)


@checks_arguments("send", "send_batch", "send_and_wait")
class AsyncProducer(AsyncTransactions, NotPickled):
    """Sends records from an event loop. `await start()` and `stop()`, or `async with`.

    Configure it with keyword arguments, or with `config` and its dotted keys: both are those of
    `raylog.ProducerConfig`; an unknown one raises InvalidConfig.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[ProducerKeywords]) -> None:
        self._engine = ProducerEngine(load(ProducerConfig, config, keywords))
        self._interceptors = self._engine.interceptors
        self.config = self._engine.config
        self._home = self._engine.home = Home(type(self).__name__)

    async def start(self) -> None:
        """Find the cluster. Raises NoClusterFound, ConnectionFailed, AuthenticationFailed."""
        self._home.enter()
        try:
            await self._engine.start()
        except BaseException:  # refused or cancelled
            self._home.leave()
            raise
        _open[self._engine] = self._home
        cover_child()

    async def stop(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name users know
        """Send pending records, for at most `timeout` seconds (None = `delivery_timeout_ms`), then close.

        Records that are not stored by then fail with ClientClosed. An open transaction is aborted.
        """
        if self._home.has_ended and not self._engine.is_closed:
            _lose(self._engine)
        self._home.check()
        await self._engine.stop(timeout)
        _open.pop(self._engine, None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __del__(self) -> None:
        home = getattr(self, "_home", None)  # none, when its configuration was refused
        if home is None or home.loop is None or self._engine.is_closed:
            return
        warnings.warn(
            f"An {type(self).__name__} was not stopped, and records may be lost; use `async with`, or await stop().",
            ResourceWarning,
            stacklevel=2,
        )
        if home.is_of_another_process:
            self._engine.is_closed = True
        elif home.has_ended:
            _lose(self._engine)
        else:
            home.loop.call_soon_threadsafe(_end, self._engine)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay: Delay | None = None,
        deliver_at: Moment | None = None,
        ttl: Delay | None = None,
        schedule_id: str | None = None,
    ) -> AsyncSendFuture:
        """Queue a record; await the returned future to get where it was stored (RecordMetadata).

        With `delay` or `deliver_at` consumers see it when it is due; a later record with its `schedule_id` replaces it;
        after `ttl` it expires. These arguments are as in `Producer.send`.

        Waits for metadata or buffer memory up to `max_block_ms`. Raises UnknownTopicOrPartition, RecordTooLarge,
        BufferExhausted, ClientClosed, and TypeError or ValueError for arguments that cannot be stored.
        """
        # Checked here, not in callees: most records need none of these calls, and calls dominate the cost of a record.
        engine = self._engine
        if not engine.is_usable or self._home.loop is not get_running_loop():
            engine.check_usable()
        if ttl is not None:
            headers = with_ttl(headers, ttl)
        if self._interceptors is not None:
            record = ProducerRecord(topic, value, key, headers, partition, timestamp_ms)
            when = When(delay, deliver_at, schedule_id)
            return await self._send_intercepted(self._interceptors, record, when)
        if engine.serializes or type(value) is not bytes:
            value = engine.checked_value(value)
        if key is not None and (engine.serializes or type(key) is not bytes):
            key = engine.checked_key(key)
        pairs = None if headers is None else checked_headers(headers)
        if delay is not None or deliver_at is not None:
            check_no_timestamp(timestamp_ms)
            return await self._send_delayed(topic, key, value, pairs, partition, When(delay, deliver_at, schedule_id))
        if timestamp_ms is not None:
            timestamp_ms = checked_timestamp(timestamp_ms)
        accumulator = engine.accumulator
        if type(topic) is not str or (partition is not None and type(partition) is not int):
            check_place(topic, partition)
        topic_queues = accumulator.topic_queues_by_name.get(topic)
        if topic_queues is None or (partition is not None and partition >= topic_queues.count):
            topic_queues = await engine.route(topic, partition)
        if topic_queues.delay_ms:
            when = When(topic_queues.delay_ms, None, schedule_id)
            return await self._send_delayed(topic, key, value, pairs, partition, when)
        if schedule_id is not None:
            raise not_delayed()
        future = accumulator.append(topic_queues, key, value, pairs, partition, timestamp_ms)
        if future is None:
            moment_ms = now_ms() if timestamp_ms is None else timestamp_ms
            future = await self._when_room(
                partial(accumulator.append, topic_queues, key, value, pairs, partition, moment_ms)
            )
        return AsyncSendFuture(future._batch, future._index)

    async def _send_intercepted(
        self, interceptors: ProducerInterceptors, record: ProducerRecord, when: When
    ) -> AsyncSendFuture:
        record = interceptors.on_send(record)
        try:
            future = await _Plain(self).send(
                record.topic,
                record.value,
                record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                **when._asdict(),
            )
        except Exception as error:
            interceptors.acknowledged(None, error)
            raise
        interceptors.follow(future)
        return future

    async def _send_delayed(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        pairs: list[Header] | None,
        partition: int | None,
        when: When,
    ) -> AsyncScheduledFuture:
        waiting, queues = await self._engine.route_of_delayed(topic, partition)
        due = waiting.due(pairs, partition, when)
        append = partial(
            self._engine.accumulator.append, queues, key, value, due.pairs, waiting.shard, due.timestamp_ms
        )
        stored = append() or await self._when_room(append)
        to = -1 if partition is None else partition
        return AsyncScheduledFuture(stored._batch, stored._index, topic, to, due.due_ms)

    async def send_batch(
        self,
        topic: str,
        values: Any,
        keys: Any = None,
        *,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: Any = None,
        delay: Any = None,
        deliver_at: Any = None,
        schedule_id: Any = None,
    ) -> AsyncSentBatch:
        """Queue whole columns of records; await the result to get where they were stored (BatchMetadata).

        `values` and `keys` are lists of bytes (or None) or Arrow arrays, of equal length. A record with a key goes to
        its key's partition; without keys and `partition` each batch goes to one partition. `headers`: a list with the
        headers of each record, or None. `timestamp_ms`: one for all records, or a list or Arrow array with one for
        each. `delay`, `deliver_at`: likewise, with values as in `send`; then the result has `schedules`. `schedule_id`:
        a list with one for each record, or None. Waits and raises as `send`.
        """
        engine = self._engine
        if not engine.is_usable or self._home.loop is not get_running_loop():
            engine.check_usable()
        if type(topic) is not str or (partition is not None and type(partition) is not int):
            check_place(topic, partition)
        topic_queues = engine.accumulator.topic_queues_by_name.get(topic)
        if topic_queues is None or (partition is not None and partition >= topic_queues.count):
            topic_queues = await engine.route(topic, partition)
        when = When(delay, deliver_at, schedule_id)
        if when.is_stated:
            check_no_timestamp(timestamp_ms)
        elif topic_queues.delay_ms:
            when = default_when(topic_queues.delay_ms, when)
        if when.is_stated:
            delayed, dues = await engine.delayed_appends(topic, values, keys, headers, partition, when)
            batches = [append() or await self._when_room(append) for append, _ in delayed]
            return AsyncScheduledBatch(batches, [count for _, count in delayed], dues)
        if schedule_id is not None:
            raise not_delayed()
        calls = engine.appends(topic_queues, values, keys, headers, partition, timestamp_ms)
        batches = [append() or await self._when_room(append) for append, _ in calls]
        return AsyncSentBatch(batches, [count for _, count in calls])

    async def _when_room(self, append: Callable[[], Appended | None]) -> Appended:
        """Append as soon as there is buffer memory. Raises BufferExhausted, and whatever `append` raises."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._engine.max_block_s
        while True:
            room: asyncio.Future[None] = loop.create_future()
            callback = partial(_set, room)
            try:
                if self._engine.accumulator.when_room(callback):
                    await asyncio.wait([room], timeout=max(0.0, deadline_s - loop.time()))
            finally:
                self._engine.accumulator.stop_waiting(callback)
            appended = append()
            if appended is not None:
                return appended
            if loop.time() >= deadline_s:
                raise self._engine.exhausted()

    async def send_and_wait(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> RecordMetadata:
        """Send a record and wait until it is stored. Arguments and errors as in `send`; also the record's own error."""
        return await (await self.send(topic, value, key, **options))

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name users know
        """Wait until all records sent before are stored or have failed. Raises RequestTimedOut after `timeout` s."""
        await self._engine.flush(timeout)

    async def partitions_for(self, topic: str) -> set[int]:
        """The topic's partition numbers. Raises UnknownTopicOrPartition."""
        return await self._engine.partitions_for(topic)

    def metrics(self) -> ClientMetrics:
        """Metrics since the start, by Kafka's names, and those of each topic; times in milliseconds, sizes in bytes."""
        return self._engine.metrics()


class _Plain(AsyncProducer):
    """A view of a producer whose `send` calls no interceptors."""

    def __init__(self, producer: AsyncProducer) -> None:
        self._engine, self.config, self._home = producer._engine, producer.config, producer._home
        self._interceptors = None

    def __del__(self) -> None:
        """Do nothing, so that the producer goes on."""


_endings: dict[ProducerEngine, asyncio.Task[None]] = {}
_open: dict[ProducerEngine, Home] = {}
"""The engines of producers that were started and not stopped, with their loops. Not the producers themselves, so that
these can be garbage collected."""


def _lose(engine: ProducerEngine) -> None:
    """Fail the records that are not stored, because nothing can be sent any more, and log how many there were."""
    _open.pop(engine, None)
    failed = engine.failed_records
    engine.forget()
    log_lost(engine, engine.failed_records - failed, "stopped")


def _end_at_exit() -> None:
    """Send pending records on loops that are not closed: Ray stops the loop of an ending actor, but leaves it open."""
    by_loop: dict[asyncio.AbstractEventLoop, list[ProducerEngine]] = {}
    for engine, home in list(_open.items()):
        if home.loop is None or home.loop.is_closed():
            _lose(engine)
        else:
            by_loop.setdefault(home.loop, []).append(engine)
    waits = [
        (asyncio.run_coroutine_threadsafe(_send_all(engines), loop), engines)
        for loop, engines in by_loop.items()
        if loop.is_running()  # in another thread
    ]
    for loop, engines in by_loop.items():
        if not loop.is_running():
            _wait(partial(loop.run_until_complete, _send_all(engines)), engines)
    for wait, engines in waits:
        limit_s = max(engine.config.delivery_timeout_ms for engine in engines) / 1000 + INTERRUPTED_S
        _wait(partial(wait.result, limit_s), engines)


async def _send_all(engines: list[ProducerEngine]) -> None:
    await asyncio.wait([_end(engine) for engine in engines])


def _wait(wait: Callable[[], object], engines: list[ProducerEngine]) -> None:
    """Wait until producers have ended. If that is cut short, by Ctrl-C or the end of their loop, log what is lost."""
    try:
        wait()
    except (KeyboardInterrupt, TimeoutError, RuntimeError, concurrent.futures.CancelledError):
        for engine in engines:
            _lose(engine)


def _forget_after_fork() -> None:
    _open.clear()
    _endings.clear()


at_exit(_end_at_exit)
os.register_at_fork(after_in_child=_forget_after_fork)


def _end(engine: ProducerEngine) -> asyncio.Task[None]:
    """Send the pending records of a producer that was dropped, or whose program ends, and close it. On its loop."""
    if engine not in _endings:
        task = asyncio.get_running_loop().create_task(send_rest(engine, "stopped"), name="raylog-ends")
        _endings[engine] = task
        task.add_done_callback(partial(_ended, engine))
    return _endings[engine]


def _ended(engine: ProducerEngine, task: asyncio.Task[None]) -> None:
    """The task of `_end` is done. If it was cancelled, and the loop goes on, the producer has still to be closed."""
    _endings.pop(engine, None)
    _lose(engine)
    mark_seen(task)
    if task.cancelled():
        task.get_loop().call_later(AGAIN_S, _end, engine)


def _set(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


show_keys(ProducerConfig, AsyncProducer)
