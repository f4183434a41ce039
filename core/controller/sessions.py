"""Sessions: the members connected to the controller. Soft state: empty at a controller's start, never persisted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from raylog.core.controller.events import SessionId
from raylog.core.ids import BrokerId, TopicPartition
from raylog.core.invariants import require


@dataclass(frozen=True, slots=True)
class BrokerMember:
    """A broker, as the owner of a session."""

    broker: BrokerId


@dataclass(frozen=True, slots=True)
class ReplicaMember:
    """A partition replica, as the owner of a session; ``topic_id`` separates it from an earlier topic of that name."""

    topic_id: str
    partition: TopicPartition
    broker: BrokerId


@dataclass(frozen=True, slots=True)
class CoordinatorMember:
    """A coordinator, as the owner of a session."""

    kind: str
    index: int


Member = BrokerMember | ReplicaMember | CoordinatorMember


@dataclass(slots=True)
class Session:
    """One registered connection."""

    number: SessionId
    member: Member
    life: int
    """Incarnation of a broker or replica, epoch of a coordinator."""
    heartbeat_ms: int
    disk_hanging_ms: int = 0
    """For how long its disk has not finished a sync, once that is too long; 0 = it keeps up."""


class Sessions:
    """All registered connections; a member has at most one."""

    def __init__(self) -> None:
        """Start empty."""
        self._by_number: dict[SessionId, Session] = {}
        self._by_member: dict[Member, Session] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_number)

    def __iter__(self) -> Iterator[Session]:
        """Iterate by session number."""
        return iter([self._by_number[number] for number in sorted(self._by_number)])

    def get(self, number: SessionId) -> Session | None:
        """Return the session of that number, or None when it never registered or is over."""
        return self._by_number.get(number)

    def of(self, member: Member) -> Session | None:
        """Return the member's session, or None when it is not connected."""
        return self._by_member.get(member)

    def open(self, number: SessionId, member: Member, life: int, now_ms: int) -> None:
        """Add a session; the caller has ended the member's earlier one, and the number is free."""
        require(number not in self._by_number, f"session {number} registers once")
        require(member not in self._by_member, f"{member} has one session")
        self._by_number[number] = self._by_member[member] = Session(number, member, life, now_ms)

    def close(self, number: SessionId) -> Session | None:
        """Remove a session and return it; None when there is none of that number."""
        session = self._by_number.pop(number, None)
        if session is not None:
            del self._by_member[session.member]
        return session

    def heartbeat(self, number: SessionId, now_ms: int) -> None:
        """Note a heartbeat; one from a session that is over is ignored."""
        session = self._by_number.get(number)
        if session is not None:
            session.heartbeat_ms = now_ms

    def reported(self, number: SessionId, disk_hanging_ms: int) -> None:
        """Note the disk state that a heartbeat reports."""
        session = self._by_number.get(number)
        if session is not None:
            session.disk_hanging_ms = disk_hanging_ms

    def hanging_disks(self) -> list[list[object]]:
        """Return partition, broker and milliseconds of each replica whose disk does not finish a sync."""
        return [
            [str(session.member.partition), session.member.broker, session.disk_hanging_ms]
            for session in self
            if session.disk_hanging_ms and isinstance(session.member, ReplicaMember)
        ]

    def silent_since(self, limit_ms: int) -> list[Session]:
        """Return the sessions whose last heartbeat is before ``limit_ms``."""
        return [session for session in self if session.heartbeat_ms < limit_ms]

    def forgive(self, pause_ms: int) -> None:
        """Discount a time in which no heartbeat could be received, because the controller itself did not run."""
        for session in self._by_number.values():
            session.heartbeat_ms += pause_ms

    def brokers(self) -> tuple[SessionId, ...]:
        """Return the sessions of brokers, by number."""
        return tuple(session.number for session in self if isinstance(session.member, BrokerMember))
