"""Subscriptions and assignments that members exchange, in whichever of the two formats each of them reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from raylog.client.group import early_protocol, embedded_protocol
from raylog.client.group.assignor import Subscription
from raylog.client.group.early_protocol import is_early
from raylog.core.ids import TopicPartition

__all__ = ["assignment_for", "is_early", "read_assignment", "read_subscription"]


def read_subscription(metadata: bytes, instance_id: str | None = None) -> Subscription:
    """A member's subscription. Raises ValueError.

    A member of an earlier release is eager: it has given up the partitions in its `owned`. So they become user data, as
    `sticky` writes it in Kafka's format.
    """
    if is_early(metadata):
        found = early_protocol.decode_subscription(metadata, instance_id)[0]
        if not found.owned:
            return found
        return replace(found, owned=(), user_data=embedded_protocol.encode_previous(found.owned, found.generation))
    return embedded_protocol.decode_subscription(metadata, instance_id)


def read_assignment(assignment: bytes) -> tuple[TopicPartition, ...]:
    """A member's assignment. Raises ValueError."""
    if is_early(assignment):
        return early_protocol.decode_assignment(assignment)
    return embedded_protocol.decode_assignment(assignment)


def assignment_for(metadata: bytes, partitions: Iterable[TopicPartition]) -> bytes:
    """Encode the assignment of a member that joined with this metadata, in a format that it reads."""
    if is_early(metadata):
        try:
            if not early_protocol.decode_subscription(metadata)[1]:
                return early_protocol.encode_assignment(partitions)
        except ValueError:
            pass  # its metadata is unreadable, so it gets no partitions, and the format does not matter
    return embedded_protocol.encode_assignment(partitions)
