"""The members of a group in a fixed order, for assignors. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from raylog.client.assignor import Subscription


def in_order(subscriptions: Mapping[str, Subscription]) -> list[str]:
    """Member ids in order: first static members by instance id, then dynamic ones by member id.

    So a static member keeps its place after a restart, with which only its member id changes.
    """

    def order(member: str) -> tuple[bool, str, str]:
        instance = subscriptions[member].instance_id
        return (instance is None, instance or member, member)

    return sorted(subscriptions, key=order)


def subscribers_of(
    subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
) -> dict[str, list[str]]:
    """The subscribers of each existing topic that has any; topics are sorted, members as `in_order`."""
    found: dict[str, list[str]] = {}
    for member in in_order(subscriptions):
        for topic in sorted(set(subscriptions[member].topics)):
            if partition_counts.get(topic, 0) > 0:
                found.setdefault(topic, []).append(member)
    return {topic: found[topic] for topic in sorted(found)}
