"""Whether a request has the types it should have, checked at the door: no handler fails halfway through a step.

Requests come from the network; the shell turns lists into events and need not look inside. Called by
``coordinator.py``.
"""

from __future__ import annotations

from typing import Final

from raylog.core.errors import InvalidRequest
from raylog.core.groups.events import (
    JoinReceived,
    LeaveReceived,
    OffsetCommitReceived,
    OffsetDeleteReceived,
    OffsetFetchReceived,
    RequestEvent,
    SyncReceived,
)

TEXTS: Final = ("group", "member_id", "client_id", "protocol_type")
NUMBERS: Final = ("generation", "session_timeout_ms", "rebalance_timeout_ms")
PARTITION: Final = (str, str, int)
COMMIT: Final = (str, str, int, int, int, str)


def shape_error(event: RequestEvent) -> InvalidRequest | None:
    """Return what is wrong with the types of the request, or None when nothing is."""
    for name in TEXTS:
        if not isinstance(getattr(event, name, ""), str):
            return _error(event, name)
    for name in NUMBERS:
        if not isinstance(getattr(event, name, 0), int):
            return _error(event, name)
    if not isinstance(getattr(event, "instance_id", None), (str, type(None))):
        return _error(event, "instance_id")
    match event:
        case JoinReceived() if not all(_fits(row, (str, bytes)) for row in event.protocols):
            return _error(event, "protocols")
        case SyncReceived() if not all(_fits(row, (str, bytes)) for row in event.assignments.items()):
            return _error(event, "assignments")
        case LeaveReceived() if not all(_fits(row, (str, (str, type(None)))) for row in event.members):
            return _error(event, "members")
        case OffsetCommitReceived() if not all(_fits(row, COMMIT) for row in event.offsets):
            return _error(event, "offsets")
        case OffsetFetchReceived() | OffsetDeleteReceived() if not all(
            _fits(row, PARTITION) for row in event.partitions or ()
        ):
            return _error(event, "partitions")
        case _:
            return None


def _fits(row: object, kinds: tuple[type | tuple[type, ...], ...]) -> bool:
    if not isinstance(row, (list, tuple)) or len(row) != len(kinds):
        return False
    return all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=True))


def _error(event: RequestEvent, field: str) -> InvalidRequest:
    return InvalidRequest(f"The field {field!r} of {type(event).__name__} is malformed; use a current client.")
