"""What is known of records that expire: when each does, where its dead letter arrived, and where that was sent on to.

Whether a record arrives is open while its store has no answer. Circles of dead letters end after a number of hops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raylog.base.ids import TopicPartition
from raylog.core.dead_letters import HOPS_MAX, Reason, cause_of, hops_of
from tests.simulation.world import Violation

EARLY: Final = "W50"
TWICE: Final = "W51"
ORDER: Final = "W52"
LOST: Final = "W53"
CIRCLE: Final = "W54"
CLOCKS_MS: Final = 2_000
"""By how much the clock of a client and that of an owner, compared over slow links, may differ."""

Headers = tuple[tuple[str, bytes | None], ...]
Place = tuple[TopicPartition, int]


@dataclass(slots=True)
class Fleeting:
    """One record that expires."""

    name: bytes
    expires_ms: int
    """It is no dead letter before."""
    is_stored: bool = False
    is_ball: bool = False
    """Whether it goes in a circle."""
    at: Place | None = None
    """Where its dead letter arrived."""
    again: Place | None = None
    """Where that was sent on to."""


@dataclass
class Letters:
    """All records of a world that expire."""

    records: dict[bytes, Fleeting] = field(default_factory=dict)
    last_origin: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)
    """By partition of dead letters and partition of origin: the offset of origin that was read last."""
    seen: dict[TopicPartition, int] = field(default_factory=dict)
    """First offset that no reader has checked the order of."""

    def dead(self, reader: str, at: Place, name: bytes, headers: Headers, now_ms: int) -> None:
        """A reader received a dead letter."""
        found = self._found(reader, name)
        cause = cause_of(headers)
        if cause is None or cause.reason is not Reason.EXPIRED:
            raise Violation(LOST, f"{reader} read {name!r} at {at}, and it does not say that it expired: {headers}")
        if now_ms + CLOCKS_MS < found.expires_ms:
            raise Violation(EARLY, f"{reader} read {name!r} {found.expires_ms - now_ms} ms before it expired")
        if found.at not in (None, at):
            raise Violation(TWICE, f"{name!r} is a dead letter at {found.at}, and {reader} read it at {at}")
        found.at = at
        partition, offset = at
        if offset >= self.seen.get(partition, 0):
            self.seen[partition] = offset + 1
            key = partition, cause.partition
            if cause.offset <= self.last_origin.get(key, -1):
                raise Violation(ORDER, f"{name!r} was at {cause.offset}, and follows {self.last_origin[key]} at {at}")
            self.last_origin[key] = cause.offset

    def landed(self, reader: str, at: Place, name: bytes, headers: Headers) -> None:
        """A reader received a record that no target takes."""
        found = self._found(reader, name)
        if not found.is_ball:
            raise Violation(LOST, f"{name!r} is undeliverable at {at}, although its target is there: {headers}")
        if hops_of(headers) != HOPS_MAX + 1:
            raise Violation(CIRCLE, f"{name!r} landed after {hops_of(headers)} hops")
        if found.at not in (None, at):
            raise Violation(TWICE, f"{name!r} landed at {found.at}, and {reader} read it at {at}")
        found.at = at

    def sent_on(self, reader: str, at: Place, name: bytes, headers: Headers) -> None:
        """A reader received a dead letter that was sent on."""
        found = self._found(reader, name)
        if cause_of(headers) is not None or hops_of(headers):
            raise Violation(CIRCLE, f"{name!r} was sent on with the headers of a dead letter: {headers}")
        if found.again not in (None, at):
            raise Violation(TWICE, f"{name!r} was sent on to {found.again}, and {reader} read it at {at}")
        found.again = at

    def _found(self, reader: str, name: bytes) -> Fleeting:
        found = self.records.get(name)
        if found is None:
            raise Violation(TWICE, f"{reader} read {name!r}, which no client has sent")
        return found

    def missing(self) -> list[bytes]:
        """Return the records that have to be dead letters, and are not."""
        return [record.name for record in self.records.values() if record.is_stored and record.at is None]

    def not_sent_on(self) -> list[bytes]:
        """Return the dead letters that were not sent on."""
        return [
            record.name
            for record in self.records.values()
            if record.at is not None and not record.is_ball and record.again is None
        ]
