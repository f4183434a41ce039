"""Damage in a log, found while it is read: the event, what is answered, and the effect that has the log copied again.

Bytes that were synced do not heal by waiting. A leader lets another in-sync replica lead, and then, as any follower,
gives its log up to have it copied again. Only a leader that no replica can replace keeps a damaged log, and serves what
is whole of it (docs/adr/0088). Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.base.errors import CorruptMessage, KafkaStorageError, RaylogError
from raylog.base.ids import Offset

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from raylog.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DamageFound:
    """The records from ``offset`` on cannot be read from the log; those from ``next_offset`` on may be (-1 = unknown).

    ``request``: the request that met the damage and is answered with an error; None = no client waits.
    """

    cause: str
    now_ms: int
    offset: Offset
    next_offset: Offset
    reason: str
    request: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildLog:
    """Give up the log, which is damaged at ``offset``: the next incarnation of this replica copies it from the leader.

    Only while another replica leads. It comes once: the process ends with it.
    """

    cause: str
    offset: Offset


def answer_to(found: DamageFound, *, is_curable: bool) -> RaylogError:
    """Return the error for a client.

    ``is_curable``: another replica can take over, and the client tries again. Otherwise the records are lost, and the
    error names the offset at which to continue, if it is known.
    """
    place = f"The log is damaged at offset {found.offset} ({found.reason})"
    if is_curable:
        return KafkaStorageError(f"{place}; another replica takes over, try again.")
    if found.next_offset < 0:
        return CorruptMessage(f"{place}, and no other replica in sync has these records.", offset=found.offset)
    return CorruptMessage(
        f"{place}, and no other replica in sync has these records. Seek to {found.next_offset} to go on behind them.",
        offset=found.offset,
        next_offset=found.next_offset,
    )
