"""Administration of what waits in `__scheduled`: delayed records, and half messages that are not decided.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from raylog.base.errors import InvalidRequest, UnknownTopicOrPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.half_messages.checking import HalfVerdict, check_stands, decide
from raylog.client.scheduling import Delay, Handle, Moment, checked_schedule_id, delay_ms, moment_ms, shard_of_half
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.halves import LIST_HALVES, HeldHalf, ListHalvesReply, ListHalvesRequest
from raylog.protocol.scheduling import (
    CANCEL_SCHEDULED,
    DESCRIBE_SCHEDULER,
    FIND_SCHEDULED,
    LIST_SCHEDULED,
    MOVE_SCHEDULED,
    CancelScheduledRequest,
    DescribeSchedulerRequest,
    FindScheduledRequest,
    ListScheduledRequest,
    MoveScheduledRequest,
    ScheduledRecord,
)
from raylog.storage.batch.key_hash import hash_of_key

NO_LIMIT_MS: Final = (1 << 62) - 1
PAGE: Final = 1_000
NOT_FOUND: Final = "NOT_FOUND"


class ScheduleOutcome(StrEnum):
    """The outcome of a request to cancel or move a delayed record."""

    CANCELLED = "CANCELLED"
    MOVED = "MOVED"
    ALREADY_DELIVERED = "ALREADY_DELIVERED"
    """It was due earlier: it is in its topic, or on the way there."""
    ALREADY_CANCELLED = "ALREADY_CANCELLED"
    """It was cancelled, or moved and now has another handle. Remembered until ten minutes after it was due."""
    NOT_FOUND = "NOT_FOUND"
    """No record was ever scheduled under this handle or id, or it is no longer remembered."""


_ENDED: Final = {
    NOT_FOUND: ScheduleOutcome.NOT_FOUND,
    "CANCELLED": ScheduleOutcome.ALREADY_CANCELLED,
    "DELIVERED": ScheduleOutcome.ALREADY_DELIVERED,
}
"""The outcome for a schedule id under which no record waits, by the standing that the scheduler reports."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A delayed record that waits. `partition` None = chosen by its key when it is due. Times in ms since 1970."""

    handle: str
    topic: str
    partition: int | None
    due_ms: int
    sent_ms: int
    key: bytes | None
    value_bytes: int
    schedule_id: str | None = None


@dataclass(frozen=True, slots=True)
class MovedRecord:
    """The outcome of a move, and the present handle and due time (ms since 1970) of the record."""

    outcome: ScheduleOutcome
    handle: str
    due_ms: int


