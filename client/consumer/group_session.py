"""A consumer's session in a group of the classic protocol: heartbeats, rebalances step by step, leaving.

`membership.py` decides, this module sends requests. A rebalance advances only inside poll(), because the listener has
to be called, and because records of a partition must not be returned after it is revoked. The long waits are separate
tasks, so that a poll() with a short timeout can end meanwhile: the coordinator answers a join only when all members
have joined. An eager member gives up its partitions and then joins; a cooperative one joins, reads on, and then gives
up what it lost. Owned by `engine.py`, on its loop. May touch: the network, the loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from raylog.base.errors import MemberIdRequired, RaylogError, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.assignor import Subscription
from raylog.client.cluster.backoff import Backoff, as_raylog_error
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.handover import Handover, PollTurns
from raylog.client.group.embedded_protocol import decode_assignment
from raylog.client.group.membership import GroupRequest, Membership
from raylog.client.tasks import outcomes
from raylog.protocol.groups import DESCRIBE_GROUP, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, DescribeGroupRequest
from raylog.protocol.method import Method, ReplyT, RequestT

logger = logging.getLogger(__name__)

JOIN_EXTRA_S = 5.0
"""Added to the rebalance timeout, for which the coordinator may hold a join back, as the limit for its answer."""
FOLLOW_UP_S = 3.0
"""For so long after a rebalance a cooperative member expects a second one, which assigns what others gave up ..."""
FOLLOW_UP_BEAT_S = 0.25
"""... and sends heartbeats at this interval, because their answers announce the rebalance."""
LEAVE_TIMEOUT_S = 2.0
"""Timeout for LeaveGroup; after it the coordinator's session timeout applies."""


class Step(Enum):
    """The steps of a rebalance, in order."""

    STEADY = "reading"
    GIVING_BACK = "what may not be kept is given back before the join"
    JOINING = "waiting for the next generation"
    TAKING_UP = "what the new generation took is given back, and what it gave is taken"


