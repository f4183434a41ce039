"""From the RPC layer's errors to the errors that users know, and how long to wait before trying again.

Used by everything in this package that calls a server. Touches nothing.
"""

from __future__ import annotations

import random

from raylog.core import errors
from raylog.rpc import (
    AuthenticationFailed,
    ConnectFailed,
    ConnectionLost,
    FrameTooLarge,
    RemoteError,
    RpcError,
    RpcTimeout,
)


def as_raylog_error(error: BaseException) -> errors.RaylogError:
    """The user's error for whatever a call raised. Errors that are ours already pass as they are."""
    if isinstance(error, errors.RaylogError):
        return error
    if isinstance(error, RemoteError):
        return errors.from_code(error.code, error.message, error.details)
    if isinstance(error, ConnectFailed | ConnectionLost):
        return errors.ConnectionFailed(str(error))
    if isinstance(error, RpcTimeout | TimeoutError):
        return errors.RequestTimedOut(str(error))
    if isinstance(error, AuthenticationFailed):
        return errors.AuthenticationFailed(str(error))
    if isinstance(error, FrameTooLarge):
        return errors.RecordTooLarge(str(error))
    if isinstance(error, RpcError) and error.retriable:
        return errors.RetriableError(str(error))
    return errors.UnknownServerError(f"{type(error).__name__}: {error}")


class Backoff:
    """Pauses that double from `first_ms` to `longest_ms`, each shortened by up to a fifth so that clients spread."""

    __slots__ = ("_first_ms", "_longest_ms", "_random", "failures")

    def __init__(self, first_ms: int, longest_ms: int, chance: random.Random | None = None) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._random = chance or random.Random()  # spreads load, guards nothing
        self.failures = 0

    def next_s(self) -> float:
        """Count one more failure; the seconds to wait now."""
        pause_ms: int = min(self._longest_ms, self._first_ms << min(self.failures, 20))
        self.failures += 1
        return pause_ms / 1000 * (1 - self._random.random() / 5)

    def reset(self) -> None:
        """Something succeeded."""
        self.failures = 0
