"""Assigns partitions to the members of a queue's group. Pure.

Unlike in a consumer group, a partition may go to several members: every member has work, and every partition a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raylog.base.ids import TopicPartition


def spread(
    topics_of: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign to each member partitions of its topics (`topics_of`, by member id).

    Invariants: every partition of such a topic has a member; every member has a partition of each of its topics that
    exists; within a topic, members differ by one partition at most, and partitions by one member at most.
    """
    result: dict[str, list[TopicPartition]] = {member: [] for member in topics_of}
    for topic in sorted({topic for topics in topics_of.values() for topic in topics}):
        count = partition_counts.get(topic, 0)
        members = sorted(member for member, topics in topics_of.items() if topic in topics)
        if not count or not members:
            continue
        if len(members) >= count:
            for place, member in enumerate(members):
                result[member].append(TopicPartition(topic, place % count))
        else:
            # Begin with the members that have the fewest partitions of other topics, to level the totals too.
            members.sort(key=lambda member: (len(result[member]), member))
            for number in range(count):
                result[members[number % len(members)]].append(TopicPartition(topic, number))
    return {member: sorted(partitions) for member, partitions in result.items()}