class GroupSession(PollTurns[Membership]):
    """Drives one member. `turn()` does all that needs no waiting; the tasks call `notify` when there is more to do."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        membership: Membership,
        assignment: Assignment,
        *,
        commit_positions: Callable[[], Awaitable[None]] | None,
        on_assignment: Callable[[], None],
        notify: Callable[[], None],
    ) -> None:
        """`commit_positions` is awaited before partitions are revoked; None = no automatic commits."""
        super().__init__()
        self._cluster = cluster
        self._config = config
        self.membership = membership
        self._assignment = assignment
        self._handover = Handover(
            assignment, commit_positions=commit_positions, on_assignment=on_assignment, notify=notify
        )
        self._notify = notify
        self._step = Step.STEADY
        self._work: asyncio.Task[tuple[TopicPartition, ...] | None] | None = None
        self._counts: dict[str, int] = {}
        """Partition counts by topic when this member last assigned as the leader; 0 = the topic did not exist."""
        self._has_synced = asyncio.Event()
        self._follow_up_until_s = 0.0
        self._is_closed = False
        cluster.on_topics_changed(self._topics_changed)

    @property
    def is_steady(self) -> bool:
        """Whether records may be returned: no rebalance is in progress, or it has not revoked anything yet."""
        return self._step is Step.STEADY or (self._step is Step.JOINING and self.membership.is_cooperative)

    @property
    def may_commit(self) -> bool:
        """Whether positions may be committed in the background: this member has a generation.

        A cooperative member keeps its generation while it joins. If a commit is refused then, nothing is lost.
        """
        member = self.membership
        keeps = member.is_cooperative and member.is_joining
        return (member.is_stable or keeps) and member.commit_identity[0] >= 0

    @property
    def needs_turn(self) -> bool:
        """Whether `turn` has to be called before records are returned."""
        member = self.membership
        if self._error is not None or member.fenced is not None:
            return True
        if self._step is Step.JOINING and member.is_cooperative:
            return self._work is None or self._work.done()
        return self._step is not Step.STEADY or member.rejoin_reason is not None

    # Called inside poll()

    def listener_called(self) -> None:
        """The listener was called: continue the rebalance."""
        self._handover.called()
        call = self._handover.call
        if call is not None and call.kind == "assigned":
            self.membership.has_missed = False  # its old partitions are dropped; it may commit the new ones

    def rejoin(self, reason: str) -> None:
        """Join again at the next turn, for instance because the subscription was changed."""
        self.membership.need_rejoin(reason)

    def _advanced(self) -> bool:
        """Do the next step that needs no waiting; False if there is none."""
        member = self.membership
        if self._step is Step.STEADY:
            if member.rejoin_reason is None:
                return False
            self._step = Step.GIVING_BACK
            self._handover.begin(self._kept(), is_lost=member.lost)
            return True
        if self._step is Step.JOINING:
            return self._joined()
        if not self._handover.is_done:
            return self._handover.advance()
        if self._step is Step.GIVING_BACK:
            self._step = Step.JOINING
            self._start(self._join())
        else:
            self._step = Step.STEADY
            member.taken_up()
        return True

    def _start(self, work: Awaitable[tuple[TopicPartition, ...] | None]) -> None:
        self._work = asyncio.ensure_future(work)
        self._work.add_done_callback(lambda _: self._notify())

    def _kept(self) -> list[TopicPartition]:
        """The partitions to keep during a join: none for an eager member, those of subscribed topics for a cooperative.

        A member that lost its partitions keeps none.
        """
        member, topics = self.membership, self._assignment.topics
        if member.lost or not member.is_cooperative:
            return []
        kept = [each for each in self._assignment.states if each.topic in topics]
        member.gave_back([each for each in self._assignment.states if each.topic not in topics])
        return kept

    def _joined(self) -> bool:
        """Begin to apply the assignment of the rebalance, if it was received; False = still waiting for it."""
        member = self.membership
        if self._work is None or not self._work.done():
            return False
        work, self._work = self._work, None
        self._step = Step.STEADY  # a failed join starts again here
        try:
            partitions = work.result()
        except asyncio.CancelledError:  # by a framework that cancels all tasks; `stop` does not get here
            member.need_rejoin("its last join was cancelled")
            return True
        except Exception as failure:  # any error: without another join the member would wait in vain
            member.need_rejoin("its last join failed")
            if isinstance(failure, RaylogError):
                raise
            raise as_raylog_error(failure) from failure
        if partitions is not None:
            self._step = Step.TAKING_UP
            self._handover.begin(partitions, is_lost=member.lost, is_fresh=member.has_missed, announces=True)
        return True

    # Joining

    async def _join(self) -> tuple[TopicPartition, ...] | None:
        """Join, assign if this member is the leader, sync; retry until that succeeds, or an error needs the user.

        Returns the assignment; None = a cooperative member has lost the partitions that it kept, and has to give them
        up before it joins again.
        """
        member = self.membership
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        while True:
            topics = sorted(self._assignment.topics)
            await look_up_topics(self._cluster, member.group, topics, self._request_s)
            call = GroupRequest.JOIN
            try:
                timeout_s = max(self._request_s, member.rebalance_timeout_ms / 1000 + JOIN_EXTRA_S)
                joined = await self._request(JOIN_GROUP, member.join_request(topics), timeout_s)
                rows = member.joined(joined)
                subscriptions = member.subscriptions(rows)
                watched = subscriptions or member.subscriptions(member.unassigned_rows)
                counts = await self._partition_counts(watched)
                call = GroupRequest.SYNC
                assignments = member.sync_request(subscriptions, counts)
                synced = await self._request(SYNC_GROUP, assignments, max(self._request_s, JOIN_EXTRA_S))
                partitions = member.synced(synced.assignment)
                if member.is_cooperative:
                    self._follow_up_until_s = self._now_s() + FOLLOW_UP_S
                    self._has_synced.set()
                if topics != sorted(self._assignment.topics):
                    member.need_rejoin("its subscription was changed while it joined")
                if member.unassigned_rows:
                    await self._check_assignment(watched, counts)
                return partitions
            except RaylogError as error:
                reaction = member.failed(call, error, generation=member.generation)
                if reaction.fatal:
                    raise
                if reaction.retry:
                    self._cluster.forget_coordinator(member.group)
                member.need_rejoin(error.message)
                if member.lost:
                    return None
                if not isinstance(error, MemberIdRequired):
                    await asyncio.sleep(backoff.next_s())

    async def _request(self, method: Method[RequestT, ReplyT], request: RequestT, timeout_s: float) -> ReplyT:
        return await self._cluster.call_coordinator(self.membership.group, method, request, timeout_s=timeout_s)

    async def _check_assignment(self, subscriptions: Mapping[str, Subscription], counts: Mapping[str, int]) -> None:
        """Rebalance if the group's assignment lacks partitions that were added while a static leader was away."""
        member = self.membership
        wanted = {topic for each in subscriptions.values() for topic in each.topics}
        try:
            group = await self._request(DESCRIBE_GROUP, DescribeGroupRequest(member.group), self._request_s)
            given = {each for row in group.members for each in decode_assignment(row.assignment)}
        except (RaylogError, ValueError) as error:
            member.need_rejoin(f"the group's assignment is not known ({error})")
            return
        if given != {TopicPartition(topic, number) for topic in wanted for number in range(counts.get(topic, 0))}:
            member.need_rejoin("partitions were added or removed while it was away")

    async def _partition_counts(self, subscriptions: Mapping[str, Subscription]) -> dict[str, int]:
        """The current partition counts of all topics that members subscribe to; unknown topics are left out."""
        topics = {topic for each in subscriptions.values() for topic in each.topics}
        if not topics:
            return {}
        self._cluster.watch(topics)
        await self._cluster.refresh(topics, timeout_s=self._request_s)
        found = {topic: self._cluster.metadata.topic(topic) for topic in sorted(topics)}
        self._counts = {topic: 0 if info is None else len(info.partitions) for topic, info in found.items()}
        return {topic: count for topic, count in self._counts.items() if count}

    def _topics_changed(self, changed: set[str]) -> None:
        """As the leader, start a rebalance when partitions were added, or a topic was created or deleted."""
        member = self.membership
        if self._is_closed:
            return
        known = self._cluster.metadata.topics
        if not member.is_leader or not member.is_stable:
            return
        for topic in sorted(changed & self._counts.keys()):
            count = len(known[topic].partitions) if topic in known else 0
            if count != self._counts[topic]:
                member.need_rejoin(f"topic {topic!r} has {count} partitions now")
                self._notify()

    # Heartbeats and leaving

    async def _beat(self) -> None:
        """Send heartbeats while this member has a generation; leave the group when poll() is not called in time."""
        config, member = self._config, self.membership
        # A heartbeat that hangs must leave time for another one within the session timeout.
        timeout_s = min(self._request_s, max(config.heartbeat_interval_ms, config.session_timeout_ms / 3) / 1000)
        while True:
            if not await self._is_beat_due() or not member.is_stable:
                continue
            silent_s = self._now_s() - self.last_poll_s
            if not self.is_polling and silent_s * 1000 > config.max_poll_interval_ms:
                await self.leave(f"poll() was not called for {silent_s:.1f} seconds (max_poll_interval_ms)", lost=True)
                self._notify()
                continue
            generation = member.generation
            try:
                await self._request(HEARTBEAT, member.heartbeat_request(), timeout_s)
            except RaylogError as error:
                reaction = member.failed(GroupRequest.HEARTBEAT, error, generation=generation)
                if reaction.retry:
                    self._cluster.forget_coordinator(member.group)
                elif reaction.fatal:
                    self._error = error
                self._notify()

    async def _is_beat_due(self) -> bool:
        """Wait until the next heartbeat is due; False = a rebalance ended meanwhile, and it may be due earlier now."""
        pause_s = self._config.heartbeat_interval_ms / 1000
        if self._now_s() < self._follow_up_until_s:
            pause_s = min(pause_s, FOLLOW_UP_BEAT_S)
        self._has_synced.clear()
        try:
            async with asyncio.timeout(pause_s):
                await self._has_synced.wait()
        except TimeoutError:
            return True
        return False

    async def leave(self, reason: str, *, lost: bool = False, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Send LeaveGroup, so that the other members need not wait for the session timeout.

        `lost`: the partitions have still to be given up, as lost ones.
        """
        member = self.membership
        request = member.leave_request()
        member.lose(reason, member_too=True)
        if not lost:
            member.lost = False
        if request is not None:
            try:
                await self._request(LEAVE_GROUP, request, timeout_s)
            except RaylogError:
                pass  # the session timeout has the same effect

    def stop(self) -> list[asyncio.Task[Any]]:
        """Cancel the tasks; return those that have still to end."""
        self._is_closed = True
        tasks = super().stop()
        if self._work is not None and not self._work.done():
            self._work.cancel()
            tasks.append(self._work)
        return tasks

    async def close(self) -> None:
        """End the tasks. Does not leave the group."""
        tasks = self.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        work = self._work
        if work is not None and work.done() and not work.cancelled():
            error = work.exception()  # no turn follows that would raise it
            if error is not None and not isinstance(error, RaylogError):
                logger.error("The last request of group %s failed.", self.membership.group, exc_info=error)

    @property
    def _request_s(self) -> float:
        return self._config.request_timeout_ms / 1000

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


async def look_up_topics(cluster: ClusterClient, group: str, topics: Sequence[str], timeout_s: float) -> None:
    """Fetch the topics that a member subscribes to. Raises UnknownTopicOrPartition if none of them exists.

    If only some are missing, a warning is logged; they are added when they are created.
    """
    answers = await outcomes(partial(cluster.topic, timeout_s=timeout_s), topics)
    missing = [answer for answer in answers if isinstance(answer, UnknownTopicOrPartition)]
    for answer in answers:
        if isinstance(answer, BaseException) and (len(missing) == len(topics) or answer not in missing):
            raise answer
    for error in missing:
        logger.warning("Group %s goes on without a topic: %s", group, error.message)
