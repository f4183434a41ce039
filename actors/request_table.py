"""The requests that a machine has not answered yet, by number; the machine knows a request only by its number.

Every shell with deferred replies has such a table. Pure.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from raylog.rpc.framing import NO_PAYLOAD, Buffers


class Answerable(Protocol):
    """A request that can be answered: :class:`raylog.rpc.Request` under Ray, a counterpart in the simulator."""

    @property
    def is_deserted(self) -> bool:
        """Whether its connection is closed, so that no reply can arrive."""

    def reply(self, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        """Answer."""

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""


RequestT = TypeVar("RequestT", bound=Answerable)


class RequestTable(dict[int, RequestT], Generic[RequestT]):
    """Open requests by number. ``pop(number, None)`` takes the request to answer; None: its sender no longer waits.

    It is a dict, so that taking a request costs no Python call on the path of every record.
    """

    _last = 0

    def remember(self, request: RequestT) -> int:
        """Return the number under which a machine will answer a request. A process never reuses a number."""
        self._last = number = self._last + 1
        self[number] = request
        return number

    def take_deserted(self) -> list[int]:
        """Forget the requests of closed connections, and return their numbers."""
        deserted = [number for number, request in self.items() if request.is_deserted]
        for number in deserted:
            del self[number]
        return deserted

    def fail_all(self, error: BaseException) -> None:
        """Answer every open request with an error."""
        waiting = list(self.values())
        self.clear()
        for request in waiting:
            request.fail(error)
