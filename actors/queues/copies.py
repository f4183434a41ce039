"""Sends copies of records whose retry is late into ``__scheduled``, which delivers them. Owned by the queues role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from raylog.actors.queues.created import create_as_source, source_of
from raylog.actors.queues.letters import LIMIT, PAUSE_MAX_S, PAUSE_S, limit_for_copies
from raylog.actors.queues.reading import BODY_TOO_LARGE, Body, RecordReader
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import (
    DuplicateSequence,
    LeaderNotAvailable,
    RaylogError,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicIdPartition
from raylog.core.dead_letters import Header
from raylog.core.forwarding.sizes import BATCH_BYTES, RECORD_BYTES, Room, size_of
from raylog.core.lane import Trouble, split_at, trouble_of
from raylog.core.queues import events as ev
from raylog.core.queues.origins import OF, Origin, own_timestamp, retry_topic, timestamp_header, without
from raylog.core.queues.policy import DEFAULTS
from raylog.core.queues.records import LetterBox
from raylog.core.scheduling import envelope
from raylog.core.scheduling.envelope import Envelope
from raylog.protocol.admin import (
    ALTER_TOPIC_CONFIG,
    AlterTopicConfigRequest,
)
from raylog.protocol.broker import MetadataTopic
from raylog.protocol.scheduling import DESCRIBE_SCHEDULER, DescribeSchedulerRequest
from raylog.storage.batch.header import LASTING_PRODUCERS
from raylog.storage.batch.records import BatchMeta, encode_batch

logger = logging.getLogger(__name__)

CLOCK_TIMEOUT_S: Final = 5.0
LIMIT_LEAST: Final = 33 * 1024 * 1024
"""Lowest max.message.bytes of a retry topic: it has to take every batch that ``__scheduled`` has taken."""


class _Target(NamedTuple):
    """The retry topic of a group."""

    topic: str
    topic_id: str
    partitions: int


class _NotTaken(Exception):
    """``__scheduled`` will never take this batch."""

    def __init__(self, refusal: RaylogError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class CopySender:
    """Sends the copies of one partition's queues."""

    def __init__(self, host: RoleHost, records: RecordReader) -> None:
        """``records``: reads the records."""
        self._host = host
        self._records = records

    async def find(self, topic: str) -> ev.LetterBoxFound:
        """Return the partition of ``__scheduled`` for copies; the topic is created on first use."""
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
        """Append a batch of copies to ``__scheduled``, and repeat that until the outcome is known."""
        host, box = self._host, effect.box
        bodies, lost = await self._read(effect)
        if lost:
            return self._refused(effect, "lost", lost=lost)
        if len(bodies) < len(effect.letters):
            return self._refused(effect, "too many bytes", fits=len(bodies))
        place = TopicIdPartition(box.topic, box.topic_id, box.partition)
        pause_s = PAUSE_S
        while True:
            try:
                target = await self._target(group)
                clock_ahead_ms = await self._clock_ahead_ms(place)
                await self._sent(place, self._batch(effect, bodies, target, clock_ahead_ms))
            except _NotTaken as found:
                return self._not_taken(effect, found.refusal)
            except (RaylogError, OSError) as trouble:
                logger.info("%s: late retries of group %s wait: %s", host.partition, group, trouble)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
                continue
            return ev.LettersStored(cause="stored", now_ms=host.now_ms(), sequence=effect.sequence, is_later=True)

    async def _read(self, effect: ev.SendLetters) -> tuple[list[Body], list[tuple[int, str]]]:
        """Return the first records, as many as one batch takes, and the lost ones with the reason."""
        found: list[Body] = []
        lost: list[tuple[int, str]] = []
        room = Room(None if effect.is_again else BATCH_BYTES)
        for letter in effect.letters:
            body, why = await self._records.body(letter.offset)
            if body is None:
                lost.append((letter.offset, why))
            elif not room.takes(size_of(body.key, body.value, body.headers) + RECORD_BYTES):
                break
            else:
                found.append(body)
        return found, lost

    async def _sent(self, place: TopicIdPartition, batch: bytes) -> None:
        """Send a batch once. Raises _NotTaken if it will never be taken, other errors if the outcome is not known."""
        try:
            await self._host.targets.schedule(place, batch)
        except DuplicateSequence:
            pass  # it was stored before
        except RaylogError as error:
            if trouble_of(error) is not Trouble.UNREACHABLE:
                raise _NotTaken(error) from error
            raise

    def _not_taken(self, effect: ev.SendLetters, refusal: RaylogError) -> ev.LettersRefused:
        """Halve the batch, until the copy that ``__scheduled`` does not take is alone; that one is lost."""
        if trouble_of(refusal) is not Trouble.REFUSED:
            return self._refused(effect, "forgotten", is_replaced=True)
        if half := split_at(len(effect.letters)):
            return self._refused(effect, "refused", fits=half)
        logger.warning("%s: a copy is refused: %s", self._host.partition, refusal)
        why = BODY_TOO_LARGE if isinstance(refusal, RecordTooLarge) else f"its copy is refused: {refusal}"
        return self._refused(effect, "refused", lost=[(effect.letters[0].offset, why)])

    def _refused(
        self,
        effect: ev.SendLetters,
        cause: str,
        *,
        fits: int = 0,
        lost: Sequence[tuple[int, str]] = (),
        is_replaced: bool = False,
    ) -> ev.LettersRefused:
        return ev.LettersRefused(
            cause=cause,
            now_ms=self._host.now_ms(),
            sequence=effect.sequence,
            fits=fits,
            lost=tuple(lost),
            is_replaced=is_replaced,
            is_later=True,
        )

    async def _clock_ahead_ms(self, place: TopicIdPartition) -> int:
        """Return how far the clock that delivers copies is ahead of this one, rounded up, so that none comes early."""
        began_ms = self._host.now_ms()

        def request(epoch: int) -> DescribeSchedulerRequest:
            return DescribeSchedulerRequest(place.topic_id, place.partition, epoch)

        reply = await self._host.targets.call(place, DESCRIBE_SCHEDULER, request, timeout_s=CLOCK_TIMEOUT_S)
        return reply.clock_ms - began_ms

    def _batch(self, effect: ev.SendLetters, bodies: Sequence[Body], target: _Target, clock_ahead_ms: int) -> bytes:
        host = self._host
        wrapped = Envelope(
            target.topic, target.topic_id, host.partition.partition % target.partitions, host.wall_ms()
        ).header()
        is_retry_topic = bool(host.config.get(OF))
        headers: list[list[Header] | None] = []
        for letter, body in zip(effect.letters, bodies, strict=True):
            before = Origin.of(body.headers) if is_retry_topic else None
            topic, partition, offset = (*host.partition, letter.offset) if before is None else before[:3]
            stamp_ms = body.stamp_ms if before is None else own_timestamp(body.headers, body.stamp_ms)
            own = envelope.without(without(body.headers))  # without Raylog's headers that a user may have written
            kept = [timestamp_header(stamp_ms)] if stamp_ms >= 0 else []
            headers.append([*own, *kept, Origin(topic, partition, offset, letter.tries).header(), wrapped])
        return encode_batch(
            [body.key for body in bodies],
            [body.value for body in bodies],
            [letter.until_ms + clock_ahead_ms for letter in effect.letters],
            headers,
            BatchMeta(effect.box.producer_id, 0, effect.sequence),
            compression=next((body.compression for body in bodies if body.compression), 0),
        )

    async def _target(self, group: str) -> _Target:
        """Return the group's retry topic, created if it does not exist; this topic itself if it is a retry topic."""
        host = self._host
        own = host.partition.topic
        topic = own if host.config.get(OF) else retry_topic(group, own)
        row = (await host.metadata([topic])).topics[0]
        if row.error_code == UnknownTopicOrPartition.code:
            await self._create(topic)
            row = (await host.metadata([topic])).topics[0]
        if row.error_code or not row.partitions:
            raise LeaderNotAvailable(f"{topic} is not known yet.")
        await self._make_room(row)
        return _Target(topic, row.topic_id, len(row.partitions))

    def _limit(self) -> str:
        return limit_for_copies(self._host.config, LIMIT_LEAST)

    async def _make_room(self, row: MetadataTopic) -> None:
        """Raise max.message.bytes of a retry topic if it would not take every copy, because its source's was raised."""
        limit = self._limit()
        if int(dict(row.config).get(LIMIT, 0)) < int(limit):
            request = AlterTopicConfigRequest(row.topic, {LIMIT: limit}, [])
            try:
                await self._host.call_controller(ALTER_TOPIC_CONFIG.name, request)
            except RaylogError as refusal:  # most copies will fit all the same
                logger.warning("%s: the limit of %s stays: %s", self._host.partition, row.topic, refusal)

    async def _create(self, topic: str) -> None:
        """Create a retry topic with its source's number of partitions and queue settings, and without retention."""
        host = self._host
        row = await source_of(host)
        kept = {name: value for name, value in host.config.items() if name in DEFAULTS}
        aged = {"retention.ms": "-1", "retention.bytes": "-1"}
        config = {**kept, **aged, LIMIT: self._limit(), OF: host.partition.topic}
        await create_as_source(host, row, topic, max(1, len(row.partitions)), config)
