"""What a replica machine holds, what its shell may read of it, and whether it agrees with itself.

The base of ``replica.py:ReplicaMachine``, whose steps alone change it. Read by ``raylog.actors.replica`` for status and
metrics, and by the simulator's checkers.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

from raylog.base.ids import NO_EPOCH, BrokerId, Incarnation, LeaderEpoch, Offset, TopicPartition
from raylog.base.invariants import InvariantBroken, require
from raylog.core.dozing.rest import Quiet
from raylog.core.partition import PartitionState
from raylog.core.replication.events import Event
from raylog.core.replication.follower import Follower
from raylog.core.replication.leader import Leader
from raylog.core.replication.log import LogSummary, ReplicaLog, ReplicationSettings
from raylog.core.replication.throttle import Throttle

Role = Literal["leader", "follower", "idle"]

_STORY_LENGTH = 200


class ReplicaViews:
    """One incarnation of one replica of one partition, without the steps that change it."""

    def __init__(
        self,
        *,
        partition: TopicPartition,
        broker: BrokerId,
        incarnation: Incarnation,
        settings: ReplicationSettings,
        log: LogSummary,
    ) -> None:
        """Start idle on the log that recovery found."""
        self.partition = partition
        self.broker = broker
        self.incarnation = incarnation
        self.state: PartitionState | None = None
        self._settings = settings
        self._log = ReplicaLog(log)
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._throttle = Throttle()
        self._last_request = 0
        self._gives_up = False
        """Whether the log is given up: the next incarnation of this replica copies it again."""
        self._story: deque[Event | str] = deque(maxlen=_STORY_LENGTH)

    @property
    def role(self) -> Role:
        """The current role of this replica."""
        if self._leader is not None:
            return "leader"
        return "follower" if self._follower is not None else "idle"

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The leader epoch of the state held; :data:`NO_EPOCH` before the first state arrives."""
        return self.state.leader_epoch if self.state is not None else NO_EPOCH

    @property
    def held_from(self) -> int:
        """Lowest offset that the roles of the last leader followed still had to copy elsewhere; -1 = none."""
        return self._log.held_from

    @property
    def high_watermark(self) -> Offset:
        """Everything below is committed, as far as this replica knows."""
        return self._log.high_watermark

    @property
    def exposed_high_watermark(self) -> Offset | None:
        """The high watermark for clients; None when not leading, or while the watermark is below this epoch's start."""
        return self._leader.exposed_watermark if self._leader is not None else None

    @property
    def log_start_offset(self) -> Offset:
        """First offset of the log."""
        return self._log.start

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record will get."""
        return self._log.end

    @property
    def durable_end_offset(self) -> Offset:
        """Everything below is on disk."""
        return self._log.durable_end

    @property
    def disk_hanging_ms(self) -> int:
        """For how long the oldest sync has been under way, once that is too long for a leader; 0 otherwise."""
        return self._log.disk.hanging_ms

    @property
    def damaged_at(self) -> Offset | None:
        """First offset of the damage that was found in the log and is still there; None = none was."""
        return self._log.disk.damaged_at

    @property
    def epochs(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """The leader epochs of the log and where they begin."""
        return tuple(self._log.epochs.entries)

    @property
    def falls_asleep(self) -> bool:
        """Whether this leader has proposed that its partition sleeps, and does not know the outcome yet."""
        return self._leader is not None and self._leader.idleness.is_closed

    @property
    def parked_consumer_fetches(self) -> int:
        """Number of consumer fetches parked here."""
        return 0 if self._leader is None else len(self._leader.visibility.waiting)

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The committed in-sync replicas, as far as this replica knows."""
        return self.state.isr if self.state is not None else ()

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """Committed and possibly committed members together; empty when not leading."""
        return self._leader.isr.maximal if self._leader is not None else ()

    @property
    def settings(self) -> ReplicationSettings:
        """The configuration in force."""
        return self._settings

    def quiet(self, otherwise_ms: int) -> Quiet | None:
        """Return since when and until when nothing is to be done, ``otherwise_ms`` at the latest; None = something is.

        At rest the process of this replica may be stopped: parked requests wait for records, or until the given time.
        """
        log, disk = self._log, self._log.disk
        disk_is_well = disk.failing_since_ms is None and not disk.hanging_ms and disk.damaged_at is None
        if not disk_is_well or not log.high_watermark == log.durable_end == log.end:
            return None
        if self._leader is not None:
            return _quiet_leader(self._leader, self.broker, log, self._settings, otherwise_ms)
        return None if self._follower is None else self._follower.quiet(otherwise_ms)

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first, as text."""
        return tuple(str(step) for step in self._story)

    def validate(self) -> None:
        """Check every cross-reference; raises InvariantBroken."""
        try:
            self._log.validate()
            if self._leader is not None:
                self._leader.validate()
                require(self._follower is None and self.state is not None, "leader and follower at once, or no state")
            elif self._follower is not None:
                self._follower.validate()
                require(self.state is not None, "a role without the controller's word")
        except InvariantBroken as broken:
            raise InvariantBroken(f"{self.partition} on {self.broker}: {broken.claim}", self.story) from broken


def _quiet_leader(
    leader: Leader, me: BrokerId, log: ReplicaLog, settings: ReplicationSettings, otherwise_ms: int
) -> Quiet | None:
    """Return since when nothing was written or read, and when something is due; None = something is under way."""
    waiting, visibility = leader.visibility.waiting, leader.visibility
    if leader.produces.is_busy or leader.claims.is_busy or leader.deletions.waiting or leader.isr.pending is not None:
        return None
    if leader.idleness.is_closed or any(fetch.is_blocked for fetch in waiting.values()):
        return None
    others = (leader.followers[broker] for broker in leader.isr.committed if broker != me)
    if (
        visibility.exposed is None
        or visibility.is_touched
        or any(follower.durable_end != log.end for follower in others)
    ):
        return None
    sleep_due_ms = None if log.in_transaction else leader.idleness.due_ms(settings.sleep_after_ms)
    due_ms = otherwise_ms if sleep_due_ms is None else min(otherwise_ms, sleep_due_ms)
    return Quiet(
        since_ms=leader.idleness.active_ms,
        parked=len(waiting) + len(leader.fetches.waiting),
        due_ms=leader.next_due_ms(otherwise_ms, due_ms),
    )
