"""Sends the copies of records that are to be retried late into ``__scheduled``. Owned by the queues role."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NamedTuple

from raylog.actors.queues.letters import PAUSE_MAX_S, PAUSE_S, LetterSender, Place
from raylog.actors.roles.host import RoleHost
from raylog.core.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    LeaderNotAvailable,
    OutOfOrderSequence,
    RaylogError,
    RecordTooLarge,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from raylog.core.queues import events as ev
from raylog.core.queues.archiving.origins import OF, Origin, retry_topic, without
from raylog.core.queues.policy import DEFAULTS
from raylog.core.queues.records import LetterBox
from raylog.core.scheduling.envelope import Envelope
from raylog.protocol.admin import CREATE_TOPIC, CreateTopicRequest
from raylog.protocol.scheduling import DESCRIBE_SCHEDULER, DescribeSchedulerRequest
from raylog.storage.batch.header import LASTING_PRODUCERS
from raylog.storage.batch.records import BatchMeta, encode_batch

logger = logging.getLogger(__name__)

CLOCK_TIMEOUT_S: Final = 5.0
_FORGOTTEN: Final = (OutOfOrderSequence, InvalidProducerEpoch, UnknownTopicOrPartition)
"""``__scheduled`` is another one, or has lost what the producer sent: another producer begins."""


class _Target(NamedTuple):
    """The retry topic of a group."""

    topic: str
    topic_id: str
    partitions: int


class CopySender:
    """Sends the copies of one partition's queues."""

    def __init__(self, host: RoleHost, letters: LetterSender) -> None:
        """``letters`` reads the records."""
        self._host = host
        self._letters = letters

    async def find(self, topic: str) -> ev.LetterBoxFound:
        """Return where copies wait: a partition of ``__scheduled``, which is created on first use."""
        host = self._host
        box: LetterBox | None = None
        try:
            made = await host.ensure_topic(topic)
            producer_id = await host.producer_id() | LASTING_PRODUCERS
            box = LetterBox(topic, made.topic_id, host.partition.partition % made.partitions, producer_id)
        except (RaylogError, OSError) as trouble:
            logger.warning("%s: late retries wait: %s", host.partition, trouble)
        return ev.LetterBoxFound(cause="found", now_ms=host.now_ms(), topic=topic, box=box, is_later=True)

    async def send(self, group: str, effect: ev.SendLetters) -> ev.LettersStored | ev.LettersRefused:
        """Append a batch of copies to ``__scheduled``, repeated until its outcome is sure."""
        host, box = self._host, effect.box
        now_ms, pause_s = host.now_ms, PAUSE_S
        bodies = [await self._letters.body(letter) for letter in effect.letters]
        lost = [letter.offset for letter, body in zip(effect.letters, bodies, strict=True) if body is None]
        if lost:
            return ev.LettersRefused(
                cause="deleted", now_ms=now_ms(), sequence=effect.sequence, lost=tuple(lost), is_later=True
            )
        while True:
            try:
                target = await self._target(group)
                place = Place(box.topic, box.topic_id, box.partition)
                batch = self._batch(effect, bodies, target, await self._clock_ahead_ms(place))
                await host.targets.schedule(place, batch)
            except DuplicateSequence:
                pass  # it is there
            except (RaylogError, OSError) as trouble:
                is_large = isinstance(trouble, RecordTooLarge) and trouble.is_remote
                if is_large or isinstance(trouble, _FORGOTTEN):
                    return ev.LettersRefused(
                        cause="refused", now_ms=now_ms(), sequence=effect.sequence, too_large=is_large, is_later=True
                    )
                logger.info("%s: late retries of group %s wait: %s", host.partition, group, trouble)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
                continue
            return ev.LettersStored(cause="stored", now_ms=now_ms(), sequence=effect.sequence, is_later=True)

    async def _clock_ahead_ms(self, place: Place) -> int:
        """Return how far the clock that delivers copies is ahead of the own one, or more: none comes early."""
        began_ms = self._host.now_ms()

        def request(epoch: int) -> DescribeSchedulerRequest:
            return DescribeSchedulerRequest(place.topic_id, place.partition, epoch)

        reply = await self._host.targets.call(place, DESCRIBE_SCHEDULER, request, timeout_s=CLOCK_TIMEOUT_S)
        return reply.clock_ms - began_ms

    def _batch(self, effect: ev.SendLetters, bodies: list[Any], target: _Target, clock_ahead_ms: int) -> bytes:
        host = self._host
        envelope = Envelope(
            target.topic, target.topic_id, host.partition.partition % target.partitions, host.wall_ms()
        ).header()
        headers: list[Any] = []
        for letter, body in zip(effect.letters, bodies, strict=True):
            before = Origin.of(body.headers)
            topic, partition, offset = (*host.partition, letter.offset) if before is None else before[:3]
            headers.append([*without(body.headers), Origin(topic, partition, offset, letter.tries).header(), envelope])
        return encode_batch(
            [body.key for body in bodies],
            [body.value for body in bodies],
            [letter.until_ms + clock_ahead_ms for letter in effect.letters],
            headers,
            BatchMeta(effect.box.producer_id, 0, effect.sequence),
        )

    async def _target(self, group: str) -> _Target:
        """Return the group's retry topic, which is created where it does not exist; the own one, if this is one."""
        host = self._host
        own = host.partition.topic
        topic = own if host.config.get(OF) else retry_topic(group, own)
        row = (await host.metadata([topic])).topics[0]
        if row.error_code == UnknownTopicOrPartition.code:
            await self._create(topic)
            row = (await host.metadata([topic])).topics[0]
        if row.error_code or not row.partitions:
            raise LeaderNotAvailable(f"{topic} is not known yet.")
        return _Target(topic, row.topic_id, len(row.partitions))

    async def _create(self, topic: str) -> None:
        """Create a retry topic with as many partitions and the same settings of queues, and no limit to age."""
        host = self._host
        row = (await host.metadata([host.partition.topic])).topics[0]
        kept = {name: value for name, value in host.config.items() if name in DEFAULTS}
        config = {**kept, "retention.ms": "-1", "retention.bytes": "-1", OF: host.partition.topic}
        replicas = len(row.partitions[0].replicas) if row.partitions else -1
        request = CreateTopicRequest(topic, max(1, len(row.partitions)), replicas, None, config, False, 0)
        try:
            await host.call_controller(CREATE_TOPIC.name, request)
        except TopicAlreadyExists:
            pass  # another partition's leader was faster
