"""The core of a consumer, shared by `Consumer` and `AsyncConsumer`: subscription, group, positions, commits, polls.

`AsyncConsumer` awaits `ready`, then takes records. `Consumer` takes them in the user's thread, without a call to the
loop's thread while records are buffered and nothing else is due. The methods `is_smooth`, `expect_signal`, `wait_here`
and `taken` belong to the user's thread, all others to the loop. May touch: the network, the loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from raylog.base.errors import (
    ClientClosed,
    InvalidRequest,
    OffsetOutOfRange,
    RaylogError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.arguments import checked_topic, now_ms
from raylog.client.cluster.backoff import as_raylog_error
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment, Mode
from raylog.client.consumer.committed_offsets import CommitCallback, CommittedOffsets, report_commit
from raylog.client.consumer.fetcher import Fetcher
from raylog.client.consumer.group_session import LEAVE_TIMEOUT_S
from raylog.client.consumer.handover import ListenerCall
from raylog.client.consumer.listener import ListenerCalls
from raylog.client.consumer.newcomers import Newcomers
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.consumer.positions import PositionFinder
from raylog.client.consumer.protocols import Session, SessionMaker
from raylog.client.consumer.topics import SubscribedTopics
from raylog.client.consumer.truncation import CreatedAgain, repair
from raylog.client.interceptors import ConsumerInterceptors, interceptors_of
from raylog.client.reading.decode import BatchOpener
from raylog.client.reading.expiry import Expiry
from raylog.client.reading.local_files import NearReadFailed
from raylog.client.runtime import Signal
from raylog.client.serializers import Deserializer, deserializer
from raylog.client.tasks import Ending, LastingTask, cut_off
from raylog.client.types import OffsetAndMetadata
from raylog.core.forwarding.settings import NEVER, TTL

Result = TypeVar("Result")
logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
"""Default limit for the last commit when a consumer is closed."""
ABANDON_TIMEOUT_S = 2.0
"""Limit for leaving the group when a consumer is garbage collected without close()."""


class ConsumerEngine:
    """One consumer. `start()` before use, `close()` at the end, both on its loop."""

    def __init__(self, config: ConsumerConfig) -> None:
        """Raises InvalidConfig for an unknown deserializer or assignor."""
        self.config = config
        self.cluster = ClusterClient(config)
        key, value = deserializer(config.key_deserializer), deserializer(config.value_deserializer)
        chain = interceptors_of(config.interceptors, "on_consume", "on_commit")
        self._interceptors = ConsumerInterceptors(chain)
        self.assignment = Assignment(
            partial(self._new_state, key, value), self._interceptors.on_consume if chain else None
        )
        self.fetcher = Fetcher(
            self.cluster,
            config,
            self.assignment,
            on_data=self.notify_data,
            on_error=self._keep_error,
        )
        # As in Kafka, stable offsets are required at each isolation level (KIP-447). A member that takes over a
        # partition must not begin at an offset that a pending transaction of the former owner is about to move.
        self.committed = CommittedOffsets(
            self.cluster, config.group_id, require_stable=True, on_commit=self._interceptors.committed
        )
        self._newcomers = Newcomers(self.cluster.metadata)
        self._finder = self._new_finder()
        self._topics = SubscribedTopics(
            self.cluster,
            config,
            self.assignment,
            self._newcomers,
            own=self._own,
            keep=self._keep,
            on_error=self._keep_error,
            notify=self.notify,
        )
        self._sessions = SessionMaker(
            self.cluster,
            config,
            self.assignment,
            commit_positions=self._commit_positions,
            on_assignment=self._assignment_changed,
            notify=self.notify,
        )
        self.group: Session | None = None
        self.listener = ListenerCalls()
        self.is_closed = False
        self._ending = Ending()
        self._wake = asyncio.Event()
        self._signal = Signal()
        """As `_wake`, for a thread that waits in `wait_here`."""
        self._error: RaylogError | None = None
        self._attention = True
        """Whether a turn on the loop is due before records may be taken."""
        self._next_commit_s = math.inf
        self._committing: asyncio.Task[None] | None = None
        self._is_uncommitted = False  # the last automatic commit failed, and a warning was logged
        self._commits: set[asyncio.Task[None]] = set()
        """Commits in flight that no caller awaits."""
        self._abandoned: LastingTask | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._kept: list[LastingTask] = []

    def _new_finder(self) -> PositionFinder:
        return PositionFinder(
            self.cluster,
            self.config,
            self.assignment,
            self.committed,
            self._newcomers,
            on_found=self._position_found,
            own=self._own,
            on_end=self.notify,
            on_error=self._keep_error,
        )

    def _new_state(
        self, key: Deserializer | None, value: Deserializer | None, partition: TopicPartition, start: Start
    ) -> PartitionState:
        config = self.config
        expiry = Expiry(partial(self._ttl_ms, partition.topic), now_ms) if config.skip_expired else None
        opener = BatchOpener(partition, key, value, check_crcs=config.check_crcs, expiry=expiry)
        return PartitionState(partition, opener, start)

    # Lifecycle

    def _ttl_ms(self, topic: str) -> int:
        """A topic's `ttl.ms` by its metadata; -1 = none."""
        info = self.cluster.metadata.topic(topic)
        return NEVER if info is None else int(info.config.get(TTL, NEVER))

    async def start(self, topics: Iterable[str]) -> None:
        """Connect to the cluster, and subscribe to the topics if there are any.

        Raises NoClusterFound, ConnectionFailed, AuthenticationFailed.
        """
        try:
            await self.cluster.start()
            self.cluster.on_topics_changed(lambda _: self.notify())
            if topics:
                self.subscribe(topics)
        except BaseException:  # also when cancelled: close the connections already opened
            await self.cluster.close()
            self.is_closed = True
            raise

    async def last_call(
        self, *, commit: bool, timeout_s: float, failure: BaseException | None = None
    ) -> ListenerCall | None:
        """Before `close`: commit for the last time (if `commit`); return the listener call that is due.

        `failure` is an exception that left the user's `with` block: the records of the last poll are not committed.
        """
        group = self.group
        if commit and self.commits_by_itself and (group is None or group.may_commit):
            offsets = self.positions()
            if failure is not None:
                offsets = self._left(offsets, failure)
            try:
                await self.committed.commit(offsets, timeout_s=timeout_s)
            except RaylogError as error:
                logger.warning("The last positions were not committed; they will be read again: %s", error)
        await self._commits_ended(timeout_s)
        return self._farewell()

    def _farewell(self) -> ListenerCall | None:
        """The listener call for all assigned partitions: "lost" if this member was removed, else "revoked"."""
        group, held = self.group, list(self.assignment.states)
        if group is None or not held:
            return None
        return ListenerCall("revoked" if group.membership.is_stable and not group.membership.lost else "lost", held)

    async def _commits_ended(self, timeout_s: float) -> None:
        """Wait for the commits in flight, and for their callbacks."""
        pending = {task for task in self._commits if not task.done()}
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    async def close(self, *, timeout_s: float) -> None:
        """Leave the group, end all tasks and connections. Does not commit. Idempotent."""
        self.is_closed = True
        self.notify()
        await self._ending.run(self._close, partial(self._leave, min(timeout_s, LEAVE_TIMEOUT_S)))

    async def _leave(self, timeout_s: float) -> None:
        if self.group is not None:
            await self.group.close()
            await self.group.leave("it was closed", timeout_s=timeout_s)

    async def _close(self) -> None:
        if self.group is not None:
            await self.group.close()
        await self.fetcher.close()
        for kept in self._kept:
            kept.cancel()
        tasks = [*self._tasks, *(kept.task for kept in self._kept if not kept.task.done())]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        await self.cluster.close()
        self._interceptors.close()

    @property
    def commits_by_itself(self) -> bool:
        """Whether automatic commits are enabled; they need a group."""
        return self.config.enable_auto_commit and bool(self.config.group_id)

    # Wake-ups of poll()

    def notify_data(self) -> None:
        """Wake poll(): records were received."""
        self._wake.set()
        self._signal.set()

    def notify(self) -> None:
        """Wake poll(): `turn` has work to do."""
        self._attention = True
        self._wake.set()
        self._signal.set()

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _keep_error(self, error: RaylogError) -> None:
        # An unknown topic needs no error here with a group, whose next rebalance drops a deleted topic (or reports that
        # none is left), nor with a pattern, which drops it as well.
        drops = self.group is not None or self.assignment.mode is Mode.PATTERN
        if not drops or not isinstance(error, UnknownTopicOrPartition):
            self._error = error
            self.notify()

    # Subscription

    def subscribe(self, topics: Iterable[str], pattern: re.Pattern[str] | None = None) -> None:
        """Share these topics with the group; without a group read them whole. See `Assignment.subscribe`."""
        names = [checked_topic(topic) for topic in topics]
        if self.assignment.is_subscribed(names, pattern):
            return  # no reason for a rebalance
        self.assignment.subscribe(names, pattern)
        if pattern is None:
            if self.config.auto_offset_reset == "latest":
                self._topics.note(self.assignment.topics)
            self._subscribed()
        else:
            self._topics.follow(pattern, self._subscribed)

    def _subscribed(self) -> None:
        self.cluster.watch(self.assignment.topics)
        if self.config.group_id:
            if self.group is None:
                self._enter(self._sessions.first(self.config.group_id))
            else:
                self.group.rejoin("its subscription was changed")
        self.notify()

    def _enter(self, session: Session) -> None:
        self.group, self.committed.membership = session, session.membership

    def _group_turn(self, group: Session) -> ListenerCall | None:
        """The group's turn. Switches to the other protocol when an error says that the group uses that one."""
        try:
            return group.turn()
        except RaylogError as error:
            found = self._sessions.instead(group, error)
            if found is None:
                raise
        group.stop()
        _ = self._own(group.close())
        self._enter(found)
        found.is_polling = group.is_polling
        return found.turn()

    async def before_unsubscribe(self) -> ListenerCall | None:
        """Before `unsubscribe`: wait for commits in flight; return the listener call that is due."""
        await self._commits_ended(self.config.request_timeout_ms / 1000)
        return self._farewell()

    async def unsubscribe(self) -> None:
        """Drop the subscription and the assignment, and leave the group."""
        group, self.group = self.group, None
        self.committed.membership = None
        self.assignment.clear()
        self._newcomers.forget()
        self._assignment_changed()
        if group is not None:
            await group.close()
            await group.leave("it has unsubscribed")

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions; they begin at committed offsets if there is a group."""
        self.assignment.assign([TopicPartition(*each) for each in partitions], self._first_start)
        self.cluster.watch({each.topic for each in self.assignment.states})
        self._assignment_changed()

    @property
    def _first_start(self) -> Start:
        return Start.COMMITTED if self.config.group_id else Start.POLICY

    def _assignment_changed(self) -> None:
        self.fetcher.follow_assignment()
        if self._next_commit_s == math.inf and self.commits_by_itself:
            self._next_commit_s = time.monotonic() + self.config.auto_commit_interval_ms / 1000
        self.notify()

    def restart(self, state: PartitionState) -> None:
        """Fetch from the new position; a fetch in flight for the old one is dropped."""
        self.fetcher.restart(state)
        self.notify()

    # poll()

    def is_smooth(self) -> bool:
        """Whether records may be taken without a turn on the loop. From the user's thread."""
        now_s = time.monotonic()
        is_due = self._attention or now_s >= self._next_commit_s
        if is_due or self.is_closed or not self.assignment.handing.is_done:
            return False
        if self.group is not None:
            self.group.last_poll_s = now_s
        return True

    def expect_signal(self) -> None:
        """Arm `wait_here`: any event after this call ends its wait. From the user's thread, before it takes."""
        self._signal.clear()

    def wait_here(self, deadline_s: float) -> bool:
        """Wait in the user's thread for an event; False if the deadline, or the time of the next commit, has passed."""
        left_s = min(deadline_s, self._next_commit_s) - time.monotonic()
        if left_s <= 0:
            return False
        group = self.group
        if group is not None:
            group.is_polling = True
        try:
            self._signal.wait(min(left_s, threading.TIMEOUT_MAX))
        finally:
            if group is not None:
                group.is_polling = False
                group.last_poll_s = time.monotonic()
        return True

    def taken(self, take: Callable[[], Result]) -> Result | None:
        """Buffered records, from one of the `take` methods of the assignment; None or empty when there are none.

        From the user's thread, after `is_smooth`, or after `ready` while `may_take`: a poll's time may be over in the
        middle of a rebalance, and records of revoked partitions would be read again by the next owner. Raises as
        `take`.
        """
        handing = self.assignment.handing
        try:
            taken = take()
            if not taken:
                handing.gave_nothing()
            return taken
        except RaylogError as error:
            handing.failed(error)
            self._attention = True
            is_lost = isinstance(error, OffsetOutOfRange) and self.config.auto_offset_reset != "none"
            if is_lost or isinstance(error, CreatedAgain | NearReadFailed):
                return None  # `_repair` resets the position, or requests the records from the leader
            raise

    def abandon(self) -> None:
        """End the tasks of a consumer that was garbage collected without close(). Does not wait."""
        if not self.is_closed:
            self._abandoned = LastingTask(self._abandon, "raylog-abandoned")

    async def _abandon(self) -> None:
        with suppress(RaylogError):
            await self.close(timeout_s=ABANDON_TIMEOUT_S)

    async def ready(self, deadline_s: float, only: Iterable[TopicPartition] = ()) -> ListenerCall | None:
        """Wait for records, for a call of the user's listener that is due (which is returned), or for `deadline_s`."""
        group = self.group
        if group is not None:
            group.is_polling = True
        try:
            while True:
                self._wake.clear()
                call = self.turn()
                if call is not None or (self.may_take and self.assignment.has_records(only)):
                    return call
                left_s = min(deadline_s, self._next_commit_s) - time.monotonic()
                if time.monotonic() >= deadline_s:
                    return None
                try:
                    async with asyncio.timeout(max(0.0, left_s)):
                        await self._wake.wait()
                except TimeoutError:
                    pass  # the next turn handles what is due
        finally:
            group = self.group  # a turn may have replaced it by one of the other protocol
            if group is not None:
                group.is_polling = False
                group.last_poll_s = time.monotonic()

    @property
    def may_take(self) -> bool:
        """Whether records may be returned: no rebalance forbids it."""
        return self.group is None or self.group.is_steady

    def turn(self) -> ListenerCall | None:
        """Do all work that is due, and return the listener call that is due. Raises errors that need the user."""
        if self.is_closed:
            raise ClientClosed("The consumer is closed; make a new one.")
        if self.assignment.mode is Mode.NONE:
            raise InvalidRequest("The consumer has nothing to read; call subscribe() or assign() first.")
        self._attention = True
        self._put_back()
        self._raise_error()
        if self.group is not None:
            call = self._group_turn(self.group)
            if call is not None:
                return call
        elif self.assignment.mode is not Mode.MANUAL and not self.config.group_id and self._topics.assign_all():
            self._assignment_changed()
        self._repair()
        self._finder.begin()
        if time.monotonic() >= self._next_commit_s:
            self._commit_in_background()
        self._attention = self.group is not None and self.group.needs_turn
        return None

    def _put_back(self) -> None:
        """If an earlier poll was interrupted while it took records, move back to what it did not return."""
        if not self.assignment.handing.is_done:
            for state in self.assignment.handing.put_back():
                if self.assignment.states.get(state.partition) is state:
                    self.fetcher.restart(state)

    def listener_called(self) -> None:
        """Continue the rebalance: the listener was called."""
        if self.group is not None:
            self.group.listener_called()
        self.notify()

    def _repair(self) -> None:
        """Reset positions outside the log, and fetch damaged records again, whose error was raised to the user."""
        for state in self.assignment.states.values():
            if repair(state, resets=self.config.auto_offset_reset != "none"):
                self.fetcher.restart(state)

    # Positions

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a commit without arguments stores: for each partition the offset after the last returned record."""
        return self._offsets(self.assignment.handing.returned(self.assignment.states.values()))

    def _offsets(self, positions: Mapping[TopicPartition, int | None]) -> dict[TopicPartition, OffsetAndMetadata]:
        states, known = self.assignment.states, self.cluster.metadata.topics
        return {
            each: OffsetAndMetadata(position, "", states[each].epoch_before(position), states[each].topic_id)
            for each, position in positions.items()
            if position is not None and each.topic in known
        }

    def _left(
        self, returned: Mapping[TopicPartition, OffsetAndMetadata], failure: BaseException
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit when an exception left the user's code: those before the last poll.

        Offsets below a committed one are left out too: the user may have committed record by record.
        """
        stored = self.committed.stored
        before = self._offsets(self.assignment.handing.before_last(self.assignment.states.values()))
        left = {each: given for each, given in before.items() if stored.get(each, -1) < given.offset}
        if any(max(stored.get(at, -1), left[at].offset if at in left else -1) < returned[at].offset for at in returned):
            logger.warning(
                "%s ends the consumer: what the last poll returned is not committed, and will be read again.",
                type(failure).__name__,
            )
        return left

    def with_epochs(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """These offsets with leader epochs and topic ids, as far as they are known.

        By the epoch the next reader recognizes a leader that lacks committed records (KIP-320). By the id a topic is
        distinguished from a later one of the same name.
        """
        states = self.assignment.states
        return {
            at: given
            if at not in states
            else replace(
                given,
                leader_epoch=states[at].epoch_before(given.offset) if given.leader_epoch < 0 else given.leader_epoch,
                topic_id=given.topic_id or states[at].offsets_topic_id,
            )
            for at, given in offsets.items()
        }

    def read_topic_ids(self) -> dict[TopicPartition, str]:
        """For each assigned partition the id of the topic that the records and offsets known to the user are of."""
        return {each: state.offsets_topic_id for each, state in self.assignment.states.items()}

    def _position_found(self, state: PartitionState) -> None:
        self.fetcher.wake(state)
        self.notify_data()

    async def position(self, state: PartitionState, timeout_s: float) -> int:
        """The offset of the next record that a poll returns, looked up if necessary. Raises RequestTimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                while state.position is None:
                    self._wake.clear()
                    self._raise_error()
                    self._finder.begin()
                    await self._wake.wait()
        except TimeoutError:
            raise RequestTimedOut(
                f"The position of {state.partition} was not found within {timeout_s:g} seconds; check that the cluster "
                "runs."
            ) from None
        returned = self.assignment.handing.returned([state])[state.partition]
        return state.position if returned is None else returned

    # Commits

    def commit_later(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None
    ) -> asyncio.Task[None]:
        """Commit offsets without waiting; `callback(offsets, error or None)` is called in the loop's thread."""
        timeout_s, speaker = self.config.request_timeout_ms / 1000, self.committed.speaker()
        task = self._own(self.committed.commit_and_report(offsets, callback, speaker, timeout_s=timeout_s))
        self._commits.add(task)
        task.add_done_callback(partial(self._commit_over, offsets, callback))
        return task

    def _commit_over(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        callback: CommitCallback | None,
        task: asyncio.Task[None],
    ) -> None:
        self._commits.discard(task)
        if task.cancelled():
            report_commit(offsets, callback, cut_off(self.is_closed, "committed"))

    def _commit_positions(self) -> Awaitable[None]:
        """Commit the positions at this moment: records returned later are not processed yet."""
        return self.committed.commit(self.positions(), timeout_s=self.config.request_timeout_ms / 1000)

    def _commit_in_background(self) -> None:
        """Commit automatically: since the user called poll() again, records of earlier polls count as processed."""
        self._next_commit_s = time.monotonic() + self.config.auto_commit_interval_ms / 1000
        positions = self.positions()
        # At most one is in flight, so that commits do not pile up at a slow coordinator.
        may_commit = self._committing is None or self._committing.done()
        if positions and may_commit and (self.group is None or self.group.may_commit):
            self._committing = self.commit_later(positions, self._committed_in_background)

    def _committed_in_background(self, _: object, error: RaylogError | None) -> None:
        # poll() has nothing to raise: a refused commit is followed by a rebalance, a failed one by the next commit.
        if error is not None and not self.is_closed:
            level = logging.DEBUG if self._is_uncommitted else logging.WARNING  # warn once until one succeeds
            logger.log(level, "Positions were not committed; automatic commits go on trying: %s", error)
            self.notify()
        self._is_uncommitted = error is not None

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _keep(self, make: Callable[[], Coroutine[Any, Any, None]], name: str) -> LastingTask:
        self._kept = [kept for kept in self._kept if not kept.done()]
        self._kept.append(kept := LastingTask(make, name))
        return kept

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if not self.is_closed:
                self.notify()  # cancelled from outside: the next turn starts again what is missing
            return
        error = task.exception()
        if error is not None:
            logger.error("A task of the consumer failed.", exc_info=error)
            self._keep_error(as_raylog_error(error))
