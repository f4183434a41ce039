"""Administration of queues: list, describe, reset and delete them, and look at the states of their records.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raylog.base.errors import GroupIdNotFound, InvalidRequest, NonEmptyGroup, did_you_mean
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.core.coordinators.hashing import coordinator_partition
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


class AsyncQueues:
    """Queue methods of `AsyncAdmin`."""

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
