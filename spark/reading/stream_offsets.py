"""The offsets of a stream: Kafka's JSON form, the identity of their topics, and the steps from batch to batch.

Spark keeps these JSON values in the checkpoint and passes them back, to this process or to a later one. So they hold
everything that a restart needs. Beside the offsets there are, under names that no topic can have, the ids of the
topics, and in the first batch of a query the offsets where it began. Used by stream_reader.py. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from raylog.base.errors import (
    InvalidConfig,
    OffsetOutOfRange,
    RaylogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition

IDS = "raylog/ids"
"""JSON key of the topics' ids. A topic that was deleted and created again has another id."""
BEGAN = "raylog/began"
"""JSON key of the offsets where the first batch begins. Spark does not keep them: when it repeats that batch after a
restart, it requests the initial offset again, and by then `latest` is another offset."""
REMEDY = "Start the query with a new checkpointLocation"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offset of each partition, and the topics' ids; offsets that Kafka's source wrote have no ids."""

    offsets: Mapping[TopicPartition, int]
    ids: Mapping[str, str] = field(default_factory=dict)
    began: Mapping[TopicPartition, int] | None = None
    """If this is the end of the first batch of a query: where that batch begins."""

    @property
    def is_initial(self) -> bool:
        """Whether this is where the query begins: no record was read before."""
        return self.began is not None and self.began == self.offsets

    @property
    def topics(self) -> set[str]:
        """The topics with an offset."""
        return {place.topic for place in self.offsets}

    def holds(self, start: StreamOffsets) -> bool:
        """Whether these log ends cover `start`: all its partitions exist with the same ids, and are long enough."""
        begins = known_begins(start, self.ids)
        return len(begins) == len(start.offsets) and all(
            self.offsets.get(place, -1) >= at for place, at in begins.items()
        )

    def offsets_json(self) -> dict[str, Any]:
        """The offsets alone, in Kafka's form."""
        return _nested(self.offsets)

    def to_json(self) -> dict[str, Any]:
        """The JSON form for Spark. The order is always the same, because Spark compares the texts."""
        found: dict[str, Any] = _nested(self.offsets)
        found[IDS] = dict(sorted(self.ids.items()))
        if self.began is not None:
            found[BEGAN] = _nested(self.began)
        return found


def from_json(found: Mapping[str, Any]) -> StreamOffsets:
    """Parse what `to_json` or Spark's Kafka source has written. Raises InvalidConfig for anything else."""
    try:
        ids = {str(topic): str(topic_id) for topic, topic_id in found.get(IDS, {}).items()}
        began = _flat(found[BEGAN]) if BEGAN in found else None
        offsets = _flat({topic: numbers for topic, numbers in found.items() if topic not in (IDS, BEGAN)})
    except (AttributeError, TypeError, ValueError):
        raise InvalidConfig(
            f'The checkpoint has the offset {str(found)[:200]!r}, which is not of the form {{"topic": {{"0": 23}}}}: '
            f"it belongs to another kind of source. {REMEDY}."
        ) from None
    return StreamOffsets(offsets, ids, began)


