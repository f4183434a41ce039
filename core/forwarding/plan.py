"""The parcels of a decision: they follow from its note and the source's records alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raylog.core.forwarding.events import Parcel, Piece, Source
from raylog.core.forwarding.note import UNDELIVERABLE, Again, Lane, Note, Route
from raylog.core.invariants import require

SEQUENCE_MASK: Final = 2**31 - 1
Span = tuple[int, int]
"""Offsets in [first, second)."""


class _Group:
    """Records of one piece that go into the same parcel."""

    __slots__ = ("bare", "offsets", "refused", "sources", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.offsets: list[int] = []
        self.refused: list[int] = []
        self.bare: list[int] = []
        self.sources: list[Source] = []


def parcels_of(note: Note, pieces: Iterable[Piece]) -> list[Parcel]:
    """Return the parcels of the decision, in the order of the source; each lane's sequences follow one another."""
    sequences = {lane.route: lane.next_sequence for lane in note.lanes}
    lanes = {lane.route: lane for lane in note.lanes}
    found: list[Parcel] = []
    for piece in pieces:
        if not _is_decided(note, piece):
            continue
        for (route, _), group in _grouped(note, piece).items():
            lane = lanes.get(route)
            require(lane is not None, "what is decided has a lane")
            if lane is not None:
                found.append(_parcel(lane, sequences[route], group, piece))
                sequences[route] = (sequences[route] + len(group.offsets)) & SEQUENCE_MASK
    return found


def routes_of(note: Note, pieces: Iterable[Piece]) -> set[Route]:
    """Return the routes that a decision's records really take, ``__undeliverable`` included."""
    return {route for piece in pieces if _is_decided(note, piece) for route, _ in _grouped(note, piece)}


def after(lanes: Iterable[Lane], arrived: Iterable[Parcel]) -> dict[Route, Lane]:
    """Return the lanes by route, with their next sequences after parcels that have arrived."""
    found = {lane.route: lane for lane in lanes}
    for parcel in arrived:
        lane = found[parcel.route]
        behind = (parcel.base_sequence + len(parcel.offsets)) & SEQUENCE_MASK
        found[parcel.route] = Lane(lane.route, lane.topic_id, lane.partition, lane.epoch, behind)
    return found


def _is_decided(note: Note, piece: Piece) -> bool:
    return note.position <= piece.first < note.decided_end


def _parcel(lane: Lane, sequence: int, group: _Group, piece: Piece) -> Parcel:
    return Parcel(
        route=lane.route,
        topic_id=lane.topic_id,
        partition=lane.partition,
        epoch=lane.epoch,
        base_sequence=sequence,
        offsets=tuple(sorted(group.offsets)),
        refused=frozenset(group.refused),
        bare=frozenset(group.bare),
        piece=piece.first,
        first=group.span[0],
        end=group.span[1],
        sources=tuple(group.sources),
    )


def _grouped(note: Note, piece: Piece) -> dict[tuple[Route, Span], _Group]:
    """Return a piece's records by the routes that they really take and by the spans of their parcels."""
    found: dict[tuple[Route, Span], _Group] = {}
    for route, offsets in piece.parts:
        for entry in _entries(note, route, piece):
            span = max(entry.first, piece.first), min(entry.end, piece.end)
            taken = [offset for offset in offsets if offset >= note.skip_below and span[0] <= offset < span[1]]
            if not taken:
                continue
            is_refused = entry.is_refused or route in note.lost
            target = UNDELIVERABLE if is_refused else route
            group = found.setdefault((target, span), _Group(span))
            group.offsets += taken
            group.refused += taken if is_refused else ()
            group.bare += taken if entry.is_bare else ()
            group.sources.append((route, is_refused, entry.is_bare))
    return found


def _entries(note: Note, route: Route, piece: Piece) -> list[Again]:
    """Return how a piece's records of a route are sent: all together, or as ``again`` says; others have arrived."""
    if not note.again:
        return [Again(route, piece.first, piece.end)]
    of_route = (entry for entry in note.again if entry.route == route)
    return [entry for entry in of_route if entry.first < piece.end and piece.first < entry.end]
