"""The records of consumer-protocol groups in ``__consumer_offsets``: a key and a value each, as wire lists.

As in Kafka (KIP-848): a group's epochs, and for each member its metadata, its target and its current assignment. A
crash may cut a step's records short after any of them: whether a group is complete is checked when it is loaded, and
its next target repairs it (``ConsumerGroup.is_torn``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from raylog.core.groups.fields import as_int, as_list, as_str
from raylog.protocol.groups import TopicPartitions

EPOCHS_KIND: Final = "consumer_group"
MEMBER_KIND: Final = "consumer_member"
TARGET_KIND: Final = "consumer_target"
CURRENT_KIND: Final = "consumer_current"
CONSUMER_KINDS: Final = frozenset({EPOCHS_KIND, MEMBER_KIND, TARGET_KIND, CURRENT_KIND})
VERSION: Final = 1


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsChanged:
    """A group's epochs: ``epoch`` grows with changes of members, subscriptions or topics; ``target_epoch`` follows.

    ``topics``: facts of the topics from which the last target was made. ``changed_ms``: the time of day (since 1970) of
    this record, -1 = unknown.
    """

    group: str
    epoch: int
    target_epoch: int
    assignor: str
    topics: Mapping[str, TopicFacts]
    changed_ms: int

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and value as wire lists."""
        rows: list[object] = [[name, *facts] for name, facts in sorted(self.topics.items())]
        return [EPOCHS_KIND, self.group], [
            VERSION,
            self.epoch,
            self.target_epoch,
            self.assignor,
            rows,
            self.changed_ms,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsDeleted:
    """Tombstone of a group, which has no members any more."""

    group: str

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and tombstone."""
        return [EPOCHS_KIND, self.group], None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberChanged:
    """What a member reports of itself; timeouts in milliseconds. ``assignor`` "" = it has no preference."""

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    assignor: str
    client_host: str = ""

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and value as wire lists."""
        return [MEMBER_KIND, self.group, self.member_id], [
            VERSION,
            self.instance_id,
            self.client_id,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            list(self.topics),
            self.assignor,
            self.client_host,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChanged:
    """A member's target assignment."""

    group: str
    member_id: str
    partitions: frozenset[Place]

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and value as wire lists."""
        key: list[object] = [TARGET_KIND, self.group, self.member_id]
        return key, [VERSION, _rows(dict.fromkeys(self.partitions, 0))]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentChanged:
    """A member's current assignment: each partition with the member epoch since which the member has it.

    ``epoch`` -2 = a static member that is away. ``revoking``: partitions that it has to give up, and has not confirmed.
    """

    group: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Mapping[Place, int]
    revoking: Mapping[Place, int]

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and value as wire lists."""
        return [CURRENT_KIND, self.group, self.member_id], [
            VERSION,
            self.epoch,
            self.previous_epoch,
            self.state.value,
            _rows(self.assigned),
            _rows(self.revoking),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPartDeleted:
    """Tombstone of a member's metadata, target or current assignment, by ``kind``."""

    kind: str
    group: str
    member_id: str

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and tombstone."""
        return [self.kind, self.group, self.member_id], None


ConsumerRecord = EpochsChanged | EpochsDeleted | MemberChanged | TargetChanged | CurrentChanged | MemberPartDeleted


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


def consumer_record_from_wire(key: Sequence[object], value: Sequence[object] | None) -> ConsumerRecord:
    """Read one record; raises ValueError or TypeError for one that this release cannot read."""
    kind, group = as_str(key[0]), as_str(key[1])
    if value is None:
        if kind == EPOCHS_KIND:
            return EpochsDeleted(group=group)
        return MemberPartDeleted(kind=kind, group=group, member_id=as_str(key[2]))
    if value[0] != VERSION:
        raise ValueError(f"A record of version {value[0]!r} is in __consumer_offsets; a newer release is needed.")
    if kind == EPOCHS_KIND:
        _, epoch, target_epoch, assignor, topics, changed_ms, *_ = value
        rows = [as_list(row) for row in as_list(topics)]
        return EpochsChanged(
            group=group,
            epoch=as_int(epoch),
            target_epoch=as_int(target_epoch),
            assignor=as_str(assignor),
            topics={as_str(row[0]): TopicFacts(as_str(row[1]), as_int(row[2])) for row in rows},
            changed_ms=as_int(changed_ms),
        )
    member_id = as_str(key[2])
    if kind == TARGET_KIND:
        return TargetChanged(group=group, member_id=member_id, partitions=frozenset(_places(value[1])))
    if kind == CURRENT_KIND:
        _, epoch, previous, state, assigned, revoking, *_ = value
        return CurrentChanged(
            group=group,
            member_id=member_id,
            epoch=as_int(epoch),
            previous_epoch=as_int(previous),
            state=MemberState(state),
            assigned=_places(assigned),
            revoking=_places(revoking),
        )
    return _member(group, member_id, value)


def _member(group: str, member_id: str, value: Sequence[object]) -> MemberChanged:
    _, instance_id, client_id, session_timeout_ms, rebalance_timeout_ms, topics, assignor, host, *_ = value
    return MemberChanged(
        group=group,
        member_id=member_id,
        instance_id=None if instance_id is None else as_str(instance_id),
        client_id=as_str(client_id),
        session_timeout_ms=as_int(session_timeout_ms),
        rebalance_timeout_ms=as_int(rebalance_timeout_ms),
        topics=tuple(as_str(topic) for topic in as_list(topics)),
        assignor=as_str(assignor),
        client_host=as_str(host),
    )


def _rows(partitions: Mapping[Place, int]) -> list[object]:
    """Return [topic id, topic, epoch, [partitions]] in order: partitions of a topic mostly share their epoch."""
    found: dict[tuple[str, str, int], list[object]] = {}
    for place in sorted(partitions):
        found.setdefault((place.topic_id, place.topic, partitions[place]), []).append(place.partition)
    return [[*head, numbers] for head, numbers in found.items()]


def _places(rows: object) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for row in as_list(rows):
        topic_id, topic, epoch, numbers, *_ = as_list(row)
        for number in as_list(numbers):
            found[Place(as_str(topic_id), as_str(topic), as_int(number))] = as_int(epoch)
    return found
