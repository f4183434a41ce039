"""`PartitionAssignor`: the base of the built-in and users' assignors, which assign partitions in the classic protocol.

A consumer names its assignors in `partition_assignment_strategy`. The coordinator chooses one that all members have,
and the group's leader, a member, runs it. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from raylog.base.ids import TopicPartition


class RebalanceProtocol(IntEnum):
    """What a member does with its partitions while its group rebalances (KIP-429)."""

    EAGER = 0
    """It gives up all of them before it joins."""
    COOPERATIVE = 1
    """It keeps them, reads on, and gives up only those that the new assignment revokes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One member's subscription, as sent with its join."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    """The partitions that a cooperative member has; of an eager one empty."""
    generation: int = -1
    """The generation in which it got them; -1 = not known."""
    instance_id: str | None = None
    """The `group_instance_id` of a static member."""
    user_data: bytes = b""
    """What its assignor added (`PartitionAssignor.user_data`)."""
    rack_id: str | None = None


Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id, in order; every member has an entry, possibly empty."""


class PartitionAssignor(ABC):
    """Base of assignors: give it a `name`, override `assign`, and put the class into `partition_assignment_strategy`.

    All members of a group need an assignor of that name, with the same code. The result is checked: it may name only
    members of the group, and existing partitions of topics that they subscribe to.
    """

    name: ClassVar[str]
    """The name by which members agree on an assignor; as in Kafka, two assignors of one name are taken for the same."""
    rebalance_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)
    """The protocols that this assignor supports. With COOPERATIVE, `assign` may not move a partition directly from its
    owner to another member: one rebalance assigns it to no member, so that the owner gives it up, and the next one to
    the new member."""

    @abstractmethod
    def assign(
        self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """The partitions of each member, by member id; a member without an entry gets none.

        `partition_counts` has only topics that exist. The result should depend only on the arguments, since another
        member may be the leader in the next rebalance.
        """

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes:
        """Bytes that this member sends to the leader, in `Subscription.user_data`.

        `previous` is its last assignment, from `generation`; without one these are empty and -1.
        """
        return b""

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:  # noqa: B027  # optional
        """Called when this member was assigned these partitions; on the client's thread, so it must not block."""
