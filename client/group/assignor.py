"""`PartitionAssignor`: how the leader of a group shares the partitions out; the base of built-in and users' assignors.

A consumer names its assignors in `partition_assignment_strategy`; the coordinator chooses one that all members have,
and the member that leads the group runs it. Pure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from raylog.core.ids import TopicPartition


class RebalanceProtocol(IntEnum):
    """What a member does with its partitions while its group rebalances (KIP-429)."""

    EAGER = 0
    """It gives all of them back before it joins."""
    COOPERATIVE = 1
    """It keeps them, reads on, and gives back only what the new assignment takes from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One member's subscription, as it has sent it with its join."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    """The partitions that it holds, where it rebalances cooperatively."""
    generation: int = -1
    """The generation in which it got them; -1 = it does not say."""
    instance_id: str | None = None
    """The name of a static member."""
    user_data: bytes = b""
    """What its assignor added, by `PartitionAssignor.user_data`."""
    rack_id: str | None = None


Assignment = dict[str, list[TopicPartition]]
"""Partitions by member id, in order; every member has an entry, possibly empty."""


class PartitionAssignor(ABC):
    """Base of assignors: give it a `name`, override `assign`, and put the class into `partition_assignment_strategy`.

    All members of a group need an assignor of that name, and the same code behind it. A result is checked: it names
    members of the group, and existing partitions of topics that they subscribe to.
    """

    name: ClassVar[str]
    """What members agree on; as in Kafka, two assignors of one name are taken for the same."""
    rebalance_protocols: ClassVar[tuple[RebalanceProtocol, ...]] = (RebalanceProtocol.EAGER,)
    """What a member may do with this assignor. With COOPERATIVE, `assign` may give a partition that a member owns to
    that member alone: for another one it has to be given back first, in a round that gives it to none."""

    @abstractmethod
    def assign(
        self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """The partitions of each member, by member id; a member without an entry gets none.

        `partition_counts` has the topics that exist. The result should depend on the arguments alone: another member
        may lead the next round.
        """

    def user_data(self, topics: Sequence[str], previous: Sequence[TopicPartition], generation: int) -> bytes:
        """What this member sends along to the leader, in `Subscription.user_data`.

        `previous` is its last assignment, of `generation`; without one it is empty and -1.
        """
        return b""

    def on_assignment(self, partitions: Sequence[TopicPartition], generation: int) -> None:  # noqa: B027  # optional
        """This member got these partitions. Called on the client's thread: it must not block."""
