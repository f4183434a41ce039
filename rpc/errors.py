"""The errors of the RPC layer, one flat tree with flags that tell the caller what to do.

Used by every module of this package and by its callers. Codes are Kafka's numbers, so that an error which a handler
lets pass reaches the other end as something known. Touches nothing.
"""

from __future__ import annotations

from typing import Any, ClassVar

UNKNOWN_SERVER_ERROR = -1


class RpcError(Exception):
    """Root of this package's errors. `retriable`: the same call may succeed later or on a new connection."""

    code: int = UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False


class ConnectFailed(RpcError):
    """No connection came to be: nobody listens, the network refused, or the time ran out. Try again or elsewhere."""

    code = 13
    retriable = True


class ConnectionLost(RpcError):
    """The connection went away before the answer came. The call may have run or not."""

    code = 13
    retriable = True


class RpcTimeout(RpcError):
    """No answer within the call's deadline. The call may have run, or may still run."""

    code = 7
    retriable = True


class TooManyPendingCalls(RpcError):
    """This connection already has `Limits.max_pending_calls` calls without an answer. Wait for some of them."""

    code = 89
    retriable = True


class AuthenticationFailed(RpcError):
    """The other end could not prove that it knows the cluster's secret, or did not believe our proof."""

    code = 58


class NotPermitted(RpcError):
    """What the peer has proved does not entitle it to this call. Use a secret that does."""

    code = 31


class FrameTooLarge(RpcError):
    """A frame is over `Limits.max_frame_bytes`. Send less at once, or raise the limit at both ends."""

    code = 10


class BadFrame(RpcError):
    """The other end sent bytes that are no frame. The connection cannot be used any more."""

    code = 42


class RemoteError(RpcError):
    """The other end's handler answered with an error: its code (Kafka's numbers), message and details."""

    def __init__(self, code: int, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: dict[str, Any] = {} if details is None else details

    def __reduce__(self) -> tuple[type[RemoteError], tuple[int, str, dict[str, Any]]]:
        # Exceptions pickle their `args`, which is the message alone; Ray sends errors between processes by pickle.
        return (RemoteError, (self.code, self.message, self.details))

    def __str__(self) -> str:
        return f"{self.message} (error code {self.code})"