@dataclass(frozen=True, slots=True)
class SchedulerDescription:
    """A partition of ``__scheduled`` as its leader describes it. Times in milliseconds.

    `delivered`, `cancelled` and `lateness_p99_ms` cover the time since the leader started. `parked`: how many records
    are due but wait for their target, by topic and partition (-1 = not known). `clock_step_ms`: how far the machine's
    wall clock was stepped away from the scheduler's own clock (`clock_ms`), which decides when records are due.
    """

    partition: int
    clock_ms: int
    waiting: int
    next_due_ms: int | None
    delivered: int
    cancelled: int
    runs: int
    lateness_p99_ms: int
    clock_step_ms: int
    parked: dict[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class HeldHalfMessage:
    """An undecided half message. Times in milliseconds since 1970.

    `checks`: how many checks ended without a decision. `is_unresolved`: it was checked as often as allowed, and is not
    checked again. `topics`: where its records go, if it is committed.
    """

    group: str
    txid: str
    prepared_ms: int
    next_check_ms: int
    checks: int
    is_unresolved: bool
    topics: tuple[str, ...]
    records: int


class AsyncSchedules:
    """Methods of `AsyncAdmin` for delayed records and half messages."""

    cluster: ClusterClient

    async def cancel_scheduled(
        self,
        handle: str | None = None,
        *,
        topic: str | None = None,
        schedule_id: str | None = None,
        timeout_s: float = 30.0,
    ) -> ScheduleOutcome:
        """Cancel a delayed record, named by its handle, or by its topic and schedule id.

        CANCELLED means that the cancellation is committed, and the record will never be delivered. Raises
        InvalidRequest for a text that is no handle, UnknownTopicOrPartition, ValueError, TypeError.
        """
        deadline = Deadline(timeout_s)
        outcome, _ = await self._by_name_or_handle(handle, topic, schedule_id, deadline, self._cancel)
        return outcome

    async def _cancel(self, named: Handle, deadline: Deadline) -> ScheduleOutcome:
        if not await self._has_schedule(named.partition, deadline.left_s):
            return ScheduleOutcome.NOT_FOUND
        reply, _ = await self.cluster.call_leader(
            SCHEDULED_TOPIC,
            named.partition,
            CANCEL_SCHEDULED,
            lambda topic_id, number, epoch: CancelScheduledRequest(
                topic_id, number, epoch, [named.due_ms], [named.offset]
            ),
            timeout_s=deadline.left_s,
        )
        return _outcome(reply.outcomes[0], ScheduleOutcome.CANCELLED)

    async def reschedule(
        self,
        handle: str | None = None,
        *,
        delay: Delay | None = None,
        deliver_at: Moment | None = None,
        topic: str | None = None,
        schedule_id: str | None = None,
        timeout_s: float = 30.0,
    ) -> MovedRecord:
        """Move a delayed record to another time: `delay` from now, or `deliver_at`.

        It gets a new handle, and keeps its schedule id. Raises InvalidRequest for a text that is no handle,
        DelayTooLong, UnknownTopicOrPartition, ValueError and TypeError.
        """
        if (delay is None) == (deliver_at is None):
            raise ValueError("A record is moved by a delay from now, or to a time: give delay or deliver_at.")
        at_ms = None if deliver_at is None else moment_ms(deliver_at)
        later_ms = 0 if delay is None else delay_ms(delay)

        async def move(named: Handle, deadline: Deadline) -> MovedRecord:
            due_ms = at_ms
            if due_ms is None:
                due_ms = (await self._scheduler(named.partition, deadline.left_s)).clock_ms + later_ms
            return await self._move_scheduled(named, due_ms, deadline.left_s)

        return await self._moved(handle, topic, schedule_id, Deadline(timeout_s), move)

    async def deliver_now(
        self,
        handle: str | None = None,
        *,
        topic: str | None = None,
        schedule_id: str | None = None,
        timeout_s: float = 30.0,
    ) -> MovedRecord:
        """Deliver a delayed record at once; otherwise as `reschedule`."""

        async def move(named: Handle, deadline: Deadline) -> MovedRecord:
            return await self._move_scheduled(named, 0, deadline.left_s)

        return await self._moved(handle, topic, schedule_id, Deadline(timeout_s), move)

    async def find_scheduled(self, topic: str, schedule_id: str, *, timeout_s: float = 30.0) -> Scheduled | None:
        """The delayed record that waits under a schedule id; None = there is none.

        Raises UnknownTopicOrPartition, ValueError, TypeError.
        """
        _, found = await self._found(topic, schedule_id, Deadline(timeout_s))
        return found

    async def list_scheduled(
        self,
        topic: str | None = None,
        *,
        before: Moment | None = None,
        limit: int = 100,
        timeout_s: float = 30.0,
    ) -> list[Scheduled]:
        """At most `limit` waiting records, by due time; only of `topic` and due before `before`, if given."""
        if limit < 1:
            raise InvalidRequest(f"limit={limit}: a list has 1 record or more.")
        deadline = Deadline(timeout_s)
        found: list[Scheduled] = []
        for shard in await self._schedule_shards(topic, deadline):
            found += await self._scheduled_of(shard, topic or "", before, limit, deadline)
        return sorted(found, key=lambda row: (row.due_ms, row.handle))[:limit]

    async def describe_scheduled(
        self, topic: str | None = None, *, timeout_s: float = 30.0
    ) -> list[SchedulerDescription]:
        """The scheduler of one topic's delayed records, or all schedulers; none before the first delayed record."""
        deadline = Deadline(timeout_s)
        return [await self._scheduler(shard, deadline.left_s) for shard in await self._schedule_shards(topic, deadline)]

    # ------------------------------------------------------------ calls

    async def _moved(
        self,
        handle: str | None,
        topic: str | None,
        schedule_id: str | None,
        deadline: Deadline,
        move: Callable[[Handle, Deadline], Awaitable[MovedRecord]],
    ) -> MovedRecord:
        moved: MovedRecord | None = None

        async def once(named: Handle, deadline: Deadline) -> ScheduleOutcome:
            nonlocal moved
            moved = MovedRecord(ScheduleOutcome.NOT_FOUND, str(named), named.due_ms)
            if await self._has_schedule(named.partition, deadline.left_s):
                moved = await move(named, deadline)
            return moved.outcome

        outcome, named = await self._by_name_or_handle(handle, topic, schedule_id, deadline, once)
        if moved is not None and moved.outcome is outcome:
            return moved
        return MovedRecord(outcome, "" if named is None else str(named), -1 if named is None else named.due_ms)

    async def _by_name_or_handle(
        self,
        handle: str | None,
        topic: str | None,
        schedule_id: str | None,
        deadline: Deadline,
        work: Callable[[Handle, Deadline], Awaitable[ScheduleOutcome]],
    ) -> tuple[ScheduleOutcome, Handle | None]:
        """Call `work` for the record with this handle, or for the record that waits under a schedule id.

        The latter may be moved or replaced meanwhile; then `work` is called again for its successor.
        """
        if handle is not None:
            if topic is not None or schedule_id is not None:
                raise ValueError("A record is named by its handle, or by topic and schedule_id: leave out one of both.")
            named = Handle.parse(handle)
            return await work(named, deadline), named
        if topic is None or schedule_id is None:
            raise ValueError("A record is named by its handle, or by topic and schedule_id: give one of both.")
        last: Handle | None = None
        while True:
            standing, found = await self._found(topic, schedule_id, deadline)
            if found is None:
                return _ENDED[standing], last
            named = Handle.parse(found.handle)
            outcome = await work(named, deadline)
            if outcome is not ScheduleOutcome.ALREADY_CANCELLED or named == last:
                return outcome, named
            last = named  # replaced or moved meanwhile

    async def _found(self, topic: str, schedule_id: str, deadline: Deadline) -> tuple[str, Scheduled | None]:
        checked_schedule_id(schedule_id)
        shards = await self._schedule_shards(topic, deadline)
        info = await self.cluster.topic(topic, timeout_s=deadline.left_s)
        if not shards:
            return NOT_FOUND, None
        reply, _ = await self.cluster.call_leader(
            SCHEDULED_TOPIC,
            shards[0],
            FIND_SCHEDULED,
            lambda topic_id, number, epoch: FindScheduledRequest(topic_id, number, epoch, info.topic_id, schedule_id),
            timeout_s=deadline.left_s,
        )
        return reply.standing, None if reply.record is None else _scheduled(shards[0], reply.record)

    async def _schedule_size(self, timeout_s: float) -> int:
        await self.cluster.refresh((SCHEDULED_TOPIC,), timeout_s=timeout_s)
        known = self.cluster.metadata.topic(SCHEDULED_TOPIC)
        return 0 if known is None else len(known.partitions)

    async def _has_schedule(self, partition: int, timeout_s: float) -> bool:
        return partition < await self._schedule_size(timeout_s)

    async def _schedule_shards(self, topic: str | None, deadline: Deadline) -> Sequence[int]:
        count = await self._schedule_size(deadline.left_s)
        if topic is None or not count:
            return range(count)
        await self.cluster.refresh((topic,), timeout_s=deadline.left_s)
        if self.cluster.metadata.topic(topic) is None:
            raise UnknownTopicOrPartition(f"There is no topic {topic!r}.", topic=topic)
        return (hash_of_key(topic.encode()) % count,)

    async def _move_scheduled(self, named: Handle, due_ms: int, timeout_s: float) -> MovedRecord:
        reply, _ = await self.cluster.call_leader(
            SCHEDULED_TOPIC,
            named.partition,
            MOVE_SCHEDULED,
            lambda topic_id, number, epoch: MoveScheduledRequest(
                topic_id, number, epoch, named.due_ms, named.offset, due_ms
            ),
            timeout_s=timeout_s,
        )
        outcome = _outcome(reply.outcome, ScheduleOutcome.MOVED)
        return MovedRecord(outcome, str(Handle(named.partition, named.offset, reply.due_ms)), reply.due_ms)

    async def _scheduled_of(
        self, shard: int, topic: str, before: Moment | None, limit: int, deadline: Deadline
    ) -> list[Scheduled]:
        before_ms = NO_LIMIT_MS if before is None else moment_ms(before, "before")
        found: list[Scheduled] = []
        due_ms = offset = -1
        while (left := limit - len(found)) > 0:
            at, most = (due_ms, offset), min(PAGE, left)

            def request(
                topic_id: str, number: int, epoch: int, at: tuple[int, int] = at, most: int = most
            ) -> ListScheduledRequest:
                return ListScheduledRequest(topic_id, number, epoch, topic, *at, before_ms, most)

            page, _ = await self.cluster.call_leader(
                SCHEDULED_TOPIC, shard, LIST_SCHEDULED, request, timeout_s=deadline.left_s
            )
            found += [_scheduled(shard, row) for row in page.records]
            due_ms, offset = page.looked_due_ms, page.looked_offset
            if due_ms < 0:
                break
        return found

    async def _scheduler(self, shard: int, timeout_s: float) -> SchedulerDescription:
        reply, _ = await self.cluster.call_leader(
            SCHEDULED_TOPIC, shard, DESCRIBE_SCHEDULER, DescribeSchedulerRequest, timeout_s=timeout_s
        )
        return SchedulerDescription(
            partition=shard,
            clock_ms=reply.clock_ms,
            waiting=reply.waiting,
            next_due_ms=None if reply.next_due_ms < 0 else reply.next_due_ms,
            delivered=reply.delivered,
            cancelled=reply.cancelled,
            runs=reply.runs,
            lateness_p99_ms=reply.lateness_p99_ms,
            clock_step_ms=reply.clock_step_ms,
            parked={(row.topic, row.partition): row.waiting for row in reply.parked},
        )

    async def list_half_messages(
        self, group: str | None = None, *, limit: int = 100, timeout_s: float = 30.0
    ) -> list[HeldHalfMessage]:
        """At most `limit` undecided half messages of one group or of all (None), the oldest first."""
        deadline = Deadline(timeout_s)
        found: list[HeldHalf] = []
        for shard in range(await self._half_shards(deadline)):
            found += await self._halves_of(shard, group or "", deadline)
        found.sort(key=lambda row: (row.prepared_ms, row.group, row.txid))
        return [
            HeldHalfMessage(
                row.group,
                row.txid,
                row.prepared_ms,
                row.next_check_ms,
                row.checks,
                row.is_unresolved,
                tuple(row.topics),
                row.records,
            )
            for row in found[:limit]
        ]

    async def commit_half_message(self, group: str, txid: str, *, timeout_s: float = 30.0) -> None:
        """Commit a half message by hand: its records become visible. Repeating it does nothing.

        Raises HalfMessageDecided when it was rolled back before, UnknownHalfMessage.
        """
        await self._decide_half(group, txid, HalfVerdict.COMMIT, timeout_s)

    async def rollback_half_message(self, group: str, txid: str, *, timeout_s: float = 30.0) -> None:
        """Roll a half message back by hand: its records are dropped. Raises as `commit_half_message` does."""
        await self._decide_half(group, txid, HalfVerdict.ROLLBACK, timeout_s)

    async def _half_shards(self, deadline: Deadline) -> int:
        await self.cluster.refresh((SCHEDULED_TOPIC,), timeout_s=deadline.left_s)
        known = self.cluster.metadata.topic(SCHEDULED_TOPIC)
        return 0 if known is None else len(known.partitions)

    async def _halves_of(self, shard: int, group: str, deadline: Deadline) -> Sequence[HeldHalf]:
        found: list[HeldHalf] = []
        while True:
            behind = (found[-1].group, found[-1].txid) if found else ("", "")
            page = await self._page_of_halves(shard, group, behind, deadline)
            found += page.halves
            if len(page.halves) < PAGE:
                return found

    async def _page_of_halves(
        self, shard: int, group: str, behind: tuple[str, str], deadline: Deadline
    ) -> ListHalvesReply:
        reply, _ = await self.cluster.call_leader(
            SCHEDULED_TOPIC,
            shard,
            LIST_HALVES,
            lambda topic_id, number, epoch: ListHalvesRequest(topic_id, number, epoch, group, *behind, PAGE),
            timeout_s=deadline.left_s,
        )
        return reply

    async def _decide_half(self, group: str, txid: str, verdict: HalfVerdict, timeout_s: float) -> None:
        deadline = Deadline(timeout_s)
        shards = await self._half_shards(deadline)
        likely = shard_of_half((group, txid), shards) if shards else 0
        standing, records = "NOT_FOUND", 0
        # Usually it is in its likely shard; in another one only if `__scheduled` has grown since it was prepared.
        for shard in sorted(range(shards), key=lambda number: number != likely):
            reply = await decide(self.cluster, shard, group, [(txid, verdict, -1)], deadline.left_s)
            standing, records = reply.standings[0], reply.records[0]
            if standing != "NOT_FOUND":
                break
        check_stands((group, txid), verdict, standing, records, None)


def _outcome(word: str, done: ScheduleOutcome) -> ScheduleOutcome:
    return done if word == "DONE" else ScheduleOutcome(word)


def _scheduled(shard: int, row: ScheduledRecord) -> Scheduled:
    handle = Handle(shard, row.offset, row.due_ms)
    partition = None if row.target_partition < 0 else row.target_partition
    named = row.schedule_id or None
    return Scheduled(str(handle), row.topic, partition, row.due_ms, row.sent_ms, row.key, row.value_bytes, named)
