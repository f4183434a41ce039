"""Requests the groups of one node's coordinators, and from the partitions' leaders the offsets for the lag.

A coordinator runs on one node, and only that node's page has its groups, so that each group is reported once. When it
ends because they are not used, the page keeps them, so that a group whose members have all stopped does not vanish.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from raylog.actors.clock import monotonic_ms
from raylog.actors.metrics.collector import Endpoint, Inquiries
from raylog.core.ids import LATEST, TopicPartition
from raylog.core.metadata.image import Coordinator, MetadataImage
from raylog.core.metrics.exposition import Family
from raylog.core.metrics.families import process_families, unreadable_family
from raylog.core.metrics.groups import EndHistory, GroupCensus, RestingGroups, group_families
from raylog.core.metrics.usage import usage_from_wire

logger = logging.getLogger(__name__)

PROCESS: Final = "coordinator"


class GroupFigures:
    """Metrics of the groups with a coordinator on this node."""

    def __init__(self, inquiries: Inquiries) -> None:
        """``inquiries`` stays its owner's to close."""
        self._inquiries = inquiries
        self._ends = EndHistory()
        self._resting = RestingGroups()

    async def families(self, image: MetadataImage, host: str) -> list[Family]:
        """Return the metrics of the groups of the coordinators that run at this address, or last did."""
        groups = self._resting.groups(image.coordinators.values())
        here: dict[Endpoint, Coordinator] = {
            (coordinator.host, coordinator.port): coordinator
            for coordinator in image.coordinators.values()
            if coordinator.kind == "group" and coordinator.host == host and coordinator.port
        }
        if not here and not groups:
            return []
        answers = await self._inquiries.call({place: ("coordinator_metrics", []) for place in here})
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
        await self._see_ends(image, {partition for group in groups for partition in group.offsets})
        now_ms = monotonic_ms()
        lags = {
            (group.name, partition): lag
            for group in groups
            for partition, committed in group.offsets.items()
            if (lag := self._ends.lag(partition, committed, now_ms)) is not None
        }
        return [*families, *group_families(groups, lags)]

    async def _see_ends(self, image: MetadataImage, partitions: set[TopicPartition]) -> None:
        leaders: dict[Endpoint, TopicPartition] = {}
        questions: dict[Endpoint, tuple[str, object]] = {}
        for partition in partitions:
            state = image.partition(partition)
            leader = None if state is None else state.place(state.leader)
            if state is not None and state.asleep is not None:
                self._ends.saw(partition, state.asleep.end_offset, monotonic_ms())
            if state is not None and leader is not None and leader.port:
                leaders[leader.host, leader.port] = partition
                arguments = [state.topic_id, partition.partition, state.leader_epoch, LATEST]
                questions[leader.host, leader.port] = ("list_offsets", arguments)
        answers = await self._inquiries.call(questions)
        now_ms = monotonic_ms()
        for place, answer in answers.items():
            if isinstance(answer, list) and answer and isinstance(answer[0], int):
                self._ends.saw(leaders[place], answer[0], now_ms)
        self._ends.forget(partitions)


def _census(image: MetadataImage, rows: Iterable[list[object]]) -> list[GroupCensus]:
    """Read the groups of a coordinator; offsets of topics that were deleted since are left out. Raises ValueError."""
    groups = []
    for name, state, members, offsets, *later in rows:
        pending = later[0] if later else 0  # a coordinator of an earlier release reports none
        if not isinstance(members, int) or not isinstance(offsets, list) or not isinstance(pending, int):
            raise ValueError(f"{name!r} is no group")
        known = {
            TopicPartition(topic, partition): offset
            for topic_id, topic, partition, offset, *_ in offsets
            if image.topic(topic, topic_id or None) is not None
        }
        census = GroupCensus(name=str(name), state=str(state), members=members, offsets=known, pending_offsets=pending)
        groups.append(census)
    return groups
