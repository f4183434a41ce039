"""Gives a broker its metadata voter, in a thread of its own: a hanging disk must not block the broker.

The thread opens the voter at the first request, and opens it again after an error. Every broker can become a voter; the
controller knows which brokers are voters. It works before the broker is registered, because the controller can only
start when its voters reply.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from raylog.actors.clock import monotonic_ms
from raylog.actors.metadata.voter import Voter, order_of
from raylog.actors.metadata.voter_runner import Answer, Order
from raylog.base.errors import KafkaStorageError, NotController, RaylogError
from raylog.base.invariants import InvariantBroken
from raylog.protocol.message import Message
from raylog.rpc import Request

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

CLOSE_S: Final = 5.0
"""How long a broker that stops waits for its voter's disk."""


REOPEN_MS: Final = 200
"""Pause before a voter that failed twice in a row is opened again; it doubles with each further failure."""
REOPEN_MAX_MS: Final = 5_000
"""Longest such pause."""
REPORT_MS: Final = 60_000
"""Interval between two log lines about a voter that keeps failing."""


@dataclass(slots=True)
class _Failures:
    """Failures of a voter in a row. They delay its opening, because a read-only disk does not recover, and each opening
    reads the whole log."""

    count: int = 0
    open_at_ms: int = 0
    """Before this time the voter is not opened again."""
    refusal: KafkaStorageError = field(default_factory=KafkaStorageError)
    _reported_ms: int | None = None

    def failed(self, directory: Path, error: Exception, now_ms: int) -> None:
        """Note a failure, and log it at most once per REPORT_MS."""
        self.refusal = KafkaStorageError(f"The metadata voter's disk failed ({error}); check the disk.")
        pause_ms = min(REOPEN_MAX_MS, REOPEN_MS << min(self.count - 1, 16)) if self.count else 0
        self.count, self.open_at_ms = self.count + 1, now_ms + pause_ms
        if self._reported_ms is None or now_ms - self._reported_ms >= REPORT_MS:
            self._reported_ms = now_ms
            logger.error(
                "the metadata voter in %s failed (%d times in a row) and is opened again, every %d s at most: %s",
                directory,
                self.count,
                REOPEN_MAX_MS // 1000,
                error,
            )

    def succeeded(self) -> None:
        """Note that the voter works."""
        self.count, self.open_at_ms, self._reported_ms = 0, 0, None


@dataclass(frozen=True, slots=True)
class _Failed:
    """Requests that failed: none of them may be answered with success."""

    requests: list[int]
    error: KafkaStorageError


class VoterHost:
    """Owns the voter of one data directory; its broker holds the directory's lock."""

    def __init__(self, directory: Path) -> None:
        """Make it; nothing is opened or started before the first request."""
        self._directory = directory
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._requests: dict[int, Request] = {}
        self._last_number = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def on_request(self, request: Request, args: Message) -> None:
        """Take a ``voter_*`` request. Raises :class:`InvalidRequest` for a wrong payload."""
        if self._closed:
            request.fail(NotController("This broker is stopping; repeat the request."))
            return
        self._last_number += 1
        order = order_of(args, request.payload, self._last_number)
        self._requests[self._last_number] = request
        if self._thread is None:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._serve, args=(loop,), name="metadata voter", daemon=True)
            self._thread.start()
        self._orders.put(order)

    async def close(self) -> None:
        """Close the voter. From now on requests are refused; those that wait for the disk are dropped."""
        self._closed = True
        self._requests.clear()
        if self._thread is not None:
            self._orders.put(None)
            await asyncio.to_thread(self._thread.join, CLOSE_S)
            if self._thread.is_alive():
                logger.error("the disk of %s hangs; its metadata voter was left open", self._directory)

    # ------------------------------------------------------------ answers, on the loop

    def _deliver(self, answers: list[Answer]) -> None:
        for answer in answers:
            request = self._requests.pop(answer.request, None)
            if request is not None:
                request.reply(answer.args, answer.payload)

    def _refuse(self, failed: _Failed) -> None:
        for number in failed.requests:
            request = self._requests.pop(number, None)
            if request is not None:
                request.fail(failed.error)

    # ------------------------------------------------------------ in the thread

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        voter: Voter | None = None
        ending, failures = False, _Failures()
        while not ending:
            orders, ending = self._take()
            if voter is None and orders and monotonic_ms() < failures.open_at_ms:
                self._answer(loop, self._refuse, _Failed(_numbers(orders), failures.refusal))
                continue
            try:
                if voter is None and orders:
                    voter = Voter.open(self._directory)
                answers = [] if voter is None else voter.perform(orders)
            except (RaylogError, InvariantBroken, OSError, ValueError) as error:
                # Memory and disk may differ now. So the voter is closed, and the next request opens the files again.
                failures.failed(self._directory, error, monotonic_ms())
                _close(voter, is_whole=False)
                voter = None
                self._answer(loop, self._refuse, _Failed(_numbers(orders), failures.refusal))
            else:
                if orders:
                    failures.succeeded()
                self._answer(loop, self._deliver, answers)
        _close(voter)

    def _answer(self, loop: asyncio.AbstractEventLoop, call: Callable[[_T], None], what: _T) -> None:
        with suppress(RuntimeError):  # the loop has ended, and every request with it
            loop.call_soon_threadsafe(call, what)

    def _take(self) -> tuple[list[Order], bool]:
        """Wait for an order, and return all waiting ones; True: the voter has to be closed then."""
        orders: list[Order] = []
        order = self._orders.get()
        with suppress(Empty):
            while order is not None:
                orders.append(order)
                order = self._orders.get_nowait()
            return [], True  # orders that wait at the end are dropped, because their senders retry
        return orders, False


def _numbers(orders: list[Order]) -> list[int]:
    return [order.event.request for order in orders]


def _close(voter: Voter | None, *, is_whole: bool = True) -> None:
    if voter is not None:
        try:
            voter.close(is_whole=is_whole)
        except (RaylogError, OSError) as error:
            logger.error("a metadata voter was not closed cleanly: %s", error)
