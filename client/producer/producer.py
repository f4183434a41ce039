"""`Producer`: sends records from any thread; also re-exports `AsyncProducer`.

Its engine runs on the process's shared client loop (`runtime`). `send()` itself runs in the caller's thread, and only
fills batches. May touch: the network and one daemon thread, through the engine and the runtime; the clock.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from time import time as now_s
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from raylog.base.errors import ClientClosed, RaylogError
from raylog.client import runtime
from raylog.client.arguments import Headers, check_place, checked_headers, checked_timestamp, now_ms
from raylog.client.checked import number
from raylog.client.config import ProducerConfig, load, show_keys
from raylog.client.guard import NotPickled, of_another_process, this_process
from raylog.client.interceptors import ProducerRecord
from raylog.client.keywords import ProducerKeywords
from raylog.client.metrics import ClientMetrics
from raylog.client.producer.asynchronous import AsyncProducer
from raylog.client.producer.batch import Batch
from raylog.client.producer.columns import AsyncSentBatch, SentBatch, check_arrow, distinct_of
from raylog.client.producer.engine import ProducerEngine, closed_error
from raylog.client.producer.exits import INTERRUPTED_S, at_exit, cover_child, send_rest
from raylog.client.producer.futures import AsyncSendFuture, SendFuture
from raylog.client.producer.partition_queues import TopicQueues
from raylog.client.producer.scheduling import (
    ScheduledBatch,
    ScheduledFuture,
    When,
    check_no_timestamp,
    default_when,
    not_delayed,
    with_ttl,
)
from raylog.client.producer.sizes import RECORD_OVERHEAD_BYTES
from raylog.client.producer.transaction_calls import Transactions
from raylog.client.scheduling import Delay, Moment
from raylog.client.spinlock import inlines
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC

if TYPE_CHECKING:  # pyarrow and numpy are loaded with the first Arrow columns
    from raylog.client.producer.arrow_columns import ArrowColumns

__all__ = ["AsyncProducer", "AsyncSendFuture", "AsyncSentBatch", "Producer", "SendFuture", "SentBatch"]

logger = logging.getLogger(__name__)
Appended = TypeVar("Appended", SendFuture, Batch)
_CLOSE_EXTRA_S = 10.0  # for closing sockets, after the wait for records


class Producer(Transactions, NotPickled):
    """Sends records from any thread. Close it, or use `with`. One producer per process is usually best.

    Configure it with keyword arguments, or with `config` and its dotted keys: both are those of
    `raylog.ProducerConfig`; an unknown one raises InvalidConfig. Raises NoClusterFound, ConnectionFailed or
    AuthenticationFailed if no cluster can be reached.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[ProducerKeywords]) -> None:
        self._engine = ProducerEngine(load(ProducerConfig, config, keywords))
        self.config = self._engine.config
        self._runtime = runtime.shared()
        self._forks = this_process.forks
        self._accumulator = self._engine.accumulator
        self._topic_queues = self._accumulator.topic_queues_by_name
        self._turn = self._accumulator.turn
        engine = self._engine
        has_ways_of_its_own = engine.serializes or self._accumulator.chooses or engine.interceptors is not None
        self._fast_topic_queues = {} if has_ways_of_its_own else self._topic_queues
        _open_engines.add(self._engine)
        cover_child()
        try:
            self._runtime.run(self._engine.start())
        except BaseException:  # an interrupt may arrive after the start
            _open_engines.discard(self._engine)
            self._runtime.call_soon(_begin_end, self._engine)
            raise

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        delay: Delay | None = None,  # no `*` before it: CPython 3.11 calls functions with keyword-only names slowly
        deliver_at: Moment | None = None,
        ttl: Delay | None = None,
        schedule_id: str | None = None,
    ) -> SendFuture:
        """Queue a record and return; the future's result is where it was stored. Blocks up to `max_block_ms`.

        It becomes visible after `delay` ("30m", "level:5", ms, timedelta) or at `deliver_at` (datetime with zone, or ms
        since 1970), unless a later one with its `schedule_id` replaces it; it expires after `ttl`. Raises ValueError,
        TypeError, DelayDisabled, DelayTooLong, UnknownTopicOrPartition, RecordTooLarge, BufferExhausted, ClientClosed.
        """
        if delay is not None or deliver_at is not None or ttl is not None or schedule_id is not None:
            headers, when = with_ttl(headers, ttl), When(delay, deliver_at, schedule_id)
            return self._send(topic, value, key, headers, partition, timestamp_ms, when)
        if type(value) is not bytes or headers is not None or partition is not None or timestamp_ms is not None:
            return self._send(topic, value, key, headers, partition, timestamp_ms)
        size = len(value) + RECORD_OVERHEAD_BYTES
        try:
            if key is None:
                queue = self._fast_topic_queues[topic].sticky
            elif type(key) is not bytes:
                raise KeyError(key)
            else:
                queue = self._fast_topic_queues[topic].queues_of_keys[key]
                size += len(key)
        except (KeyError, TypeError):  # topic or key is not cached, the key is not bytes, or the topic is unhashable
            return self._send(topic, value, key, headers, partition, timestamp_ms)
        index = 0
        turn, moment_s, added = self._turn, now_s(), None  # with more than three names CPython 3.11 makes a tuple
        try:
            del turn.free
        except AttributeError:  # another thread holds the lock: `_send` waits for it
            del turn
            return self._send(topic, value, key, headers, partition, timestamp_ms)
        try:
            if (batch := queue.open) is not None and moment_s < batch.quick_until_s and moment_s >= batch.quick_from_s:
                room, keys = batch.room - size, batch.keys
                if room > 0 and (not keys if key is None else keys):
                    batch.room, values, index = room, batch.values, len(batch.values)
                    if key is not None:
                        keys.append(key)
                    values.append(value)
                    added = batch
        except BaseException:  # Ctrl-C may come between the two appends: then drop the key again
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
        when: When | None = None,
    ) -> SendFuture:
        interceptors = self._engine.interceptors
        if interceptors is None:
            try:
                return self._send_record(topic, value, key, headers, partition, timestamp_ms, when)
            except ClientClosed:
                runtime.park_at_exit()
                raise
        given = interceptors.on_send(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
        try:
            future = self._send_record(
                given.topic, given.value, given.key, given.headers, given.partition, given.timestamp_ms, when
            )
        except Exception as error:
            interceptors.acknowledged(None, error)
            raise
        interceptors.follow(future)
        return future

    def _send_record(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        when: When | None,
    ) -> SendFuture:
        if when is not None and when.is_stated:
            check_no_timestamp(timestamp_ms)
            return self._send_delayed(topic, value, key, headers, partition, when)
        pairs = None if headers is None else checked_headers(headers)
        engine = self._engine
        if engine.serializes or type(value) is not bytes:  # as in `AsyncProducer.send`: most records need no call
            value = engine.checked_value(value)
        if key is not None and (engine.serializes or type(key) is not bytes):
            key = engine.checked_key(key)
        checked = key, value, pairs
        if timestamp_ms is not None:
            timestamp_ms = checked_timestamp(timestamp_ms)
        if type(topic) is not str or (partition is not None and type(partition) is not int):
            check_place(topic, partition)
        topic_queues = self._topic_queues.get(topic)
        if topic_queues is None or (partition is not None and partition >= topic_queues.count):
            topic_queues = self._route(topic, partition)
        if topic_queues.delay_ms:
            when = default_when(topic_queues.delay_ms, when)
            return self._send_delayed(topic, value, key, headers, partition, when)
        if when is not None and when.schedule_id is not None:
            raise not_delayed()
        future = self._accumulator.append(topic_queues, *checked, partition, timestamp_ms)
        if future is None:
            timestamp_ms = now_ms() if timestamp_ms is None else timestamp_ms
            future = self._when_room(partial(self._accumulator.append, topic_queues, *checked, partition, timestamp_ms))
        return future

    def _send_delayed(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        when: When,
    ) -> ScheduledFuture:
        engine = self._engine
        pairs = checked_headers(headers)
        checked = engine.checked_key(key), engine.checked_value(value)
        waiting = engine.scheduling.known(topic, partition)
        queues = self._topic_queues.get(SCHEDULED_TOPIC)
        if waiting is None or queues is None or waiting.shards > queues.count:
            self._check_usable()
            waiting, queues = self._runtime.run(engine.route_of_delayed(topic, partition))
        due = waiting.due(pairs, partition, when)
        append = partial(self._accumulator.append, queues, *checked, due.pairs, waiting.shard, due.timestamp_ms)
        stored = append() or self._when_room(append)
        return ScheduledFuture(stored._batch, stored._index, topic, -1 if partition is None else partition, due.due_ms)

    def send_batch(
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
    ) -> SentBatch:
        """Queue whole columns of records and return; the future's result is where they were stored.

        `values` and `keys` are lists of bytes (or None) or Arrow arrays, of equal length. A record with a key goes to
        its key's partition; without keys and `partition` each batch goes to one partition. `headers`: a list with the
        headers of each record, or None. `timestamp_ms`: one for all records, or a list or Arrow array with one for
        each. `delay`, `deliver_at`: likewise, with values as in `send`; then the result has `schedules`. `schedule_id`:
        a list with one for each record, or None. Costs much less per record than `send`; blocks and raises as that
        does. After BufferExhausted some of the records may be sent nevertheless.
        """
        if type(topic) is not str or (partition is not None and type(partition) is not int):
            check_place(topic, partition)
        topic_queues = self._topic_queues.get(topic)
        if topic_queues is None or (partition is not None and partition >= topic_queues.count):
            topic_queues = self._route(topic, partition)
        when = When(delay, deliver_at, schedule_id)
        if when.is_stated:
            check_no_timestamp(timestamp_ms)
        elif topic_queues.delay_ms:
            when = default_when(topic_queues.delay_ms, when)
        if when.is_stated:
            work = self._engine.delayed_appends(topic, values, keys, headers, partition, when)
            delayed, dues = self._runtime.run(work)
            batches = [append() or self._when_room(append) for append, _ in delayed]
            return ScheduledBatch(batches, [count for _, count in delayed], dues)
        if schedule_id is not None:
            raise not_delayed()
        calls = self._engine.appends(topic_queues, values, keys, headers, partition, timestamp_ms)
        batches = [append() or self._when_room(append) for append, _ in calls]
        return SentBatch(batches, [count for _, count in calls])

    def send_arrow(self, topic: str, columns: ArrowColumns, partitions: Any = None) -> SentBatch:
        """Queue whole Arrow columns and return; the future's result is where they were stored.

        `columns` (`ArrowColumns`) may have timestamps and headers too. `partitions`: an Arrow array of integers; for a
        null, or without it, the record's key decides, and records without a key go to sticky partitions. No Python
        object is made per record if keys and values have a fixed size, unless the topic has `delay.default.ms`: then
        the records are delayed, as with `send_batch`. Serializers and partitioner of the configuration do not apply.
        Blocks and raises as `send_batch` does; also raises InvalidRecord for rows that cannot be stored.
        """
        if type(topic) is not str:
            check_place(topic, None)
        check_arrow(columns)
        topic_queues = self._topic_queues.get(topic)
        highest = max(distinct_of(partitions), default=-1)
        if topic_queues is None or highest >= topic_queues.count:
            topic_queues = self._route(topic, highest if highest >= 0 else None)
        if topic_queues.delay_ms:
            work = self._engine.delayed_arrow_appends(topic, columns, partitions, topic_queues.delay_ms)
            delayed, dues = self._runtime.run(work)
            waiting = [append() or self._when_room(append) for append, _ in delayed]
            return ScheduledBatch(waiting, [count for _, count in delayed], dues)
        batches, counts = [], []
        for append, count in self._engine.arrow_appends(topic_queues, columns, partitions):
            batches.append(append() or self._when_room(append))
            counts.append(count)
        return SentBatch(batches, counts)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records sent before are stored or have failed. Raises RequestTimedOut after `timeout` s."""
        self._check_usable()
        self._runtime.run(self._engine.flush(None if timeout is None else number("timeout", timeout)))

    def close(self, timeout: float | None = None) -> None:
        """Send pending records, for at most `timeout` seconds (None = `delivery_timeout_ms`), then close.

        Records that are not stored by then fail with ClientClosed. An open transaction is aborted. Idempotent.
        """
        if self._is_closed:
            return
        limit_s = self.config.delivery_timeout_ms / 1000 if timeout is None else timeout
        try:
            self._runtime.run(self._engine.stop(limit_s), limit_s + _CLOSE_EXTRA_S)
        finally:
            if self._engine.is_closed:  # not if the call came from a signal handler and was refused
                _open_engines.discard(self._engine)

    def partitions_for(self, topic: str) -> set[int]:
        """The topic's partition numbers. Raises UnknownTopicOrPartition."""
        self._check_usable()
        return self._runtime.run(self._engine.partitions_for(topic))

    def metrics(self) -> ClientMetrics:
        """Metrics since the start, by Kafka's names, and those of each topic; times in milliseconds, sizes in bytes."""
        return self._engine.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)  # none, when its configuration was refused
        if engine in _open_engines and self._runtime.thread.is_alive():
            _open_engines.discard(engine)
            warnings.warn(f"{self!r} was not closed; records may be lost.", ResourceWarning, stacklevel=2, source=self)
            _dropped.add(engine)
            self._runtime.call_soon(_begin_end, engine)

    def __repr__(self) -> str:
        return f"<Producer {self.config.client_id!r}{', closed' if self._is_closed else ''}>"

    @property
    def _is_closed(self) -> bool:
        return self._engine.is_closed or self._engine not in _open_engines

    def _route(self, topic: str, partition: int | None) -> TopicQueues:
        self._check_usable()
        return self._runtime.run(self._engine.route(topic, partition))

    def _when_room(self, append: Callable[[], Appended | None]) -> Appended:
        """Append as soon as there is buffer memory; this thread waits. Raises BufferExhausted."""
        if self._runtime.is_current_thread():
            raise self._engine.exhausted()  # a callback must not block the thread that releases memory
        deadline_s = time.monotonic() + self._engine.max_block_s
        while True:
            room = runtime.Signal()
            callback = room.set  # a single bound method, so that it can be removed again
            try:
                if self._accumulator.when_room(callback):
                    room.wait(max(0.0, deadline_s - time.monotonic()))
            finally:
                self._accumulator.stop_waiting(callback)
            appended = append()
            if appended is not None:
                return appended
            if time.monotonic() >= deadline_s:
                raise self._engine.exhausted()

    def _check_usable(self) -> None:
        if self._forks != this_process.forks:
            raise of_another_process("producer")
        if self._is_closed:
            runtime.park_at_exit()
            raise closed_error()


