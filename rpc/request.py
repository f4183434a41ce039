"""The argument of a handler: one request of the peer, with its two ways to answer.

Made by `Connection`, used by the handlers of brokers and clients. May touch: its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from typing import Any, Protocol, TypeAlias

from raylog.base.errors import InvalidRequest, RaylogError, UnknownServerError
from raylog.rpc.auth.tokens import Grant
from raylog.rpc.framing import NO_PAYLOAD, Buffers
from raylog.rpc.occasional import OccasionalDefects
from raylog.rpc.reply import Reply

logger = logging.getLogger(__name__)
defects = OccasionalDefects(logger)

OTHER = "other"
"""Stands for the methods that no page states, in figures: peers choose their names."""


class Refusals(dict[tuple[str, int], int]):
    """Counts of requests that were answered with an error, by (method, error code)."""

    def __init__(self, methods: Container[str]) -> None:
        """`methods` are counted by their names, all others together as `OTHER`; each by error code."""
        super().__init__()
        self._methods = methods

    def count(self, method: str, code: object) -> None:
        """Count one."""
        if isinstance(code, int):
            key = (method if method in self._methods else OTHER, code)
            self[key] = self.get(key, 0) + 1


class RequestConnection(Protocol):
    """The connection of a request: what handlers may do with it, and how a request answers over it."""

    @property
    def peer(self) -> str: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def answer_room_bytes(self) -> int: ...
    @property
    def refusals(self) -> Refusals | None: ...

    def close(self, reason: str = ...) -> None:
        """Send what is queued, then close."""

    def abort(self, reason: str) -> None:
        """Close at once."""

    def on_close(self, callback: Callable[[Any], None]) -> None:
        """Call the callback once, soon after the connection is closed."""

    def notify(self, method: str, args: object = None) -> None:
        """Send the peer a request without an answer."""

    def call_nowait(
        self, method: str, args: object = None, payload: Buffers = NO_PAYLOAD, *, timeout_s: float
    ) -> asyncio.Future[Reply]:
        """Send the peer a request."""

    def send_reply(self, correlation_id: int, args: object, payload: Buffers, request_bytes: int) -> None:
        """Answer a request; for :class:`Request`."""

    def send_error(self, correlation_id: int, description: list[object], request_bytes: int) -> None:
        """Answer a request with an error; for :class:`Request`."""

    def forgotten(self, size: int) -> None:
        """Note that a notification is handled; for :class:`Request`."""

    def abandoned(self, correlation_id: int, method: str, request_bytes: int) -> None:
        """Answer a request that a handler dropped; for :class:`Request`."""


class Request:
    """One request or notification. `payload` is writable memory of this request alone and stays valid.

    Answer once, now or later, on the connection's event loop. A request that is dropped without an answer is answered
    with an error, so that the caller does not wait for its deadline.
    """

    __slots__ = (
        "_correlation_id",
        "_open",
        "append_ms",
        "args",
        "began_ns",
        "connection",
        "grant",
        "is_notification",
        "method",
        "opened_for",
        "payload",
        "size",
    )

    def __init__(
        self,
        connection: RequestConnection,
        correlation_id: int,
        method: str,
        args: Any,
        payload: memoryview,
        is_notification: bool,
    ) -> None:
        self.connection = connection
        self._correlation_id = correlation_id
        self.method = method
        self.args = args
        """Encoded (`msgspec.Raw`) as they came: the method's page reads them."""
        self.payload = payload
        self.size = len(payload) + len(args)
        """Bytes that it takes until it is answered."""
        self.is_notification = is_notification
        self.grant: Grant | None = None
        """What the sender's token grants; None = it has proved a secret. Set by the guard in front of the handler."""
        self.began_ns = 0
        """For the handler's use: when it started this request."""
        self.append_ms = -1
        """For the handler's use: the time that it gave the records in the payload; -1 = none."""
        self.opened_for: object = None
        """For the handler's use: what it has opened the payload for."""
        self._open = not is_notification

    @property
    def is_open(self) -> bool:
        """Whether an answer is still due. Always False for a notification."""
        return self._open

    @property
    def is_deserted(self) -> bool:
        """Whether its connection is closed, so that no answer can arrive."""
        return self.connection.is_closed

    @property
    def peer_host(self) -> str:
        """The host of the other end."""
        return self.connection.peer.rpartition(":")[0]

    @property
    def room_bytes(self) -> int:
        """Most bytes that the answer should have; 0 = the peer has to read earlier answers first."""
        return self.connection.answer_room_bytes

    def reply(self, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        """Answer. Does nothing when the request was answered before, is a notification, or the connection is closed.

        Large payload parts are sent without a copy: do not change them afterwards. If the answer cannot be encoded or
        is over the frame limit, the caller gets that error, and it is logged. Raises nothing: the handler may be in
        the middle of a step for many requests.
        """
        if not self._open:
            return
        self._open = False
        try:
            self.connection.send_reply(self._correlation_id, args, payload, self.size)
        except Exception as error:  # after any error the caller must not wait for its deadline
            defects.report(error, "The answer to %s cannot be sent.", self.method)
            self._open = True
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Answer with an error: its code, message and details; UnknownServerError for one that is not of the tree."""
        if not self._open:
            return
        self._open = False
        description = describe(error)
        refusals = self.connection.refusals
        if refusals is not None:
            refusals.count(self.method, description[0])
        self.connection.send_error(self._correlation_id, description, self.size)

    def __del__(self) -> None:
        if self._open:
            self.connection.abandoned(self._correlation_id, self.method, self.size)
        elif self.is_notification:
            self.connection.forgotten(self.size)

    def __repr__(self) -> str:
        return f"<Request {self.method} from {self.connection.peer}, {len(self.payload)} payload bytes>"


Handler: TypeAlias = Callable[[Request], None]
"""Called in the order of arrival on the loop of the connection; must not block."""


def refuse_requests(request: Request) -> None:
    """The handler of an end without one."""
    raise InvalidRequest(f"This end takes no requests; {request.method} was refused.")


def describe(error: BaseException) -> list[object]:
    """An error on the wire: [code, message, details]."""
    if isinstance(error, RaylogError):
        return [error.code, error.message, error.details]
    return [UnknownServerError.code, f"{type(error).__name__}: {error}", {}]
