"""A consumer's session in a group of the consumer protocol (KIP-848): heartbeats that carry the assignment.

`consumer_membership.py` decides, this module sends requests. One heartbeat is in flight at all times: the coordinator
answers when there is news. For partitions that the assignment revokes, poll() commits, calls the listener and drops
them, while records of all other partitions are returned; then the next heartbeat confirms the revocation. Owned by
`engine.py`, on its loop. May touch: the network, the loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from raylog.base.errors import RaylogError, UnreleasedInstanceId
from raylog.client.cluster.backoff import Backoff, as_raylog_error
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.group_session import LEAVE_TIMEOUT_S, look_up_topics
from raylog.client.consumer.handover import Handover, PollTurns
from raylog.client.group.consumer_membership import JOIN_EPOCH, ConsumerMembership
from raylog.client.group.membership import GroupRequest
from raylog.protocol.groups import (
    CONSUMER_GROUP_HEARTBEAT,
    ConsumerGroupHeartbeatReply,
    ConsumerGroupHeartbeatRequest,
)

logger = logging.getLogger(__name__)

SHORTEST_PAUSE_S = 0.005
"""The least pause between two heartbeats."""
RELEASE_EXTRA_S = 5.0
"""An instance id that another member still holds so long after the session timeout is in use twice: an error."""


def new_membership(group: str, config: ConsumerConfig) -> ConsumerMembership:
    """A member that has not joined yet, with a new member id."""
    return ConsumerMembership(
        group,
        member_id=f"{config.client_id}-{secrets.token_hex(8)}",
        client_id=config.client_id,
        instance_id=config.group_instance_id,
        assignor=config.group_remote_assignor or "",
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        max_wait_ms=config.heartbeat_interval_ms,
    )


class ConsumerSession(PollTurns[ConsumerMembership]):
    """Drives one member. `turn()` does all that needs no waiting; heartbeats call `notify` when there is more to do."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        membership: ConsumerMembership,
        assignment: Assignment,
        *,
        commit_positions: Callable[[], Awaitable[None]] | None,
        on_assignment: Callable[[], None],
        notify: Callable[[], None],
    ) -> None:
        """`commit_positions` reads the positions when it is called, and is awaited before partitions are revoked.

        None = no automatic commits.
        """
        super().__init__()
        self._cluster = cluster
        self._config = config
        self.membership = membership
        self._assignment = assignment
        self._handover = Handover(
            assignment,
            commit_positions=commit_positions,
            on_assignment=on_assignment,
            notify=notify,
            reads_on=True,
        )
        self._notify = notify
        self._wake = asyncio.Event()
        self._unreleased_since_s: float | None = None

    @property
    def is_steady(self) -> bool:
        """Whether records may be returned: no listener call is due."""
        return self._handover.is_done or self._handover.is_committing

    @property
    def may_commit(self) -> bool:
        """Whether positions may be committed in the background: this consumer is a member."""
        return self.membership.is_stable

    @property
    def needs_turn(self) -> bool:
        """Whether `turn` has to be called before records are returned."""
        if self._error is not None or self.membership.fenced is not None:
            return True
        if self._handover.is_done:
            return not self.membership.is_in_force
        return not self._handover.is_committing

    # Called inside poll()

    def listener_called(self) -> None:
        """The listener was called: continue the change of the assignment."""
        self._handover.called()

    def rejoin(self, reason: str) -> None:
        """The subscription was changed: send it with a heartbeat at once."""
        logger.debug("Group %s: %s", self.membership.group, reason)
        self._wake.set()

    def _advanced(self) -> bool:
        """Do the next step that needs no waiting; False if there is none."""
        member = self.membership
        if not self._handover.is_done:
            return self._handover.advance()
        if member.change is not None:
            member.end_change()
            self._wake.set()
            return True
        if member.is_in_force:
            return False
        change = member.begin_change()
        self._handover.begin(change.partitions, is_lost=change.is_lost, announces=change.announces)
        return True

    # Heartbeats and leaving

    async def _beat(self) -> None:
        """Send one heartbeat after another, until the session ends."""
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        while True:
            try:
                if await self._beat_once():
                    backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
                    await asyncio.sleep(SHORTEST_PAUSE_S)
                    continue
            except Exception as failure:  # any error: this task must not end, or no heartbeat is sent
                if not isinstance(failure, RaylogError):
                    logger.exception("A heartbeat in group %s failed.", self.membership.group)
                self._error = as_raylog_error(failure)
                self._notify()
            await asyncio.sleep(backoff.next_s())

    async def _beat_once(self) -> bool:
        """Send a heartbeat and wait for its answer or for something new to send; False = pause before the next one."""
        member = self.membership
        await self._leave_if_silent()
        is_refused = self._error is not None and member.epoch == JOIN_EPOCH
        # First poll() has to give up lost partitions, or to raise the error of a join (after which the session may be
        # replaced by one of the classic protocol).
        if member.lost or member.fenced is not None or is_refused:
            await self._woken(self._config.heartbeat_interval_ms / 1000)
            return True
        topics = sorted(self._assignment.topics)
        if member.epoch == JOIN_EPOCH:
            await look_up_topics(self._cluster, member.group, topics, self._request_s)
        request = member.heartbeat_request(topics)
        call = asyncio.ensure_future(self._send(request))
        try:
            while not call.done():
                await self._woken(None, call)
                if not call.done() and request.member_epoch != JOIN_EPOCH and self._has_to_speak():
                    member.unanswered()
                    return True
            reply = call.result()
        except RaylogError as error:
            return self._failed(error, request)
        finally:
            call.cancel()
        self._unreleased_since_s = None
        member.answered(request, reply)
        if not member.is_in_force:
            self._notify()
        return True

    def _has_to_speak(self) -> bool:
        return self.membership.has_to_speak(self._assignment.topics)

    async def _woken(self, timeout_s: float | None, *others: asyncio.Future[ConsumerGroupHeartbeatReply]) -> None:
        self._wake.clear()
        wake = asyncio.ensure_future(self._wake.wait())
        waited: set[asyncio.Future[Any]] = {wake, *others}
        try:
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wake.cancel()

    def _failed(self, error: RaylogError, request: ConsumerGroupHeartbeatRequest) -> bool:
        """Handle the error of a heartbeat; return whether the next one may follow at once."""
        member = self.membership
        reaction = member.failed(GroupRequest.HEARTBEAT, error, generation=request.member_epoch)
        if isinstance(error, UnreleasedInstanceId):
            now_s = self._now_s()
            since_s = self._unreleased_since_s = now_s if self._unreleased_since_s is None else self._unreleased_since_s
            if now_s - since_s > self._config.session_timeout_ms / 1000 + RELEASE_EXTRA_S:
                self._error = error
        elif reaction.retry:
            self._cluster.forget_coordinator(member.group)
        elif reaction.fatal:
            self._error = error
        self._notify()
        return reaction.rejoin

    async def _send(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatReply:
        """Send a heartbeat. Its timeout leaves time for another heartbeat within the session timeout."""
        late_s = min(self._request_s, max(1.0, self._config.session_timeout_ms / 3000))
        timeout_s = request.max_wait_ms / 1000 + late_s
        try:
            return await self._cluster.call_coordinator(
                self.membership.group, CONSUMER_GROUP_HEARTBEAT, request, timeout_s=timeout_s
            )
        except RaylogError:
            raise
        except Exception as failure:  # any error: if no next heartbeat were sent, the member would be removed
            raise as_raylog_error(failure) from failure

    async def _leave_if_silent(self) -> None:
        """Leave the group when poll() was not called for longer than max_poll_interval_ms."""
        silent_s = self._now_s() - self.last_poll_s
        is_member = self.membership.is_stable and not self.is_polling
        if is_member and silent_s * 1000 > self._config.max_poll_interval_ms:
            await self.leave(f"poll() was not called for {silent_s:.1f} seconds (max_poll_interval_ms)", lost=True)
            self._notify()

    async def leave(self, reason: str, *, lost: bool = False, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """Leave with a last heartbeat, so that the other members need not wait for the session timeout.

        `lost`: the partitions have still to be given up, as lost ones.
        """
        member = self.membership
        request = member.leave_request()
        member.lose(reason)
        if not lost:
            member.gave_all_back()
        if request is not None:
            try:
                await self._cluster.call_coordinator(
                    member.group, CONSUMER_GROUP_HEARTBEAT, request, timeout_s=timeout_s
                )
            except RaylogError:
                pass  # the session timeout has the same effect

    async def close(self) -> None:
        """End the tasks. Does not leave the group."""
        tasks = self.stop()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    @property
    def _request_s(self) -> float:
        return self._config.request_timeout_ms / 1000

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
