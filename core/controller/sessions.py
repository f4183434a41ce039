"""Sessions: the members connected to the controller. Soft state: empty at a controller's start, never persisted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from raylog.base.errors import BrokerIdNotRegistered
from raylog.base.ids import BrokerId, TopicPartition
from raylog.base.invariants import require
from raylog.core.controller.events import SessionId
from raylog.protocol.controller import ReplicaNote, ReplicaRequest


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

    @classmethod
    def of(cls, message: ReplicaRequest) -> ReplicaMember:
        """Return the replica that a request names as its sender."""
        return cls(message.topic_id, TopicPartition(message.topic, message.partition), BrokerId(message.broker))


@dataclass(frozen=True, slots=True)
class CoordinatorMember:
    """A coordinator, as the owner of a session."""

    kind: str
    index: int


Member = BrokerMember | ReplicaMember | CoordinatorMember
NOTHING_SEEN: Final[Mapping[int, int]] = MappingProxyType({})


@dataclass(slots=True)
class Session:
    """One registered connection."""

    number: SessionId
    member: Member
    life: int
    """Incarnation of a broker or replica, epoch of a coordinator."""
    heartbeat_ms: int
    """Time of the last heartbeat on this connection. When a broker stops vouching for a replica, the time at which it
    last vouched counts as well."""
    disk_hanging_ms: int = 0
    """For how long its disk has not finished a sync, as reported; 0 = it keeps up."""
    damage: str = ""
    """What was wrong with its log, as it has reported last; empty = nothing was."""
    is_mended: bool = False
    vouched: frozenset[int] = frozenset()
    """The incarnations of the replicas that a broker vouches for with each heartbeat."""
    absent: set[int] = field(default_factory=set)
    """Those of them that have no session: the broker vouches for them in vain."""
    dozing: int = 0
    """How many of a broker's replicas doze, as it has reported last."""


