"""The futures of sent records: each consists of its batch and its index there. Pure.

They are msgspec structs, because `send()` creates one per record, and no class is cheaper to create.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Generator
from functools import partial
from operator import itemgetter
from typing import Any, NoReturn

import msgspec

from raylog.base.errors import ClientClosed, RaylogError
from raylog.client.producer.batch import Batch
from raylog.client.runtime import park_at_exit
from raylog.client.types import RecordMetadata

_first = itemgetter(0)


class SendFuture(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The outcome of one `send()`. Any thread may wait for it."""

    _batch: Batch
    _index: int

    def __reduce_ex__(self, _: Any) -> NoReturn:
        """Refuse to be pickled: only this process gets the outcome."""
        raise TypeError(
            "The future of a record cannot be pickled: it ends in the process that has sent the record. Return its "
            "result() instead, which says where the record is stored."
        )

    def done(self) -> bool:
        """Whether the record was stored or has failed."""
        return self._batch.is_done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record was stored; waits up to `timeout` seconds.

        Raises TimeoutError if the result is not known by then, or the error with which the record failed.
        """
        error = self.exception(timeout)
        if error is not None:
            if isinstance(error, ClientClosed):
                park_at_exit()
            # All records of a batch share the error: without this its traceback would grow with each raise.
            raise error.with_traceback(None)
        return self._metadata()

    def exception(self, timeout: float | None = None) -> RaylogError | None:
        """The error with which the record failed, or None. Waits up to `timeout` seconds, then raises TimeoutError."""
        batch = self._batch
        if not batch.is_done and not batch.wait(timeout):
            raise TimeoutError(f"The record was neither stored nor refused within {timeout} seconds; it is still sent.")
        return batch.leaf_of(self._index)[0].error if batch.pieces else batch.error

    def add_done_callback(self, function: Callable[[SendFuture], object]) -> None:
        """Call `function(future)` when the result is known; in the client's thread, so it must not block."""
        self._batch.when_done(lambda: function(self))

    def _metadata(self) -> RecordMetadata:
        batch, index = self._batch.leaf_of(self._index) if self._batch.pieces else (self._batch, self._index)
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        _, timestamp_ms = batch.stamps[bisect_right(batch.stamps, index, key=_first) - 1]
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp_ms)


class AsyncSendFuture(SendFuture, frozen=True, eq=False, gc=False):
    """The outcome of `AsyncProducer.send`: it can be awaited.

    This is a separate class because type checkers warn of awaitables that are not awaited, and the result of a
    synchronous `send()` is often unused.
    """

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait until the record is stored or has failed; the result is that of `result`."""
        if not self._batch.is_done:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            callback = partial(_wake, loop, waiter)
            self._batch.when_done(callback)
            try:
                yield from waiter
            finally:
                if waiter.cancelled():
                    self._batch.stop_waiting(callback)
        return self.result(0)


def _wake(loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
    if asyncio._get_running_loop() is loop:
        _settle(waiter)
    elif not loop.is_closed():
        loop.call_soon_threadsafe(_settle, waiter)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
