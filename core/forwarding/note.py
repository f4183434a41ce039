"""The stored state of a forwarder: how far it is, and what it has decided to send next. Pure.

A note is stored before anything that it decides is sent, so that a successor sends exactly the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raylog.core.dead_letters import UNDELIVERABLE_TOPIC

Wire = list[Any]
Route = tuple[str, int]
"""Where records are to go: a topic, and a number from which its partition follows."""
UNDELIVERABLE: Final[Route] = (UNDELIVERABLE_TOPIC, 0)


@dataclass(frozen=True, slots=True)
class RouteState:
    """Where a route leads, and the epoch and sequence of the next record there."""

    route: Route
    topic_id: str
    partition: int
    epoch: int = 0
    next_sequence: int = 0


ROUTE_BYTES: Final = 64
"""Most bytes of a route's state, or of another entry of a note, without its topic."""
ROUTES_BYTES_MAX: Final = 256 * 1024
"""Above this, all routes begin again under another producer id: routes come from records, in any number."""
TURN_BYTES_MAX: Final = 64 * 1024
"""Most bytes of the routes of one decision; a decision of one piece may have more."""
EPOCH_MAX: Final = 30_000
"""Epochs of a route after which another producer id follows: batches have 15 bits for the producer epoch."""


def routes_bytes(routes: Iterable[Route]) -> int:
    """Return about how many bytes these routes take in a note."""
    return sum(len(topic) + ROUTE_BYTES for topic, _ in routes)


@dataclass(frozen=True, slots=True)
class Again:
    """Records of a decision that have yet to be sent, perhaps in another way: those of a route in [first, end).

    Each entry is a parcel of its own: a parcel that its target refuses is sent again as two.
    """

    route: Route
    first: int
    end: int
    is_refused: bool = False
    """Whether they go to ``__undeliverable``."""
    is_bare: bool = False
    """Whether they go there without their bodies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The state of one forwarder.

    Invariants: ``position <= decided_end``. Below ``position`` everything has arrived. The decision is about the
    offsets between the two: its records are sent as ``skip_below``, ``lost``, ``again`` and ``routes`` say.
    """

    producer_id: int
    position: int
    decided_end: int
    skip_below: int = 0
    """Records of the decision below this offset are not sent: the group had acknowledged them."""
    routes: tuple[RouteState, ...] = ()
    """Where routes lead, with their sequences from before the decision."""
    lost: tuple[Route, ...] = ()
    """Routes whose topics do not exist: their records go to ``__undeliverable``."""
    again: tuple[Again, ...] = ()
    """If not empty, only these are still sent: the decision's other records have arrived."""
    sent: int = 0
    """Number of records that have arrived, in all."""
    rule: str = ""
    """The rule by which the decision was made, as text; a later owner may have another one."""
    skipped: int = -1
    """Offset of the first record below ``decided_end`` that stays for a later forwarder to send; -1 = there is none."""

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

    def to_wire(self) -> Wire:
        """Return the note as msgpack values."""
        return [
            self.producer_id,
            self.position,
            self.decided_end,
            self.skip_below,
            [[*each.route, each.topic_id, each.partition, each.epoch, each.next_sequence] for each in self.routes],
            [list(route) for route in self.lost],
            [[*each.route, each.first, each.end, each.is_refused, each.is_bare] for each in self.again],
            self.sent,
            self.rule,
            self.skipped,
        ]

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> Note:
        """Return the note of msgpack values; fields of later releases are ignored."""
        producer_id, position, decided_end, skip_below, routes, lost, again, sent, rule, skipped = wire[:10]
        return cls(
            producer_id=producer_id,
            position=position,
            decided_end=decided_end,
            skip_below=skip_below,
            routes=tuple(RouteState((each[0], each[1]), *each[2:6]) for each in routes),
            lost=tuple((topic, number) for topic, number in lost),
            again=tuple(Again((each[0], each[1]), *each[2:4], *map(bool, each[4:6])) for each in again),
            sent=sent,
            rule=rule,
            skipped=skipped,
        )
