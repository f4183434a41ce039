"""The assignors `sticky` and `cooperative-sticky`: partitions stay with their owners as far as balance allows. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from raylog.base.ids import TopicPartition
from raylog.client.assignor import Assignment, PartitionAssignor, RebalanceProtocol, Subscription
from raylog.client.group.embedded_protocol import decode_previous, encode_generation, encode_previous
from raylog.client.group.members import subscribers_of


class StickyAssignor(PartitionAssignor):
    """Balanced, with as few changes of owners as possible. Members do not read during a rebalance.

    They give up all partitions before they join, so they send their last assignment as user data, as in Kafka.
    """

    name: ClassVar[str] = "sticky"

    def assign(self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
        """Assign as `assign_sticky`, from the assignments in the members' user data."""
        return assign_sticky({member: _with_previous(each) for member, each in subscriptions.items()}, partition_counts)

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes:
        """The last assignment and its generation, in Kafka's format."""
        return encode_previous(previous, generation) if previous else b""


class CooperativeStickyAssignor(PartitionAssignor):
    """As `sticky`, but members read on during a rebalance, and a partition moves in two of them (KIP-429).

    The first rebalance revokes it. The member that has given it up joins again at once; the second one assigns it.
    """

    name: ClassVar[str] = "cooperative-sticky"
    rebalance_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (
        RebalanceProtocol.COOPERATIVE,
        RebalanceProtocol.EAGER,
    )

    def assign(self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
        """The sticky target, without the partitions that another member still owns."""
        target = assign_sticky(subscriptions, partition_counts)
        owners: dict[TopicPartition, set[str]] = {}
        for member, each in subscriptions.items():
            for partition in each.owned:
                owners.setdefault(partition, set()).add(member)
        return {
            member: [each for each in partitions if not owners.get(each) or member in owners[each]]
            for member, partitions in target.items()
        }

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes:
        """The generation, for leaders that do not read it from the subscription yet (KIP-792)."""
        return encode_generation(generation)


def _with_previous(subscription: Subscription) -> Subscription:
    """The subscription with the assignment in its user data as `owned`; unreadable user data is ignored."""
    if not subscription.user_data:
        return subscription
    try:
        owned, generation = decode_previous(subscription.user_data)
    except ValueError:
        return subscription
    return replace(subscription, owned=owned, generation=generation)


def assign_sticky(subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]) -> Assignment:
    """Leave partitions with their owners as far as balance allows, and assign the others evenly.

    Invariants beyond those of `assignors.py`: no single move would make two members' loads more equal (with equal
    subscriptions loads differ by at most one); run again on its own result, it changes nothing.
    """
    subscribers = subscribers_of(subscriptions, partition_counts)
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
    # Partitions with few subscribers first: those with many can still even out the loads afterwards.
    for partition in sorted(unowned, key=lambda each: (len(subscribers[each.topic]), each)):
        held[_least_loaded(subscribers[partition.topic], held)].add(partition)
    _level(held, subscribers)
    return {member: sorted(partitions) for member, partitions in held.items()}


def _level(held: dict[str, set[TopicPartition]], subscribers: Mapping[str, list[str]]) -> None:
    """Move single partitions, each from the fullest member that can give one, until no single move helps.

    So no member gives more than balance needs. It terminates: each move lowers the sum of the squared loads by at least
    two.
    """
    place = {member: number for number, member in enumerate(sorted(held))}
    while True:
        for member in sorted(held, key=lambda each: (-len(held[each]), place[each])):
            move = _move_from(member, held, subscribers)
            if move is not None:
                partition, target = move
                held[member].remove(partition)
                held[target].add(partition)
                break
        else:
            return


def _move_from(
    member: str, held: Mapping[str, set[TopicPartition]], subscribers: Mapping[str, list[str]]
) -> tuple[TopicPartition, str] | None:
    """The last of a member's partitions whose move to another member makes their loads more equal, and that member."""
    targets: dict[str, str] = {}
    for partition in sorted(held[member], reverse=True):
        target = targets.get(partition.topic)
        if target is None:
            target = targets[partition.topic] = _least_loaded(subscribers[partition.topic], held)
        if len(held[target]) + 1 < len(held[member]):
            return partition, target
    return None


def _valid_claims(
    subscriptions: Mapping[str, Subscription],
    subscribers: Mapping[str, list[str]],
    partition_counts: Mapping[str, int],
) -> dict[TopicPartition, str]:
    """The owner of each partition that has one: the member that claims it with the newest generation; none on a tie."""
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
