"""The calls of one connection: how they are sent, which wait for answers, and their deadlines.

A timer per call would cost more than a small call itself. One timer per connection is enough: it is set for the
earliest deadline, rounded up to 50 ms, and checks all pending calls when it fires; under steady traffic that is once
per earliest deadline, not once per call. Used by `Connection`. May touch: the event loop's clock and timers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from raylog.base.errors import ConnectionFailed, RaylogError, RequestTimedOut, UnknownServerError
from raylog.rpc.errors import FrameTooLarge, TooManyPendingCalls
from raylog.rpc.framing import (
    NO_PAYLOAD,
    NOTIFICATION,
    REQUEST,
    Buffer,
    Buffers,
    check_frame_bytes,
    decode_plain,
    encode_header,
    payload_parts,
)
from raylog.rpc.limits import Limits
from raylog.rpc.reply import Reply
from raylog.rpc.sending import SendQueue

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


class Caller:
    """The calling half of a connection: requests and notifications to the peer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: Limits, queue: SendQueue) -> None:
        self._loop = loop
        self._limits = limits
        self._queue = queue
        self._pending = PendingCalls(loop)
        self.peer = "unknown"
        self.is_closed = False
        self.close_reason = ""

    async def call(self, method: str, args: object = None, payload: Buffers = NO_PAYLOAD, *, timeout_s: float) -> Reply:
        """Call the peer's handler and wait for its answer.

        Raises the handler's own error with `is_remote` set; RequestTimedOut, ConnectionFailed, TooManyPendingCalls
        and FrameTooLarge without.
        """
        return await self.call_nowait(method, args, payload, timeout_s=timeout_s)

    def call_nowait(
        self, method: str, args: object = None, payload: Buffers = NO_PAYLOAD, *, timeout_s: float
    ) -> asyncio.Future[Reply]:
        """Queue the request before returning (order is kept; it leaves at the end of this loop tick).

        All errors of `call` come through the future; only arguments that cannot be encoded raise TypeError here.
        Large payload parts are sent without a copy: do not change them before the answer has come.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._send_request(method, args, payload, timeout_s, future)
        return future

    def call_then(
        self,
        method: str,
        args: object,
        payload: Buffers = NO_PAYLOAD,
        *,
        timeout_s: float,
        then: Callable[[Reply | RaylogError], None],
    ) -> None:
        """As `call_nowait`, but `then` gets the answer itself, before this connection handles the bytes after it.

        Its arguments are still encoded: the method's page reads them into its type at once. Frames that `then` sends
        leave at once with the rest. It must not block; errors are delivered in a later iteration of the loop.
        """
        self._send_request(method, args, payload, timeout_s, CallbackWaiter(self._loop, then))

    def notify(self, method: str, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        """Send a request without an answer; lost silently when the connection closes. Raises FrameTooLarge."""
        if not self.is_closed:
            self._send(NOTIFICATION, 0, method, () if args is None else args, payload)

    def _send_request(self, method: str, args: object, payload: Buffers, timeout_s: float, waiting: Waiting) -> None:
        """Queue a request and register `waiting` for its answer; or deliver an error, when it cannot be sent."""
        pending = self._pending
        if self.is_closed:
            fail(waiting, ConnectionFailed(f"The connection for {method} is closed: {self.close_reason}"))
            return
        if len(pending.calls) >= self._limits.max_pending_calls:
            reason = f"{len(pending)} calls to {self.peer} wait for answers; wait for some of them."
            fail(waiting, TooManyPendingCalls(reason))
            return
        parts: Sequence[Buffer]
        if type(payload) is bytes:
            parts, payload_bytes = (payload,), len(payload)
        else:
            parts, payload_bytes = payload_parts(payload)
        pending.last_id = correlation_id = pending.last_id + 1
        header = encode_header(REQUEST, correlation_id, method, () if args is None else args, payload_bytes)
        if len(header) + payload_bytes > self._limits.max_frame_bytes:
            try:
                check_frame_bytes(header, payload_bytes, self._limits.max_frame_bytes)
            except FrameTooLarge as error:
                fail(waiting, error)
                return
        pending.add(correlation_id, method, timeout_s, waiting)
        self._queue.put(header, parts, payload_bytes)

    def _send(self, kind: int, correlation_id: int, third: object, args: object, payload: Buffers) -> None:
        parts, payload_bytes = payload_parts(payload) if payload is not NO_PAYLOAD else ((), 0)
        header = encode_header(kind, correlation_id, third, args, payload_bytes)
        if len(header) + payload_bytes > self._limits.max_frame_bytes:
            check_frame_bytes(header, payload_bytes, self._limits.max_frame_bytes)
        self._queue.put(header, parts, payload_bytes)
