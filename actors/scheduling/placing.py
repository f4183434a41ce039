"""Decides to which partition a due record goes, by the metadata of its topic. Owned by the scheduler's role.

A record with a key goes where any producer would send it, by the number of partitions at that moment. May touch: the
controller, through the role's host.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from raylog.actors.roles.host import RoleHost
from raylog.actors.scheduling.decoded_batches import Body, envelope_of
from raylog.base.errors import RaylogError, UnknownTopicOrPartition
from raylog.core.configuration.config import TopicConfig
from raylog.core.scheduling.envelope import BY_KEY, Envelope, name_among
from raylog.core.scheduling.events import Target
from raylog.core.scheduling.keys import offset_of
from raylog.core.scheduling.lanes import UNKNOWN_PARTITION
from raylog.core.scheduling.rows import LaneId
from raylog.storage.batch.key_hash import partition_for_key

FRESH_MS: Final = 5_000
"""Age from which on a topic's cached metadata is fetched again when it is used."""
TOPICS_MAX: Final = 10_000
CAUSES_MAX: Final = 100_000
DEAD_BYTES: Final = 2_048
"""Upper bound of the headers that are added to an undeliverable record."""
UNRESOLVED: Final = "Its half message was checked in vain as often as allowed."


class Facts(NamedTuple):
    """What is needed to place a record, without its value."""

    key: int
    offset: int
    record_key: bytes | None
    envelope: Envelope | None
    size_bytes: int
    name: int
    damage: str

    @classmethod
    def of(cls, key: int, body: Body) -> Facts:
        """Return the facts of a record."""
        envelope, name = envelope_of(body), name_among(body.headers)
        return cls(key, body.offset, body.key, envelope, body.size_bytes, name, body.damage)


@dataclass(slots=True)
class TargetTopic:
    """The cached metadata of a topic. ``topic_id`` empty: the topic does not exist."""

    topic_id: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)
    known_ms: int = 0
    limit_bytes: int = 0
    """The topic's ``max.message.bytes``; 0 = not known."""

    def has_id(self, topic_id: str) -> bool:
        """Return whether the topic exists and has this id."""
        return bool(topic_id) and topic_id == self.topic_id


