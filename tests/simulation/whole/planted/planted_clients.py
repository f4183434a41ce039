"""Bugs planted in producers, consumers and their shared parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.metadata import MetadataCache
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.committed_offsets import CommittedOffsets
from raylog.client.consumer.engine import ConsumerEngine
from raylog.client.consumer.handover import Handover
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.producer.batch import Batch
from raylog.client.producer.delivery import Delivery
from tests.simulation.whole.plan import MINORITY, VOTERS
from tests.simulation.whole.planted.bugs import Bug


def _without_sequence(original: Callable[..., None]) -> Callable[..., None]:
    def encode(self: Batch, compression: Any, producer_id: int, producer_epoch: int, sequence: int) -> None:
        original(self, compression, -1, -1, -1)

    return encode


def _lost_answers_are_good(original: Callable[..., None]) -> Callable[..., None]:
    def refused(self: Delivery, batch: Batch, error: RaylogError) -> None:
        if error.retriable:
            self._stored(batch, 0)
        else:
            original(self, batch, error)

    return refused


def _one_further(original: Callable[..., None]) -> Callable[..., None]:
    return lambda self, batch, base_offset: original(self, batch, base_offset + 1 if base_offset >= 0 else -1)


def _never(_: object) -> Callable[..., None]:
    return lambda *_: None


def _fresh_sequence(original: Callable[..., None]) -> Callable[..., None]:
    """A retried batch has another sequence than the first time."""

    def refused(self: Delivery, batch: Batch, error: RaylogError) -> None:
        original(self, batch, error)
        if self._context.config.enable_idempotence and not batch.is_done and batch in self._line:
            batch.encode_again(self._producer_id, self._producer_epoch, self._next_sequence)
            self._next_sequence += batch.record_count

    return refused


def _last_record_is_skipped(original: Callable[..., Any]) -> Callable[..., Any]:
    def take(self: PartitionState, limit: int) -> Any:
        records = original(self, limit)
        return records[:-1] if len(records) > 20 else records

    return take


def _commit_what_was_fetched(original: Callable[..., Any]) -> Callable[..., Any]:
    def positions(self: ConsumerEngine) -> Any:
        found = original(self)
        for partition, committed in found.items():
            ahead = self.assignment.states[partition].fetch_offset
            found[partition] = type(committed)(max(ahead, committed.offset), "", committed.leader_epoch)
        return found

    return positions


def _commits_half_known(original: Callable[..., Any]) -> Callable[..., Any]:
    """A committed offset is sometimes lost, as if an answer were truncated."""

    async def fetch(self: CommittedOffsets, partitions: Any, *, timeout_s: float) -> Any:
        found = await original(self, partitions, timeout_s=timeout_s)
        return {TopicPartition(*at): None for at in found}

    return fetch


def _no_deadline(_: object) -> Callable[..., Any]:
    async def pause(self: ClusterClient, backoff: Any, deadline: object, error: RaylogError) -> None:
        await asyncio.sleep(backoff.next_s())

    return pause


def _keeps_what_was_revoked(original: Callable[..., Any]) -> Callable[..., Any]:
    """A member that rejoins the group continues with all its earlier partitions."""

    def set_partitions(self: Assignment, partitions: Any, start: Any) -> Any:
        return original(self, [*dict.fromkeys([*self.states, *partitions])], start)

    return set_partitions


def _begins_what_it_keeps_again(original: Callable[..., None]) -> Callable[..., None]:
    """A cooperative member takes its whole assignment for new."""

    def change(self: Handover) -> None:
        if self._announces:
            self._assignment.set_partitions((), Start.COMMITTED)
        original(self)

    return change


def _keeps_its_buffer(original: Callable[..., None]) -> Callable[..., None]:
    """What was fetched before a seek is read after it."""

    def drop(self: PartitionState) -> None:
        waiting = list(self._waiting)
        original(self)
        self._waiting.extend(waiting)

    return drop


def _old_metadata(original: Callable[..., Any]) -> Callable[..., Any]:
    """A client keeps the first metadata it received."""

    def update(self: MetadataCache, answer: Any, *, is_whole: bool = False) -> Any:
        return set() if self.topics else original(self, answer, is_whole=is_whole)

    return update


CLIENT_BUGS: Final = (
    Bug("a producer sends without sequences", Batch, "encode", _without_sequence, ("W14",)),
    Bug("a lost answer counts as stored", Delivery, "_refused", _lost_answers_are_good, ("W4", "W15", "W17")),
    Bug("an answer's offset is one too high", Delivery, "_stored", _one_further, ("W4", "W15", "W17")),
    Bug("a repeated batch gets a fresh sequence", Delivery, "_refused", _fresh_sequence, ("W8", "W14", "W10")),
    Bug(
        "the search for a leader is never begun",
        Delivery,
        "_begin_recovery_when_answered",
        _never,
        ("W16",),
        profile=MINORITY,
    ),
    Bug("the last record of a poll is skipped", PartitionState, "take", _last_record_is_skipped, ("W5", "W9")),
    Bug(
        "a consumer commits what it has fetched",
        ConsumerEngine,
        "positions",
        _commit_what_was_fetched,
        ("W9",),
        profile=MINORITY,
    ),
    Bug("a member forgets committed offsets", CommittedOffsets, "fetch", _commits_half_known, ("W7",)),
    Bug("a call goes on behind its deadline", ClusterClient, "_pause", _no_deadline, ("W1",), profile=VOTERS),
    Bug(
        "a member reads what was taken from it",
        Assignment,
        "set_partitions",
        _keeps_what_was_revoked,
        ("W6", "W5", "W7"),
        seeds=20,
    ),
    Bug(
        "a member begins what it keeps at the committed offset again",
        Handover,
        "_change",
        _begins_what_it_keeps_again,
        ("W5", "W9"),
        seeds=20,
    ),
    Bug("a seek keeps what was fetched before", PartitionState, "_drop", _keeps_its_buffer, ("W5",)),
    Bug("a client keeps its first metadata", MetadataCache, "update", _old_metadata, ("W1", "W8", "W9")),
)
