"""The rows of consumer-protocol groups in ``__consumer_offsets``, and what they hold in memory.

As in Kafka (KIP-848): a group's epochs, and for each member its metadata, its target and its current assignment. A
crash may cut a step's rows short after any of them: whether a group is complete is checked when it is loaded, and
its next target repairs it (``ConsumerGroup.is_torn``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple

from raylog.protocol.groups import TopicPartitions
from raylog.protocol.message import Message
from raylog.protocol.rows import Row


class Place(NamedTuple):
    """A partition, with its topic id: a topic that is created again has other partitions under the same name."""

    topic_id: str
    topic: str
    partition: int


class TopicFacts(NamedTuple):
    """What an assignor has to know of a topic."""

    topic_id: str
    partitions: int


class MemberState(Enum):
    """How far a member is on its way to its target assignment; the values are Kafka's."""

    STABLE = "Stable"
    UNREVOKED_PARTITIONS = "UnrevokedPartitions"
    """It has to give partitions up before its epoch advances."""
    UNRELEASED_PARTITIONS = "UnreleasedPartitions"
    """It waits for partitions that other members have to give up."""


class ReadTopic(Message, frozen=True):
    """A topic that the members of a group read."""

    topic: str
    topic_id: str
    partitions: int


class EpochsChanged(Row, frozen=True):
    """A group's epochs: ``epoch`` grows with changes of members, subscriptions or topics; ``target_epoch`` follows.

    ``topics``: those from which the last target was made, by name. ``changed_ms``: the time of day (since 1970) of
    this record, -1 = unknown. The tombstone ends the group, which has no members any more.
    """

    KIND: ClassVar[str] = "consumer_group"
    KEY: ClassVar[int] = 1

    group: str
    epoch: int
    target_epoch: int
    assignor: str
    topics: tuple[ReadTopic, ...]
    changed_ms: int


class MemberChanged(Row, frozen=True):
    """What a member reports of itself; timeouts in milliseconds. ``assignor`` "" = it has no preference."""

    KIND: ClassVar[str] = "consumer_member"
    KEY: ClassVar[int] = 2

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    assignor: str
    client_host: str = ""


class HeldPartitions(Message, frozen=True):
    """Partitions of a topic which a member has since the same member epoch; 0 in a target."""

    topic_id: str
    topic: str
    epoch: int
    partitions: tuple[int, ...]


class TargetChanged(Row, frozen=True):
    """A member's target assignment."""

    KIND: ClassVar[str] = "consumer_target"
    KEY: ClassVar[int] = 2

    group: str
    member_id: str
    partitions: tuple[HeldPartitions, ...]


class CurrentChanged(Row, frozen=True):
    """A member's current assignment; see :class:`Current`."""

    KIND: ClassVar[str] = "consumer_current"
    KEY: ClassVar[int] = 2

    group: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: tuple[HeldPartitions, ...]
    revoking: tuple[HeldPartitions, ...]


ConsumerRow = EpochsChanged | MemberChanged | TargetChanged | CurrentChanged
CONSUMER_ROWS: Final = (EpochsChanged, MemberChanged, TargetChanged, CurrentChanged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """A member's current assignment: each partition with the member epoch since which the member has it.

    ``epoch`` -2 = a static member that is away. ``revoking``: partitions that it has to give up, and has not confirmed.
    """

    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[Place, int]
    revoking: Mapping[Place, int]

    @classmethod
    def of(cls, row: CurrentChanged) -> Current:
        """Return what a row of the log states."""
        return cls(
            member_id=row.member_id,
            epoch=row.epoch,
            previous_epoch=row.previous_epoch,
            state=row.state,
            assigned=places_in(row.assigned),
            revoking=places_in(row.revoking),
        )

    def row(self, group: str) -> CurrentChanged:
        """Return it as a row of the log."""
        return CurrentChanged(
            group,
            self.member_id,
            self.epoch,
            self.previous_epoch,
            self.state,
            held_partitions(self.assigned),
            held_partitions(self.revoking),
        )


def target_row(group: str, member_id: str, partitions: Iterable[Place]) -> TargetChanged:
    """Return a member's target assignment as a row of the log."""
    return TargetChanged(group, member_id, held_partitions(dict.fromkeys(partitions, 0)))


def held_partitions(partitions: Mapping[Place, int]) -> tuple[HeldPartitions, ...]:
    """Return partitions with their epochs as in a row, in order: those of a topic mostly share their epoch."""
    found: dict[tuple[str, str, int], list[int]] = {}
    for place in sorted(partitions):
        found.setdefault((place.topic_id, place.topic, partitions[place]), []).append(place.partition)
    return tuple(HeldPartitions(*head, tuple(numbers)) for head, numbers in found.items())


def places_in(rows: Iterable[HeldPartitions]) -> dict[Place, int]:
    """Return the partitions of a row with their epochs."""
    return {Place(row.topic_id, row.topic, number): row.epoch for row in rows for number in row.partitions}


def grouped(partitions: Iterable[Place]) -> list[tuple[str, str, list[int]]]:
    """Return (topic id, topic, partitions) in order."""
    found: dict[tuple[str, str], list[int]] = {}
    for topic_id, topic, partition in sorted(partitions):
        found.setdefault((topic_id, topic), []).append(partition)
    return [(*topic, numbers) for topic, numbers in found.items()]


def places_of(rows: Sequence[TopicPartitions] | None) -> frozenset[Place] | None:
    """Return the partitions of a request's rows; None where it has none."""
    if rows is None:
        return None
    return frozenset(Place(row.topic_id, row.topic, number) for row in rows for number in row.partitions)
