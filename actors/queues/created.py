"""Creates the topics for a queue's dead letters and copies, with as many replicas as their source topic.

A record is finished in its own topic once its letter or copy is stored; it must not have fewer replicas from then on.
Used by letters.py and copies.py. May touch: the controller, through the host's calls.
"""

from __future__ import annotations

from collections.abc import Mapping

from raylog.actors.roles.host import RoleHost
from raylog.base.errors import InvalidReplicationFactor, TopicAlreadyExists
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
    """Create a topic with the source's number of replicas, or fewer if too few brokers are online. Raises RaylogError.

    A topic that another partition's leader has created meanwhile is used as it is.
    """
    most = len(source.partitions[0].replicas) if source.partitions else CLUSTER_DEFAULT
    in_sync = {IN_SYNC: host.config[IN_SYNC]} if IN_SYNC in host.config and most > 1 else {}
    for replicas in range(most, 0, -1) or (CLUSTER_DEFAULT,):
        settings = {**config, **in_sync} if replicas == most else config  # fewer replicas may be below its min ISR
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
