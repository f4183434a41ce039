"""Collects metrics of coordinators: from those of one node, and for the lag of groups from the partitions' leaders.

A coordinator runs on one node, and only that node's page has its groups, so each group is reported once. When a
coordinator ends because it is not used, the page keeps its groups: a group whose members have all stopped does not
vanish.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from raylog.actors.clock import monotonic_ms
from raylog.actors.metrics.collector import Endpoint, MetricsClient
from raylog.base.errors import RaylogError
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.core.metadata.image import Coordinator, MetadataImage
from raylog.core.metrics.exposition import Family
from raylog.core.metrics.families import process_families, transaction_families, unreadable_family
from raylog.core.metrics.groups import EndHistory, GroupCensus, RestingGroups, group_families
from raylog.core.metrics.usage import usage_from_wire
from raylog.core.partition import PartitionState
from raylog.protocol.transactions import TRANSACTION_METRICS, TransactionMetricsReply

logger = logging.getLogger(__name__)

PROCESS: Final = "coordinator"


class GroupFigures:
    """Metrics of the groups with a coordinator on this node."""

    def __init__(self, client: MetricsClient) -> None:
        """``client`` is closed by its owner."""
        self._client = client
        self._ends = EndHistory()
        self._resting = RestingGroups()

    async def families(self, image: MetadataImage, host: str) -> list[Family]:
        """Return the metrics of the groups whose coordinators run at this address, or did so last."""
        resting = self._resting.groups(image.coordinators.values())
        groups = [group.of_topics(lambda name, topic_id: image.topic(name, topic_id) is not None) for group in resting]
        here: dict[Endpoint, Coordinator] = {
            (coordinator.host, coordinator.port): coordinator
            for coordinator in image.coordinators.values()
            if coordinator.kind == "group" and coordinator.host == host and coordinator.port
        }
        if not here and not groups:
            return []
        answers = await self._client.call({place: ("coordinator_metrics", []) for place in here})
        families: list[Family] = []
        for place, answer in answers.items():
            name = f"{here[place].kind}-{here[place].index}"
            try:
                if not isinstance(answer, dict):
                    raise ValueError("no mapping")
                usage = usage_from_wire(answer["process"])
                reported = _census(image, answer["groups"])
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("coordinator %s has figures that cannot be read: %s", name, error)
                continue
            if answer.get("loaded", True):
                self._resting.saw(here[place], reported)
            groups.extend(reported)
            families.extend(process_families(usage, process=PROCESS, coordinator=name))
            families.append(unreadable_family(name, int(answer.get("rows_unreadable", 0))))
        lowest: dict[TopicPartition, int] = {}
        for group in groups:
            for partition, committed in group.offsets.items():
                lowest[partition] = min(committed, lowest.get(partition, committed))
        await self._see_ends(image, lowest)
        now_ms = monotonic_ms()
        lags = {
            (group.name, partition): lag
            for group in groups
            for partition, committed in group.offsets.items()
            if (lag := self._ends.lag(partition, committed, now_ms)) is not None
        }
        return [*families, *group_families(groups, lags)]

    async def _see_ends(self, image: MetadataImage, lowest: Mapping[TopicPartition, int]) -> None:
        """Note the logs' ends, and their starts if a group is behind. ``lowest``: the lowest committed offsets."""
        leaders: dict[Endpoint, tuple[TopicPartition, PartitionState]] = {}
        for partition in lowest:
            state = image.partition(partition)
            leader = None if state is None else state.place(state.leader)
            if state is not None and state.asleep is not None:
                rest = state.asleep
                self._ends.saw(partition, state.topic_id, rest.end_offset, monotonic_ms(), start=rest.log_start_offset)
            if state is not None and leader is not None and leader.port:
                leaders[leader.host, leader.port] = partition, state
        ends = await self._offsets(leaders, LATEST)
        behind = {place: leaders[place] for place, end in ends.items() if lowest[leaders[place][0]] < end}
        starts = await self._offsets(behind, EARLIEST)
        now_ms = monotonic_ms()
        for place, end in ends.items():
            partition, state = leaders[place]
            self._ends.saw(partition, state.topic_id, end, now_ms, start=starts.get(place))
        self._ends.forget(lowest)

    async def _offsets(
        self, leaders: Mapping[Endpoint, tuple[TopicPartition, PartitionState]], timestamp: int
    ) -> dict[Endpoint, int]:
        questions: dict[Endpoint, tuple[str, object]] = {
            place: ("list_offsets", [state.topic_id, partition.partition, state.leader_epoch, timestamp])
            for place, (partition, state) in leaders.items()
        }
        answers = await self._client.call(questions)
        return {
            place: answer[0]
            for place, answer in answers.items()
            if isinstance(answer, list) and answer and isinstance(answer[0], int)
        }


def _census(image: MetadataImage, rows: Iterable[list[object]]) -> list[GroupCensus]:
    """Parse the groups of a coordinator; offsets of topics and partitions that do not exist are left out.

    Raises ValueError.
    """
    groups = []
    for name, state, members, offsets, pending, *_ in rows:
        if not isinstance(members, int) or not isinstance(offsets, list) or not isinstance(pending, int):
            raise ValueError(f"{name!r} is no group")
        known: dict[TopicPartition, int] = {}
        ids: dict[str, str] = {}
        for topic_id, topic, partition, offset, *_ in offsets:
            found = image.topic(topic, topic_id or None)
            # A commit may name partitions that do not exist: these must not become labels of metrics.
            if found is not None and 0 <= partition < len(found.partitions):
                known[TopicPartition(topic, partition)] = offset
                ids[topic] = found.topic_id
        groups.append(
            GroupCensus(
                name=str(name),
                state=str(state),
                members=members,
                offsets=known,
                topic_ids=ids,
                pending_offsets=pending,
            )
        )
    return groups


async def transaction_metrics(client: MetricsClient, image: MetadataImage, host: str) -> list[Family]:
    """Return the metrics of the transaction coordinators that run at this address."""
    here = {
        (found.host, found.port): f"{found.kind}-{found.index}"
        for found in image.coordinators.values()
        if found.kind == "transaction" and found.host == host and found.port
    }
    if not here:
        return []
    families: list[Family] = []
    coordinators: dict[str, TransactionMetricsReply] = {}
    answers = await client.call({place: (TRANSACTION_METRICS.name, []) for place in here})
    for place, answer in answers.items():
        name = here[place]
        try:
            reported = TRANSACTION_METRICS.read_reply(answer)
            usage = usage_from_wire(dict(reported.process))
        except (RaylogError, ValueError, KeyError, TypeError) as error:
            logger.warning("coordinator %s has figures that cannot be read: %s", name, error)
            continue
        families.extend(process_families(usage, process=PROCESS, coordinator=name))
        families.append(unreadable_family(name, reported.rows_unreadable))
        coordinators[name] = reported
    return [*families, *transaction_families(coordinators)]
