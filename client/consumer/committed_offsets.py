"""Offsets: looked up from partition leaders (`list_offsets`), fetched from and committed to the group's coordinator.

Used by `engine.py` and `group_session.py`. May touch: the network.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from raylog.base.errors import (
    CommitFailed,
    InvalidGroupId,
    RaylogError,
    RebalanceInProgress,
    RequestTimedOut,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicOrPartition,
    from_code,
)
from raylog.base.ids import TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.group.consumer_membership import ConsumerMembership
from raylog.client.group.membership import GroupRequest, Membership
from raylog.client.reading.isolation import LEVELS
from raylog.client.tasks import outcomes
from raylog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, OffsetAndTimestamp
from raylog.client.user_code import USER_ERRORS
from raylog.protocol.groups import (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetFetchResult,
)
from raylog.protocol.replica import ListOffsetsReply

logger = logging.getLogger(__name__)

EPOCH_PAUSE_S = 0.02
"""Pause before offsets are fetched again with the member's next epoch."""


async def list_offsets(
    cluster: ClusterClient, wanted: Mapping[TopicPartition, int], isolation_level: str, *, timeout_s: float
) -> dict[TopicPartition, OffsetAndTimestamp | RaylogError | None]:
    """The first offset at or after each timestamp (ms, or EARLIEST, LATEST, MAX_TIMESTAMP); None = no such record.

    `isolation_level` limits LATEST to what such consumers can read. Requests go to all leaders at once; for a partition
    whose leader does not answer, the error is returned.
    """
    partitions = list(wanted)

    async def at(where: TopicPartition) -> ListOffsetsReply:
        level = LEVELS[isolation_level]
        return await cluster.list_offset(where, wanted[where], timeout_s=timeout_s, isolation_level=level)

    answers = await outcomes(at, partitions)
    found: dict[TopicPartition, OffsetAndTimestamp | RaylogError | None] = {}
    for partition, answer in zip(partitions, answers, strict=True):
        if isinstance(answer, RaylogError):
            found[partition] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[partition] = (
                None if answer.offset < 0 else OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)
            )
    return found


CommitCallback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], RaylogError | None], object]


GroupMember = Membership | ConsumerMembership


class Speaker(NamedTuple):
    """The member and its generation (or member epoch) that a commit carries; without a member (None, -1, "")."""

    member: GroupMember | None
    generation: int
    member_id: str


