"""Makes events of a machine from requests on the wire. Used by the shells of the controller and of coordinators.

A field of the event gets the value of the request's field of the same name; rows become tuples. Exceptions name another
field of the request, or compute the value. All names are checked when the table is made, not when a request comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec

from raylog.protocol.message import Message
from raylog.protocol.method import Method, RequestT

EventT = TypeVar("EventT")
EventT_co = TypeVar("EventT_co", covariant=True)

OF_ARRIVAL: Final = frozenset({"cause", "now_ms", "request", "session"})
"""Fields that come from the request's arrival, not its content; ``session`` only where the machine keeps sessions."""


class DerivedEvent(Generic[EventT_co]):
    """How one kind of request becomes an event."""

    def __init__(
        self,
        method: Method[RequestT, Any],
        event: Callable[..., EventT_co],
        aliases: Mapping[str, str] | None = None,
        **values: Callable[[RequestT], object],
    ) -> None:
        """``aliases``: the request's field by the event's field; ``values``: functions that compute an event's field.

        Raises TypeError where a field of the event would have no value, or where a name is unknown.
        """
        present = {field.name: field.type for field in msgspec.structs.fields(method.request)}
        expected = {field.name for field in fields(event)}  # type: ignore[arg-type]
        self.request = method.request
        self.cause = method.name
        self.event = event
        self._of_arrival = tuple(expected & OF_ARRIVAL - {"cause"})
        self._values: dict[str, Callable[[Any], object]] = dict(values)
        self.copied = {name: (aliases or {}).get(name, name) for name in expected - OF_ARRIVAL - set(values)}
        """The request's field by the event's field."""
        for name, source in self.copied.items():
            if source not in present:
                raise TypeError(f"{event} has the field {name!r}, and a request {method.name!r} no {source!r}.")
            self._values[name] = _rows_of(source) if _has_rows(present[source]) else attrgetter(source)
        if unknown := set(self._values) - expected:
            raise TypeError(f"{event} has no fields {sorted(unknown)}.")

    def make(self, message: Message, /, **arrival: int) -> EventT_co:
        """Return the event; ``arrival`` has the fields of :data:`OF_ARRIVAL`, including those that the event lacks."""
        values: dict[str, object] = {name: arrival[name] for name in self._of_arrival}
        for name, value_of in self._values.items():
            values[name] = value_of(message)
        return self.event(cause=self.cause, **values)


def table_of(derived: Sequence[DerivedEvent[EventT]]) -> Mapping[type[Message], DerivedEvent[EventT]]:
    """Return the derivations by the type of their requests."""
    return {event.request: event for event in derived}


def _has_rows(kind: Any) -> bool:
    """Return whether a field's type contains rows, which are messages."""
    return any(_has_rows(part) or (isinstance(part, type) and issubclass(part, Message)) for part in get_args(kind))


def _rows_of(name: str) -> Callable[[Any], object]:
    def rows(request: Any) -> object:
        held = getattr(request, name)
        return None if held is None else tuple(msgspec.structs.astuple(row) for row in held)

    return rows
