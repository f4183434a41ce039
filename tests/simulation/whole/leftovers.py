"""Nothing is left of what was deleted, moved away or put to sleep: no process of a replica, and no folder of a topic.

Looked for at the end (W9), in every world: no client sees what a broker has forgotten to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.actors.broker.supervisor import partition_folders
from raylog.actors.naming import REPLICA_PREFIX, replica_name
from raylog.actors.replica.set_aside import topic_id_of
from tests.simulation.whole.cluster import folder_of

if TYPE_CHECKING:
    from raylog.core.metadata.image import MetadataImage
    from tests.simulation.whole.world import World


def leftover(world: World) -> str:
    """Return a process or a folder that the metadata have no place for; empty = there is none."""
    controller = world.cluster.controller()
    if controller is None or controller._runner is None:
        return "the controller does not serve"
    return _process(world, controller.image) or _folder(world, controller.image)


def _process(world: World, image: MetadataImage) -> str:
    wanted = {
        replica_name(state.partition.topic, state.partition.partition, broker, state.topic_id)
        for state in image.partitions()
        if state.asleep is None
        for broker in state.replicas
        if not image.is_stopped(broker)
    }
    left = [actor.name for actor in world.cluster.named(REPLICA_PREFIX) if actor.name not in wanted]
    return f"{left[0]} has a process" if left else ""


def _folder(world: World, image: MetadataImage) -> str:
    for actor in world.cluster.named("broker-"):
        for topic, partition, folder in partition_folders(folder_of(world.cluster.root, actor.server.spec.broker)):
            if (topic_id := topic_id_of(folder)) in image.deleted_topics:
                return f"{actor.name} has a folder of {topic}-{partition}, whose topic {topic_id[:8]} was deleted"
    return ""