class CommittedOffsets:
    """The committed offsets of a group. Commits are sent one at a time, in call order."""

    def __init__(
        self,
        cluster: ClusterClient,
        group: str | None,
        *,
        require_stable: bool = False,
        on_commit: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], object] | None = None,
    ) -> None:
        """`require_stable`: `fetch` waits while open transactions have offsets pending (KIP-447).

        `on_commit` is called with the offsets of each successful commit.
        """
        self._on_commit = on_commit
        self._commits = self._commits_failed = 0
        self._commits_s = self._longest_commit_s = 0.0
        self._cluster = cluster
        self._group = group
        self._require_stable = require_stable
        self._one_at_a_time = asyncio.Lock()
        self.stored: dict[TopicPartition, int] = {}
        """The offset that this consumer last committed for each partition."""
        self.membership: GroupMember | None = None
        """The group membership that commits carry; None = a consumer with manual assignment."""

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The committed offset of each partition; None = none.

        With `require_stable` raises UnstableOffsetCommit when a transaction with pending offsets of these partitions
        stays open for all of `timeout_s`; and other RaylogErrors.
        """
        group = self._known_group()
        wanted = [TopicPartition(*each) for each in partitions]
        deadline = Deadline(timeout_s)
        ids, missing = await self._with_ids(wanted, timeout_s)
        if missing is not None and not ids:
            raise missing
        rows_wanted = [OffsetFetchPartition(ids[each], *each) for each in ids]
        rows = await self._fetch(group, rows_wanted, deadline)
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(wanted)
        for row in rows:
            if row.committed_offset >= 0:
                at = TopicPartition(row.topic, row.partition)
                found[at] = OffsetAndMetadata(
                    row.committed_offset, row.committed_metadata, row.committed_leader_epoch, ids[at]
                )
        return found

    async def _fetch(
        self, group: str, partitions: list[OffsetFetchPartition], deadline: Deadline
    ) -> list[OffsetFetchResult]:
        """Fetch offsets; a member of the consumer protocol sends its epoch, so that no former coordinator answers."""
        while True:
            member = self.membership
            identity = member.commit_identity if isinstance(member, ConsumerMembership) else (-1, "")
            epoch, member_id = identity if identity[0] >= 0 else (-1, "")
            request = OffsetFetchRequest(group, partitions, self._require_stable, member_id, epoch)
            try:
                return await self._cluster.call_coordinator(group, OFFSET_FETCH, request, timeout_s=deadline.left_s)
            except (StaleMemberEpoch, UnknownMemberId):
                if deadline.left_s <= EPOCH_PAUSE_S:
                    raise
                await asyncio.sleep(EPOCH_PAUSE_S)  # the next heartbeat's answer will have the new epoch

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The member and the generation for an offset commit in a transaction.

        Raises InvalidGroupId without a group, CommitFailed when a subscribed consumer is not a member at the moment.
        """
        group = self._known_group()
        member, generation, member_id = self.speaker()
        if member is None:
            return ConsumerGroupMetadata(group)
        if generation < 0:
            raise _not_a_member(group, member)
        return ConsumerGroupMetadata(group, generation, member_id, member.instance_id)

    def speaker(self) -> Speaker:
        """The present member and generation, for a commit that starts now."""
        member = self.membership
        return Speaker(None, -1, "") if member is None else Speaker(member, *member.commit_identity)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        timeout_s: float,
        speaker: Speaker | None = None,
    ) -> None:
        """Store the offsets. Raises CommitFailed when the group has rebalanced, other RaylogErrors as they are.

        `speaker` is fixed when commit is called. A commit may wait for others; if its generation has ended by then, it
        must not count in the next one, where its partitions may belong to other members. Offsets of topics and
        partitions that do not exist, or were created again since they were read, fail with UnknownTopicOrPartition
        after all others were stored.
        """
        group = self._known_group()
        if not offsets:
            return
        speaker = speaker or self.speaker()
        began_s = time.monotonic()
        try:
            await self._commit(group, offsets, speaker, timeout_s)
        except RaylogError:
            self._commits_failed += 1
            raise
        took_s = time.monotonic() - began_s
        self._commits += 1
        self._commits_s += took_s
        self._longest_commit_s = max(self._longest_commit_s, took_s)

    async def _commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], speaker: Speaker, timeout_s: float
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s), self._one_at_a_time:
                ids, missing = await self._with_ids(offsets, timeout_s)
                for each in [each for each, topic_id in ids.items() if offsets[each].topic_id not in ("", topic_id)]:
                    del ids[each]
                    missing = UnknownTopicOrPartition(
                        f"Topic {each.topic!r} was deleted and created again since the records below this offset were "
                        "read; the next poll begins with the new one."
                    )
                ids, missing = await self._existing(ids, missing, timeout_s)
                rows = [
                    OffsetCommitPartition(
                        ids[each], *each, offsets[each].offset, offsets[each].leader_epoch, offsets[each].metadata
                    )
                    for each in ids
                ]
                if rows:
                    await self._commit_rows(group, speaker, rows, timeout_s)
                    self.stored |= {each: offsets[each].offset for each in ids}
                    if self._on_commit is not None:
                        self._on_commit({each: offsets[each] for each in ids})
        except TimeoutError:
            raise RequestTimedOut(
                f"The offsets of group {group!r} were not committed within {timeout_s:g} seconds; try again."
            ) from None
        if missing is not None:
            raise missing

    def metrics(self) -> dict[str, float]:
        """Metrics of commits, by Kafka's names; times in milliseconds."""
        return {
            "commit-total": self._commits,
            "commit-error-total": self._commits_failed,
            "commit-latency-avg": 1000 * self._commits_s / max(1, self._commits),
            "commit-latency-max": 1000 * self._longest_commit_s,
        }

    async def commit_and_report(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        callback: CommitCallback | None,
        speaker: Speaker,
        *,
        timeout_s: float,
    ) -> None:
        """Commit, and report the result to `callback(offsets, error or None)` instead of raising."""
        error: RaylogError | None = None
        try:
            await self.commit(offsets, timeout_s=timeout_s, speaker=speaker)
        except RaylogError as failure:
            error = failure
        report_commit(offsets, callback, error)

    async def _commit_rows(
        self, group: str, speaker: Speaker, rows: list[OffsetCommitPartition], timeout_s: float
    ) -> None:
        member, generation, member_id = speaker
        instance_id = None if member is None else member.instance_id
        if member is not None and generation < 0:
            # The coordinator would take a commit without a generation for a manual one, and might accept it.
            raise _not_a_member(group, member)
        try:
            request = OffsetCommitRequest(group, generation, member_id, rows, instance_id)
            results = await self._cluster.call_coordinator(group, OFFSET_COMMIT, request, timeout_s=timeout_s)
        except RaylogError as error:
            if member is None:
                raise
            keeps = member.is_cooperative and member.is_joining
            reaction = member.failed(GroupRequest.COMMIT, error, generation=generation)
            if reaction.retry or reaction.fatal:
                raise
            if keeps:
                raise RebalanceInProgress(
                    f"Group {group!r} rebalances, and this member keeps its partitions meanwhile ({error.message}); "
                    "call poll(), which completes the rebalance, and commit again.",
                    **{"group": group, **error.details},
                ) from error
            named = {} if instance_id is None else {"group_instance_id": instance_id}
            raise CommitFailed(
                f"The commit of group {group!r} was refused ({error.message}); records since the last commit will be "
                "read again. Poll more often, or raise max_poll_interval_ms.",
                **{"group": group, "member_id": member_id, "member_generation": generation, **named, **error.details},
            ) from error
        for row in results:
            if row.error_code:
                where = f"{row.topic}-{row.partition}"
                raise from_code(
                    row.error_code, f"The offset of {where} was refused by group {group!r} (error {row.error_code})."
                )

    async def _existing(
        self, ids: Mapping[TopicPartition, str], missing: UnknownTopicOrPartition | None, timeout_s: float
    ) -> tuple[dict[TopicPartition, str], UnknownTopicOrPartition | None]:
        """The partitions that exist in their topics, and the error for one that does not (or `missing`)."""
        found: dict[TopicPartition, str] = {}
        for each, topic_id in ids.items():
            try:
                await self._cluster.topic_with(*each, timeout_s=timeout_s, may_create=False)
                found[each] = topic_id
            except UnknownTopicOrPartition as error:
                missing = error
        return found, missing

    async def _with_ids(
        self, partitions: Iterable[TopicPartition], timeout_s: float
    ) -> tuple[dict[TopicPartition, str], UnknownTopicOrPartition | None]:
        """The topic id of each partition whose topic exists, and the error for a topic that does not exist."""
        wanted = [TopicPartition(*each) for each in partitions]
        topics = sorted({each.topic for each in wanted})
        answers = await outcomes(partial(self._cluster.topic, timeout_s=timeout_s, may_create=False), topics)
        ids: dict[str, str] = {}
        missing: UnknownTopicOrPartition | None = None
        for topic, answer in zip(topics, answers, strict=True):
            if isinstance(answer, UnknownTopicOrPartition):
                missing = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                ids[topic] = answer.topic_id
        return {each: ids[each.topic] for each in wanted if each.topic in ids}, missing

    def _known_group(self) -> str:
        if not self._group:
            raise InvalidGroupId("Committed offsets belong to a group; give the consumer a group_id.")
        return self._group


def report_commit(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: CommitCallback | None, error: RaylogError | None
) -> None:
    """Call a commit's callback, if there is one; an error that it raises is only logged."""
    if callback is not None:
        try:
            callback(offsets, error)
        except USER_ERRORS:  # an error in the user's callback must not fail this consumer
            logger.exception("The callback of a commit raised an error.")


def _not_a_member(group: str, member: GroupMember) -> CommitFailed:
    why = member.rejoin_reason or "it missed a round"
    return CommitFailed(
        f"This consumer is not a member of group {group!r} at the moment ({why}); its partitions may belong to others. "
        "poll() joins again; poll more often or raise max_poll_interval_ms.",
        group=group,
    )
