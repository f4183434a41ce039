"""How topics share the room that brokers have for replicas that are awake. Pure; called by the queue of wakes.

If there is no room, topics take turns: the next place is for the topic with the fewest partitions awake or ahead in the
queue. So a reader of hundreds of partitions delays the first partition of any other topic by one place. And while a
topic with less than its share waits, topics with more than theirs give up partitions that are little used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.partition import PartitionState

OVER_SHARE_IDLE_MS: Final = 1_000
"""While another topic waits, partitions of a topic with more than its share fall asleep after so long without use."""
FORCED_AFTER_MS: Final = 10_000
"""Once a topic has waited for so long, each attempt to make room puts one of those to sleep even if it is used."""


class Claim(NamedTuple):
    """A requested wake that had no room: when it was first requested, and when last, in milliseconds."""

    first_ms: int
    last_ms: int


def in_turns(waiting: Sequence[PartitionState], image: MetadataImage) -> list[PartitionState]:
    """Return waiting partitions, given in the order of their first requests, in the order in which they wake.

    A topic's n-th partition awake comes before the (n+1)-th of any other topic; of equals, the earlier request.
    """
    turns, ordered = Counter[str](), list[tuple[int, int, PartitionState]]()
    for place, state in enumerate(waiting):
        topic = state.partition.topic
        if topic not in turns:
            held = image.topics.get(topic)
            turns[topic] = 0 if held is None else sum(each.asleep is None for each in held.partitions)
        ordered.append((turns[topic], place, state))
        turns[topic] += 1
    return [state for _, _, state in sorted(ordered, key=lambda row: row[:2])]


def over_share(broker: BrokerId, limit: int, waiting: Iterable[str], image: MetadataImage) -> list[PartitionState]:
    """Return the partitions awake on a full broker of topics with more than their share, the largest topic first.

    A share is an equal part of the room (``limit``) for each topic that waits or has partitions awake there. Empty
    unless a topic in ``waiting``, those that wait for room there, has less than its share.
    """
    awake: dict[str, list[PartitionState]] = {}
    for state in image.partitions():
        if state.asleep is None and broker in state.replicas:
            awake.setdefault(state.partition.topic, []).append(state)
    wanting = set(waiting)
    share = max(1, limit // max(1, len(wanting | set(awake))))
    if all(len(awake.get(topic, ())) >= share for topic in wanting):
        return []
    return [
        state
        for _, held in sorted(awake.items(), key=lambda item: (-len(item[1]), item[0]))
        if len(held) > share
        for state in held
    ]


def has_waited(claim: Iterable[Claim], now_ms: int) -> bool:
    """Return whether one of these has waited so long that even partitions in use have to make room."""
    return any(now_ms - each.first_ms >= FORCED_AFTER_MS for each in claim)


Requests = dict[TopicPartition, Claim]
"""Requested wakes that had no room, in the order of the first requests."""
