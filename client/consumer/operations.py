"""The public methods of `AsyncConsumer` and `Consumer`, except those that read records.

Each of the two owns a `ConsumerEngine`. The methods of `ConsumerState` run in the caller's thread; those of
`Operations` run on the engine's loop: `AsyncConsumer` inherits them, and `Consumer` calls them there through
`runtime.blocking`. May touch: the network.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal, overload

from raylog.base.errors import InvalidRequest, RaylogError
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.arguments import checked_offset, checked_partition
from raylog.client.checked import checks_arguments, moments_of_partitions
from raylog.client.consumer.committed_offsets import list_offsets
from raylog.client.consumer.engine import ConsumerEngine
from raylog.client.consumer.listener import CallbackWaiter, RebalanceListener
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.metrics import ClientMetrics
from raylog.client.scheduling import Moment
from raylog.client.tasks import side_by_side
from raylog.client.types import ConsumerGroupMetadata, EpochEndOffset, OffsetAndMetadata, OffsetAndTimestamp
from raylog.protocol.replica import OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest

Offsets = Mapping[TopicPartition, "OffsetAndMetadata | int"]


class ConsumerState:
    """What any thread may read of a consumer: each number has only one writer."""

    def __init__(self, engine: ConsumerEngine) -> None:
        self._engine = engine
        self.config = engine.config

    @property
    def _iteration_s(self) -> float:
        """How long an iteration waits for a record before it ends; infinity = without a limit."""
        wait_ms = self.config.consumer_timeout_ms
        return math.inf if wait_ms is None else wait_ms / 1000

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions."""
        return set(self._engine.assignment.states)

    def topic_id(self, topic: str) -> str:
        """The id of a topic as known now, "" = not known. It changes when the topic is deleted and created again."""
        info = self._engine.cluster.metadata.topic(topic)
        return "" if info is None else info.topic_id

    def subscription(self) -> set[str]:
        """The subscribed topics; with a pattern, those that match it now."""
        return set(self._engine.assignment.topics)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {each for each, state in self._engine.assignment.states.items() if state.is_paused_by_user}

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark of the last fetch of an assigned partition; None before the first."""
        found = self._engine.assignment.state(partition).high_watermark
        return None if found < 0 else found

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Records from the position to the end offset, as of the last fetch (KIP-695); None if not known yet.

        The end offset is the one that `end_offsets` returns. Raises InvalidRequest for a partition that is not
        assigned.
        """
        return self._engine.assignment.state(partition).lag

    def metrics(self) -> ClientMetrics:
        """Current metrics, by Kafka's names, and those of each assigned partition.

        `records-lag-max`, `records-lag` (the sum), `records-lead-min`, `assigned-partitions`, `fetch-buffered-bytes`,
        `records-consumed-total` and `bytes-consumed-total` (of batches opened so far), `commit-total`,
        `commit-error-total`, `commit-latency-avg`, `commit-latency-max` (in ms). Partitions with an unknown lag are
        left out. `records-lead-min` is infinite while no lead is known.
        """
        engine = self._engine
        states = list(engine.assignment.states.values())
        lags = [lag for state in states if (lag := state.lag) is not None]
        leads = [lead for state in states if (lead := state.lead) is not None]
        values = {
            "records-lag-max": max(lags, default=0),
            "records-lag": sum(lags),
            "records-lead-min": min(leads, default=float("inf")),
            "assigned-partitions": len(states),
            "fetch-buffered-bytes": sum(state.memory_bytes for state in states),
            "records-consumed-total": engine.assignment.consumed_records
            + sum(state.consumed_records for state in states),
            "bytes-consumed-total": engine.assignment.consumed_bytes + sum(state.consumed_bytes for state in states),
        }
        return ClientMetrics(
            values | engine.committed.metrics(),
            time.monotonic(),
            partitions={state.partition: _of_partition(state) for state in states},
        )


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidRequest(f"The pattern {pattern!r} is no regular expression: {error}.") from None


