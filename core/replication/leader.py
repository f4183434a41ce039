"""The leader's half of the replica machine: appends, acknowledgements, the followers' progress, ISR changes.

A new leader epoch gets a new object: progress reported in an older epoch must not move this epoch's high watermark
(R2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raylog.base.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidUpdateVersion,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from raylog.base.ids import NO_EPOCH, BrokerId, Incarnation, LeaderEpoch, Offset
from raylog.base.invariants import require
from raylog.core.dozing.rest import Quiet
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.core.replication.confirmations import Confirmations
from raylog.core.replication.deletions import Deletions
from raylog.core.replication.events import (
    AnswerDiverging,
    AnswerFetch,
    AnswerProducers,
    Effect,
    IsrChangeAnswered,
    ProposeSleep,
    RefuseRequest,
    RequestId,
    ResignLeadership,
)
from raylog.core.replication.idleness import Idleness
from raylog.core.replication.isr import FollowerProgress, InSyncSet, may_join
from raylog.core.replication.log import ReplicaLog, ReplicationSettings
from raylog.core.replication.parked import ParkedFetches, ParkedProduces
from raylog.core.replication.visibility import Visibility
from raylog.core.replication.watermark import committed_end
from raylog.protocol.replica import ReplicaFetchRequest

_FINAL_UNTIL_NEW_STATE = frozenset({FencedLeaderEpoch.code, InvalidUpdateVersion.code})
_RESIGN_AGAIN_MS = 1_000


class Leader:
    """Leads one partition in one leader epoch."""

    __slots__ = (
        "_answerable",
        "_doubt_at_ms",
        "_log",
        "_me",
        "_my_incarnation",
        "_next_request",
        "_note",
        "_resign_at_ms",
        "confirmations",
        "deletions",
        "epoch_start",
        "fetches",
        "followers",
        "idleness",
        "isr",
        "produces",
        "settings",
        "visibility",
    )

    def __init__(
        self,
        *,
        state: PartitionState,
        me: BrokerId,
        incarnation: Incarnation,
        log: ReplicaLog,
        settings: ReplicationSettings,
        now_ms: int,
        next_request: Callable[[], RequestId],
        note: Callable[[str], None],
    ) -> None:
        """Begin the epoch at the present log end; no follower's progress is known, all count as just caught up."""
        self.settings = settings
        self.epoch_start = log.end
        self.isr = InSyncSet(state)
        self.followers: dict[BrokerId, FollowerProgress] = {}
        self.produces = ParkedProduces()
        self.fetches = ParkedFetches()
        self.confirmations = Confirmations()
        self.deletions = Deletions(log, self.isr, self.followers)
        self._me = me
        self._my_incarnation = incarnation
        self._log = log
        self._next_request = next_request
        self._note = note
        self.visibility = Visibility(log)
        self.idleness = Idleness(now_ms)
        self._answerable = log.high_watermark  # below it, enough replicas have what acks=all requires
        self._doubt_at_ms = now_ms + settings.fetch_timeout_ms
        """From then on a follower that fetches may join once, although its place shows it as offline."""
        self._resign_at_ms = now_ms
        self._meet_followers(now_ms)

    @property
    def exposed_watermark(self) -> Offset | None:
        """The high watermark for clients; None until it has reached the start of this epoch (rule R3)."""
        return self.visibility.exposed

    def judged(self, error: RaylogError) -> RaylogError:
        """Return the error for a producer whose batch was refused: a retriable one while this log is not settled.

        From a final refusal a producer concludes that its batch is stored nowhere, numbers it again or cuts it, and
        sends it a second time. Until each replica that may lead next has fetched in this epoch, it may hold the batch
        behind the offset at which it diverges (ADR 0132).
        """
        others = (self.followers[broker] for broker in self.isr.maximal if broker != self._me)
        is_settled = not self.isr.state.elr and all(progress.durable_end is not None for progress in others)
        if is_settled or error.retriable:
            return error
        return NotEnoughReplicas(
            "Not all replicas in sync have followed this leader yet, so that a batch which it refuses may be stored in "
            f"one of them; try again. It was refused with {type(error).__name__}: {error.message}"
        )

    # ------------------------------------------------------------ state from the controller

    def adopt(self, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Adopt a newer state, or newer places, of the same leader epoch."""
        self.idleness.state_came(state.partition_epoch)
        self.isr.adopt(state)
        self._meet_followers(now_ms)
        self.advance(cause, out)
        self.drop_eligible(cause, now_ms, out)

    def drop_eligible(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Propose to clear the ELR where the leader can only then expose what may have been acknowledged (ADR 0025).

        The leader does not know which of its last records were committed before this epoch. To expose them all, no
        replica that may lack one of them must be elected. Eligible replicas may lack one.
        """
        if self.visibility.exposed is None and self.isr.state.elr and self.isr.may_propose(now_ms):
            self._note(f"without {self.isr.state.elr}, as the watermark is {self._log.high_watermark}")
            named = tuple((broker, self._incarnation_of(broker)) for broker in self.isr.committed)
            self._send_proposal(named, cause, now_ms, out, drops_eligible=True)

    def on_isr_answered(self, event: IsrChangeAnswered) -> None:
        """Handle a refusal of the last attempt, or its timeout. New states were adopted before this."""
        pending = self.isr.pending
        if pending is None or event.request != pending.request:
            return
        if event.error_code == 0:
            if event.state is not None and event.state.partition_epoch == self.isr.state.partition_epoch:
                self.isr.settled()
            return
        self._note(f"isr proposal {pending.members} got error {event.error_code}")
        if event.error_code == IneligibleReplica.code:
            incarnations = {broker: self._incarnation_of(broker) for broker in self.isr.committed}
            self.isr.refused(now_ms=event.now_ms, pause_ms=self.settings.isr_retry_ms, incarnations=incarnations)
        elif event.error_code in _FINAL_UNTIL_NEW_STATE:
            # The controller is ahead and its new state is in flight; the proposed members keep counting until then.
            pending.resend_at_ms = event.now_ms + self.settings.fetch_timeout_ms
        else:
            pending.resend_at_ms = event.now_ms + self.settings.isr_retry_ms

    # ------------------------------------------------------------ followers

    def on_fetch(self, event: Received[ReplicaFetchRequest], out: Outbox[Effect]) -> None:
        """Check a follower's fetch, record what it acknowledges, answer it or park it."""
        message = event.message
        follower, end = BrokerId(message.broker), Offset(message.fetch_offset)
        refusal = self._fetch_refusal(follower, message)
        if refusal is not None:
            out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=refusal))
            return
        if self._answer_divergence(event, out):
            return
        if end > self._log.end:
            out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=self._out_of_range()))
            return
        if message.lacks_producers:  # it may not lead before it has them, so this does not count
            out.now.append(self._producers_answer(event))
            return
        progress = self.followers[follower]
        progress.fetched(end, self._log.end, event.now_ms)
        if message.log_start_offset > progress.log_start:
            progress.log_start = Offset(message.log_start_offset)
        progress.disk_failing = bool(message.disk_failing)
        if progress.disk_failing and follower in self.isr.committed:
            self._propose(event.cause, event.now_ms, out, leaving=[follower])
        if follower not in self.isr.maximal and self._may_join(follower, progress, event.now_ms):
            self._propose(event.cause, event.now_ms, out, joining=(follower,))
        self.advance(event.cause, out)
        if self.deletions.waiting:
            self.deletions.complete(out)
        if end < self._log.end or message.max_wait_ms <= 0:
            out.now.append(self._fetch_answer(event))
            return
        replaced = self.fetches.park(follower, event)
        if replaced is not None:
            out.now.append(self._fetch_answer(replaced))

    def records_came(self, now_ms: int, out: Outbox[Effect]) -> None:
        """Answer the parked fetches. Their followers had everything until now, however long ago they fetched."""
        for follower, _ in self.fetches.waiting:
            progress = self.followers.get(follower)
            if progress is not None and now_ms > progress.caught_up_ms:
                progress.caught_up_ms = now_ms
        self.wake_fetches(out)

    def wake_fetches(self, out: Outbox[Effect]) -> None:
        """Answer every parked fetch."""
        for fetch in self.fetches.take_all():
            out.now.append(self._fetch_answer(fetch))

    def log_start_advanced(self, out: Outbox[Effect]) -> None:
        """Wake the followers, which learn the log start from answers to their fetches."""
        self.deletions.complete(out)
        if self.deletions.waiting:
            self.wake_fetches(out)

    # ------------------------------------------------------------ progress

    def advance(self, cause: str, out: Outbox[Effect]) -> None:
        """Advance the high watermark by the commit rule; answer requests that waited for it or for the local disk."""
        log, isr = self._log, self.isr
        enough = not isr.state.elr and len(isr.state.isr) >= self.settings.min_insync_replicas
        moved = log.raise_watermark(self._earned_watermark())
        if moved or self.visibility.exposed is None:
            self._expose()
        if enough:
            self._answerable = log.high_watermark
        self.produces.complete(log.durable_end, self._answerable, out)
        if moved and self.visibility.waiting:
            self.visibility.wake(out)

    def tick(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Answer overdue requests, drop members that lag, repeat proposals that got no answer."""
        enough = len(self.isr.committed) >= self.settings.min_insync_replicas
        self.produces.expire(now_ms, enough, out)
        out.now.extend(self._fetch_answer(fetch) for fetch in self.fetches.take_overdue(now_ms))
        if self.visibility.waiting:
            self.visibility.tick(now_ms, out)
        if self.deletions.waiting:
            self.deletions.tick(now_ms, out)
        self.resign_if_the_disk_fails(cause, now_ms, out)
        pending = self.isr.pending
        if pending is not None:
            if now_ms >= pending.resend_at_ms:
                self._send_proposal(pending.members, cause, now_ms, out, drops_eligible=pending.drops_eligible)
            return
        lagging = [
            broker
            for broker in self.isr.committed
            if broker != self._me
            and self.followers[broker].lags(self._log.end, now_ms, self.settings.replica_lag_time_max_ms)
        ]
        if lagging:
            self._propose(cause, now_ms, out, leaving=lagging)
        self.drop_eligible(cause, now_ms, out)
        self._sleep_if_unused(cause, now_ms, out)

    def next_due_ms(self, now_ms: int, otherwise: int) -> int:
        """Return when the next tick is due, apart from lagging members and failing disks, which each tick checks."""
        if self.deletions.waiting:
            return now_ms
        pending = self.isr.pending
        resend_at_ms = otherwise if pending is None else pending.resend_at_ms
        waiting = self.produces.first_deadline_ms(otherwise), self.fetches.first_deadline_ms(otherwise)
        return min(resend_at_ms, *waiting, self.visibility.next_due_ms(now_ms, otherwise))

    def quiet(self, otherwise_ms: int) -> Quiet | None:
        """Return since when nothing was written or read, and when something is due; None = something is under way."""
        waiting, visibility, log = self.visibility.waiting, self.visibility, self._log
        if (
            self.produces.is_busy
            or self.confirmations.is_busy
            or self.deletions.waiting
            or self.isr.pending is not None
        ):
            return None
        if self.idleness.is_closed or any(fetch.is_blocked for fetch in waiting.values()):
            return None
        others = (self.followers[broker] for broker in self.isr.committed if broker != self._me)
        if (
            visibility.exposed is None
            or visibility.is_touched
            or any(follower.durable_end != log.end for follower in others)
        ):
            return None
        sleep_due_ms = None if log.in_transaction else self.idleness.due_ms(self.settings.sleep_after_ms)
        due_ms = otherwise_ms if sleep_due_ms is None else min(otherwise_ms, sleep_due_ms)
        return Quiet(
            since_ms=self.idleness.active_ms,
            parked=len(waiting) + len(self.fetches.waiting),
            due_ms=self.next_due_ms(otherwise_ms, due_ms),
        )

    def resign(self, cause: str, out: Outbox[Effect]) -> None:
        """Refuse every parked request: another leader or another epoch will serve these records."""
        requests = [*self.produces.take_waiting(), *(fetch.request for fetch in self.fetches.take_all())]
        requests += [*self.confirmations.take_all(), *self.deletions.take_all(), *self.visibility.take_all()]
        out.now.extend(RefuseRequest(cause=cause, request=request, error=NotLeaderOrFollower()) for request in requests)

    @property
    def is_replaceable(self) -> bool:
        """Whether another in-sync replica runs on a disk that is well."""
        state = self.isr.state
        others = [(broker, state.place(broker)) for broker in state.isr if broker != self._me]
        return any(
            place is not None and place.port and not self.followers[broker].disk_failing for broker, place in others
        )

    def resign_if_the_disk_fails(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Resign when another in-sync replica can write; otherwise keep leading and refuse appends that fail."""
        disk = self._log.disk
        if now_ms < self._resign_at_ms or not (disk.hanging_ms or disk.is_failing(now_ms)) or not self.is_replaceable:
            return
        self._resign_at_ms = now_ms + _RESIGN_AGAIN_MS
        reason = "the disk hangs" if disk.hanging_ms else "the disk refuses appends"
        if disk.damaged_at is not None:
            reason = f"the log is damaged at offset {disk.damaged_at}"
        epoch = self.isr.state.leader_epoch
        self._note(f"{reason}: resign from leader epoch {epoch}")
        out.now.append(ResignLeadership(cause=cause, leader_epoch=epoch, reason=reason))

    def drop(self, request: RequestId) -> None:
        """Drop a parked request whose connection is closed."""
        self.produces.drop(request)
        self.fetches.drop(request)
        self.confirmations.drop(request)
        self.deletions.drop(request)
        self.visibility.drop(request)

    def validate(self) -> None:
        """Raise InvariantBroken unless the leader's fields agree with each other and with the log."""
        state, log = self.isr.state, self._log
        # Evaluated after every step in simulation: messages with numbers are built only on failure.
        if state.leader != self._me or self._me not in state.isr:
            require(False, f"leader {self._me} holds a state led by {state.leader} with ISR {state.isr}")
        if len(self.followers) != len(state.replicas) - 1 or self._me in self.followers:
            require(False, "followers are not the other replicas")
        if not set(state.isr).issubset(self.isr.maximal):
            require(False, "the committed ISR is not part of the maximal ISR")
        if self.epoch_start > log.end:
            require(False, "this epoch begins beyond the log end")
        exposed = self.visibility.exposed
        if exposed is not None and not self.epoch_start <= exposed == log.high_watermark:
            require(False, f"exposed high watermark {exposed}, epoch start {self.epoch_start}")
        self.visibility.validate()
        for broker, progress in self.followers.items():
            end = progress.durable_end
            if end is not None and end > log.end:
                require(False, f"follower {broker} at {end} is ahead of us")
        if self._answerable > log.high_watermark:
            require(False, "requests are answered beyond the high watermark")
        self.produces.validate(log.durable_end, self._answerable)
        self.confirmations.validate()

    # ------------------------------------------------------------ inside

    def _sleep_if_unused(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Propose that the partition sleeps if nothing was written or read for long, and every replica has the log."""
        idleness, log = self.idleness, self._log
        if self.visibility.is_touched:
            self.visibility.is_touched = False
            idleness.active_ms = now_ms
        resend_at_ms = now_ms + self.settings.fetch_timeout_ms
        again = idleness.due_again(now_ms, resend_at_ms)
        if again is not None:
            out.now.append(again)
        elif idleness.is_due(now_ms, self.settings.sleep_after_ms) and self._may_sleep(now_ms):
            state = self.isr.state
            epoch = log.epochs.epoch_for(Offset(log.end - 1)) if log.start < log.end else None
            self._note(f"propose to sleep at {log.end}")
            proposal = ProposeSleep(
                cause=cause,
                request=self._next_request(),
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                log_start_offset=log.start,
                end_offset=log.end,
                last_epoch=NO_EPOCH if epoch is None else epoch,
            )
            out.now.append(idleness.propose(proposal, resend_at_ms))

    def _may_sleep(self, now_ms: int) -> bool:
        """Whether every replica runs, is in sync and has the whole log, all of which is committed."""
        log, state = self._log, self.isr.state
        if state.elr or state.adding or state.removing or len(state.isr) < len(state.replicas):
            return False
        if self.isr.pending is not None:
            return False
        if self.produces.is_busy or self.confirmations.is_busy or self.deletions.waiting or log.in_transaction:
            return False
        if log.disk.hanging_ms or log.disk.is_failing(now_ms) or not log.high_watermark == log.durable_end == log.end:
            return False
        return self.visibility.exposed is not None and all(
            progress.durable_end == log.end and progress.log_start >= log.start and not progress.disk_failing
            for progress in self.followers.values()
        )

    def _earned_watermark(self) -> Offset:
        return committed_end(
            current=self._log.high_watermark,
            own_durable_end=self._log.durable_end,
            member_ends=[self.followers[broker].durable_end for broker in self.isr.maximal if broker != self._me],
            isr_size=len(self.isr.state.isr),
            min_insync_replicas=self.settings.min_insync_replicas,
            # Independent of the minimum known to this process: eligibility does not depend on it.
            eligible=bool(self.isr.state.elr),
            epoch_start=self.epoch_start,
        )

    def _expose(self) -> None:
        if self._log.high_watermark >= self.epoch_start:
            self.visibility.exposed = self._log.high_watermark

    def _meet_followers(self, now_ms: int) -> None:
        """Keep one progress per other replica; a place with a newer incarnation voids the old progress."""
        state = self.isr.state
        for broker in [broker for broker in self.followers if broker not in state.replicas]:
            del self.followers[broker]
        for broker in state.replicas:
            if broker == self._me:
                continue
            place = state.place(broker)
            incarnation = place.incarnation if place is not None else Incarnation(-1)
            if broker not in self.followers:
                self.followers[broker] = FollowerProgress(incarnation, now_ms)
            self.followers[broker].meet(incarnation)

    def _fetch_refusal(self, follower: BrokerId, fetch: ReplicaFetchRequest) -> RaylogError | None:
        progress = self.followers.get(follower)
        if progress is None:
            return UnknownTopicOrPartition(f"Broker {follower} holds no replica of this partition.")
        if fetch.incarnation < progress.incarnation:
            return StaleBrokerEpoch()
        if fetch.incarnation > progress.incarnation:
            progress.meet(Incarnation(fetch.incarnation))
        if fetch.fetch_offset < self._log.start or self._cannot_compare(fetch):
            return self._out_of_range()
        return None

    def _out_of_range(self) -> RaylogError:
        return OffsetOutOfRange(
            f"The leader holds offsets {self._log.start} to {self._log.end}; start again at its log start offset.",
            log_start_offset=self._log.start,
        )

    def _cannot_compare(self, fetch: ReplicaFetchRequest) -> bool:
        """True when retention removed all records that the follower could share with the leader.

        The follower's log ends in an epoch that the leader no longer knows. All of it lies below the leader's log start
        offset or diverges from its history. The follower has to restart from the log start.
        """
        return 0 <= fetch.last_fetched_epoch < self._log.epochs.earliest

    def _answer_divergence(self, event: Received[ReplicaFetchRequest], out: Outbox[Effect]) -> bool:
        """Answer with the offset of divergence, if there is one. Such a fetch acknowledges no records (rule R1)."""
        last_epoch, end = event.message.last_fetched_epoch, event.message.fetch_offset
        newest = last_epoch == self._log.epochs.latest  # it ends in the newest epoch
        if last_epoch < 0 or (newest and end <= self._log.end):
            return False
        shared = self._log.epochs.end_for(LeaderEpoch(last_epoch), self._log.end)
        if shared.epoch == last_epoch and shared.end_offset >= end:
            return False
        out.now.append(
            AnswerDiverging(
                cause=event.cause,
                request=event.request,
                leader_epoch=self.isr.state.leader_epoch,
                epoch=shared.epoch,
                end_offset=shared.end_offset,
                high_watermark=self._log.high_watermark,
                log_start_offset=self._log.start,
            )
        )
        return True

    def _fetch_answer(self, fetch: Received[ReplicaFetchRequest]) -> AnswerFetch:
        return AnswerFetch(
            cause=fetch.cause,
            request=fetch.request,
            leader_epoch=self.isr.state.leader_epoch,
            fetch_offset=Offset(fetch.message.fetch_offset),
            upper=self._log.end,
            max_bytes=fetch.message.max_bytes,
            high_watermark=self._log.high_watermark,
            log_start_offset=self._log.start,
        )

    def _producers_answer(self, fetch: Received[ReplicaFetchRequest]) -> AnswerProducers:
        return AnswerProducers(
            cause=fetch.cause,
            request=fetch.request,
            leader_epoch=self.isr.state.leader_epoch,
            offset=Offset(fetch.message.fetch_offset),
            high_watermark=self._log.high_watermark,
            log_start_offset=self._log.start,
        )

    def _may_join(self, broker: BrokerId, progress: FollowerProgress, now_ms: int) -> bool:
        """Rule R3, with the leader's log start taken over, as deleted records must not return with a new leader.

        A follower that keeps fetching counts as offline for a limited time only.

        Places have no version of their own: a late copy of a state may have marked an online follower as offline. The
        controller checks the proposal anyway.
        """
        if progress.log_start < self._log.start or progress.disk_failing:
            return False
        place = self.isr.state.place(broker)
        doubted = place is not None and place.port == 0 and now_ms >= self._doubt_at_ms
        if place is not None and doubted:
            place = replace(place, port=1)
        joins = may_join(progress, place, self._log.high_watermark, self.epoch_start)
        if joins and doubted:
            self._doubt_at_ms = now_ms + self.settings.fetch_timeout_ms
        return joins

    def _incarnation_of(self, broker: BrokerId) -> Incarnation:
        return self._my_incarnation if broker == self._me else self.followers[broker].incarnation

    def _propose(
        self,
        cause: str,
        now_ms: int,
        out: Outbox[Effect],
        *,
        joining: tuple[BrokerId, ...] = (),
        leaving: list[BrokerId] | None = None,
    ) -> None:
        if not self.isr.may_propose(now_ms):
            return
        members = self.isr.changed(leaving=leaving or (), joining=joining)
        self._note(f"propose isr {members} instead of {self.isr.committed}")
        named = tuple((broker, self._incarnation_of(broker)) for broker in members)
        self._send_proposal(named, cause, now_ms, out)

    def _send_proposal(
        self,
        members: tuple[tuple[BrokerId, Incarnation], ...],
        cause: str,
        now_ms: int,
        out: Outbox[Effect],
        *,
        drops_eligible: bool = False,
    ) -> None:
        proposal = self.isr.propose(
            members,
            request=self._next_request(),
            resend_at_ms=now_ms + self.settings.fetch_timeout_ms,
            cause=cause,
            drops_eligible=drops_eligible,
        )
        out.now.append(proposal)
