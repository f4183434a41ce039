"""The coordinator's assignors, uniform and range: the target of each member from subscriptions and topics. Pure.

Both give every partition of a subscribed topic to exactly one of its subscribers, and depend on their arguments alone.
``uniform``: if all subscriptions are equal, the numbers of partitions differ by one at most, and no more partitions
move than that needs. ``range``: each subscriber of a topic gets one range of consecutive partitions, so topics with
equal numbers of partitions are divided alike. Members are ordered by static instance id, then by member id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from raylog.core.groups.consumer_records import Place, TopicFacts


class Reader(NamedTuple):
    """A member as an assignor sees it; ``held`` is its former target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    held: frozenset[Place] = frozenset()


Targets = dict[str, frozenset[Place]]
Assignor = Callable[[Sequence[Reader], Mapping[str, TopicFacts]], Targets]


def assign_range(readers: Sequence[Reader], topics: Mapping[str, TopicFacts]) -> Targets:
    """Give each subscriber of a topic one range of partitions; if they do not divide evenly, the first get one more."""
    found: dict[str, set[Place]] = {reader.member_id: set() for reader in readers}
    for topic, members in _subscribers(readers, topics).items():
        topic_id, count = topics[topic]
        each, extra = divmod(count, len(members))
        start = 0
        for rank, member_id in enumerate(members):
            end = start + each + (1 if rank < extra else 0)
            found[member_id].update(Place(topic_id, topic, number) for number in range(start, end))
            start = end
    return _frozen(found)


def assign_uniform(readers: Sequence[Reader], topics: Mapping[str, TopicFacts]) -> Targets:
    """Leave partitions where they are as far as balance allows, and spread the others."""
    subscribers = _subscribers(readers, topics)
    found: dict[str, set[Place]] = {reader.member_id: set() for reader in sorted(readers, key=_order)}
    free = {Place(topics[topic][0], topic, number) for topic in subscribers for number in range(topics[topic][1])}
    for reader in sorted(readers, key=_order):
        kept = {place for place in reader.held if place in free and place.topic in reader.topics}
        found[reader.member_id] |= kept
        free -= kept
    if len({reader.topics for reader in readers}) == 1:
        _level_equal(found, free)
    else:
        for place in sorted(free, key=lambda each: (len(subscribers[each.topic]), each)):
            min((found[member_id] for member_id in subscribers[place.topic]), key=len).add(place)
        _level_mixed(found, subscribers)
    return _frozen(found)


def _level_equal(found: dict[str, set[Place]], free: set[Place]) -> None:
    """Balance equal subscriptions: members with most partitions get the larger shares, so that fewest move."""
    each, extra = divmod(len(free) + sum(map(len, found.values())), len(found))
    fullest = sorted(found, key=lambda member_id: -len(found[member_id]))
    share = {member_id: each + (1 if rank < extra else 0) for rank, member_id in enumerate(fullest)}
    for member_id in fullest:
        held = found[member_id]
        surplus = sorted(held, reverse=True)[: max(0, len(held) - share[member_id])]
        held.difference_update(surplus)
        free.update(surplus)
    places = iter(sorted(free))
    for member_id, held in found.items():
        held.update(next(places) for _ in range(share[member_id] - len(held)))


def _level_mixed(found: dict[str, set[Place]], subscribers: Mapping[str, Sequence[str]]) -> None:
    """Move partitions from fuller to emptier members until no single move helps.

    It terminates: each move lowers the sum of the squared loads by at least two.
    """
    moved = True
    while moved:
        moved = False
        for member_id in sorted(found, key=lambda each: -len(found[each])):
            for place in sorted(found[member_id], reverse=True):
                emptiest = min((found[other] for other in subscribers[place.topic]), key=len)
                if len(emptiest) + 1 < len(found[member_id]):
                    found[member_id].remove(place)
                    emptiest.add(place)
                    moved = True


def _order(reader: Reader) -> tuple[bool, str, str]:
    return reader.instance_id is None, reader.instance_id or reader.member_id, reader.member_id


def _subscribers(readers: Sequence[Reader], topics: Mapping[str, TopicFacts]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for reader in sorted(readers, key=_order):
        for topic in sorted(reader.topics):
            if topic in topics and topics[topic].partitions > 0:
                found.setdefault(topic, []).append(reader.member_id)
    return {topic: found[topic] for topic in sorted(found)}


def _frozen(found: Mapping[str, set[Place]]) -> Targets:
    return {member_id: frozenset(places) for member_id, places in found.items()}


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""The assignors by name; the first one is the default."""
DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))