class Sessions:
    """All registered connections; a member has at most one.

    A replica's session lives by the heartbeats of its broker while the broker vouches for it, else by its own. Only
    sessions that live by their own heartbeats are checked as time passes.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._by_number: dict[SessionId, Session] = {}
        self._by_member: dict[Member, Session] = {}
        self._brokers: dict[SessionId, Session] = {}
        self._replicas: dict[int, Session] = {}
        """The sessions of replicas by incarnation, which no two of them share."""
        self._alone: dict[SessionId, Session] = {}
        """The sessions that live by their own heartbeats."""
        self._hanging: dict[SessionId, frozenset[int]] = {}
        """The incarnations that a broker has noted last, by its session."""

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
        session = self._by_number[number] = self._by_member[member] = Session(number, member, life, now_ms)
        if isinstance(member, BrokerMember):
            self._brokers[number] = session
        elif isinstance(member, ReplicaMember):
            self._replicas[life] = session
            broker = self._by_member.get(BrokerMember(member.broker))
            if broker is not None:
                broker.absent.discard(life)
        if self._voucher(session) is None:
            self._alone[number] = session

    def close(self, number: SessionId) -> Session | None:
        """Remove a session and return it; None when there is none of that number."""
        session = self._by_number.pop(number, None)
        if session is not None:
            del self._by_member[session.member]
            self._withdraw(session, session.vouched)
            self._brokers.pop(number, None)
            self._hanging.pop(number, None)
            self._alone.pop(number, None)
            if isinstance(session.member, ReplicaMember):
                self._replicas.pop(session.life, None)
                broker = self._by_member.get(BrokerMember(session.member.broker))
                if broker is not None and session.life in broker.vouched:
                    broker.absent.add(session.life)
        return session

    # ------------------------------------------------------------ heartbeats

    def heartbeat(self, number: SessionId, now_ms: int) -> None:
        """Note a heartbeat; one from a session that is over is ignored."""
        session = self._by_number.get(number)
        if session is not None:
            session.heartbeat_ms = now_ms

    def reported(self, number: SessionId, disk_hanging_ms: int) -> None:
        """Note the disk state that a heartbeat reports, unless the replica's broker reports it."""
        session = self._alone.get(number)
        if session is not None:
            session.disk_hanging_ms = disk_hanging_ms

    def damaged(self, number: SessionId, damage: str, *, is_mended: bool) -> None:
        """Note the damage that a replica's own heartbeat reports, "" = none; until the next one the report stands."""
        session = self._by_number.get(number)
        if session is not None:
            session.damage, session.is_mended = damage, is_mended

    def stated(
        self, number: SessionId, vouched: Iterable[int] | None, notes: Iterable[ReplicaNote], now_ms: int
    ) -> None:
        """Note what a broker states about its replicas, before its heartbeat itself is noted.

        ``vouched`` None: the same replicas as before. ``notes`` are about some of them.
        """
        broker = self._brokers.get(number)
        if broker is None:
            return
        silent: dict[int, int] = {}
        hanging: dict[int, int] = {}
        for note in notes:
            if note.silent_ms > 0:
                silent[note.incarnation] = now_ms - note.silent_ms
            hanging[note.incarnation] = note.disk_hanging_ms
        if vouched is not None:
            before, broker.vouched = broker.vouched, frozenset(vouched)
            self._withdraw(broker, before - broker.vouched, silent)
            broker.absent &= broker.vouched
            for life in broker.vouched - before:
                session = self._replica_of(broker, life)
                if session is None:
                    broker.absent.add(life)
                else:
                    self._alone.pop(session.number, None)
                    session.disk_hanging_ms = 0
        for life in broker.vouched & (self._hanging.get(number, frozenset()) | hanging.keys()):
            session = self._replica_of(broker, life)
            if session is not None:
                session.disk_hanging_ms = hanging.get(life, 0)
        self._hanging[number] = frozenset(hanging)

    def absent(self, number: SessionId) -> list[int]:
        """Return the incarnations that a broker vouches for and that have no session: they have to register again.

        Raises BrokerIdNotRegistered for a session that is over: its connection is open until that is committed, and
        what the controller confirms on it meanwhile would keep nothing alive.
        """
        session = self._by_number.get(number)
        if session is None:
            raise BrokerIdNotRegistered
        return sorted(session.absent)

    def silent_since(self, limit_ms: int) -> list[Session]:
        """Return the sessions without a heartbeat since ``limit_ms``, by number; silent brokers vouch no longer."""
        for broker in self._brokers.values():
            if broker.heartbeat_ms < limit_ms:
                self._withdraw(broker, broker.vouched)
                broker.vouched, broker.absent = frozenset(), set()
        silent = [session for session in self._alone.values() if session.heartbeat_ms < limit_ms]
        return sorted(silent, key=lambda session: session.number)

    def forgive(self, pause_ms: int) -> None:
        """Discount a time in which no heartbeat could be received, because the controller itself did not run."""
        for session in self._by_number.values():
            session.heartbeat_ms += pause_ms

    def _voucher(self, session: Session) -> Session | None:
        """Return the session of the broker that vouches for a replica's; None = the session lives by itself."""
        if not isinstance(session.member, ReplicaMember):
            return None
        broker = self._by_member.get(BrokerMember(session.member.broker))
        return broker if broker is not None and session.life in broker.vouched else None

    def _replica_of(self, broker: Session, life: int) -> Session | None:
        """Return the session of a replica, if it is on this broker: a broker states nothing about those of others."""
        session = self._replicas.get(life)
        if session is None or not isinstance(session.member, ReplicaMember):
            return None
        return session if BrokerMember(session.member.broker) == broker.member else None

    def _withdraw(self, broker: Session, lives: Iterable[int], seen: Mapping[int, int] = NOTHING_SEEN) -> None:
        """Let replicas live by their own heartbeats again.

        Their last heartbeat counts as of the time at which they were ``seen``, by default the broker's last heartbeat.
        """
        for life in lives:
            session = self._replica_of(broker, life)
            if session is not None:
                session.heartbeat_ms = max(session.heartbeat_ms, seen.get(life, broker.heartbeat_ms))
                self._alone[session.number] = session

    # ------------------------------------------------------------ views

    def dozed(self, number: SessionId, dozing: int) -> None:
        """Note how many replicas of a broker doze."""
        broker = self._brokers.get(number)
        if broker is not None:
            broker.dozing = dozing

    def dozing_on(self, broker: BrokerId) -> int:
        """Return how many replicas of a broker doze; 0 for one that is not connected."""
        session = self._by_member.get(BrokerMember(broker))
        return 0 if session is None else session.dozing

    def hanging_disks(self) -> list[list[object]]:
        """Return partition, broker and milliseconds of each replica whose disk does not finish a sync."""
        return [
            [str(session.member.partition), session.member.broker, session.disk_hanging_ms]
            for session in self
            if session.disk_hanging_ms and isinstance(session.member, ReplicaMember)
        ]

    def damaged_logs(self) -> list[list[object]]:
        """Return partition, broker, damage and whether it was mended, of each replica whose log was found damaged."""
        return [
            [str(session.member.partition), session.member.broker, session.damage, session.is_mended]
            for session in self
            if session.damage and isinstance(session.member, ReplicaMember)
        ]

    def brokers(self) -> tuple[SessionId, ...]:
        """Return the sessions of brokers, by number."""
        return tuple(sorted(self._brokers))

    def wrong(self) -> str:
        """Return what does not fit together, empty = nothing; costly, for tests and the simulator."""
        for session in self:
            if (self._voucher(session) is None) != (session.number in self._alone):
                return f"{session} lives by its own heartbeats, or by those of its broker"
            if session.absent != {life for life in session.vouched if self._replica_of(session, life) is None}:
                return f"{session} vouches for replicas that are absent, or are not"
        return ""
