"""The requests that a machine has not answered yet, by the numbers under which it knows them.

Every shell with deferred replies has one. Pure.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from raylog.rpc.framing import NO_PAYLOAD, Buffers


class Answerable(Protocol):
    """Interface of a request: :class:`raylog.rpc.Request` under Ray, a twin in the simulator."""

    @property
    def is_deserted(self) -> bool:
        """Whether its connection is closed, so that no reply can arrive."""

    def reply(self, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        """Answer."""

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""


RequestT = TypeVar("RequestT", bound=Answerable)


class RequestTable(Generic[RequestT]):
    """Open requests by number. A process never reuses a number."""

    def __init__(self) -> None:
        """Start empty."""
        self._open: dict[int, RequestT] = {}
        self._last = 0

    def __len__(self) -> int:
        """Return how many requests are open."""
        return len(self._open)

    def __getitem__(self, number: int) -> RequestT:
        """Return an open request; raises KeyError."""
        return self._open[number]

    def remember(self, request: RequestT) -> int:
        """Return the number under which a machine will answer a request."""
        self._last = number = self._last + 1
        self._open[number] = request
        return number

    def take(self, number: int) -> RequestT | None:
        """Return a request that is to be answered now, and forget it; None = its sender does not wait any more."""
        return self._open.pop(number, None)

    def take_deserted(self) -> list[int]:
        """Forget the requests of closed connections, and return their numbers."""
        deserted = [number for number, request in self._open.items() if request.is_deserted]
        for number in deserted:
            del self._open[number]
        return deserted

    def fail_all(self, error: BaseException) -> None:
        """Answer every open request with an error."""
        waiting, self._open = self._open, {}
        for request in waiting.values():
            request.fail(error)
