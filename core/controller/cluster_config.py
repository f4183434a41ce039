"""The cluster's settings: given at a start, and altered while it runs. Called by the controller's step.

The controller reads them from the image at each use, so an alteration is in force there with its record. Brokers
receive it with their metadata and pass it to their replicas (ADR 12); coordinators receive it on their sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from raylog.core.configuration.altering import ClusterValues
from raylog.core.configuration.config import sleep_after_ms
from raylog.core.configuration.config_origins import describe_cluster
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import SendClusterConfig
from raylog.core.controller.sessions import CoordinatorMember
from raylog.core.controller.topics import check_awake
from raylog.core.controller.wake_queue import WakeQueue
from raylog.core.metadata.image import MetadataImage, cluster_altered
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.protocol.admin import AlterClusterConfigRequest


def config_at_start(given: Mapping[str, str], start: str, image: MetadataImage) -> Mapping[str, str]:
    """Return the settings in force after a controller has started with this image and the values ``given`` to it."""
    return image.values.started(given, start).config


def started(given: Mapping[str, str], start: str, decision: ControllerDecision) -> None:
    """Add the values given at this start of the cluster to its settings.

    ``start`` identifies the start: with its first controller, the settings that waited for a start come into force.
    """
    _write(decision.image.values.started(given, start), decision)


class ClusterSettings:
    """Alters the cluster's settings."""

    def __init__(self, wakes: WakeQueue) -> None:
        """Partitions that may sleep no longer enter ``wakes``."""
        self._wakes = wakes

    def alter(self, event: Received[AlterClusterConfigRequest], decision: ControllerDecision) -> None:
        """Alter settings as requested, all or none of them; answers with the named ones as they are afterwards.

        Raises InvalidConfig; InvalidPartitions when brokers have no room for the replicas that would sleep no longer.
        """
        message, image = event.message, decision.image
        after = image.values.alter(message.set, message.delete, image.topics)
        stay_awake = self._stay_awake(after.config, decision)
        if not message.validate_only:
            _write(after, decision)
            for state in stay_awake:
                self._wakes.add(state)
            self._wakes.time_passed(decision)
        named = {*message.set, *message.delete}
        rows = describe_cluster(after, image.topics)
        decision.reply(event.request, [list(row) for row in rows if row.name in named])

    def _stay_awake(self, config: Mapping[str, str], decision: ControllerDecision) -> list[PartitionState]:
        """Return the sleeping partitions that may sleep no longer with these settings.

        Raises InvalidPartitions when brokers have no room for their replicas.
        """
        image, found = decision.image, list[PartitionState]()
        for topic in image.topics.values():
            if sleep_after_ms(topic.config, config) < 0 <= sleep_after_ms(topic.config, image.config):
                found.extend(state for state in topic.partitions if state.asleep is not None)
        check_awake(Counter(broker for state in found for broker in state.replicas), image, config)
        return found


def altered(changes: Mapping[str, object], delete: Iterable[str], decision: ControllerDecision) -> None:
    """Alter settings as part of another request, which has checked them already; idempotent."""
    image = decision.image
    after = image.values.alter(changes, delete, image.topics)
    _write(after, decision)


def _write(after: ClusterValues, decision: ControllerDecision) -> None:
    before = decision.image.values
    if after == before:
        return
    decision.write(cluster_altered(after))
    if after.config == before.config:
        return
    for session in decision.sessions:
        if isinstance(session.member, CoordinatorMember):
            decision.after_sync.append(
                SendClusterConfig(cause=decision.cause, session=session.number, config=after.config)
            )
