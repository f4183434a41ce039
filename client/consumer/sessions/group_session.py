"""A consumer's group session: heartbeats, rebalances step by step, leaving. Owned by `engine.py`, on its loop.

`membership.py` decides, this module sends requests. A rebalance advances only inside poll(), because the listener has
to be called and because records of a partition must not be returned after it is revoked; but the long waits (a join is
parked until all members have come) are separate tasks, so that a poll() with a short timeout can end meanwhile. An
eager member gives its partitions back and then joins; a cooperative one joins, reads on, and then gives back what it
lost. May touch: the network, the loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.failures import Backoff, as_raylog_error
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.sessions.handover import Handover, PollTurns
from raylog.client.group.assignor import Subscription
from raylog.client.group.exchange import read_assignment
from raylog.client.group.membership import Call, Membership
from raylog.client.tasks import outcomes
from raylog.core.errors import MemberIdRequired, RaylogError, UnknownTopicOrPartition
from raylog.core.ids import TopicPartition
from raylog.protocol.groups import DESCRIBE_GROUP, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, DescribeGroupRequest
from raylog.protocol.method import Method, ReplyT, RequestT

logger = logging.getLogger(__name__)

JOIN_EXTRA_S = 5.0
"""A join is parked for as long as the slowest member may take; this margin is for its answer."""
FOLLOW_UP_S = 3.0
"""For so long after a round a cooperative member expects the next one, in which it gets what others gave back ..."""
FOLLOW_UP_BEAT_S = 0.25
"""... and sends heartbeats as often as this, because it learns of the round by their answers."""
LEAVE_TIMEOUT_S = 2.0
"""Timeout for LeaveGroup; after it the coordinator's session timeout applies."""


class Step(Enum):
    """The step of a rebalance."""

    STEADY = "reading"
    GIVING_BACK = "what may not be kept is given back before the join"
    JOINING = "waiting for the next generation"
    TAKING_UP = "what the new generation took is given back, and what it gave is taken"


