"""Events and effects of a forwarder. Times are milliseconds since 1970, by the owner's clock."""

from __future__ import annotations

from dataclasses import dataclass

from raylog.core.forwarding.progress import Progress, Route
from raylog.core.lane import Trouble


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one source batch, and where each goes. The same batch is always cut into the same pieces.

    ``due_ms``: when all of them may go. ``parts``: ascending offsets by route; records that stay are in none.
    """

    first: int
    end: int
    due_ms: int
    parts: tuple[tuple[Route, tuple[int, ...]], ...]
    skipped: int = -1
    """Offset of the first record that stays for a later forwarder to send; -1 = there is none."""


Source = tuple[Route, bool, bool]
"""The route that records were meant to take; whether they go to ``__undeliverable`` instead; whether without bodies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One batch for one target: these records of one piece, with exactly these sequences.

    ``piece``: first offset of the piece. The parcel has all records of the routes in ``sources`` in [first, end).
    """

    route: Route
    topic_id: str
    partition: int
    epoch: int
    base_sequence: int
    offsets: tuple[int, ...]
    refused: frozenset[int]
    """Offsets of the records whose own target does not exist, or does not take them."""
    bare: frozenset[int]
    """Those of the refused that go without their bodies: ``__undeliverable`` does not take them otherwise."""
    piece: int
    first: int
    end: int
    sources: tuple[Source, ...]


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The stored progress, or a first one, which begins where the owner says."""

    now_ms: int
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesRead:
    """The pieces of the source from the requested offset on, in order; offsets without records are in no piece.

    ``next_offset``: everything below was read. ``log_start``: first offset that is still kept. ``log_end``: the end
    that consumers see. ``acknowledged``: the group has acknowledged everything below; 0 = no group matters.
    """

    now_ms: int
    pieces: tuple[Piece, ...]
    next_offset: int
    log_start: int
    log_end: int
    acknowledged: int = 0
    rule: str = ""
    """The rule by which the pieces were made, as text (``rules.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Where routes lead: topic id and partition for each; an empty topic id = the topic does not exist."""

    now_ms: int
    found: tuple[tuple[Route, str, int], ...]
    producer_id: int = -1
    """A producer id that no other forwarder has, if one was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The progress of the last :class:`Save` is stored."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The parcel under way on a route was acknowledged."""

    now_ms: int
    route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """The parcel under way on a route was not acknowledged."""

    now_ms: int
    route: Route
    trouble: Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The time of :meth:`ForwarderMachine.next_ms` has come."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """End as soon as everything that is decided has arrived."""

    now_ms: int


Event = Loaded | PiecesRead | Resolved | Saved | Sent | NotSent | Tick | StopRequested


# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Read:
    """Read the source from an offset on, at least up to ``until`` if there is so much; ``waits``: wait for more.

    ``rule``: the rule by which the pieces have to be made; None = the owner's present one.
    """

    offset: int
    until: int
    waits: bool
    rule: str | None


@dataclass(frozen=True, slots=True)
class Resolve:
    """Find topic id and partition of each route; :class:`Resolved` follows."""

    routes: tuple[Route, ...]
    takes_producer: bool = False
    """Whether another producer id is needed, too."""


@dataclass(frozen=True, slots=True)
class Save:
    """Store the progress; :class:`Saved` follows, and only then are its parcels sent."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class Send:
    """Send a parcel; :class:`Sent` or :class:`NotSent` follows."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Ended:
    """Everything up to the end has arrived, or the forwarder was stopped; the progress is stored."""

    was_stopped: bool


Effect = Read | Resolve | Save | Send | Ended
