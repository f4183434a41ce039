"""Metrics of consumer groups: members, committed offsets, lag in records and in seconds. Pure.

Names are kafka_exporter's. Lag in seconds, which it lacks, is the age of the first record that the group has not
committed: the time since the high watermark was first seen beyond the committed offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from raylog.base.ids import TopicPartition
from raylog.core.metadata.image import Coordinator
from raylog.core.metrics.exposition import Family

MARKS_MAX: Final = 500
"""Marks (time, high watermark) kept for a partition; more than these are thinned out."""
COARSENESS: Final = 0.1
"""Least time between two marks after thinning, as a share of the later one's age; a year then takes 180 marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCensus:
    """One group as its coordinator knows it. ``offsets``: the next offset to read, by partition.

    ``topic_ids``: the id of each topic in ``offsets``, by name. ``pending_offsets``: how many offsets open transactions
    are about to commit.
    """

    name: str
    state: str
    members: int
    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    pending_offsets: int = 0

    def of_topics(self, exists: Callable[[str, str], bool]) -> GroupCensus:
        """Return the group without the offsets of topics for whose (name, id) ``exists`` is False."""
        deleted = {name for name, topic_id in self.topic_ids.items() if not exists(name, topic_id)}
        if not deleted:
            return self
        offsets = {partition: offset for partition, offset in self.offsets.items() if partition.topic not in deleted}
        ids = {name: topic_id for name, topic_id in self.topic_ids.items() if name not in deleted}
        return replace(self, offsets=offsets, topic_ids=ids)


class RestingGroups:
    """The groups of coordinators that have ended since they were last reported.

    Nothing about them changes until another incarnation starts: they have no members, and their offsets stay.
    """

    def __init__(self) -> None:
        """Know no coordinator."""
        self._last: dict[tuple[str, int], tuple[int, list[GroupCensus]]] = {}

    def saw(self, coordinator: Coordinator, groups: Iterable[GroupCensus]) -> None:
        """Note the groups that a coordinator has reported."""
        key = (coordinator.kind, coordinator.index)
        self._last[key] = coordinator.epoch, [replace(group, state="Empty", members=0) for group in groups]

    def groups(self, coordinators: Iterable[Coordinator]) -> list[GroupCensus]:
        """Return the groups of the coordinators that do not run.

        Forgets the groups of a coordinator whose next incarnation has registered.
        """
        found: list[GroupCensus] = []
        for coordinator in coordinators:
            key = (coordinator.kind, coordinator.index)
            epoch, groups = self._last.get(key, (coordinator.epoch, []))
            if epoch != coordinator.epoch:
                del self._last[key]
            elif not coordinator.port:
                found += groups
        return found


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a group on a partition; ``seconds`` is 0 exactly when ``records`` is."""

    records: int
    seconds: float


class EndHistory:
    """When each partition's high watermark was first seen at its present and earlier offsets; and where its log starts.

    Invariant of each partition's marks: times and offsets both rise strictly, and all are of one topic id.
    """

    def __init__(self) -> None:
        """Start without marks."""
        self._marks: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self._topic_ids: dict[TopicPartition, str] = {}
        self._starts: dict[TopicPartition, int] = {}

    def saw(self, partition: TopicPartition, topic_id: str, end: int, now_ms: int, *, start: int | None = None) -> None:
        """Note the high watermark of a partition, and the start of its log (None: not known now).

        A topic that was created again begins a new history, and so does an end that went back.
        """
        marks = self._marks.setdefault(partition, deque())
        if self._topic_ids.setdefault(partition, topic_id) != topic_id or (marks and end < marks[-1][1]):
            marks.clear()
            self._topic_ids[partition] = topic_id
            self._starts.pop(partition, None)
        if start is not None:
            self._starts[partition] = start
        if not marks or (end > marks[-1][1] and now_ms > marks[-1][0]):
            marks.append((now_ms, end))
        if len(marks) > MARKS_MAX:
            self._marks[partition] = _thinned(marks)

    def forget(self, present: Iterable[TopicPartition]) -> None:
        """Drop all partitions but ``present``: those with a committed offset of some group."""
        for partition in set(self._marks) - set(present):
            del self._marks[partition]
            del self._topic_ids[partition]
            self._starts.pop(partition, None)

    def lag(self, partition: TopicPartition, committed: int, now_ms: int) -> Lag | None:
        """Return the lag of a committed offset; None for a partition that was never seen.

        What retention has removed is no lag. The age is a lower bound while the record is older than the history.
        """
        marks = self._marks.get(partition)
        if not marks:
            return None
        oldest = max(committed, self._starts.get(partition, 0))
        records = max(0, marks[-1][1] - oldest)
        if not records:
            return Lag(0, 0.0)
        first = bisect_right(marks, oldest, key=lambda mark: mark[1])
        return Lag(records, max(1, now_ms - marks[first][0]) / 1000)


def _thinned(marks: deque[tuple[int, int]]) -> deque[tuple[int, int]]:
    now_ms = marks[-1][0]
    kept = deque([marks[-1]])
    for mark in list(marks)[-2:0:-1]:
        if kept[0][0] - mark[0] >= COARSENESS * (now_ms - kept[0][0]):
            kept.appendleft(mark)
    kept.appendleft(marks[0])
    return kept


def group_families(groups: Iterable[GroupCensus], lags: Mapping[tuple[str, TopicPartition], Lag]) -> list[Family]:
    """Return the metrics of all groups; a partition without a known lag has its committed offset alone."""
    members = Family("kafka_consumergroup_members", "gauge", "Members of a group.")
    state = Family("raylog_consumergroup_state", "gauge", "1 for the state that a group is in.")
    offset = Family("kafka_consumergroup_current_offset", "gauge", "Committed offset: the next one to be read.")
    lag = Family("kafka_consumergroup_lag", "gauge", "Remaining records up to the high watermark.")
    lag_sum = Family("kafka_consumergroup_lag_sum", "gauge", "Lag in records of a group on all partitions of a topic.")
    seconds = Family("raylog_consumergroup_lag_seconds", "gauge", "Time since a record that is not committed was seen.")
    pending = Family(
        "raylog_consumergroup_pending_offsets", "gauge", "Offsets that open transactions are about to commit."
    )
    for group in groups:
        if group.pending_offsets:
            pending.add(group.pending_offsets, consumergroup=group.name)
        members.add(group.members, consumergroup=group.name)
        state.add(1, consumergroup=group.name, state=group.state)
        sums: dict[str, int] = {}
        for partition, committed in sorted(group.offsets.items()):
            labels = {
                "consumergroup": group.name,
                "topic": partition.topic,
                "partition": str(partition.partition),
            }
            offset.samples.append(("", labels, committed))
            found = lags.get((group.name, partition))
            if found is not None:
                lag.samples.append(("", labels, found.records))
                seconds.samples.append(("", labels, found.seconds))
                sums[partition.topic] = sums.get(partition.topic, 0) + found.records
        for topic, records in sums.items():
            lag_sum.add(records, consumergroup=group.name, topic=topic)
    return [members, state, offset, lag, lag_sum, seconds, *([pending] if pending.samples else [])]
