"""The calls of one connection that wait for an answer, and their deadlines.

A timer per call would cost more than a small call itself. One timer per connection is enough: it is set for the
earliest deadline, rounded up to 50 ms, and looks at all waiting calls when it fires; under steady traffic that is once
per earliest deadline, not once per call. Used by `Connection`. May touch: the event loop's clock and timers.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import msgspec

from raylog.rpc.errors import ConnectionLost, RpcError, RpcTimeout

SWEEP_GRAIN_S = 0.05


class Reply(msgspec.Struct, gc=False):
    """The answer to a call: its arguments, and its payload in memory of its own."""

    args: Any
    payload: memoryview


class PendingCalls:
    """Futures by correlation id. Every future that enters leaves with a result or an error, at its deadline at last."""

    __slots__ = ("_calls", "_last_id", "_loop", "_next_sweep_s", "_peer", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str = "the peer") -> None:
        self._loop = loop
        self._peer = peer
        self._calls: dict[int, tuple[asyncio.Future[Reply], float, str]] = {}
        self._last_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep_s = math.inf

    def __len__(self) -> int:
        return len(self._calls)

    def next_id(self) -> int:
        """A correlation id that no call of this connection has had."""
        self._last_id += 1
        return self._last_id

    def add(self, correlation_id: int, method: str, timeout_s: float) -> asyncio.Future[Reply]:
        """A future for the answer to this call, which fails with RpcTimeout after `timeout_s` (at most 50 ms later)."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        deadline_s = self._loop.time() + timeout_s
        self._calls[correlation_id] = (future, deadline_s, method)
        if deadline_s < self._next_sweep_s:
            self._sweep_at(deadline_s)
        return future

    def resolve(self, correlation_id: int, args: object, payload: memoryview) -> bool:
        """Give the answer to its call; False when that call is no longer there (its deadline has passed)."""
        call = self._calls.pop(correlation_id, None)
        if call is None:
            return False
        future = call[0]
        if not future.done():  # the caller may have cancelled it
            future.set_result(Reply(args, payload))
        return True

    def reject(self, correlation_id: int, error: RpcError) -> bool:
        """Give an error to a call; False when that call is no longer there."""
        call = self._calls.pop(correlation_id, None)
        if call is None:
            return False
        fail(call[0], error)
        return True

    def fail_all(self, reason: str) -> None:
        """The connection has gone: every waiting call gets its own ConnectionLost."""
        calls, self._calls = self._calls, {}
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_sweep_s = math.inf
        for future, _, method in calls.values():
            fail(future, ConnectionLost(f"The connection was lost during {method}: {reason}"))

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
        for correlation_id, (future, deadline_s, _) in self._calls.items():
            if deadline_s <= now_s or future.done():
                expired.append(correlation_id)
            elif deadline_s < earliest_s:
                earliest_s = deadline_s
        for correlation_id in expired:
            future, _, method = self._calls.pop(correlation_id)
            fail(future, RpcTimeout(f"{self._peer} did not answer {method} in time; it may still run."))
        if earliest_s < math.inf:
            self._sweep_at(earliest_s)


def fail(future: asyncio.Future[Reply], error: RpcError) -> None:
    """End a future with an error, quietly: an error that nobody waits for any more is no news for the log."""
    if not future.done():
        future.set_exception(error)
        cast(Any, future).exception()  # marks it as seen, else asyncio logs "exception was never retrieved"
