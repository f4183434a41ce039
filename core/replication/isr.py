"""The ISR of a partition as its leader sees it: the committed one, the proposed one, and the union of both.

Rules R3 and R4. The controller may commit a proposal late, and its answer may be lost. So every member proposed at the
current partition epoch counts for the high watermark (the *maximal ISR*) until a state of a newer partition epoch
arrives, which voids all older proposals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raylog.base.ids import BrokerId, Incarnation, Offset
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.core.replication.events import ProposeIsr, RequestId

_ZERO = Offset(0)

IsrMembers = tuple[tuple[BrokerId, Incarnation], ...]


@dataclass(slots=True)
class FollowerProgress:
    """Progress of one follower in the current leader epoch, from its current incarnation."""

    incarnation: Incarnation
    """The newest known incarnation of the follower; older ones are refused."""
    caught_up_ms: int
    """Last time at which it had all records up to the leader's log end."""
    durable_end: Offset | None = None
    """All below is durable at the follower; None: no fetch in this epoch from this incarnation."""
    fetched_ms: int = 0
    leader_end_at_fetch: Offset = _ZERO
    """The leader's log end at its last fetch: reaching it with the next fetch means it was caught up then."""
    log_start: Offset = _ZERO
    """Its log holds no record below this offset, durably."""
    disk_failing: bool = False
    """Its disk refuses appends: acks=all should not wait for it."""

    def meet(self, incarnation: Incarnation) -> None:
        """Note an incarnation of the follower; a newer one starts without progress."""
        if incarnation > self.incarnation:
            self.incarnation = incarnation
            self.durable_end = None
            self.log_start = _ZERO
            self.disk_failing = False

    def fetched(self, offset: Offset, leader_end: Offset, now_ms: int) -> None:
        """Record a fetch that did not diverge. Late copies of older fetches are ignored."""
        if offset >= leader_end:
            if now_ms > self.caught_up_ms:
                self.caught_up_ms = now_ms
        elif offset >= self.leader_end_at_fetch:
            self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
        self.leader_end_at_fetch = leader_end
        self.fetched_ms = now_ms
        if self.durable_end is None or offset > self.durable_end:
            self.durable_end = offset

    def lags(self, leader_end: Offset, now_ms: int, lag_max_ms: int) -> bool:
        """True when it has been behind for longer than ``lag_max_ms``."""
        return self.durable_end != leader_end and now_ms - self.caught_up_ms > lag_max_ms


def may_join(progress: FollowerProgress, place: ReplicaPlace | None, watermark: Offset, epoch_start: Offset) -> bool:
    """Rule R3: fetched in this epoch, holds all that is committed and all of earlier epochs, registered as online."""
    return (
        progress.durable_end is not None
        and progress.durable_end >= watermark
        and progress.durable_end >= epoch_start
        and place is not None
        and place.port != 0
        and place.incarnation == progress.incarnation
    )


@dataclass(slots=True)
class PendingChange:
    """The one ISR proposal under way. ``request`` is that of the last attempt."""

    members: IsrMembers
    request: RequestId
    resend_at_ms: int
    drops_eligible: bool = False


class InSyncSet:
    """Committed ISR, the pending change, and the members that some unresolved proposal may have added."""

    __slots__ = ("_doubtful", "_maximal", "_pause_until_ms", "pending", "state")

    def __init__(self, state: PartitionState) -> None:
        """Start from the committed state, without a proposal."""
        self.state = state
        self.pending: PendingChange | None = None
        self._doubtful: frozenset[BrokerId] = frozenset()
        """Members proposed at this partition epoch, which the controller may commit at any time."""
        self._pause_until_ms = 0
        self._maximal = state.isr

    @property
    def committed(self) -> tuple[BrokerId, ...]:
        """The committed ISR in the last state received."""
        return self.state.isr

    @property
    def maximal(self) -> tuple[BrokerId, ...]:
        """Committed and proposed members together, in the order of their numbers."""
        return self._maximal

    def adopt(self, state: PartitionState) -> None:
        """Adopt a state of a newer partition epoch, which voids earlier proposals."""
        if state.partition_epoch > self.state.partition_epoch:
            self.pending = None
            self._doubtful = frozenset()
        self.state = state
        self._count()

    def may_propose(self, now_ms: int) -> bool:
        """True when no proposal is under way and the pause after a refusal is over."""
        return self.pending is None and now_ms >= self._pause_until_ms

    def propose(
        self,
        members: IsrMembers,
        *,
        request: RequestId,
        resend_at_ms: int,
        cause: str,
        drops_eligible: bool = False,
    ) -> ProposeIsr:
        """Make ``members`` the pending change (again, for a repeated attempt) and return the effect that sends it."""
        self.pending = PendingChange(members, request, resend_at_ms, drops_eligible)
        self._doubtful |= {broker for broker, _ in members}
        self._count()
        return ProposeIsr(
            cause=cause,
            request=request,
            leader_epoch=self.state.leader_epoch,
            partition_epoch=self.state.partition_epoch,
            isr=members,
            drops_eligible=drops_eligible,
        )

    def refused(self, *, now_ms: int, pause_ms: int, incarnations: Mapping[BrokerId, Incarnation]) -> None:
        """A member was not eligible: propose the committed ISR instead, after a pause.

        Dropping the proposal would be unsafe: an earlier attempt may still be in flight, and be accepted once the
        member is eligible again. Committing the present ISR raises the partition epoch, which voids all attempts; until
        then the refused member counts for the high watermark.
        """
        members = tuple((broker, incarnations[broker]) for broker in self.committed)
        self.pending = PendingChange(members, self.pending.request if self.pending else -1, now_ms + pause_ms)
        self._pause_until_ms = now_ms + pause_ms

    def settled(self) -> None:
        """The controller answered that the proposed set is the committed one already: no proposal is under way."""
        self.pending = None
        self._doubtful = frozenset()
        self._count()

    def changed(self, *, leaving: Iterable[BrokerId] = (), joining: Iterable[BrokerId] = ()) -> tuple[BrokerId, ...]:
        """Return the committed ISR without ``leaving`` and with ``joining``, in replica order."""
        members = (set(self.committed) - set(leaving)) | set(joining)
        return tuple(broker for broker in self.state.replicas if broker in members)

    def _count(self) -> None:
        self._maximal = tuple(sorted(self._doubtful.union(self.state.isr)))