class GroupSession(PollTurns[Membership]):
    """Drives one member. `turn()` makes all progress possible without a wait; the tasks call `notify` for more."""

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
        """`commit_positions` is awaited before partitions are revoked; None without automatic commits."""
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
        """Partitions by topic at the last assignment by this member as leader; 0 for a topic that does not exist."""
        self._has_synced = asyncio.Event()
        self._follow_up_until_s = 0.0
        self._is_closed = False
        cluster.on_topics_changed(self._topics_changed)

    @property
    def is_steady(self) -> bool:
        """Whether records may be returned: no rebalance is in progress, or one that takes nothing away yet."""
        return self._step is Step.STEADY or (self._step is Step.JOINING and self.membership.is_cooperative)

    @property
    def may_commit(self) -> bool:
        """Whether positions may be committed in the background: this member holds a generation.

        A cooperative one does while it joins, until the round ends; a refused commit then costs nothing.
        """
        member = self.membership
        keeps = member.is_cooperative and member.is_joining
        return (member.is_stable or keeps) and member.commit_identity[0] >= 0

    @property
    def needs_turn(self) -> bool:
        """Whether `turn` has work, or waits for some that poll() may not outrun."""
        member = self.membership
        if self._error is not None or member.fenced is not None:
            return True
        if self._step is Step.JOINING and member.is_cooperative:
            return self._work is None or self._work.done()
        return self._step is not Step.STEADY or member.rejoin_reason is not None

    # Called inside poll()

    def listener_called(self) -> None:
        """The listener call was made; the rebalance continues."""
        self._handover.called()
        call = self._handover.call
        if call is not None and call.kind == "assigned":
            self.membership.has_missed = False  # what it held is dropped: what it holds now it may commit

    def rejoin(self, reason: str) -> None:
        """Join again at the next turn, for instance because the subscription was changed."""
        self.membership.need_rejoin(reason)

    def _advanced(self) -> bool:
        """Do the next step that needs no wait; False when there is none."""
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
        """What stays while this member joins: nothing of an eager one; of a cooperative one what it subscribes to."""
        member, topics = self.membership, self._assignment.topics
        if member.lost or not member.is_cooperative:
            return []
        kept = [each for each in self._assignment.states if each.topic in topics]
        member.gave_back([each for each in self._assignment.states if each.topic not in topics])
        return kept

    def _joined(self) -> bool:
        """Take the round's assignment up, if it has come."""
        member = self.membership
        if self._work is None or not self._work.done():
            return False
        work, self._work = self._work, None
        self._step = Step.STEADY  # a failed join starts again here
        try:
            partitions = work.result()
        except asyncio.CancelledError:  # by a framework that cancels all tasks, not by `stop`
            member.need_rejoin("its last join was cancelled")
            return True
        except Exception as failure:  # any error: without another join the member would wait without a limit
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
        """Join, assign if this member leads, sync; retried until it succeeds or only the user can resolve the error.

        None: the partitions that a cooperative member kept belong to others; they are given up before it joins again.
        """
        member = self.membership
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        while True:
            topics = sorted(self._assignment.topics)
            await look_up_topics(self._cluster, member.group, topics, self._request_s)
            call = Call.JOIN
            try:
                timeout_s = max(self._request_s, member.rebalance_timeout_ms / 1000 + JOIN_EXTRA_S)
                joined = await self._request(JOIN_GROUP, member.join_request(topics), timeout_s)
                rows = member.joined(joined)
                subscriptions = member.subscriptions(rows)
                watched = subscriptions or member.subscriptions(member.unassigned_rows)
                counts = await self._partition_counts(watched)
                call = Call.SYNC
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
        """Whether partitions were added while a static leader was away, so that its old assignment lacks them."""
        member = self.membership
        wanted = {topic for each in subscriptions.values() for topic in each.topics}
        try:
            group = await self._request(DESCRIBE_GROUP, DescribeGroupRequest(member.group), self._request_s)
            given = {each for row in group.members for each in read_assignment(row.assignment)}
        except (RaylogError, ValueError) as error:
            member.need_rejoin(f"the group's assignment is not known ({error})")
            return
        if given != {TopicPartition(topic, number) for topic in wanted for number in range(counts.get(topic, 0))}:
            member.need_rejoin("partitions were added or removed while it was away")

    async def _partition_counts(self, subscriptions: Mapping[str, Subscription]) -> dict[str, int]:
        """Current partitions of every topic that any member subscribes to; unknown topics are left out."""
        topics = {topic for each in subscriptions.values() for topic in each.topics}
        if not topics:
            return {}
        self._cluster.watch(topics)
        await self._cluster.refresh(topics, timeout_s=self._request_s)
        found = {topic: self._cluster.metadata.topic(topic) for topic in sorted(topics)}
        self._counts = {topic: 0 if info is None else len(info.partitions) for topic, info in found.items()}
        return {topic: count for topic, count in self._counts.items() if count}

    def _topics_changed(self, changed: set[str]) -> None:
        """Partitions were added, or a topic was created or deleted: the leader makes all members join again."""
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
        """Send heartbeats while a generation is held; leave the group when the user stops polling."""
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
                reaction = member.failed(Call.HEARTBEAT, error, generation=generation)
                if reaction.retry:
                    self._cluster.forget_coordinator(member.group)
                elif reaction.fatal:
                    self._error = error
                self._notify()

    async def _is_beat_due(self) -> bool:
        """Wait for the next heartbeat; False when a round has ended meanwhile, after which it may be due earlier."""
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
        """Send LeaveGroup, so that the other members need not wait for the session timeout."""
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
        """End the tasks, from now on; returns those that end with the next turns of the loop."""
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
            error = work.exception()  # the last turn is over: nothing else takes it
            if error is not None and not isinstance(error, RaylogError):
                logger.error("The last request of group %s failed.", self.membership.group, exc_info=error)

    @property
    def _request_s(self) -> float:
        return self._config.request_timeout_ms / 1000

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


async def look_up_topics(cluster: ClusterClient, group: str, topics: Sequence[str], timeout_s: float) -> None:
    """Fetch the topics that a member subscribes to. Raises UnknownTopicOrPartition when none exists.

    Otherwise a missing topic is left out, and added when it is created.
    """
    answers = await outcomes(partial(cluster.topic, timeout_s=timeout_s), topics)
    missing = [answer for answer in answers if isinstance(answer, UnknownTopicOrPartition)]
    for answer in answers:
        if isinstance(answer, BaseException) and (len(missing) == len(topics) or answer not in missing):
            raise answer
    for error in missing:
        logger.warning("Group %s goes on without a topic: %s", group, error.message)
