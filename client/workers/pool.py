"""`WorkerPool`: handles the records of one consumer in many threads; commits only offsets of finished records.

The thread that calls `run()` polls, hands records to workers and commits; workers only call handlers. So only one
thread uses the consumer, and it goes on polling while handlers are slow, which keeps the member in its group. May
touch: threads, the clock, the consumer.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Any

from raylog.base.errors import HandlerFailed, InvalidConfig, RaylogError, did_you_mean
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.consumer.handover import ListenerCall
from raylog.client.guard import NotPickled, Turn
from raylog.client.runtime import Signal
from raylog.client.types import Record
from raylog.client.workers.lanes import HandlerLane, Lanes, Order
from raylog.client.workers.ledger import Chunk, Ledger

logger = logging.getLogger(__name__)

Handler = Callable[[Record], object]
OnError = Callable[[Record, Exception], object]

POLL_S = 0.1
"""The longest wait of a poll for records, after which a failed handler or `stop()` is noticed."""
LEAST_ROOM_SHARE = 4
"""Records are polled when at least 1/4 of `max_in_flight` is free: few large polls cost less than many small ones."""
LONGEST_BACKOFF_S = 30.0


class WorkerPool(NotPickled):
    """Handles the records of one consumer in several threads, in order for each key. One `run()` at a time.

    `handler(record)` is called in a worker's thread; its result is ignored. With ``order="key"`` records with the same
    key are handled one at a time, in the order of their offsets; with "partition" all records of a partition; with
    "none" no order is kept. Records without a key have no order among each other.

    An offset is committed when all records below it are finished, so no record is lost in a crash. Records that were
    finished out of order, or since the last commit, are handled again then. When partitions are revoked, the pool
    handles its records of them for up to `drain_timeout` seconds, waits for running handlers, and commits, before
    another member gets them: no two members handle the same key at the same time.

    If a handler raises, it is called again up to `retries` times, after pauses that double from `retry_backoff_ms` to
    30 s; later records of the key wait. Then `on_error(record, error)` is called in the same thread; if it returns, the
    record counts as finished. Without it, or if it raises, the pool ends, and `run()` raises HandlerFailed.
    """

    def __init__(
        self,
        consumer: Consumer,
        handler: Handler,
        *,
        workers: int = 8,
        order: str = "key",
        max_in_flight: int = 10_000,
        retries: int = 0,
        retry_backoff_ms: float = 100,
        on_error: OnError | None = None,
        drain_timeout: float = 5.0,
    ) -> None:
        """`max_in_flight`: the most records that are polled and not finished; `drain_timeout` in seconds.

        Raises InvalidConfig for a consumer with automatic commits, and for invalid values.
        """
        _check(consumer, handler, workers, max_in_flight, retries)
        orders = {each.value: each for each in Order}
        if order not in orders:
            raise InvalidConfig(did_you_mean("order", str(order), orders))
        self._consumer = consumer
        self._handler = handler
        self._on_error = on_error
        self._workers = workers
        self._max_in_flight = max_in_flight
        self._retries = retries
        self._retry_backoff_s = retry_backoff_ms / 1000
        self._drain_s = drain_timeout
        self._order = orders[order]
        self._lock = threading.RLock()  # reentrant: a signal handler may call metrics() while its thread holds it
        self._progress = Signal()
        """Set when a chunk has ended, for the thread of `run`."""
        self._ready: SimpleQueue[HandlerLane | None] = SimpleQueue()
        self._lanes = Lanes(workers, self._order)
        self._ledger = Ledger()
        self._in_flight = 0
        self._active = 0
        self._is_stopping = False
        self._failure: HandlerFailed | None = None
        self._turn = Turn(_refusal)
        self._handled = self._failed = self._repeated = 0
        self._next_commit_s = 0.0

    def run(self, timeout: float | None = None, *, idle_timeout: float | None = None) -> None:
        """Poll and handle records until `stop()`, for `timeout` seconds, or until none came for `idle_timeout` seconds.

        Time with running handlers, or before the consumer is a member of its group, does not count as idle.

        At the end it waits for running handlers, commits, and moves the consumer's positions back to the first
        unfinished records, so that the next read misses nothing. Raises HandlerFailed, and as `poll`; after
        RecordDeserializationFailed, for example, `seek()` past the record and call it again.
        """
        turn = self._turn
        try:
            del turn.free
        except AttributeError:
            raise turn.refused() from None
        try:
            self._run(timeout, idle_timeout)
        finally:
            turn.free = True

    def _run(self, timeout: float | None, idle_timeout: float | None) -> None:
        self._begin()
        ready, threads = self._ready, []
        listener = self._consumer._engine.listener
        try:
            for number in range(self._workers):
                thread = threading.Thread(target=self._work, args=(ready,), name=f"raylog-worker-{number}", daemon=True)
                threads.append(thread)
                thread.start()
            listener.before = self._before_listener
            self._poll_until(timeout, idle_timeout)
        finally:
            try:
                self._end()
            finally:
                listener.before = None
                ready.put(None)  # one for all workers, each puts it back: Ctrl-C after it does no harm
                for thread in threads:  # they are idle now, unless a handler hangs
                    if thread.ident is not None:  # None if Ctrl-C came before its start
                        thread.join(0.1 if self._active else 5)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Have `run()` end; no further records are handled. From any thread, even from a handler."""
        self._is_stopping = True

    def metrics(self) -> dict[str, float]:
        """Records handled, failed and retried since the pool was made; records in flight and busy workers now."""
        with self._lock:
            return {
                "records-handled-total": self._handled,
                "records-failed-total": self._failed,
                "records-retried-total": self._repeated,
                "records-in-flight": self._in_flight,
                "workers-busy": self._active,
            }

    # The thread of `run()`

    def _begin(self) -> None:
        self._failure = None
        self._is_stopping = False
        self._ready = SimpleQueue()
        self._lanes, self._ledger = Lanes(self._workers, self._order), Ledger()
        self._in_flight = self._active = 0
        self._next_commit_s = time.monotonic() + self._commit_every_s

    def _poll_until(self, timeout: float | None, idle_timeout: float | None) -> None:
        consumer = self._consumer
        began_s = last_s = time.monotonic()
        while not self._is_stopping:
            now_s = time.monotonic()
            if timeout is not None and now_s - began_s >= timeout:
                return
            if self._in_flight or not self._has_joined():
                last_s = now_s
            elif idle_timeout is not None and now_s - last_s >= idle_timeout:
                return
            self._commit_when_due(now_s)
            room = self._max_in_flight - self._in_flight
            if room * LEAST_ROOM_SHARE < self._max_in_flight:
                if not self._has_room():
                    consumer.poll(0, max_records=0)  # advances a rebalance, and keeps the member in the group
                continue
            try:
                found = consumer.poll(POLL_S * 1000, max_records=room)
            except RaylogError:
                # Finish the records before the one that cannot be read: the user may seek past it.
                self._wait_until_finished(consumer.assignment(), consumer.config.max_poll_interval_ms / 1000)
                raise
            states = consumer._engine.assignment.states
            for partition, records in found.items():
                after = states[partition].position
                self._hand_out(partition, records, records[-1].offset + 1 if after is None else after)
            if found:
                last_s = time.monotonic()

    def _has_joined(self) -> bool:
        """Whether the consumer is a member of its group, if it has one; even a member without partitions."""
        group = self._consumer._engine.group
        return group is None or group.may_commit

    def _hand_out(self, partition: TopicPartition, records: list[Record], after: int) -> None:
        with self._lock:
            chunks, ready = self._lanes.place(partition, records)
            self._ledger.add(partition, chunks, after)
            self._in_flight += len(records)
        for lane in ready:
            self._ready.put(lane)

    def _has_room(self) -> bool:
        """Wait, for at most `POLL_S`, until enough records are finished to poll again; return whether they are."""
        deadline_s = time.monotonic() + POLL_S
        while True:
            self._progress.clear()
            if (self._max_in_flight - self._in_flight) * LEAST_ROOM_SHARE >= self._max_in_flight:
                return True
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or self._is_stopping:
                return False
            self._progress.wait(left_s)

    # Commits

    @property
    def _commit_every_s(self) -> float:
        return self._consumer.config.auto_commit_interval_ms / 1000

    def _commit_when_due(self, now_s: float) -> None:
        if now_s < self._next_commit_s or not self._consumer.config.group_id:
            return
        self._next_commit_s = now_s + self._commit_every_s
        with self._lock:
            offsets = self._ledger.committable()
            self._ledger.committed(offsets)
        if offsets:
            ledger = self._ledger

            def done(_: object, error: RaylogError | None) -> None:
                if error is not None:
                    logger.warning("Finished offsets were not committed; the next commit tries again: %s", error)
                    with self._lock:
                        ledger.not_committed(offsets)

            self._consumer.commit_async(offsets, done)

    def _commit_now(self, partitions: Iterable[TopicPartition]) -> None:
        if not self._consumer.config.group_id:
            return
        with self._lock:
            wanted = {at: self._ledger.finished_to(at) for at in partitions}
        offsets = {at: offset for at, offset in wanted.items() if offset is not None}
        if not offsets:
            return
        try:
            self._consumer.commit(offsets, timeout=self._drain_s)
        except RaylogError as error:
            logger.warning("Finished offsets were not committed; their records are handled again: %s", error)

    # Revoked partitions, and the end

    def _before_listener(self, call: ListenerCall) -> None:
        """End the work on revoked or lost partitions. Nothing is committed for lost ones, which others may have."""
        if call.kind == "assigned":
            return
        if call.kind == "revoked":
            self._wait_until_finished(call.partitions, self._drain_s)
        self._drop(call.partitions)
        if call.kind == "revoked":
            self._commit_now(call.partitions)
        with self._lock:
            self._ledger.forget(call.partitions)

    def _wait_until_finished(self, partitions: Iterable[TopicPartition], limit_s: float) -> None:
        wanted = list(partitions)
        deadline_s = time.monotonic() + limit_s
        while not self._is_stopping:
            self._progress.clear()
            with self._lock:
                is_finished = not self._ledger.chunks(wanted)
            left_s = deadline_s - time.monotonic()
            if is_finished or left_s <= 0:
                return
            self._progress.wait(min(left_s, POLL_S))  # `stop` does not wake it, since a signal handler may call it

    def _drop(self, partitions: Iterable[TopicPartition] | None) -> None:
        """Handle no further records of these partitions (None = all), and wait for running handlers."""
        # For as long as a member may go without a poll: if this gave up earlier, another member would handle the same
        # keys at the same time.
        limit_s = self._consumer.config.max_poll_interval_ms / 1000
        deadline_s = time.monotonic() + limit_s
        with self._lock:
            chunks = self._ledger.chunks(partitions)
            for chunk in chunks:
                chunk.is_dropped = True
        while True:
            self._progress.clear()
            if not any(chunk.is_active for chunk in chunks):
                return
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                logger.error("A handler has run for %g s, longer than max_poll_interval_ms; it goes on.", limit_s)
                return
            self._progress.wait(left_s)

    def _end(self) -> None:
        self._is_stopping = True
        self._drop(None)
        consumer = self._consumer
        held = consumer.assignment()
        self._commit_now(held)
        with self._lock:
            finished = {at: self._ledger.finished_to(at) for at in held}
            self._ledger.forget()
        states = consumer._engine.assignment.states
        for partition, offset in finished.items():
            state = states.get(partition)
            if offset is not None and state is not None and state.position is not None and offset < state.position:
                try:
                    consumer.seek(partition, offset)
                except RaylogError as error:  # the partition was revoked meanwhile, or the consumer is closed
                    logger.warning("The position of %s was not moved back: %s", partition, error)

    # The workers' threads

    def _work(self, ready: SimpleQueue[HandlerLane | None]) -> None:
        lanes, ledger = self._lanes, self._ledger
        while True:
            lane = ready.get()
            if lane is None:
                ready.put(None)  # for the next worker
                return
            with self._lock:
                chunk = lane.chunks[0]
                chunk.is_active = True
                self._active += 1
            try:
                # A failed record stops everything: the next one of its key, perhaps in this lane, must not be handled.
                if not chunk.is_dropped and not self._is_stopping:
                    self._handle(chunk)
            except BaseException as error:  # even SystemExit of a handler: the pool must not go on without the record
                self._fail(chunk, error)
            with self._lock:
                chunk.is_active = False
                if self._lanes is not lanes:
                    return  # the handler hung, and `run()` was called again meanwhile
                self._active -= 1
                self._in_flight -= len(chunk.records)
                self._handled += chunk.done
                ledger.chunk_ended(chunk)
                if lanes.chunk_ended(lane):
                    ready.put(lane)  # after the other lanes, so that none waits for long
            self._progress.set()

    def _handle(self, chunk: Chunk) -> None:
        handler = self._handler
        for record in chunk.records[chunk.done :]:
            if chunk.is_dropped:
                return
            try:
                handler(record)
            except Exception as error:  # the user's handler may raise anything: retry, or report it
                if not self._handle_again(chunk, record, error):
                    return
            chunk.done += 1

    def _handle_again(self, chunk: Chunk, record: Record, error: Exception) -> bool:
        """Retry a handler that raised, then call `on_error`; False = the pool stops before that. Raises the error."""
        pause_s = self._retry_backoff_s
        for _ in range(self._retries):
            if self._wait_while_wanted(chunk, pause_s):
                return False
            pause_s = min(2 * pause_s, LONGEST_BACKOFF_S)
            with self._lock:
                self._repeated += 1
            try:
                self._handler(record)
            except Exception as failure:  # as above
                error = failure
            else:
                return True
        with self._lock:
            self._failed += 1
        if self._on_error is None:
            raise error
        self._on_error(record, error)
        return True

    def _wait_while_wanted(self, chunk: Chunk, pause_s: float) -> bool:
        """Wait for a pause; return True as soon as the record need not be handled any more."""
        deadline_s = time.monotonic() + pause_s
        while not chunk.is_dropped:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return False
            if self._is_stopping:
                return True
            time.sleep(min(left_s, POLL_S / 4))
        return True

    def _fail(self, chunk: Chunk, cause: BaseException) -> None:
        record = chunk.records[chunk.done]
        failure = HandlerFailed(
            f"The handler raised for the record at offset {record.offset} of {chunk.partition} "
            f"({type(cause).__name__}: {cause}). It is not committed, and the next run() handles it again; to go on "
            "without such records, give the pool an on_error.",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            record=record,
        )
        failure.__cause__ = cause
        with self._lock:
            chunk.is_dropped = True
            if self._failure is None:
                self._failure = failure
        self._is_stopping = True


def _refusal(_: bool) -> str:
    return "This pool runs already; one call of run() at a time. To have more work done at once, raise `workers`."


def _check(consumer: Any, handler: Any, workers: int, max_in_flight: int, retries: int) -> None:
    if not isinstance(consumer, Consumer):
        raise InvalidConfig(f"A WorkerPool needs a Consumer, not {type(consumer).__name__}; its workers are threads.")
    if consumer.config.enable_auto_commit and consumer.config.group_id:
        raise InvalidConfig(
            "Give the consumer of a WorkerPool enable_auto_commit=False: automatic commits would count records that "
            "are still being handled. The pool commits what is finished, each auto_commit_interval_ms."
        )
    if not callable(handler) or inspect.iscoroutinefunction(handler):
        raise InvalidConfig(f"The handler must be a function of a record, and not a coroutine's: {handler!r:.100}.")
    if workers < 1 or max_in_flight < 1 or retries < 0:
        raise InvalidConfig(
            f"workers ({workers}) and max_in_flight ({max_in_flight}) must be 1 or more, retries ({retries}) 0 or more."
        )
