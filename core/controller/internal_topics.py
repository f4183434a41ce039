"""Internal topics that are created on first use, by the clients and leader roles that need them. Pure.

The topics of coordinators are created with the coordinators (``coordinators.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import InvalidRequest, LeaderNotAvailable, did_you_mean
from raylog.core.configuration.config import ClusterConfig
from raylog.core.configuration.config_key import LONG_MAX
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.topics import Topics
from raylog.core.received import Received
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.admin import EnsureInternalTopicRequest

SHARE_STATE_TOPIC: Final = "__share_state"
UNDELIVERABLE_TOPIC: Final = "__undeliverable"
FORWARDING_TOPIC: Final = "__forwarding"

_KEPT: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}


@dataclass(frozen=True, slots=True)
class FirstUse:
    """How an internal topic is created."""

    config: Mapping[str, str]
    partitions: Callable[[ClusterConfig], int] = lambda _: 1
    """By the cluster's settings at that moment."""


ON_FIRST_USE: Final[Mapping[str, FirstUse]] = {
    SCHEDULED_TOPIC: FirstUse(
        {
            **_KEPT,
            "segment.bytes": str(64 * 1024 * 1024),
            "max.message.bytes": str(32 * 1024 * 1024),
            "message.timestamp.after.max.ms": str(LONG_MAX),
        },
        lambda settings: settings.scheduled_topic_num_partitions,
    ),
    SHARE_STATE_TOPIC: FirstUse(
        {**_KEPT, "segment.bytes": str(8 * 1024 * 1024)},
        lambda settings: settings.share_coordinator_state_topic_num_partitions,
    ),
    UNDELIVERABLE_TOPIC: FirstUse({"retention.ms": "-1", "max.message.bytes": str(32 * 1024 * 1024)}),
    FORWARDING_TOPIC: FirstUse({"cleanup.policy": "compact", "segment.bytes": str(1024 * 1024)}),
}
"""Every such topic by name. Retention removes nothing where it is -1: the topic's owner deletes what it needs no
longer."""


class InternalTopics:
    """Creates internal topics."""

    def __init__(self, topics: Topics) -> None:
        """Topics are made by ``topics``; they have as many replicas as `__consumer_offsets`."""
        self._topics = topics

    def ensure(self, event: Received[EnsureInternalTopicRequest], decision: ControllerDecision) -> None:
        """Create a topic unless it exists, and reply with its id and its number of partitions.

        Raises InvalidRequest for another name.
        """
        name = event.message.topic
        wanted = ON_FIRST_USE.get(name)
        if wanted is None:
            raise InvalidRequest(did_you_mean("internal topic", name, ON_FIRST_USE))
        if name not in decision.image.topics:
            if not decision.image.online_brokers():
                raise LeaderNotAvailable(f"No broker is online that could hold {name}; try again.")
            settings = decision.image.settings
            replicas, partitions = settings.offsets_topic_replication_factor, wanted.partitions(settings)
            self._topics.create_internal(name, partitions, replicas, wanted.config, decision)
        topic = decision.image.topics[name]
        decision.reply(event.request, [topic.topic_id, len(topic.partitions)])
