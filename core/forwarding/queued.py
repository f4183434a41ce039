"""Why no queue works on a topic whose records expire. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from raylog.base.errors import InvalidConfig
from raylog.core.forwarding.settings import TOPIC


def check_queue(topic: str, config: Mapping[str, str]) -> None:
    """Raise InvalidConfig if a topic's records become dead letters when they expire, even acknowledged ones."""
    target = config.get(TOPIC)
    if target:
        raise InvalidConfig(
            f"{topic} sends expired records to {target} ({TOPIC}), including those that its queues have acknowledged. "
            "So no queue works on it: let records expire in a topic of their own, and work on the one where they go. "
            "For what a queue rejects, set errors.deadletterqueue.topic.name."
        )
