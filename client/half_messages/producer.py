"""`HalfMessageProducer` and its asyncio twin: records that become visible only if a local transaction commits.

`prepare()` stores a record as a half message; then the local transaction runs; then the half message is committed or
rolled back. If the sender dies before that, a checker of its group decides. May touch: what a producer touches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, Unpack

from raylog.base.errors import RaylogError
from raylog.client.arguments import Headers
from raylog.client.config import ProducerConfig, show_keys
from raylog.client.half_messages.checking import Checker, HalfVerdict
from raylog.client.half_messages.preparing import CHECK_AFTER, HalfBook, Preparing
from raylog.client.keywords import ProducerKeywords
from raylog.client.producer.asynchronous import AsyncProducer
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import Producer
from raylog.client.scheduling import Delay

logger = logging.getLogger(__name__)

CLOSE_S: Final = 10.0


class _Named:
    """The properties that both kinds of half messages have."""

    _book: HalfBook

    @property
    def group(self) -> str:
        """The group whose checkers decide about it, if its sender does not."""
        return self._book.name.group

    @property
    def txid(self) -> str:
        """The name of the local transaction, by which a checker finds its outcome."""
        return self._book.name.txid

    def __repr__(self) -> str:
        state = "held" if self._book.outcome is None else self._book.outcome.value
        return f"<half message {self.txid!r} of {self.group!r}, {state}>"


class HalfMessage(_Named):
    """Records that are stored but not visible. `commit()` makes them visible, `rollback()` drops them.

    As a context manager it commits at the end of the block, and rolls back if the block raises: so the block must not
    raise after the local transaction has committed.
    """

    def __init__(self, producer: HalfMessageProducer, book: HalfBook) -> None:
        self._producer = producer
        self._book = book

    def add(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Store another record in this half message: all become visible, or none. Raises as `prepare`."""
        self._producer._add(self._book, topic, value, key, headers, partition)

    def commit(self, timeout: float | None = None) -> None:
        """Make the records visible; returns when the decision is stored.

        Waits up to `timeout` seconds (None = `max_block_ms`). Raises HalfMessageDecided if it was rolled back before,
        UnknownHalfMessage if it was decided long ago, InvalidTxnState if one of its records was not stored,
        RequestTimedOut without an answer: then repeat the call, or leave the decision to a checker.
        """
        self._producer._decide(self._book, HalfVerdict.COMMIT, timeout)

    def rollback(self, timeout: float | None = None) -> None:
        """Drop the records; waits and raises as `commit`."""
        self._producer._decide(self._book, HalfVerdict.ROLLBACK, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._book.outcome is not None:
            return
        if kind is None:
            self.commit()
            return
        try:
            self.rollback()
        except RaylogError as failure:  # the block's own error is more important; a checker decides later
            _not_rolled_back(self._book, failure)


class AsyncHalfMessage(_Named):
    """The asyncio twin of `HalfMessage`: its methods are coroutines, its context manager is asynchronous."""

    def __init__(self, producer: AsyncHalfMessageProducer, book: HalfBook) -> None:
        self._producer = producer
        self._book = book

    async def add(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
    ) -> None:
        """Store another record in this half message, as `HalfMessage.add`."""
        await self._producer._add(self._book, topic, value, key, headers, partition)

    async def commit(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name users know
        """Make the records visible, as `HalfMessage.commit`."""
        await self._producer._decide(self._book, HalfVerdict.COMMIT, timeout)

    async def rollback(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name users know
        """Drop the records, as `HalfMessage.rollback`."""
        await self._producer._decide(self._book, HalfVerdict.ROLLBACK, timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._book.outcome is not None:
            return
        if kind is None:
            await self.commit()
            return
        try:
            await self.rollback()
        except RaylogError as failure:
            _not_rolled_back(self._book, failure)


class HalfMessageProducer(Producer):
    """A producer of half messages, from any thread.

    `group` names the processes that can find out the outcome of a local transaction. The `checker` decides about
    undecided half messages of the group, even those of other processes: `checker(half)` returns COMMIT, ROLLBACK or
    UNKNOWN (None), and runs in a thread of its own. `check_after`: the age at which a half message is first checked (6
    s). Other arguments and errors are those of `Producer`.
    """

    def __init__(
        self,
        group: str,
        checker: Checker | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        check_after: Delay = CHECK_AFTER,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        super().__init__(config, **keywords)
        try:
            self._preparing = Preparing(self._engine, group, checker, check_after)
        except BaseException:  # refused or interrupted: close what was opened
            super().close(0)
            raise
        self._runtime.call_soon(self._preparing.start)

    def prepare(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        txid: str | None = None,
        check_after: Delay | None = None,
    ) -> HalfMessage:
        """Begin a half message with this record, which is not visible before `commit()`; returns once it is stored.

        `txid` is the name of the local transaction, for checkers: unique, and generated if left out. Raises as `send`
        and the result of its future do; ValueError for a bad txid; HalfMessagesFull.
        """
        book = self._preparing.book(txid, check_after)
        self._add(book, topic, value, key, headers, partition)
        return HalfMessage(self, book)

    def _add(
        self, book: HalfBook, topic: str, value: Any, key: Any, headers: Headers | None, partition: int | None
    ) -> None:
        book.check_open("A record")
        self._check_usable()
        record = self._preparing.record(key, value, headers, book)
        waiting, queues = self._runtime.run(self._engine.route_of_delayed(topic, partition))
        append = self._preparing.append(book, record, partition, waiting, queues)
        stored = append() or self._when_room(append)
        with book.storing():
            stored.result()

    def _decide(self, book: HalfBook, verdict: HalfVerdict, timeout: float | None) -> None:
        self._check_usable()
        self._runtime.run(self._preparing.decide(book, verdict, timeout))

    def close(self, timeout: float | None = None) -> None:
        """Stop the checker, then close as `Producer.close`. Undecided half messages stay, for checkers."""
        try:
            if not self._is_closed:
                self._runtime.run(self._preparing.close(), CLOSE_S)
        finally:
            super().close(timeout)


class AsyncHalfMessageProducer(AsyncProducer):
    """The asyncio twin of `HalfMessageProducer`. The checker may be a coroutine function; others run in a thread."""

    def __init__(
        self,
        group: str,
        checker: Checker | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        check_after: Delay = CHECK_AFTER,
        **keywords: Unpack[ProducerKeywords],
    ) -> None:
        super().__init__(config, **keywords)
        self._preparing = Preparing(self._engine, group, checker, check_after)

    async def start(self) -> None:
        """Find the cluster, and start the checker. Raises as `AsyncProducer.start`."""
        await super().start()
        self._preparing.start()

    async def stop(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name users know
        """Stop the checker, then as `AsyncProducer.stop`. Undecided half messages stay; checkers decide about them."""
        try:
            await self._preparing.close()
        finally:
            await super().stop(timeout)

    async def prepare(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        txid: str | None = None,
        check_after: Delay | None = None,
    ) -> AsyncHalfMessage:
        """Begin a half message with this record, as `HalfMessageProducer.prepare`."""
        book = self._preparing.book(txid, check_after)
        await self._add(book, topic, value, key, headers, partition)
        return AsyncHalfMessage(self, book)

    async def _add(
        self, book: HalfBook, topic: str, value: Any, key: Any, headers: Headers | None, partition: int | None
    ) -> None:
        book.check_open("A record")
        record = self._preparing.record(key, value, headers, book)
        waiting, queues = await self._engine.route_of_delayed(topic, partition)
        append = self._preparing.append(book, record, partition, waiting, queues)
        stored = append() or await self._when_room(append)
        with book.storing():
            await AsyncSendFuture(stored._batch, stored._index)

    async def _decide(self, book: HalfBook, verdict: HalfVerdict, timeout: float | None) -> None:  # noqa: ASYNC109
        await self._preparing.decide(book, verdict, timeout)


def _not_rolled_back(book: HalfBook, failure: RaylogError) -> None:
    logger.warning("half message %s of %s is not rolled back yet: %s", book.name.txid, book.name.group, failure)


show_keys(ProducerConfig, HalfMessageProducer, AsyncHalfMessageProducer)
