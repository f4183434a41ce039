"""Events and effects that every kind of coordinator has, whatever it coordinates.

``request`` is the shell's number for a request, unique per incarnation; every ``Received`` is answered by exactly one
``Reply`` or ``Refuse`` with that number, at once or in a later step, unless the shell reported a closed connection
(:class:`RequestDropped`).
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.core.decision import RequestId

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorEvent:
    """Common fields of events: ``cause``, its name in the story of a broken invariant, and the monotonic time in ms."""

    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequest(CoordinatorEvent):
    """A request, by its number."""

    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDropped(CoordinatorRequest):
    """The connection is closed: a parked request is dropped, and its sender has to send it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(CoordinatorEvent):
    """Time passed; deadlines are checked only here. Ticks come when the machine has something to do, 50 ms apart.

    ``wall_ms`` is the time of day in milliseconds since 1970, None = unknown.
    """

    wall_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepRequested(CoordinatorEvent):
    """The cluster is about to stop: a coordinator that is not in use shall end now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepRefused(CoordinatorEvent):
    """The controller did not agree to a :class:`ProposeSleep`: the coordinator serves on."""


# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecords:
    """Append (key wire, value wire or None = tombstone) each to the owner's partition, acks=all.

    They are in one batch where they fit into one.

    At most one in a step, and the first of its ``now``. When the append fails, this machine's view is ahead of the log:
    the shell drops the machine, and rebuilds one from the log.
    """

    cause: str
    records: tuple[tuple[list[object], list[object] | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreProof:
    """Store a row, queued after the request, before the step's reply leaves; a row without meaning will do.

    A reply that writes nothing states what an earlier step stored. A coordinator that was deposed without knowing it
    lacks its successor's rows; storing a row proves that there is no successor yet (ADR 0131).
    """

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeSleep:
    """Propose to the controller that this coordinator ends; :class:`SleepRefused` follows if it does not agree.

    Always in ``after_sync``: everything decided is in the log, and every request is answered. Nothing more is decided.
    """

    cause: str