class Placing:
    """The cached target topics, and the causes of undeliverable records."""

    def __init__(self, host: RoleHost, undeliverable: str) -> None:
        """``undeliverable``: name of the topic for records that no target takes."""
        self._host = host
        self._undeliverable = undeliverable
        self._topics: dict[str, TargetTopic] = {}
        self._turn = 0
        self.causes: dict[int, str] = {}
        """Why records are undeliverable, by offset, until they are stored in that topic."""

    def topic(self, name: str) -> TargetTopic | None:
        """Return the cached metadata of a topic; None = it is not cached."""
        return self._topics.get(name)

    def is_known(self, name: str, now_ms: int, fresh_ms: int = FRESH_MS) -> bool:
        """Return whether a topic is cached, with metadata younger than ``fresh_ms``."""
        found = self._topics.get(name)
        return found is not None and now_ms - found.known_ms < fresh_ms

    async def look_up(self, names: Iterable[str]) -> bool:
        """Fetch the metadata of topics into the cache; False if the controller does not answer: nothing changes."""
        wanted = sorted(set(names))
        try:
            reply = await self._host.metadata(wanted)
        except RaylogError:
            return False
        if len(self._topics) > TOPICS_MAX:
            self._topics.clear()
        for row in reply.topics:
            if row.error_code not in (0, UnknownTopicOrPartition.code):
                self.forget(row.topic)  # it may exist or not, so its records wait
                continue
            topic_id = "" if row.error_code else row.topic_id
            config = {key: str(value) for key, value in dict(row.config).items()}
            limit_bytes = 0 if row.error_code else TopicConfig.from_dict(config).max_message_bytes
            self._topics[row.topic] = TargetTopic(
                topic_id, len(row.partitions), config, self._host.now_ms(), limit_bytes
            )
        return True

    async def undeliverable_topic(self) -> None:
        """Create the topic for undeliverable records, if it does not exist; an error leaves it unknown."""
        try:
            made = await self._host.ensure_topic(self._undeliverable)
        except RaylogError:
            return
        self._topics[self._undeliverable] = TargetTopic(made.topic_id, made.partitions, {}, self._host.now_ms())

    def forget(self, name: str) -> None:
        """Drop a topic from the cache, so that it is looked up before its next use."""
        self._topics.pop(name, None)

    def absent(self, facts: Facts) -> str | None:
        """Return the record's topic if the cache says that it, or the partition, does not exist; else None."""
        envelope = facts.envelope
        topic = None if envelope is None else self._topics.get(envelope.topic)
        if envelope is None or topic is None:
            return None
        is_there = topic.has_id(envelope.topic_id) and envelope.partition < topic.partitions
        return None if is_there else envelope.topic

    def target(self, facts: Facts, *, is_refused: bool, is_unresolved: bool = False) -> Target:
        """Return the target of a record; its partition is -1 while the topic is not known."""
        envelope = facts.envelope
        if is_unresolved:
            return self._dead(facts, UNRESOLVED)
        if facts.damage:
            return self._dead(facts, f"It cannot be opened: {facts.damage}")
        if envelope is None:
            return self._dead(facts, "It has no target.")
        if envelope.is_internal:
            return self._dead(facts, f"{envelope.topic} is a topic of Raylog's own.")
        if is_refused:
            return self._dead(facts, self.causes.get(facts.offset) or f"{envelope.topic} refused it.")
        topic = self._topics.get(envelope.topic)
        if topic is None:
            return self._at(facts, envelope.topic, (envelope.topic_id, UNKNOWN_PARTITION), 0)
        if not topic.has_id(envelope.topic_id):
            return self._dead(facts, f"The topic {envelope.topic} was deleted while it waited.")
        partition = envelope.partition
        if partition == BY_KEY:
            key = facts.record_key
            partition = self._next(topic) if key is None else partition_for_key(key, topic.partitions)
        if not 0 <= partition < topic.partitions:
            return self._dead(facts, f"{envelope.topic} has no partition {partition}.")
        return self._at(facts, envelope.topic, (envelope.topic_id, partition), topic.limit_bytes)

    def _next(self, topic: TargetTopic) -> int:
        return self._turn % topic.partitions

    def next_turn(self) -> None:
        """Send later records without key to the next partition."""
        self._turn += 1

    def blame(self, key: int, cause: str) -> None:
        """Note the cause for which a record is undeliverable."""
        if len(self.causes) >= CAUSES_MAX:
            del self.causes[next(iter(self.causes))]
        self.causes[offset_of(key)] = cause

    def delivered(self, topic: str, keys: Iterable[int]) -> None:
        """Drop the causes of records that are now stored in the topic for undeliverable ones."""
        if topic == self._undeliverable:
            for key in keys:
                self.causes.pop(offset_of(key), None)

    def _dead(self, facts: Facts, cause: str) -> Target:
        self.blame(facts.key, cause)
        topic = self._topics.get(self._undeliverable)
        lane: LaneId = (self._undeliverable, UNKNOWN_PARTITION)
        if topic is not None and topic.topic_id:
            lane = (topic.topic_id, 0)
        return self._at(facts, self._undeliverable, lane, 0 if topic is None else topic.limit_bytes)

    def _at(self, facts: Facts, topic: str, lane: LaneId, limit_bytes: int) -> Target:
        is_dead = topic == self._undeliverable
        size_bytes = facts.size_bytes + (DEAD_BYTES if is_dead else 0)
        name = 0 if is_dead else facts.name
        return Target(key=facts.key, topic=topic, lane=lane, size_bytes=size_bytes, name=name, limit_bytes=limit_bytes)

    def cause_of(self, key: int, topic: str) -> str | None:
        """Return why a record is sent to the topic for undeliverable ones; None = ``topic`` is another one."""
        if topic != self._undeliverable:
            return None
        return self.causes.get(offset_of(key), "Its target did not take it.")