inlines(Producer.send)
_open_engines: set[ProducerEngine] = set()
"""The engines of open producers. Not the producers themselves, so that unclosed ones can be garbage collected."""


_dropped: set[ProducerEngine] = set()
"""The engines of producers that were garbage collected unclosed, while they send their pending records."""
_endings: dict[ProducerEngine, asyncio.Task[None]] = {}
"""The tasks that send pending records and close. On the clients' loop."""


def _begin_end(engine: ProducerEngine) -> asyncio.Task[None]:
    if engine not in _endings:
        _endings[engine] = asyncio.get_running_loop().create_task(_end(engine), name="raylog-ends")
    return _endings[engine]


async def _end(engine: ProducerEngine) -> None:
    try:
        await send_rest(engine, "closed")
    finally:
        _dropped.discard(engine)
        _endings.pop(engine, None)


def _close_at_exit() -> None:
    runtime.begin_exit()
    engines = list(_open_engines)
    _open_engines.clear()
    for engine in engines:
        name = engine.config.client_id
        warnings.warn(f"<Producer {name!r}> was not closed; records may be lost.", ResourceWarning, stacklevel=1)
    if not engines and not _dropped:
        return
    ended = runtime.Signal()

    async def end_all() -> None:
        try:
            await asyncio.gather(*map(_begin_end, {*engines, *_dropped}), return_exceptions=True)
        finally:
            ended.set()

    try:
        runtime.shared().run(end_all())
    except KeyboardInterrupt:
        ended.wait(INTERRUPTED_S)
    except (RaylogError, TimeoutError, RuntimeError) as error:
        logger.error("Producers were not closed, and could not send what was left: %s", error)


def _disown_after_fork() -> None:
    """Disable producers in a forked child: their thread and sockets belong to the parent."""
    for engine in _open_engines:
        engine.accumulator.disown(of_another_process("producer"))
    _open_engines.clear()
    _dropped.clear()
    _endings.clear()


at_exit(_close_at_exit)
os.register_at_fork(after_in_child=_disown_after_fork)


show_keys(ProducerConfig, Producer)
