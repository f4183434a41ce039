"""Which parcels a decision means: a function of its note and of the source's records alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from raylog.core.forwarding.events import Parcel, Piece, Source
from raylog.core.forwarding.note import UNDELIVERABLE, Again, Lane, Note, Route
from raylog.core.invariants import require

SEQUENCE_MASK: Final = 2**31 - 1


class _Group:
    """Records of one piece that take the same way."""

    __slots__ = ("offsets", "refused", "sources")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.refused: list[int] = []
        self.sources: list[Source] = []


def parcels_of(note: Note, pieces: Iterable[Piece]) -> list[Parcel]:
    """Return the parcels of the decision, in the order of the source; each lane's sequences follow one another."""
    sequences = {lane.route: lane.next_sequence for lane in note.lanes}
    lanes = {lane.route: lane for lane in note.lanes}
    found: list[Parcel] = []
    for piece in pieces:
        if not _is_decided(note, piece):
            continue
        for route, group in _grouped(note, piece).items():
            lane = lanes.get(route)
            require(lane is not None, "what is decided has a lane")
            if lane is not None:
                found.append(_parcel(lane, sequences[route], group, piece))
                sequences[route] = (sequences[route] + len(group.offsets)) & SEQUENCE_MASK
    return found


def routes_of(note: Note, pieces: Iterable[Piece]) -> set[Route]:
    """Return where the records of a decision go in the end."""
    return {route for piece in pieces if _is_decided(note, piece) for route in _grouped(note, piece)}


def after(lanes: Iterable[Lane], arrived: Iterable[Parcel]) -> dict[Route, Lane]:
    """Return the lanes with their sequences behind parcels that have arrived."""
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
        first=piece.first,
        end=piece.end,
        sources=tuple(group.sources),
    )


def _grouped(note: Note, piece: Piece) -> dict[Route, _Group]:
    """Return a piece's records by the routes that they really take: at most one parcel for each."""
    found: dict[Route, _Group] = {}
    for route, offsets in piece.parts:
        taken = [offset for offset in offsets if offset >= note.skip_below]
        if not taken:
            continue
        again = _again(note.again, route, piece)
        if note.again and again is None:
            continue  # they have arrived
        is_refused = route in note.lost or (again is not None and again.is_refused)
        group = found.setdefault(UNDELIVERABLE if is_refused else route, _Group())
        group.offsets += taken
        group.refused += taken if is_refused else ()
        group.sources.append((route, is_refused))
    return found


def _again(entries: Iterable[Again], route: Route, piece: Piece) -> Again | None:
    for entry in entries:
        if entry.route == route and entry.first <= piece.first < entry.end:
            return entry
    return None
