"""Group assignors: range, roundrobin and sticky, as pure functions. Called by the client that leads a group.

Laws of all three: every existing partition of a subscribed topic goes to exactly one of its subscribers; no member gets
a partition of a topic it did not subscribe to; the result depends only on the arguments (not on their order). Members
are ordered by static instance id, else member id, so that a restarted static member (new member id, same instance id)
keeps its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raylog.core.errors import InconsistentGroupProtocol, did_you_mean
from raylog.core.ids import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One member's subscription.

    ``owned`` and ``generation`` are its last assignment and that assignment's generation (-1 = never); only ``sticky``
    reads them.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    instance_id: str | None = None


Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id, in order; every member has an entry, possibly empty."""

Assignor = Callable[[Mapping[str, Subscription], Mapping[str, int]], Assignment]


def assign(name: str, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Run the assignor of that name; topics missing in ``partition_counts`` are left out.

    Raises InconsistentGroupProtocol when there is no such assignor.
    """
    assignor = ASSIGNORS.get(name)
    if assignor is None:
        raise InconsistentGroupProtocol(did_you_mean("assignor", name, ASSIGNORS))
    return assignor(subscriptions, partition_counts)


def assign_range(subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Give each subscriber of a topic one run of neighbouring partitions; the first ones get one more when uneven.

    Topics with equal counts and subscribers are cut alike, so partition n of each goes to one member (joins by key).
    """
    result: Assignment = {member: [] for member in subscriptions}
    for topic, members in _subscribers(subscriptions, partition_counts).items():
        each, extra = divmod(partition_counts[topic], len(members))
        start = 0
        for place, member in enumerate(members):
            end = start + each + (1 if place < extra else 0)
            result[member].extend(TopicPartition(topic, number) for number in range(start, end))
            start = end
    return result


def assign_roundrobin(subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Deal all partitions of all topics one by one around the members, skipping members that do not subscribe."""
    result: Assignment = {member: [] for member in subscriptions}
    wanted = {member: frozenset(subscription.topics) for member, subscription in subscriptions.items()}
    order = _in_order(subscriptions)
    turn = 0
    for topic in _subscribers(subscriptions, partition_counts):
        for number in range(partition_counts[topic]):
            while topic not in wanted[order[turn % len(order)]]:
                turn += 1
            result[order[turn % len(order)]].append(TopicPartition(topic, number))
            turn += 1
    return result


def assign_sticky(subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Leave partitions with their owners as far as balance allows, and level the rest out.

    Laws beyond the common ones: no single move would make two members' loads more equal (with equal subscriptions all
    loads are within one), and run again on its own result it changes nothing.
    """
    subscribers = _subscribers(subscriptions, partition_counts)
    owners = _valid_claims(subscriptions, subscribers, partition_counts)
    held: dict[str, set[TopicPartition]] = {member: set() for member in subscriptions}
    for partition, member in owners.items():
        held[member].add(partition)
    unowned = [
        TopicPartition(topic, number)
        for topic in subscribers
        for number in range(partition_counts[topic])
        if TopicPartition(topic, number) not in owners
    ]
    # Partitions with few possible readers first: the others can still even out the loads afterwards.
    for partition in sorted(unowned, key=lambda each: (len(subscribers[each.topic]), each)):
        held[_least_loaded(subscribers[partition.topic], held)].add(partition)
    _level(held, subscribers)
    return {member: sorted(partitions) for member, partitions in held.items()}


def _level(held: dict[str, set[TopicPartition]], subscribers: Mapping[str, list[str]]) -> None:
    """Move partitions from fuller to emptier members until no single move helps.

    Terminates: each move lowers the sum of the squared loads by at least two.
    """
    place = {member: number for number, member in enumerate(sorted(held))}
    moved = True
    while moved:
        moved = False
        for member in sorted(held, key=lambda each: (-len(held[each]), place[each])):
            for partition in sorted(held[member], reverse=True):
                target = _least_loaded(subscribers[partition.topic], held)
                if len(held[target]) + 1 < len(held[member]):
                    held[member].remove(partition)
                    held[target].add(partition)
                    moved = True


def _valid_claims(
    subscriptions: Mapping[str, Subscription],
    subscribers: Mapping[str, list[str]],
    partition_counts: Mapping[str, int],
) -> dict[TopicPartition, str]:
    """Return the owner of each partition that has one: the claim of the newest generation; none on a tie."""
    newest: dict[TopicPartition, tuple[int, list[str]]] = {}
    for member in sorted(subscriptions):
        subscription = subscriptions[member]
        for partition in sorted(set(subscription.owned)):
            if partition.topic not in subscription.topics or partition.topic not in subscribers:
                continue
            if not 0 <= partition.partition < partition_counts[partition.topic]:
                continue
            generation, members = newest.get(partition, (subscription.generation, []))
            if subscription.generation > generation:
                newest[partition] = (subscription.generation, [member])
            elif subscription.generation == generation:
                newest[partition] = (generation, [*members, member])
    return {partition: members[0] for partition, (_, members) in newest.items() if len(members) == 1}


def _least_loaded(members: list[str], held: Mapping[str, set[TopicPartition]]) -> str:
    return min(members, key=lambda member: len(held[member]))  # the first in order among equals


def _in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Return member ids: static members by instance id first, then dynamic ones by member id."""

    def order(member: str) -> tuple[bool, str, str]:
        instance = subscriptions[member].instance_id
        return (instance is None, instance or member, member)

    return sorted(subscriptions, key=order)


def _subscribers(
    subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return the subscribers, in order, of each existing topic that has any, topics in order."""
    found: dict[str, list[str]] = {}
    for member in _in_order(subscriptions):
        for topic in sorted(set(subscriptions[member].topics)):
            if partition_counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return {topic: found[topic] for topic in sorted(found)}


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "range": assign_range,
    "roundrobin": assign_roundrobin,
    "sticky": assign_sticky,
}
"""The assignors by the names that members vote for."""
