"""The ids of the topics that exist: offsets committed for a deleted topic do not count for another of that name.

Used by the descriptions and resets of groups. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylog.base.errors import UnknownTopicOrPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline


async def current_topic_ids(cluster: ClusterClient, topics: Iterable[str], deadline: Deadline) -> dict[str, str]:
    """The id of each of these topics, from fresh metadata; topics that do not exist are left out."""
    names = sorted(set(topics))
    if not names:
        return {}
    await cluster.refresh(names, timeout_s=deadline.left_s)  # a topic may have been created again
    current: dict[str, str] = {}
    for name in names:
        try:
            info = await cluster.topic(name, timeout_s=deadline.left_s, may_create=False)
        except UnknownTopicOrPartition:
            continue
        current[name] = info.topic_id
    return current
