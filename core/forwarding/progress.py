"""The stored progress of a forwarder: how far it is, and what it has decided to send next. Pure.

It is stored before anything that it decides is sent, so that a successor sends exactly the same again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raylog.core.dead_letters import UNDELIVERABLE_TOPIC
from raylog.protocol.message import Message

Route = tuple[str, int]
"""Where records are to go: a topic, and a number from which its partition follows."""
UNDELIVERABLE: Final[Route] = (UNDELIVERABLE_TOPIC, 0)


class _OfRoute(Message, frozen=True):
    """What concerns one route."""

    topic: str
    number: int

    @property
    def route(self) -> Route:
        """The route."""
        return self.topic, self.number


class RouteState(_OfRoute, frozen=True):
    """Where a route leads, and the epoch and sequence of the next record there."""

    topic_id: str
    partition: int
    epoch: int = 0
    next_sequence: int = 0


ROUTE_BYTES: Final = 64
"""Most bytes of a route's state, or of another entry, without its topic."""
ROUTES_BYTES_MAX: Final = 256 * 1024
"""Above this, all routes begin again under another producer id: routes come from records, in any number."""
TURN_BYTES_MAX: Final = 64 * 1024
"""Most bytes of the routes of one decision; a decision of one piece may have more."""
EPOCH_MAX: Final = 30_000
"""Epochs of a route after which another producer id follows: batches have 15 bits for the producer epoch."""


def routes_bytes(routes: Iterable[Route]) -> int:
    """Return about how many bytes these routes take when they are stored."""
    return sum(len(topic) + ROUTE_BYTES for topic, _ in routes)


class Again(_OfRoute, frozen=True):
    """Records of a decision that have yet to be sent, perhaps in another way: those of a route in [first, end).

    Each entry is a parcel of its own: a parcel that its target refuses is sent again as two. ``is_refused``: whether
    they go to ``__undeliverable``. ``is_bare``: whether they go there without their bodies.
    """

    first: int
    end: int
    is_refused: bool = False
    is_bare: bool = False


class Progress(Message, frozen=True):
    """The progress of one forwarder.

    Invariants: ``position <= decided_end``. Below ``position`` everything has arrived. The decision is about the
    offsets between the two: its records are sent as ``skip_below``, ``lost``, ``again`` and ``routes`` say.

    ``skip_below``: records of the decision below this offset are not sent: the group had acknowledged them. ``routes``:
    where routes lead, with their sequences from before the decision. ``lost``: routes whose topics do not exist: their
    records go to ``__undeliverable``. ``again``: if not empty, only these are still sent: the decision's other records
    have arrived. ``sent``: number of records that have arrived, in all. ``rule``: the rule by which the decision was
    made, as text; a later owner may have another one. ``skipped``: offset of the first record below ``decided_end``
    that stays for a later forwarder to send; -1 = there is none.
    """

    producer_id: int
    position: int
    decided_end: int
    skip_below: int = 0
    routes: tuple[RouteState, ...] = ()
    lost: tuple[Route, ...] = ()
    again: tuple[Again, ...] = ()
    sent: int = 0
    rule: str = ""
    skipped: int = -1

    def state_of(self, route: Route) -> RouteState | None:
        """Return the state of a route; None = there is none."""
        for state in self.routes:
            if state.route == route:
                return state
        return None

    @property
    def is_worn(self) -> bool:
        """Whether another producer id is needed: there are too many routes, or one has used up its epochs."""
        size = routes_bytes(state.route for state in self.routes)
        return size > ROUTES_BYTES_MAX or any(state.epoch >= EPOCH_MAX for state in self.routes)
