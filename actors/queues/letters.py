"""Finds the topic of dead letters, and builds and sends their batches. Owned by the queues role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from raylog.actors.queues.reading import LogReader
from raylog.actors.roles.host import RoleHost
from raylog.core.dead_letters import UNDELIVERABLE_TOPIC, Cause, Reason, dead_headers, may_hop
from raylog.core.errors import (
    DuplicateSequence,
    RaylogError,
    RecordTooLarge,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from raylog.core.queues import events as ev
from raylog.core.queues.archiving.origins import Origin, without
from raylog.core.queues.records import LetterBox
from raylog.protocol.admin import CREATE_TOPIC, CreateTopicRequest
from raylog.storage.batch.header import LASTING_PRODUCERS
from raylog.storage.batch.records import BatchMeta, encode_batch

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0
BODY_LOST: Final = "its body was deleted by retention, or is too large for this topic"


@dataclass(frozen=True, slots=True)
class Place:
    """A partition that records are sent to."""

    topic: str
    topic_id: str
    partition: int


class Body(NamedTuple):
    """What a record is, beside its place."""

    key: bytes | None
    value: bytes | None
    stamp_ms: int
    headers: Sequence[Any]


class LetterSender:
    """Sends the dead letters of one partition's queues."""

    def __init__(self, host: RoleHost, reader: LogReader) -> None:
        self._host = host
        self._reader = reader

    async def find(self, topic: str) -> ev.LetterBoxFound:
        """Return where the dead letters for a topic go; it is created where it does not exist."""
        host = self._host
        try:
            if topic == UNDELIVERABLE_TOPIC:
                made = await host.ensure_topic(topic)
                topic_id, partitions = made.topic_id, made.partitions
            else:
                row = (await host.metadata([topic])).topics[0]
                if row.error_code == UnknownTopicOrPartition.code:
                    await self._create(topic)
                    row = (await host.metadata([topic])).topics[0]
                topic_id, partitions = row.topic_id, len(row.partitions)
                if row.error_code or not partitions:
                    return self._nowhere(topic, is_missing=False)
            producer_id = await host.producer_id() | LASTING_PRODUCERS
        except (RaylogError, OSError) as trouble:
            logger.warning("%s: the dead-letter topic %s is not there: %s", host.partition, topic, trouble)
            is_refused = isinstance(trouble, RaylogError) and trouble.is_remote and not trouble.retriable
            return self._nowhere(topic, is_missing=is_refused)
        box = LetterBox(topic, topic_id, host.partition.partition % partitions, producer_id)
        return ev.LetterBoxFound(cause="found", now_ms=host.now_ms(), topic=topic, box=box)

    async def _create(self, topic: str) -> None:
        """Create the topic, with the cluster's defaults, and no limit to the age of its records."""
        request = CreateTopicRequest(topic, -1, -1, None, {"retention.ms": -1}, False, 0)
        try:
            await self._host.call_controller(CREATE_TOPIC.name, request)
        except TopicAlreadyExists:
            pass  # another partition's leader was faster

    def _nowhere(self, topic: str, *, is_missing: bool) -> ev.LetterBoxFound:
        return ev.LetterBoxFound(
            cause="not found", now_ms=self._host.now_ms(), topic=topic, box=None, is_missing=is_missing
        )

    async def send(self, group: str, effect: ev.SendLetters) -> ev.LettersStored | ev.LettersRefused:
        """Append a batch of dead letters, repeated until its outcome is sure."""
        host, box = self._host, effect.box
        batch, circling = await self._batch(group, effect)
        if circling:
            return await self._sent_aside(effect, circling)
        pause_s = PAUSE_S
        while True:
            try:
                await host.targets.send(Place(box.topic, box.topic_id, box.partition), batch)
            except DuplicateSequence:
                pass  # it is there
            except RecordTooLarge as refusal:
                if refusal.is_remote:
                    return ev.LettersRefused(
                        cause="too large", now_ms=host.now_ms(), sequence=effect.sequence, too_large=True
                    )
            except UnknownTopicOrPartition:
                return ev.LettersRefused(cause="topic deleted", now_ms=host.now_ms(), sequence=effect.sequence)
            except (RaylogError, OSError) as trouble:
                logger.info("%s: dead letters for %s wait: %s", host.partition, box.topic, trouble)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
                continue
            return ev.LettersStored(cause="stored", now_ms=host.now_ms(), sequence=effect.sequence)

    async def _sent_aside(self, effect: ev.SendLetters, circling: Mapping[int, bytes]) -> ev.LettersRefused:
        """Append letters that were dead letters too often to ``__undeliverable``; those from there are dropped."""
        host = self._host
        pause_s = PAUSE_S
        waiting = dict(circling) if host.partition.topic != UNDELIVERABLE_TOPIC else {}
        while waiting:
            try:
                made = await host.ensure_topic(UNDELIVERABLE_TOPIC)
                place = Place(UNDELIVERABLE_TOPIC, made.topic_id, 0)
                for offset, batch in list(waiting.items()):
                    await host.targets.send(place, batch)
                    del waiting[offset]
            except (RaylogError, OSError) as trouble:
                logger.info("%s: undeliverable records wait: %s", host.partition, trouble)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
        return ev.LettersRefused(
            cause="in circles", now_ms=host.now_ms(), sequence=effect.sequence, finished=tuple(circling)
        )

    async def _batch(self, group: str, effect: ev.SendLetters) -> tuple[bytes, Mapping[int, bytes]]:
        """Return the batch, and by offset a batch for each letter that may not go there once more."""
        circling: dict[int, bytes] = {}
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        headers: list[Any] = []
        stamps: list[int] = []
        for letter in effect.letters:
            body = await self.body(letter)
            message = letter.cause.message
            if body is None:
                body = Body(None, None, self._host.wall_ms(), ())
                message = f"{message}; {BODY_LOST}" if message else BODY_LOST
            key, value, stamp, own = body
            topic, partition, offset = (*self._host.partition, letter.offset)
            origin = Origin.of(own)
            if origin is not None:  # it was retried in a topic of the group alone: a redrive leads back to its own
                topic, partition, offset, _ = origin
                own = without(own)
            cause = Cause(
                reason=Reason(letter.cause.reason),
                topic=topic,
                partition=partition,
                offset=offset,
                message=message,
                group=group,
                delivery_count=letter.tries,
            )
            keys.append(key)
            values.append(value)
            stamps.append(stamp)
            headers.append(dead_headers(own, cause))
            if not may_hop(own) or effect.box.topic == self._host.partition.topic:
                circling[letter.offset] = encode_batch([key], [value], [stamp], headers[-1:])
        meta = BatchMeta(effect.box.producer_id, 0, effect.sequence)
        return encode_batch(keys, values, stamps, headers, meta), circling

    async def body(self, letter: ev.Letter) -> Body | None:
        """Return the record behind a letter; None = it was deleted, or is too large."""
        if not letter.keeps_body:
            return None
        try:
            chunk = await self._reader.chunk(letter.offset)
        except RaylogError:
            return None
        found = None if chunk is None else chunk.record(letter.offset)
        if found is None:
            return None
        columns, index = found
        return Body(
            None if columns.keys is None else columns.keys[index],
            None if columns.values is None else columns.values[index],
            columns.timestamps[index],
            () if columns.headers is None else columns.headers[index] or (),
        )
