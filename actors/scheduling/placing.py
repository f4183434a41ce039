"""Which partition a record goes to when it is due, by the metadata of its topic. Owned by the scheduler's role.

A keyed record goes where any producer would send it, by the number of partitions at that moment. May touch: the
controller, through the role's host.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from raylog.actors.roles.host import RoleHost
from raylog.actors.scheduling.bodies import Body, envelope_of
from raylog.core.errors import RaylogError, UnknownTopicOrPartition
from raylog.core.scheduling.envelope import BY_KEY, name_among
from raylog.core.scheduling.events import Target
from raylog.core.scheduling.keys import offset_of
from raylog.core.scheduling.lanes import UNKNOWN_PARTITION
from raylog.core.scheduling.rows import LaneId
from raylog.storage.batch.key_hash import partition_for_key

FRESH_MS: Final = 5_000
"""Age from which on a topic's metadata is fetched again when it is used."""
TOPICS_MAX: Final = 10_000
UNRESOLVED: Final = "Its half message was checked in vain as often as allowed."


@dataclass(frozen=True, slots=True)
class TargetPlace:
    """One partition of a topic, for :class:`raylog.actors.roles.targets.Targets`."""

    topic: str
    topic_id: str
    partition: int


@dataclass(slots=True)
class TargetTopic:
    """What is known of a topic. ``topic_id`` empty: it does not exist."""

    topic_id: str
    partitions: int
    config: dict[str, str] = field(default_factory=dict)
    known_ms: int = 0


class Placing:
    """The topics of targets."""

    def __init__(self, host: RoleHost, undeliverable: str) -> None:
        """``undeliverable``: the topic of records that no target takes."""
        self._host = host
        self._undeliverable = undeliverable
        self._topics: dict[str, TargetTopic] = {}
        self._turn = 0
        self.causes: dict[int, str] = {}
        """Why records are undeliverable, by their offsets."""

    def topic(self, name: str) -> TargetTopic | None:
        """Return what is known of a topic; None = nothing."""
        return self._topics.get(name)

    def is_known(self, name: str, now_ms: int) -> bool:
        """Return whether a topic's metadata is fresh."""
        found = self._topics.get(name)
        return found is not None and now_ms - found.known_ms < FRESH_MS

    def doubts(self, bodies: Iterable[Body]) -> set[str]:
        """Return the targets that, by what is known, do not take one of these records; that is forgotten.

        It may be of an earlier topic of that name, or of the time before partitions were added: only an answer to a
        query that is sent now says that a target does not exist.
        """
        doubted = {
            envelope.topic
            for body in bodies
            if (envelope := envelope_of(body)) is not None
            and (topic := self._topics.get(envelope.topic)) is not None
            and (topic.topic_id != envelope.topic_id or envelope.partition >= topic.partitions)
        }
        for name in doubted:
            self.forget(name)
        return doubted

    async def look_up(self, names: Iterable[str], doubted: Container[str] = ()) -> None:
        """Fetch the metadata of some topics; where the controller is away, what is known stays, but for the doubted."""
        wanted = sorted(set(names))
        try:
            reply = await self._host.metadata(wanted)
        except RaylogError:
            for name in wanted:
                if name in doubted:  # another look-up may have ended meanwhile, and have been sent earlier
                    self.forget(name)
            return
        if len(self._topics) > TOPICS_MAX:
            self._topics.clear()
        for row in reply.topics:
            if row.error_code not in (0, UnknownTopicOrPartition.code):
                continue
            topic_id = "" if row.error_code else row.topic_id
            config = {key: str(value) for key, value in dict(row.config).items()}
            self._topics[row.topic] = TargetTopic(topic_id, len(row.partitions), config, self._host.now_ms())

    async def undeliverable_topic(self) -> None:
        """Have the topic for undeliverable records created, if it is not there."""
        try:
            made = await self._host.ensure_topic(self._undeliverable)
        except RaylogError:
            return
        self._topics[self._undeliverable] = TargetTopic(made.topic_id, made.partitions, {}, self._host.now_ms())

    def forget(self, name: str) -> None:
        """Have a topic looked up again before it is used."""
        self._topics.pop(name, None)

    def target(self, key: int, body: Body, *, is_refused: bool, is_unresolved: bool = False) -> Target:
        """Return where a record goes; with partition -1 while that is not known."""
        envelope = envelope_of(body)
        if is_unresolved:
            return self._dead(key, body, UNRESOLVED)
        if envelope is None:
            return self._dead(key, body, "It has no target.")
        if is_refused:
            return self._dead(key, body, f"{envelope.topic} refused it.")
        topic = self._topics.get(envelope.topic)
        if topic is None:
            return self._at(key, body, envelope.topic, (envelope.topic_id, UNKNOWN_PARTITION))
        if topic.topic_id != envelope.topic_id:
            return self._dead(key, body, f"The topic {envelope.topic} was deleted while it waited.")
        partition = envelope.partition
        if partition == BY_KEY:
            partition = self._next(topic) if body.key is None else partition_for_key(body.key, topic.partitions)
        if not 0 <= partition < topic.partitions:
            return self._dead(key, body, f"{envelope.topic} has no partition {partition}.")
        return self._at(key, body, envelope.topic, (envelope.topic_id, partition))

    def _next(self, topic: TargetTopic) -> int:
        return self._turn % topic.partitions

    def next_turn(self) -> None:
        """Let the records without key of the next round go to the next partition."""
        self._turn += 1

    def _dead(self, key: int, body: Body, cause: str) -> Target:
        self.causes[body.offset] = cause
        topic = self._topics.get(self._undeliverable)
        lane: LaneId = (self._undeliverable, UNKNOWN_PARTITION)
        if topic is not None and topic.topic_id:
            lane = (topic.topic_id, 0)
        return self._at(key, body, self._undeliverable, lane)

    def _at(self, key: int, body: Body, topic: str, lane: LaneId) -> Target:
        name = 0 if topic == self._undeliverable else name_among(body.headers)
        return Target(key=key, topic=topic, lane=lane, size_bytes=body.size_bytes, name=name)

    def cause_of(self, key: int, topic: str) -> str | None:
        """Return why a record is on its way to the topic for undeliverable ones; None = it is not."""
        if topic != self._undeliverable:
            return None
        return self.causes.get(offset_of(key), "Its target did not take it.")
