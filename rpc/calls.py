"""The calls of one connection that wait for answers, and their deadlines.

A timer per call would cost more than a small call itself. One timer per connection is enough: it is set for the
earliest deadline, rounded up to 50 ms, and checks all pending calls when it fires; under steady traffic that is once
per earliest deadline, not once per call. Used by `Connection`. May touch: the event loop's clock and timers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from raylog.base.errors import ConnectionFailed, RaylogError, RequestTimedOut, UnknownServerError
from raylog.rpc.framing import (
    decode_plain,
)
from raylog.rpc.reply import Reply

SWEEP_GRAIN_S = 0.05


class CallbackWaiter:
    """Replaces a future: calls `then` with the answer while it is being received, or soon after with an error.

    A future would delay the requests that follow from the answer by two iterations of the loop. An error is delivered
    in an iteration of its own: it may be the end of a connection, and a handler must not run in the middle of that.
    """

    __slots__ = ("_is_done", "_loop", "_then")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Callable[[Reply | RaylogError], None]) -> None:
        self._loop = loop
        self._then = then
        self._is_done = False

    def done(self) -> bool:
        """Whether the answer or an error was delivered."""
        return self._is_done

    def set_result(self, reply: Reply) -> None:
        """Deliver the answer."""
        self._is_done = True
        try:
            self._then(reply)
        except Exception as error:  # an error in the caller's code must not end the connection, which other calls share
            self._loop.call_exception_handler({"message": "What follows from an answer failed.", "exception": error})

    def set_exception(self, error: RaylogError) -> None:
        """Deliver an error: the call failed, or the answer is one."""
        self._is_done = True
        self._loop.call_soon(self._then, error)


Waiting: TypeAlias = asyncio.Future[Reply] | CallbackWaiter


class PendingCalls:
    """Waiters by correlation id. Each ends with an answer or an error, at most 50 ms after its deadline."""

    __slots__ = ("_loop", "_next_sweep_s", "_peer", "_timer", "calls", "last_id")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str = "the peer") -> None:
        self._loop = loop
        self._peer = peer
        self.calls: dict[int, tuple[Waiting, float, str]] = {}
        """The waiter, its deadline and its method."""
        self.last_id = 0
        """The correlation id of the last call; incremented by each new call."""
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep_s = math.inf

    def __len__(self) -> int:
        return len(self.calls)

    def add(self, correlation_id: int, method: str, timeout_s: float, waiting: Waiting) -> None:
        """Register `waiting` for the answer, or for RequestTimedOut after `timeout_s` (at most 50 ms later)."""
        deadline_s = self._loop.time() + timeout_s
        self.calls[correlation_id] = (waiting, deadline_s, method)
        if deadline_s < self._next_sweep_s:
            self._sweep_at(deadline_s)

    def resolve(self, correlation_id: int, args: msgspec.Raw, payload: memoryview) -> bool:
        """Deliver the answer to its call, decoded for a future; False when its deadline has passed."""
        call = self.calls.pop(correlation_id, None)
        if call is None:
            return False
        waiting = call[0]
        if type(waiting) is CallbackWaiter:
            waiting.set_result(Reply(args, payload))
        elif not waiting.done():  # the caller may have cancelled it
            try:
                plain = decode_plain(args)
            except Exception as error:  # as in `decode_header`: any error is caused by the peer's bytes
                fail(waiting, UnknownServerError(f"The reply to {call[2]} cannot be read: {error}"))
            else:
                waiting.set_result(Reply(plain, payload))
        return True

    def reject(self, correlation_id: int, error: RaylogError) -> bool:
        """Deliver an error to a call; False when that call is no longer pending."""
        call = self.calls.pop(correlation_id, None)
        if call is None:
            return False
        fail(call[0], error)
        return True

    def fail_all(self, reason: str) -> None:
        """The connection is closed: every pending call gets its own ConnectionFailed."""
        calls, self.calls = self.calls, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_sweep_s = math.inf
        for future, _, method in calls.values():
            fail(future, ConnectionFailed(f"The connection was lost during {method}: {reason}"))

    def _sweep_at(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Rounded up: deadlines of the same 50 ms share one sweep. So one sweep per grain is the worst case.
        self._next_sweep_s = math.ceil(deadline_s / SWEEP_GRAIN_S) * SWEEP_GRAIN_S
        self._timer = self._loop.call_at(self._next_sweep_s, self._sweep)

    def _sweep(self) -> None:
        now_s = self._loop.time()
        self._timer = None
        self._next_sweep_s = earliest_s = math.inf
        expired: list[int] = []
        for correlation_id, (future, deadline_s, _) in self.calls.items():
            if deadline_s <= now_s or future.done():
                expired.append(correlation_id)
            elif deadline_s < earliest_s:
                earliest_s = deadline_s
        for correlation_id in expired:
            future, _, method = self.calls.pop(correlation_id)
            fail(future, RequestTimedOut(f"{self._peer} did not answer {method} in time; it may still run."))
        if earliest_s < math.inf:
            self._sweep_at(earliest_s)


def fail(waiting: Waiting, error: RaylogError) -> None:
    """End a future with an error, without a log entry if the caller no longer waits."""
    if not waiting.done():
        waiting.set_exception(error)
        if isinstance(waiting, asyncio.Future):
            waiting.exception()  # marks it as retrieved, else asyncio logs "exception was never retrieved"
