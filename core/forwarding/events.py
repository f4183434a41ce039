"""Events and effects of a forwarder. Times are milliseconds since 1970, by the owner's clock."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from raylog.core.forwarding.note import Note, Route


class Trouble(StrEnum):
    """Why a target did not take a parcel."""

    UNREACHABLE = "unreachable"
    """It may have it, or get it later: the same parcel is sent again."""
    DELETED = "deleted"
    """Its topic does not exist any more."""
    FORGOTTEN = "forgotten"
    """It does not know the last sequence: it lost records by an unclean election."""
    REFUSED = "refused"
    """It will never take this parcel."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one source batch: where each goes. The same batch is always cut into the same pieces.

    ``due_ms``: when all of them may go. ``parts``: offsets by their routes, rising; records that stay are in none.
    """

    first: int
    end: int
    due_ms: int
    parts: tuple[tuple[Route, tuple[int, ...]], ...]
    skipped: int = -1
    """The first record that stays and is to be sent by another forwarder, later; -1 = there is none."""


Source = tuple[Route, bool, bool]
"""The route that records were meant to take; whether they go to ``__undeliverable`` instead; and without bodies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """One batch for one target: these records of one piece, with exactly these sequences.

    ``piece``: where the piece begins. The records are all of those of ``sources`` from ``first`` up to ``end``.
    """

    route: Route
    topic_id: str
    partition: int
    epoch: int
    base_sequence: int
    offsets: tuple[int, ...]
    refused: frozenset[int]
    """Those whose own target is not there, or does not take them."""
    bare: frozenset[int]
    """Those of them that go without their bodies: ``__undeliverable`` does not take them either."""
    piece: int
    first: int
    end: int
    sources: tuple[Source, ...]


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The note that was stored last; a first one begins where the owner says."""

    now_ms: int
    note: Note


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesRead:
    """What is in the source from the requested offset on, in order; offsets without records are in no piece.

    ``next_offset``: everything below was looked at. ``log_start``: first offset that is still kept. ``log_end``: the
    end that consumers see. ``acknowledged``: the group has acknowledged everything below; 0 = groups do not matter.
    """

    now_ms: int
    pieces: tuple[Piece, ...]
    next_offset: int
    log_start: int
    log_end: int
    acknowledged: int = 0
    rule: str = ""
    """By what the pieces were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Where routes lead: topic id and partition for each; an empty topic id = the topic does not exist."""

    now_ms: int
    found: tuple[tuple[Route, str, int], ...]
    producer_id: int = -1
    """A producer id that no other forwarder has, where one was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The note of the last :class:`Save` is stored."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A parcel has arrived."""

    now_ms: int
    route: Route


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """A parcel has not arrived, as far as is known."""

    now_ms: int
    route: Route
    trouble: Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The time of :meth:`ForwarderMachine.next_ms` has come."""

    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """End as soon as what is decided has arrived."""

    now_ms: int


Event = Loaded | PiecesRead | Resolved | Saved | Sent | NotSent | Tick | StopRequested


# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Read:
    """Read the source from an offset on, at least up to ``until`` if there is so much; wait for more if ``waits``.

    ``rule``: by what the pieces have to be made; None = by the owner's of now.
    """

    offset: int
    until: int
    waits: bool
    rule: str | None


@dataclass(frozen=True, slots=True)
class Resolve:
    """Find out where routes lead."""

    routes: tuple[Route, ...]
    takes_producer: bool = False
    """Whether another producer id is needed, too."""


@dataclass(frozen=True, slots=True)
class Save:
    """Store the note; what follows from it is done after :class:`Saved`."""

    note: Note


@dataclass(frozen=True, slots=True)
class Send:
    """Send a parcel."""

    parcel: Parcel


@dataclass(frozen=True, slots=True)
class Ended:
    """Everything up to the end has arrived, or the forwarder was stopped; the note is stored."""

    was_stopped: bool


Effect = Read | Resolve | Save | Send | Ended
