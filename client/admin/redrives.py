"""Administration of dead letters: list their topics, and start, list and cancel redrives, which send them on.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import InvalidRequest
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.admin.queues import AsyncQueues
from raylog.client.arguments import checked_topic
from raylog.client.cluster.deadline import Deadline
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

FORWARDING_TOPIC: Final = "__forwarding"
ENDED: Final = frozenset({"done", "cancelled"})


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


class AsyncRedrives(AsyncQueues):
    """Methods of `AsyncAdmin` for dead letters."""

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
