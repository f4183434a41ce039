"""Gives a broker its metadata voter, in a thread of its own: a hanging disk must not block the broker.

The thread opens the voter at the first request and opens it again after an error. Every broker can be a voter or become
one; the controller knows which brokers are. Works before the broker is registered, because the controller can only
start when its voters reply.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from raylog.actors.metadata.voter import Voter, order_of
from raylog.actors.metadata.voter_runner import Answer, Order
from raylog.core.errors import KafkaStorageError, NotController, RaylogError
from raylog.core.invariants import InvariantBroken
from raylog.protocol.message import Message
from raylog.rpc import Request

logger = logging.getLogger(__name__)

CLOSE_S: Final = 5.0
"""How long a broker that stops waits for its voter's disk."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """None of these requests may count as carried out."""

    requests: list[int]
    error: KafkaStorageError


class VoterHost:
    """Owns the voter of one data directory; its broker holds the directory's lock."""

    def __init__(self, directory: Path) -> None:
        """Nothing is opened, made or started before the first request."""
        self._directory = directory
        self._orders: SimpleQueue[Order | None] = SimpleQueue()
        self._requests: dict[int, Request] = {}
        self._last_number = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    def on_request(self, request: Request, args: Message) -> None:
        """Take a ``voter_*`` request in; raises :class:`InvalidRequest` for a wrong payload."""
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
        """Close the voter; requests are refused from now on, and those that wait for the disk are dropped."""
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
        ending = False
        while not ending:
            orders, ending = self._take()
            try:
                if voter is None and orders:
                    voter = Voter.open(self._directory)
                answers = [] if voter is None else voter.perform(orders)
            except (RaylogError, InvariantBroken, OSError, ValueError) as error:
                # Memory and disk may differ now: this life ends, the next request opens the files again.
                logger.error("the metadata voter in %s failed and is opened again: %s", self._directory, error)
                _close(voter, is_whole=False)
                voter = None
                refusal = KafkaStorageError(f"The metadata voter's disk failed ({error}); check the disk.")
                failed = _Failed([order.event.request for order in orders], refusal)
                with suppress(RuntimeError):  # the loop has ended, and every request with it
                    loop.call_soon_threadsafe(self._refuse, failed)
            else:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._deliver, answers)
        _close(voter)

    def _take(self) -> tuple[list[Order], bool]:
        """Wait for an order and return all that are there; True = the voter is to be closed then."""
        orders: list[Order] = []
        order = self._orders.get()
        with suppress(Empty):
            while order is not None:
                orders.append(order)
                order = self._orders.get_nowait()
            return [], True  # orders that wait at the end are dropped: their senders retry
        return orders, False


def _close(voter: Voter | None, *, is_whole: bool = True) -> None:
    if voter is not None:
        try:
            voter.close(is_whole=is_whole)
        except (RaylogError, OSError) as error:
            logger.error("a metadata voter was not closed cleanly: %s", error)
