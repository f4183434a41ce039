"""Administration of queues and of dead letters: the states of their records, resets, and redrives, which send them on.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import GroupIdNotFound, InvalidRequest, NonEmptyGroup, did_you_mean
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.arguments import checked_topic
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.core.coordinators.hashing import coordinator_partition
from raylog.core.dead_letters import TOPIC_KEY, TOPIC_PREFIX, UNDELIVERABLE_TOPIC, topic_of_group
from raylog.core.forwarding.rules import check_filters
from raylog.core.forwarding.settings import TOPIC
from raylog.core.queues.origins import PREFIX as RETRY_PREFIX
from raylog.protocol.admin import ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest
from raylog.protocol.forwarding import (
    CANCEL_REDRIVE,
    LIST_REDRIVES,
    START_REDRIVE,
    CancelRedriveRequest,
    ListRedrivesRequest,
    RedriveRow,
    StartRedriveRequest,
)
from raylog.protocol.queues import (
    DELETE_SHARE_STATE,
    LIST_SHARE_STATES,
    QUEUE_DESCRIBE,
    QUEUE_PEEK,
    QUEUE_RESET,
    DeleteShareStateRequest,
    ListShareStatesRequest,
    QueueDescribeRequest,
    QueuePeeked,
    QueuePeekRequest,
    QueueResetRequest,
    ShareState,
)

SHARE_STATE_TOPIC = "__share_state"
PEEK_LIMIT = 100
OFFSETS_END = 2**63
TIMES_FROM = 100_000_000_000
"""Numbers from here on are times in milliseconds since 1970, not offsets: this one is in March 1973."""


FORWARDING_TOPIC: Final = "__forwarding"


ENDED: Final = frozenset({"done", "cancelled"})


@dataclass(frozen=True, slots=True)
class QueueListing:
    """A group's queue on a topic: the partitions on which it has state, and its own settings."""

    group_id: str
    topic: str
    partitions: tuple[int, ...]
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue on one partition, as the partition's leader describes it.

    `start`: offset of the first unfinished record; `end`: one past the last record ever handed out. `backlog`: how many
    readable records are unfinished; `available`: how many of them were never handed out. `is_full`: no further records
    are handed out, because `queue.window.max` are unfinished; `oldest`: the first of these. The counts by state are
    present ones; `counters` count since the leader started.
    """

    group_id: str
    topic: str
    partition: int
    start: int
    end: int
    backlog: int
    available: int
    acquired: int
    waiting: int
    archiving: int
    members: tuple[str, ...]
    settings: Mapping[str, str]
    dead_letter_topic: str
    hottest_key_records: int
    counters: Mapping[str, int]
    held: int = 0
    """How many of the `archiving` records have a dead letter that is too large for its topic."""
    is_full: bool = False
    oldest: QueuedRange | None = None


@dataclass(frozen=True, slots=True)
class QueuedRange:
    """Records of a queue in one state, from offset `first` up to, not including, `end`.

    `left_ms`: how long their lock, or their wait for the next delivery, still lasts; None = neither. `reason` and
    `message` belong to dead letters.
    """

    topic: str
    partition: int
    first: int
    end: int
    state: str
    delivery_count: int
    member_id: str
    left_ms: int | None
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RedriveProgress:
    """How far a redrive is in one partition: from `start` up to `position` it is done, and it ends at offset `end`."""

    partition: int
    start: int
    position: int
    end: int
    sent: int


@dataclass(frozen=True, slots=True)
class Redrive:
    """A redrive: dead letters of `topic` are sent to topic `to`; None = each goes back to its original topic.

    `state`: `running`, `holding` (a target accepts no records at the moment), `cancelling`, `done` or `cancelled`.
    `where` and `rate` as given to `Admin.redrive`. Times in milliseconds since 1970.
    """

    number: int
    topic: str
    to: str | None
    where: Mapping[str, str]
    rate: int
    state: str
    started_ms: int
    ended_ms: int | None
    partitions: tuple[RedriveProgress, ...]

    @property
    def sent(self) -> int:
        """How many records were sent on so far."""
        return sum(partition.sent for partition in self.partitions)

    @property
    def left(self) -> int:
        """How many offsets are still to be looked at."""
        return sum(max(0, partition.end - partition.position) for partition in self.partitions)

    @property
    def has_ended(self) -> bool:
        """Whether its state is `done` or `cancelled`."""
        return self.state in ENDED


@dataclass(frozen=True, slots=True)
class DeadLetterTopic:
    """A topic of dead letters. `sources`: the topics whose dead letters go there, by their own or a queue's settings.

    `records` is an upper bound: the difference between the topic's last and first offsets.
    """

    topic: str
    records: int
    sources: tuple[str, ...]


class AsyncQueues:
    """Methods of `AsyncAdmin` for queues and dead letters."""

    cluster: ClusterClient

    async def list_queues(self, group_id: str | None = None, *, timeout_s: float = 30.0) -> list[QueueListing]:
        """The queues of one group, or of all (None), by group and topic; queues on deleted topics are left out."""
        found: dict[tuple[str, str], list[ShareState]] = {}
        for row in await self._states(group_id or "", Deadline(timeout_s)):
            found.setdefault((row.group_id, row.topic), []).append(row)
        return [
            QueueListing(group, topic, tuple(sorted(row.partition for row in rows)), dict(rows[0].settings))
            for (group, topic), rows in sorted(found.items())
        ]

    async def describe_queue(
        self, group_id: str, topic: str | None = None, *, timeout_s: float = 30.0
    ) -> list[QueueDescription]:
        """The queues of a group on one topic, or on all (None), partition by partition. Raises GroupIdNotFound."""
        deadline = Deadline(timeout_s)
        found: list[QueueDescription] = []
        for partition in await self._partitions(group_id, topic, deadline):
            reply, _ = await self.cluster.call_leader(
                *partition,
                QUEUE_DESCRIBE,
                lambda topic_id, number, epoch: QueueDescribeRequest(topic_id, number, epoch, group_id),
                timeout_s=deadline.left_s,
            )
            found.append(
                QueueDescription(
                    group_id=group_id,
                    topic=partition.topic,
                    partition=partition.partition,
                    start=reply.start,
                    end=reply.end,
                    backlog=max(0, reply.high_watermark - reply.end)
                    + reply.states.get("unfinished", reply.end - reply.start),
                    available=max(0, reply.high_watermark - reply.end),
                    acquired=reply.states.get("acquired", 0),
                    waiting=reply.states.get("waiting", 0),
                    archiving=reply.states.get("archiving", 0),
                    members=tuple(reply.members),
                    settings=dict(reply.settings),
                    dead_letter_topic=reply.dead_letter_topic,
                    hottest_key_records=reply.hottest_key_records,
                    counters=dict(reply.counters),
                    held=reply.states.get("held", 0),
                    is_full=bool(reply.states.get("full", 0)),
                    oldest=next((_range(partition, row) for row in reply.oldest), None),
                )
            )
        return found

    async def peek_queue(
        self,
        group_id: str,
        topic: str | None = None,
        *,
        partition: int | None = None,
        first: int = 0,
        limit: int = PEEK_LIMIT,
        timeout_s: float = 30.0,
    ) -> list[QueuedRange]:
        """Records that are locked, waiting, or finished out of order, from offset `first` on.

        At most `limit` ranges per partition; the call changes nothing. Records after a partition's last range were
        never handed out. Raises GroupIdNotFound.
        """
        deadline = Deadline(timeout_s)
        found: list[QueuedRange] = []
        for place in await self._partitions(group_id, topic, deadline):
            if partition not in (None, place.partition):
                continue
            reply, _ = await self.cluster.call_leader(
                *place,
                QUEUE_PEEK,
                lambda topic_id, number, epoch: QueuePeekRequest(topic_id, number, epoch, group_id, first, limit),
                timeout_s=deadline.left_s,
            )
            found += [_range(place, row) for row in reply.ranges]
        return found

    async def reset_queue(
        self,
        group_id: str,
        topic: str,
        *,
        to: str | int | Mapping[int, int],
        timeout_s: float = 30.0,
    ) -> dict[TopicPartition, int]:
        """Move a group's queue: to "earliest", "latest", an offset, a time, or an offset for each partition.

        Records before the new offset are skipped, records from it on are handed out again. A number of 10^11 or more is
        a time in milliseconds since 1970, and stands for the first record at or after it. Returns the new offsets.
        Raises NonEmptyGroup while the group has members, GroupIdNotFound, InvalidRequest for no such place.
        """
        deadline = Deadline(timeout_s)
        result: dict[TopicPartition, int] = {}
        for place in await self._partitions(group_id, topic, deadline):
            if isinstance(to, Mapping) and place.partition not in to:
                continue
            offset = await self._offset(place, to, deadline)
            result[place] = await self._reset(group_id, place, offset, deadline)
        return result

    async def delete_queue(self, group_id: str, topic: str | None = None, *, timeout_s: float = 30.0) -> None:
        """Delete the state of a group's queue on one topic, or on all (None): later members begin from scratch.

        Its state on deleted topics is deleted as well. Raises NonEmptyGroup, GroupIdNotFound.
        """
        deadline = Deadline(timeout_s)
        states = [row for row in await self._stored_states(group_id, deadline) if topic in (None, row.topic)]
        if not states:
            raise _unknown(group_id, topic)
        if any(self._is_of_now(state) for state in states):
            for row in await self.describe_queue(group_id, topic, timeout_s=deadline.left_s):
                if row.members:
                    raise NonEmptyGroup(f"The queue of {group_id!r} on {row.topic!r} has members; stop them first.")
        for state in states:
            await self._delete(state, deadline)

    async def _reset(self, group_id: str, place: TopicPartition, offset: int, deadline: Deadline) -> int:
        reply, _ = await self.cluster.call_leader(
            *place,
            QUEUE_RESET,
            lambda topic_id, number, epoch: QueueResetRequest(topic_id, number, epoch, group_id, offset),
            timeout_s=deadline.left_s,
        )
        return reply.offset

    async def _delete(self, state: ShareState, deadline: Deadline) -> None:
        await self.cluster.call_leader(
            SHARE_STATE_TOPIC,
            coordinator_partition(state.group_id, self._state_partitions()),
            DELETE_SHARE_STATE,
            lambda topic_id, number, epoch: DeleteShareStateRequest(
                topic_id, number, epoch, state.group_id, state.topic_id, state.partition
            ),
            timeout_s=deadline.left_s,
        )

    async def _offset(self, place: TopicPartition, to: str | int | Mapping[int, int], deadline: Deadline) -> int:
        if isinstance(to, Mapping):
            return _checked(to[place.partition])
        if isinstance(to, str):
            named = {"earliest": EARLIEST, "latest": LATEST}
            if to not in named:
                raise InvalidRequest(did_you_mean("place", to, named))
            return named[to]
        if _checked(to) < TIMES_FROM:
            return to
        found = await self.cluster.list_offset(place, to, timeout_s=deadline.left_s)
        return LATEST if found.offset < 0 else found.offset

    async def _partitions(self, group_id: str, topic: str | None, deadline: Deadline) -> list[TopicPartition]:
        rows = [row for row in await self._states(group_id, deadline) if topic in (None, row.topic)]
        if not rows:
            raise _unknown(group_id, topic)
        return sorted(TopicPartition(row.topic, row.partition) for row in rows)

    async def _states(self, group_id: str, deadline: Deadline) -> Sequence[ShareState]:
        return [row for row in await self._stored_states(group_id, deadline) if self._is_of_now(row)]

    def _is_of_now(self, state: ShareState) -> bool:
        """Whether the topic of this state still exists (compared by topic id)."""
        found = self.cluster.metadata.topic(state.topic)
        return found is not None and found.topic_id == state.topic_id

    async def _stored_states(self, group_id: str, deadline: Deadline) -> Sequence[ShareState]:
        """The stored states, including states of deleted topics. Also refreshes the metadata of their topics."""
        await self.cluster.refresh((SHARE_STATE_TOPIC,), timeout_s=deadline.left_s)
        count = self._state_partitions()
        if not count:
            return []  # no queue was used yet
        found: list[ShareState] = []
        for partition in [coordinator_partition(group_id, count)] if group_id else range(count):
            reply, _ = await self.cluster.call_leader(
                SHARE_STATE_TOPIC,
                partition,
                LIST_SHARE_STATES,
                lambda topic_id, number, epoch: ListShareStatesRequest(topic_id, number, epoch, group_id),
                timeout_s=deadline.left_s,
            )
            found += reply.queues
        topics = {row.topic for row in found}
        if topics:
            await self.cluster.refresh(topics, timeout_s=deadline.left_s)
        return found

    def _state_partitions(self) -> int:
        """Number of partitions of the topic of states, by the metadata; 0: it does not exist."""
        known = self.cluster.metadata.topic(SHARE_STATE_TOPIC)
        return 0 if known is None else len(known.partitions)

    async def dead_letter_topics(self, *, timeout_s: float = 30.0) -> list[DeadLetterTopic]:
        """All dead letter topics: those that settings of topics name, those of groups, and `__undeliverable`."""
        deadline = Deadline(timeout_s)
        await self.cluster.refresh(None, timeout_s=deadline.left_s)
        topics = {info.name: info for info in self.cluster.metadata.topics.values()}
        sources: dict[str, list[str]] = {}
        for name, info in topics.items():
            for key in (TOPIC, TOPIC_KEY):
                if info.config.get(key):
                    sources.setdefault(str(info.config[key]), []).append(name)
        for queue in await self.list_queues(timeout_s=deadline.left_s):
            if not queue.topic.startswith(RETRY_PREFIX):  # dead letters of a retry topic count for the original topic
                settings = {**topics[queue.topic].config, **queue.settings} if queue.topic in topics else queue.settings
                target = str(settings.get(TOPIC_KEY) or topic_of_group(queue.group_id))
                if target in topics and queue.topic not in sources.setdefault(target, []):
                    sources[target].append(queue.topic)
        wanted = sorted(
            name for name in topics if name in sources or name.startswith(TOPIC_PREFIX) or name == UNDELIVERABLE_TOPIC
        )
        found: list[DeadLetterTopic] = []
        for name in wanted:
            records = 0
            for number in range(len(topics[name].partitions)):
                at = TopicPartition(name, number)
                ends = await self.cluster.list_offset(at, LATEST, timeout_s=deadline.left_s)
                starts = await self.cluster.list_offset(at, EARLIEST, timeout_s=deadline.left_s)
                records += max(0, ends.offset - starts.offset)
            found.append(DeadLetterTopic(name, records, tuple(sorted(sources.get(name, ())))))
        return found

    async def redrive(
        self,
        topic: str,
        to: str | None = None,
        *,
        where: Mapping[str, str] | None = None,
        rate: int = 0,
        from_start: bool = False,
        timeout_s: float = 30.0,
    ) -> int:
        """Start to send on the dead letters that a topic holds now; return the number of the redrive.

        They go to topic `to`; None = each back to its original topic. The cluster does the work, whatever happens to
        this client. `where` selects records with these values: `reason`, `topic`, `partition`, `group`, `key`,
        `message`, or `header:<name>`. `rate`: records a second from each partition; 0 = no limit. A redrive without
        `where` begins where the last one ended, unless `from_start`. The dead letters stay in the topic until retention
        or `delete_records` removes them. Raises InvalidRequest, UnknownTopicOrPartition, RedriveRunning.
        """
        found = dict(where or {})
        check_filters(found)
        if not all(isinstance(value, str) for value in found.values()):
            raise InvalidRequest("The values of a filter are texts.")
        deadline = Deadline(timeout_s)
        await self._keeper(deadline)
        checked_topic(topic)
        reply, _ = await self.cluster.call_leader(
            FORWARDING_TOPIC,
            0,
            START_REDRIVE,
            lambda topic_id, number, epoch: StartRedriveRequest(
                topic_id, number, epoch, topic, to or "", found, rate, from_start
            ),
            timeout_s=deadline.left_s,
        )
        return reply.redrive

    async def list_redrives(self, topic: str | None = None, *, timeout_s: float = 30.0) -> list[Redrive]:
        """The running redrives, and those that ended in the last seven days; of one topic, or of all (None)."""
        deadline = Deadline(timeout_s)
        await self.cluster.refresh((FORWARDING_TOPIC,), timeout_s=deadline.left_s)
        if self.cluster.metadata.topic(FORWARDING_TOPIC) is None:
            return []
        reply, _ = await self.cluster.call_leader(
            FORWARDING_TOPIC,
            0,
            LIST_REDRIVES,
            lambda topic_id, number, epoch: ListRedrivesRequest(topic_id, number, epoch, topic or ""),
            timeout_s=deadline.left_s,
        )
        return [_redrive(row) for row in reply.redrives]

    async def describe_redrive(self, number: int, *, timeout_s: float = 30.0) -> Redrive:
        """The redrive with this number. Raises InvalidRequest if there is none."""
        for found in await self.list_redrives(timeout_s=timeout_s):
            if found.number == number:
                return found
        raise InvalidRequest(f"There is no redrive {number}, or it ended more than seven days ago.")

    async def cancel_redrive(self, number: int, *, timeout_s: float = 30.0) -> bool:
        """End a redrive; records that it has sent stay where they are. False = it had already ended.

        Raises InvalidRequest for an unknown number.
        """
        deadline = Deadline(timeout_s)
        await self._keeper(deadline)
        reply, _ = await self.cluster.call_leader(
            FORWARDING_TOPIC,
            0,
            CANCEL_REDRIVE,
            lambda topic_id, partition, epoch: CancelRedriveRequest(topic_id, partition, epoch, number),
            timeout_s=deadline.left_s,
        )
        if reply.outcome == "NOT_FOUND":
            raise InvalidRequest(f"There is no redrive {number}; `raylog dlq redrives` lists them.")
        return reply.outcome == "CANCELLED"

    async def _keeper(self, deadline: Deadline) -> None:
        """Make sure that `__forwarding` exists: its leader keeps the redrives."""
        await self.cluster.call_broker(
            ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest(FORWARDING_TOPIC), timeout_s=deadline.left_s
        )
        await self.cluster.refresh((FORWARDING_TOPIC,), timeout_s=deadline.left_s)


def _unknown(group_id: str, topic: str | None) -> GroupIdNotFound:
    on = "" if topic is None else f" on topic {topic!r}"
    return GroupIdNotFound(f"No consumer has worked as a queue of group {group_id!r}{on} yet.")


def _checked(offset: int) -> int:
    if not min(EARLIEST, LATEST) <= offset < OFFSETS_END:
        raise InvalidRequest(f"{offset} is no offset, and no time: a queue goes on at one from 0 to {OFFSETS_END - 1}.")
    return offset


def _range(place: TopicPartition, row: QueuePeeked) -> QueuedRange:
    left_ms = None if row.left_ms < 0 else row.left_ms
    return QueuedRange(
        *place, row.first, row.end, row.state, row.count, row.member_id, left_ms, row.reason, row.message
    )


def _redrive(row: RedriveRow) -> Redrive:
    return Redrive(
        number=row.redrive,
        topic=row.topic,
        to=row.to or None,
        where=dict(row.where),
        rate=row.rate,
        state=row.state,
        started_ms=row.started_ms,
        ended_ms=None if row.ended_ms < 0 else row.ended_ms,
        partitions=tuple(
            RedriveProgress(each.partition, each.start, each.position, each.end, each.sent) for each in row.partitions
        ),
    )