def initial(offsets: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> StreamOffsets:
    """Where a new query begins."""
    return StreamOffsets(dict(offsets), dict(ids), dict(offsets))


@dataclass(frozen=True, slots=True)
class Selection:
    """What the options of the query name: topics, partitions, or a pattern."""

    topics: tuple[str, ...] = ()
    assigned: tuple[TopicPartition, ...] = ()
    pattern: str | None = None

    @property
    def named(self) -> set[str]:
        """The topics that the options name, which have to exist; none with a pattern."""
        return set(self.topics) | {place.topic for place in self.assigned}

    def has_topic(self, topic: str) -> bool:
        """Whether partitions of this topic belong to the query."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.named

    def has(self, place: TopicPartition) -> bool:
        """Whether this partition belongs to the query."""
        return place in self.assigned if self.assigned else self.has_topic(place.topic)

    def __str__(self) -> str:
        """For messages."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return ", ".join(repr(topic) for topic in self.topics) or ", ".join(str(place) for place in self.assigned)


def known_begins(start: StreamOffsets, ids: Mapping[str, str]) -> dict[TopicPartition, int]:
    """The offsets of `start` that are still valid: those of topics that exist with the same id."""
    return {
        place: offset
        for place, offset in start.offsets.items()
        if place.topic in ids and start.ids.get(place.topic, ids[place.topic]) == ids[place.topic]
    }


def check_selection(start: StreamOffsets, selection: Selection) -> None:
    """Raise InvalidConfig when the checkpoint and the options have no partition in common."""
    if start.offsets and not any(selection.has(place) for place in start.offsets):
        topics = ", ".join(repr(topic) for topic in sorted(start.topics))
        raise InvalidConfig(
            f"The checkpoint is of {topics}, but the options of the query name {selection}. Give the topics of the "
            f"checkpoint again, or start this query with a checkpointLocation of its own."
        )


def losses(start: StreamOffsets, now: StreamOffsets, selection: Selection) -> Iterator[RaylogError]:
    """An error for each partition of `start` that the query cannot continue: it is missing, replaced or too short.

    A topic that was deleted or created again gives one error.
    """
    reported: set[str] = set()
    for place, offset in sorted(start.offsets.items()):
        topic = place.topic
        topic_id, known_id = now.ids.get(topic), start.ids.get(topic)
        if not selection.has(place):
            yield InvalidConfig(
                f"The checkpoint has {place}, read up to offset {offset}, which the options of the query do not name "
                f"any more: they name {selection}. Name it again, start the query with a new checkpointLocation, or "
                "set failOnDataLoss to false to leave it out from here on."
            )
        elif topic_id is None:
            if topic not in reported:
                yield UnknownTopicOrPartition(
                    f"Topic {topic!r} was deleted; the query had read {place} up to offset {offset}. {REMEDY}, or set "
                    "failOnDataLoss to false to go on without the topic."
                )
            reported.add(topic)
        elif known_id not in (None, topic_id):
            if topic not in reported:
                yield UnknownTopicId(
                    f"Topic {topic!r} was deleted and created again since the checkpoint was written, so offset "
                    f"{offset} of {place} is not of the same records. {REMEDY}, or set failOnDataLoss to false to "
                    "read the new topic from its beginning."
                )
            reported.add(topic)
        elif place not in now.offsets:
            yield UnknownTopicOrPartition(
                f"Partition {place} does not exist, and the checkpoint has its offset {offset}. {REMEDY}, or set "
                "failOnDataLoss to false to go on without it."
            )
        elif now.offsets[place] < offset:
            yield OffsetOutOfRange(
                f"The log of {place} ends at offset {now.offsets[place]}, but the query has read it up to {offset}: "
                f"records were lost, and others will have their offsets. {REMEDY}, or set failOnDataLoss to false to "
                "go on at the end of the log.",
                end=now.offsets[place],
            )


def following(start: StreamOffsets, now: StreamOffsets, ends: Mapping[TopicPartition, int]) -> StreamOffsets:
    """The end of the batch that reads from `start` up to `ends`; `start` itself when there is nothing to read.

    `ends` has partitions of `now`, each at or below the end of its log.
    """
    ids = {topic: now.ids[topic] for topic in sorted({place.topic for place in ends})}
    if dict(ends) == dict(start.offsets) and all(start.ids.get(topic, ids[topic]) == ids[topic] for topic in ids):
        return start
    return StreamOffsets(dict(ends), ids, start.offsets if start.is_initial else None)


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition that a batch reads: `begin` (None: from the earliest) to `end`, exclusive."""

    place: TopicPartition
    begin: int | None
    end: int


def spans_between(start: StreamOffsets, end: StreamOffsets) -> list[Span]:
    """What the batch from `start` to `end` reads. It depends on nothing else, so a repetition reads the same.

    A partition that only `end` has was found later, or belongs to a topic created again: it is read from its earliest
    offset. A partition that only `start` has is left out.
    """
    if start == end:
        return []  # a batch of several sources that is empty for this one; `end.began` would repeat the first batch
    begins = known_begins(start, end.ids) if end.began is None else end.began
    spans = [Span(place, begins.get(place), offset) for place, offset in sorted(end.offsets.items())]
    return [span for span in spans if span.begin is None or span.begin != span.end]


def check_new_begins(found: Mapping[TopicPartition, int]) -> Iterator[RaylogError]:
    """An error for each new partition whose log begins above 0: records may have been deleted before they were read."""
    for place, offset in sorted(found.items()):
        if offset > 0:
            yield OffsetOutOfRange(
                f"Partition {place} was found while the query ran, and its log begins at offset {offset} instead of 0: "
                "earlier records may have been missed. Set failOnDataLoss to false to read what there is.",
                start=offset,
            )


def backlog(begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> int:
    """How many offsets lie between the begins and the ends, over all partitions."""
    return sum(max(0, end - begins[place]) for place, end in ends.items())


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, offset in sorted(offsets.items()):
        found.setdefault(place.topic, {})[str(place.partition)] = offset
    return found


def _flat(found: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    flat = {}
    for topic, numbers in found.items():
        for partition, offset in numbers.items():
            if type(offset) is not int:
                raise ValueError(partition)
            flat[TopicPartition(topic, int(partition))] = offset
    return flat
