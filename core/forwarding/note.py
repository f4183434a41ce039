"""What a forwarder keeps: how far it is, and what it has decided to send next. Pure.

A note is stored before anything that it decides is sent, so that a successor sends exactly the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raylog.core.dead_letters import UNDELIVERABLE_TOPIC

Wire = list[Any]
Route = tuple[str, int]
"""Where records are to go: a topic, and a number that chooses among its partitions."""
UNDELIVERABLE: Final[Route] = (UNDELIVERABLE_TOPIC, 0)


@dataclass(frozen=True, slots=True)
class Lane:
    """The way to one partition: which one a route leads to, and the sequence of the next record there."""

    route: Route
    topic_id: str
    partition: int
    epoch: int = 0
    next_sequence: int = 0


LANE_BYTES: Final = 64
"""Most bytes of a lane, or of another entry of a note, besides its topic."""
LANES_BYTES_MAX: Final = 256 * 1024
"""With more, a forwarder begins all lanes again with another producer id: routes come out of records, of any number."""
TURN_BYTES_MAX: Final = 64 * 1024
"""Most bytes of the routes of one decision, or those of one piece."""
EPOCH_MAX: Final = 30_000
"""Epochs of a lane after which another producer id follows: batches have 15 bits for them."""


def routes_bytes(routes: Iterable[Route]) -> int:
    """Return about how much of a note these routes take."""
    return sum(len(topic) + LANE_BYTES for topic, _ in routes)


@dataclass(frozen=True, slots=True)
class Again:
    """Records of a decision that are still to be sent, or in another way: those of a route from ``first`` to ``end``.

    Each such entry is a parcel of its own: what a target refuses is sent again in two.
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
    """One forwarder.

    Invariants: ``position <= decided_end``; what is in between has been sent, or is sent, as ``skip_below``, ``lost``,
    ``again`` and ``lanes`` have it; below ``position`` everything has arrived.
    """

    producer_id: int
    position: int
    decided_end: int
    skip_below: int = 0
    """Records of the decision below are left out: the group had acknowledged them."""
    lanes: tuple[Lane, ...] = ()
    """With the sequences that they had before the decision."""
    lost: tuple[Route, ...] = ()
    """Routes whose topics do not exist: their records go to ``__undeliverable``."""
    again: tuple[Again, ...] = ()
    """Other than empty, only these are sent: the others have arrived."""
    sent: int = 0
    """Records that have arrived, in all."""
    rule: str = ""
    """By what it is decided where the records of the decision go: the owner's; later ones may have another."""
    skipped: int = -1
    """The first record below ``decided_end`` that stays and is to be sent by another forwarder, later; -1 = none."""

    def lane(self, route: Route) -> Lane | None:
        """Return the lane of a route, if there is one."""
        for lane in self.lanes:
            if lane.route == route:
                return lane
        return None

    @property
    def is_worn(self) -> bool:
        """Whether it goes on with another producer id once everything has arrived."""
        size = routes_bytes(lane.route for lane in self.lanes)
        return size > LANES_BYTES_MAX or any(lane.epoch >= EPOCH_MAX for lane in self.lanes)

    def to_wire(self) -> Wire:
        """Return the note as msgpack values."""
        return [
            self.producer_id,
            self.position,
            self.decided_end,
            self.skip_below,
            [[*lane.route, lane.topic_id, lane.partition, lane.epoch, lane.next_sequence] for lane in self.lanes],
            [list(route) for route in self.lost],
            [[*each.route, each.first, each.end, each.is_refused, each.is_bare] for each in self.again],
            self.sent,
            self.rule,
            self.skipped,
        ]

    @classmethod
    def from_wire(cls, wire: Sequence[Any]) -> Note:
        """Return the note; fields of a later release are ignored."""
        producer_id, position, decided_end, skip_below, lanes, lost, again, sent, rule = wire[:9]
        (skipped,) = wire[9:10] or (-1,)
        return cls(
            producer_id=producer_id,
            position=position,
            decided_end=decided_end,
            skip_below=skip_below,
            lanes=tuple(Lane((lane[0], lane[1]), lane[2], lane[3], lane[4], lane[5]) for lane in lanes),
            lost=tuple((topic, number) for topic, number in lost),
            again=tuple(Again((each[0], each[1]), *each[2:4], *map(bool, each[4:6])) for each in again),
            sent=sent,
            rule=rule,
            skipped=skipped,
        )
