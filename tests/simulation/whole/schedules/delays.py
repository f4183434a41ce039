"""What is known of delayed records: when each is due, whether it was cancelled, and where it arrived.

A record is due at the time that its client knows, or one of two while a move has no answer. Whether one arrives is
open while its store or its cancellation has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raylog.base.ids import TopicPartition
from tests.simulation.world import Violation

EARLY: Final = "W30"
TWICE: Final = "W31"
LOST: Final = "W32"
CANCELLED: Final = "W33"
REPLACED: Final = "W34"
CLOCKS_MS: Final = 2_000
"""By how much the clock of a client and those of two owners, compared over slow links, may differ."""


@dataclass(slots=True)
class Delayed:
    """One delayed record."""

    name: bytes
    least_due_ms: int
    """It may not arrive before."""
    is_stored: bool = False
    is_cancelled: bool = False
    is_unsure: bool = False
    """Whether a request about it has no answer: then it may arrive or not."""
    handle: str = ""
    at: tuple[TopicPartition, int] | None = None
    """Where it arrived."""
    before: Delayed | None = None
    """What was sent before it with its schedule id."""
    is_replaced: bool = False
    may_be_replaced: bool = False
    """Whether the answer to what was sent after it, with its schedule id, is open."""


@dataclass
class Delays:
    """All delayed records of a world."""

    records: dict[bytes, Delayed] = field(default_factory=dict)

    def arrived(self, reader: str, at: TopicPartition, offset: int, name: bytes, now_ms: int) -> None:
        """A reader received a record."""
        found = self.records.get(name)
        if found is None:
            raise Violation(TWICE, f"{reader} read {name!r}, which no client has sent")
        if now_ms + CLOCKS_MS < found.least_due_ms:
            raise Violation(EARLY, f"{reader} read {name!r} {found.least_due_ms - now_ms} ms before it was due")
        if found.is_cancelled:
            raise Violation(CANCELLED, f"{reader} read {name!r}, whose cancellation was acknowledged")
        if found.is_replaced:
            raise Violation(REPLACED, f"{reader} read {name!r}, and a later record has replaced it")
        if found.at not in (None, (at, offset)):
            raise Violation(TWICE, f"{name!r} is at {found.at}, and {reader} read it at {offset} of {at}")
        found.at = (at, offset)

    def cancelled(self, record: Delayed) -> None:
        """A cancellation was acknowledged."""
        if record.at is not None:
            raise Violation(CANCELLED, f"{record.name!r} was cancelled after it had arrived at {record.at}")
        record.is_cancelled = True

    def stored(self, record: Delayed, replaced: bool | None) -> None:
        """A record was acknowledged, and it was stated whether it has replaced one."""
        before = record.before
        record.is_stored = True
        if before is None or replaced is None:
            return
        before.may_be_replaced = False
        if not replaced or before.is_unsure or not before.is_stored:
            return  # what it has replaced may be an earlier one
        if before.at is not None:
            raise Violation(REPLACED, f"{before.name!r} was replaced after it had arrived at {before.at}")
        if before.is_cancelled:
            raise Violation(REPLACED, f"{before.name!r} was replaced after it was cancelled")
        before.is_replaced = True

    def missing(self) -> list[bytes]:
        """Return the records that have to arrive, and have not."""
        return [
            record.name
            for record in self.records.values()
            if record.is_stored
            and not (record.is_cancelled or record.is_replaced or record.may_be_replaced or record.is_unsure)
            and record.at is None
        ]
