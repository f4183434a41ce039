"""Which partitions each member of a queue's group works on. Pure.

Unlike a consumer group's, a partition may go to several members: every member has work, and every partition a member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raylog.core.ids import TopicPartition


def spread(
    topics_of: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Give each member its partitions, by the topics that it wants.

    Laws: every partition of a wanted topic has a member; every member with a topic that exists has a partition of it;
    for one topic, loads differ by one at most, in partitions by member and in members by partition.
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
            # The members with the fewest partitions of other topics first: all topics together are level too.
            members.sort(key=lambda member: (len(result[member]), member))
            for number in range(count):
                result[members[number % len(members)]].append(TopicPartition(topic, number))
    return {member: sorted(partitions) for member, partitions in result.items()}
