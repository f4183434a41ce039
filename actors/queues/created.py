"""Creating the topics of a queue's letters and copies: as many replicas as the topic that they come from.

A record is finished in its own topic once its letter or copy is stored, which must not be the end of its replicas. Used
by letters.py and copies.py. May touch: the controller, by the host's calls.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.actors.roles.host import RoleHost
from raylog.core.errors import InvalidReplicationFactor, TopicAlreadyExists
from raylog.protocol.admin import CREATE_TOPIC, CreateTopicRequest
from raylog.protocol.broker import MetadataTopic

CLUSTER_DEFAULT = -1
IN_SYNC = "min.insync.replicas"


async def source_of(host: RoleHost) -> MetadataTopic:
    """Return the metadata of the partition's own topic. Raises RaylogError."""
    return (await host.metadata([host.partition.topic])).topics[0]


async def create_as_source(
    host: RoleHost, source: MetadataTopic, topic: str, partitions: int, config: Mapping[str, str]
) -> None:
    """Create a topic with the source's replicas, or with fewer where too few brokers are online. Raises RaylogError.

    One that another partition's leader has created meanwhile is taken as it is.
    """
    most = len(source.partitions[0].replicas) if source.partitions else CLUSTER_DEFAULT
    in_sync = {IN_SYNC: host.config[IN_SYNC]} if IN_SYNC in host.config and most > 1 else {}
    for replicas in range(most, 0, -1) or (CLUSTER_DEFAULT,):
        settings = {**config, **in_sync} if replicas == most else config  # fewer replicas may be fewer than that
        request = CreateTopicRequest(topic, partitions, replicas, None, settings, False, 0)
        try:
            await host.call_controller(CREATE_TOPIC.name, request)
        except TopicAlreadyExists:
            pass
        except InvalidReplicationFactor:
            if replicas <= 1:
                raise
            continue
        return
