"""The parcels of a decision: they follow from its progress and the source's records alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from raylog.base.invariants import require
from raylog.core.forwarding.events import Parcel, Piece, Source
from raylog.core.forwarding.progress import UNDELIVERABLE, Again, Progress, Route, RouteState
from raylog.core.lane import sequence_after
from raylog.protocol.message import replace

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


def parcels_of(progress: Progress, pieces: Iterable[Piece]) -> list[Parcel]:
    """Return the parcels of the decision, in the order of the source; each route's sequences follow one another."""
    sequences = {state.route: state.next_sequence for state in progress.routes}
    states = {state.route: state for state in progress.routes}
    found: list[Parcel] = []
    for piece in pieces:
        if not _is_decided(progress, piece):
            continue
        for (route, _), group in _grouped(progress, piece).items():
            state = states.get(route)
            require(state is not None, "where decided records go is known")
            if state is not None:
                found.append(_parcel(state, sequences[route], group, piece))
                sequences[route] = sequence_after(sequences[route], len(group.offsets))
    return found


def routes_of(progress: Progress, pieces: Iterable[Piece]) -> set[Route]:
    """Return the routes that a decision's records really take, ``__undeliverable`` included."""
    return {route for piece in pieces if _is_decided(progress, piece) for route, _ in _grouped(progress, piece)}


def after(states: Iterable[RouteState], arrived: Iterable[Parcel]) -> dict[Route, RouteState]:
    """Return the states by route, with their next sequences after parcels that have arrived."""
    found = {state.route: state for state in states}
    for parcel in arrived:
        behind = sequence_after(parcel.base_sequence, len(parcel.offsets))
        found[parcel.route] = replace(found[parcel.route], next_sequence=behind)
    return found


def _is_decided(progress: Progress, piece: Piece) -> bool:
    return progress.position <= piece.first < progress.decided_end


def _parcel(state: RouteState, sequence: int, group: _Group, piece: Piece) -> Parcel:
    return Parcel(
        route=state.route,
        topic_id=state.topic_id,
        partition=state.partition,
        epoch=state.epoch,
        base_sequence=sequence,
        offsets=tuple(sorted(group.offsets)),
        refused=frozenset(group.refused),
        bare=frozenset(group.bare),
        piece=piece.first,
        first=group.span[0],
        end=group.span[1],
        sources=tuple(group.sources),
    )


def _grouped(progress: Progress, piece: Piece) -> dict[tuple[Route, Span], _Group]:
    """Return a piece's records by the routes that they really take and by the spans of their parcels."""
    found: dict[tuple[Route, Span], _Group] = {}
    for route, offsets in piece.parts:
        for entry in _entries(progress, route, piece):
            span = max(entry.first, piece.first), min(entry.end, piece.end)
            taken = [offset for offset in offsets if offset >= progress.skip_below and span[0] <= offset < span[1]]
            if not taken:
                continue
            is_refused = entry.is_refused or route in progress.lost
            target = UNDELIVERABLE if is_refused else route
            group = found.setdefault((target, span), _Group(span))
            group.offsets += taken
            group.refused += taken if is_refused else ()
            group.bare += taken if entry.is_bare else ()
            group.sources.append((route, is_refused, entry.is_bare))
    return found


def _entries(progress: Progress, route: Route, piece: Piece) -> list[Again]:
    """Return how a piece's records of a route are sent: all together, or as ``again`` says; others have arrived."""
    if not progress.again:
        return [Again(*route, piece.first, piece.end)]
    of_route = (entry for entry in progress.again if entry.route == route)
    return [entry for entry in of_route if entry.first < piece.end and piece.first < entry.end]