@checks_arguments()
class Operations(ConsumerState):
    """The methods that run on the engine's loop: subscription, positions, commits and look-ups of offsets."""

    # Subscription

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
        on_assigned: CallbackWaiter | None = None,
        on_revoked: CallbackWaiter | None = None,
        on_lost: CallbackWaiter | None = None,
    ) -> None:
        """Read these topics, or those whose whole name matches the regular expression `pattern`.

        With a group_id the partitions are shared among the group's members, and poll() calls the listener when the
        assignment changes (of a Consumer in the polling thread). Without a group_id all partitions are read. Replaces
        an earlier subscription. Raises InvalidRequest after assign(), and for a bad pattern.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        if bool(names) == (pattern is not None):
            raise InvalidRequest("subscribe() takes topics or a pattern: one of the two.")
        self._engine.subscribe(names, None if pattern is None else _compiled(pattern))
        self._engine.listener.set(listener, on_assigned, on_revoked, on_lost)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without sharing them. Starts at committed offsets if there is a group_id.

        Raises InvalidRequest after subscribe().
        """
        self._engine.assign([checked_partition(each) for each in partitions])

    # Positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position to this offset. Raises InvalidRequest for a partition that is not assigned."""
        if type(offset) is not int:
            raise TypeError(f"An offset must be an int, not {offset!r:.100}.")
        if offset < 0:
            raise InvalidRequest(
                f"An offset may not be negative: {offset}. seek_to_beginning() goes to the first record."
            )
        state = self._engine.assignment.state(partition)
        state.move_to(offset)
        state.read_topic_id = ""
        self._engine.restart(state)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Move the position to the first record in the log; without arguments in all assigned partitions."""
        await self._seek_to(partitions, Start.EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Move the position after the last record; without arguments in all assigned partitions."""
        await self._seek_to(partitions, Start.LATEST)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Move the position to the committed offset; without arguments in all assigned partitions.

        A partition without a committed offset starts as a new one does, by auto_offset_reset.
        """
        await self._seek_to(partitions, Start.COMMITTED)

    async def _seek_to(self, partitions: Iterable[TopicPartition], start: Start) -> None:
        engine = self._engine
        states = [engine.assignment.state(each) for each in partitions or engine.assignment.states]
        for state in states:
            state.find_start(start)
            state.read_topic_id = ""
            engine.restart(state)
        for state in states:  # look up now: LATEST means the end at this moment, not at the next poll
            await engine.position(state, self._api_s)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that a poll returns. Raises RequestTimedOut after default_api_timeout_ms."""
        return await self._engine.position(self._engine.assignment.state(partition), self._api_s)

    async def commit(self, offsets: Offsets | None = None, *, timeout_s: float | None = None) -> None:
        """Store offsets for the group: those given, or the positions of all assigned partitions.

        Raises CommitFailed when the group has rebalanced meanwhile, InvalidGroupId without a group_id.
        """
        self._engine.cluster.check_started()
        limit_s = self._api_s if timeout_s is None else timeout_s
        await self._engine.committed.commit(self._offsets(offsets), timeout_s=limit_s)

    def commit_nowait(
        self,
        offsets: Offsets | None = None,
        callback: Callable[[Mapping[TopicPartition, OffsetAndMetadata], RaylogError | None], object] | None = None,
    ) -> None:
        """Commit as `commit` does, without waiting; `callback(offsets, error or None)` is called at the end.

        The callback runs on the event loop; for a `Consumer`, in the client's own thread.
        """
        self._engine.cluster.check_started()
        self._engine.commit_later(self._offsets(offsets), callback)  # type: ignore[unused-awaitable]  # the engine's own

    def _offsets(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._engine.positions()
        checked = {(at := checked_partition(each)): checked_offset(at, offset) for each, offset in offsets.items()}
        return self._engine.with_epochs(checked)

    @overload
    async def committed(self, partition: TopicPartition, metadata: Literal[False] = False) -> int | None: ...
    @overload
    async def committed(self, partition: TopicPartition, metadata: Literal[True]) -> OffsetAndMetadata | None: ...
    async def committed(self, partition: TopicPartition, metadata: bool = False) -> int | OffsetAndMetadata | None:
        """The group's committed offset, with its metadata text if `metadata`; None when there is none."""
        found = await self._engine.committed.fetch([partition], timeout_s=self._api_s)
        stored = found[TopicPartition(*partition)]
        return stored if metadata or stored is None else stored.offset

    def group_metadata(self) -> ConsumerGroupMetadata:
        """This consumer's group, member id and generation, for `Producer.send_offsets_to_transaction`.

        Raises InvalidGroupId without a group_id, and CommitFailed while a subscribed consumer is not a member.
        """
        return replace(self._engine.committed.group_metadata(), topic_ids=self._engine.read_topic_ids())

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until resume(); group membership continues."""
        self._pause(partitions, True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        self._pause(partitions, False)

    def _pause(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        """Pause or resume: a paused partition neither returns nor fetches records, and keeps buffered ones."""
        engine = self._engine
        for state in [engine.assignment.state(each) for each in partitions]:
            state.pause(paused)
            engine.fetcher.wake(state)
        engine.notify_data()

    # Cluster metadata

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition: of the first record that it still has."""
        return await self._edges(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last readable record of each partition.

        It is the high watermark; with `isolation_level=read_committed` the last stable offset, where the first open
        transaction begins.
        """
        return await self._edges(partitions, LATEST)

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, Moment]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms since 1970, or a datetime with a zone); None when there is none.

        Raises ValueError for a datetime without zone, TypeError, InvalidRequest for a negative time.
        """
        moments: dict[TopicPartition, int] = moments_of_partitions("timestamps", timestamps)
        negative = [each for each, timestamp_ms in moments.items() if timestamp_ms < 0]
        if negative:
            raise InvalidRequest(
                f"Timestamps may not be negative ({negative[0]}); use beginning_offsets or end_offsets."
            )
        return await self._list(moments)

    async def offsets_for_leader_epoch(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEndOffset]:
        """Where the records of a leader epoch end in each partition, as its leader has them (KIP-320).

        If an offset was stored with this epoch and is above the returned end, the records before it were lost.
        """
        wanted = {checked_partition(each): epoch for each, epoch in epochs.items()}
        negative = [each for each, epoch in wanted.items() if epoch < 0]
        if negative:
            raise InvalidRequest(f"A leader epoch may not be negative ({negative[0]}): -1 stands for one not known.")
        found = await side_by_side(lambda each: self._end_of_epoch(each, wanted[each]), wanted)
        return dict(zip(wanted, found, strict=True))

    async def _end_of_epoch(self, partition: TopicPartition, epoch: int) -> EpochEndOffset:
        def request(topic_id: str, number: int, current_epoch: int) -> OffsetForLeaderEpochRequest:
            return OffsetForLeaderEpochRequest(topic_id, number, current_epoch, epoch)

        cluster = self._engine.cluster
        reply, _ = await cluster.call_leader(*partition, OFFSET_FOR_LEADER_EPOCH, request, timeout_s=self._api_s)
        return EpochEndOffset(reply.leader_epoch, reply.end_offset)

    async def _edges(self, partitions: Iterable[TopicPartition], edge: int) -> dict[TopicPartition, int]:
        answers = await self._list(dict.fromkeys(partitions, edge))
        return {each: found.offset for each, found in answers.items() if found is not None}

    async def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        wanted = {TopicPartition(*each): timestamp for each, timestamp in wanted.items()}
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        level = self.config.isolation_level
        for each, answer in (await list_offsets(self._engine.cluster, wanted, level, timeout_s=self._api_s)).items():
            if isinstance(answer, RaylogError):
                raise answer
            found[each] = answer
        return found

    async def partitions_for_topic(self, topic: str) -> set[int]:
        """The numbers of the topic's partitions. Raises UnknownTopicOrPartition, which suggests the nearest name."""
        info = await self._engine.cluster.topic(topic, timeout_s=self._api_s)
        return {each.partition for each in info.partitions}

    async def topics(self) -> set[str]:
        """The names of all topics that are not internal."""
        await self._engine.cluster.refresh(None, timeout_s=self._api_s)
        return {name for name, info in self._engine.cluster.metadata.topics.items() if not info.internal}

    @property
    def _api_s(self) -> float:
        return self.config.default_api_timeout_ms / 1000


def _of_partition(state: PartitionState) -> dict[str, float]:
    """The metrics of an assigned partition; unknown ones are left out."""
    known = {"records-lag": state.lag, "records-lead": state.lead, "position": state.position}
    values: dict[str, float] = {name: value for name, value in known.items() if value is not None}
    return values | {
        "records-consumed-total": state.consumed_records,
        "bytes-consumed-total": state.consumed_bytes,
        "fetch-buffered-bytes": state.memory_bytes,
    }
