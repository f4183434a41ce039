"""`HalfMessageProducer` and its asyncio twin: a record is stored, then a local transaction, then it is visible or not.

A producer with `prepare()`, and with the checker of its group if it has one. May touch: what its producer touches.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, Unpack

from raylog.client.arguments import Headers
from raylog.client.config import ProducerConfig, show_keys
from raylog.client.halves.checking import Checker, HalfVerdict
from raylog.client.halves.preparing import CHECK_AFTER, HalfBook, Preparing
from raylog.client.keywords import ProducerKeywords
from raylog.client.producer.asynchronous import AsyncProducer
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import Producer
from raylog.client.scheduling import Delay
from raylog.core.errors import RaylogError

logger = logging.getLogger(__name__)

CLOSE_S: Final = 10.0


class _Named:
    """What both faces of a half message show of it."""

    _book: HalfBook

    @property
    def group(self) -> str:
        """Whose checkers are queried."""
        return self._book.name.group

    @property
    def txid(self) -> str:
        """The name under which checkers are queried: that of the local transaction."""
        return self._book.name.txid

    def __repr__(self) -> str:
        state = "held" if self._book.outcome is None else self._book.outcome.value
        return f"<half message {self.txid!r} of {self.group!r}, {state}>"


class HalfMessage(_Named):
    """Records that are stored and not visible, until `commit()`; `rollback()` drops them.

    As a context manager it is committed at the end of the block, and rolled back when that raises: then a local
    transaction must not have committed.
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
        """Store another record of it. All of them become visible, or none. Raises what `prepare` raises."""
        self._producer._add(self._book, topic, value, key, headers, partition)

    def commit(self, timeout: float | None = None) -> None:
        """Make the records visible; returns when that is stored. Waits up to `timeout` seconds, else `max_block_ms`.

        Raises HalfMessageDecided when it was rolled back before, UnknownHalfMessage when it was decided long ago,
        RequestTimedOut when no answer came: it may be repeated, and otherwise the checker is queried.
        """
        self._producer._decide(self._book, HalfVerdict.COMMIT, timeout)

    def rollback(self, timeout: float | None = None) -> None:
        """Drop the records; otherwise as `commit`."""
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
        except RaylogError as failure:  # the error of the block matters more; the checker is queried
            _not_rolled_back(self._book, failure)


class AsyncHalfMessage(_Named):
    """The same of an AsyncHalfMessageProducer: its methods are coroutines, its context manager is asynchronous."""

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
        """Store another record of it, as `HalfMessage.add`."""
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

    `group` names those that know the outcome of a local transaction. A `checker` is called with half messages of the
    group without decision, those of other processes too: `checker(half)` returns COMMIT, ROLLBACK or UNKNOWN (None),
    and runs in a thread of its own. `check_after`: at what age they are checked first. Other arguments, and errors, are
    those of `Producer`.
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
        except BaseException:  # refused or interrupted: what was opened is closed here
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
        """Store a record that is not visible until the half message is committed; returns when every replica has it.

        `txid` names the local transaction, for checkers; it is used once, and made up when left out. Raises what
        `send` and the result of its future raise, ValueError for a txid that is none, HalfMessagesFull.
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
        """End the checker, then as `Producer.close`. What has no decision stays held."""
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
        """Find the cluster, and begin to check. Raises what `AsyncProducer.start` raises."""
        await super().start()
        self._preparing.start()

    async def stop(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # the name users know
        """End the checker, then as `AsyncProducer.stop`. What has no decision stays held."""
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
        """Store a record that is not visible until the half message is committed, as `HalfMessageProducer.prepare`."""
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
