"""Finds or creates the dead-letter topic, and builds and sends batches of dead letters. Owned by the queues role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from raylog.actors.queues.created import CLUSTER_DEFAULT, create_as_source, source_of
from raylog.actors.queues.reading import BODY_TOO_LARGE, Body, RecordReader
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import (
    DuplicateSequence,
    NotLeaderOrFollower,
    RaylogError,
    RecordTooLarge,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicIdPartition
from raylog.core.dead_letters import UNDELIVERABLE_TOPIC, Cause, Header, Reason, dead_headers, may_hop
from raylog.core.forwarding.sizes import BATCH_BYTES, ROOM_BYTES, Room, size_of
from raylog.core.lane import Trouble, split_at, trouble_of
from raylog.core.queues import events as ev
from raylog.core.queues.origins import OF, Origin, own_timestamp, without
from raylog.core.queues.records import LetterBox
from raylog.storage.batch.header import LASTING_PRODUCERS, PLAIN
from raylog.storage.batch.records import BatchMeta, encode_batch

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0
LIMIT: Final = "max.message.bytes"
LIMIT_DEFAULT: Final = 1_048_588
"""Limit of a topic that sets none: the default of Kafka and of the brokers."""
LIMIT_MAX: Final = 2**31 - 1
LIMIT_FRESH_MS: Final = 30_000
"""Time for which a dead-letter topic's limit is cached. A stale one does no harm: it only sets the batch size."""


def limit_for_copies(config: Mapping[str, str], least: int = 0) -> str:
    """Return ``max.message.bytes`` for a topic that takes copies of another one's records, with headers added.

    ``config`` is the other topic's. The result is at least ``least``.
    """
    return str(min(LIMIT_MAX, max(least, int(config.get(LIMIT, LIMIT_DEFAULT)) + ROOM_BYTES)))


class Sender(Protocol):
    """Sends dead letters or late retries."""

    async def send(self, group: str, effect: ev.SendLetters) -> ev.LettersStored | ev.LettersRefused:
        """Append a batch; repeated until its outcome is known."""


async def sent_at_last(
    sender: Sender, host: RoleHost, group: str, effect: ev.SendLetters, is_over: Callable[[], bool]
) -> ev.LettersStored | ev.LettersRefused | None:
    """Send a batch; after an unexpected error, again and again. None: the group's queue ``is_over``.

    Raises NotLeaderOrFollower.
    """
    while not is_over():
        try:
            return await sender.send(group, effect)
        except NotLeaderOrFollower:
            raise
        except Exception:
            # The cause is in the records of one group, so nothing else of the partition's leader may end.
            logger.exception("%s: dead letters of group %s wait", host.partition, group)
            await asyncio.sleep(PAUSE_MAX_S)
    return None


class _Letter:
    """One dead letter, as it is sent."""

    __slots__ = ("compression", "headers", "is_circling", "key", "offset", "size", "value")

    def __init__(self, offset: int, body: Body | None, headers: list[Header], *, is_circling: bool) -> None:
        self.offset = offset
        self.key = None if body is None else body.key
        self.value = None if body is None else body.value
        self.compression = 0 if body is None else body.compression
        self.headers = headers
        self.is_circling = is_circling
        self.size = size_of(self.key, self.value, headers)


class LetterSender:
    """Sends the dead letters of one partition's queues."""

    def __init__(self, host: RoleHost, records: RecordReader, day_ms: Callable[[], Awaitable[int]]) -> None:
        """``records`` reads the records; ``day_ms`` returns the time of day on which most brokers agree."""
        self._host = host
        self._records = records
        self._day_ms = day_ms
        self._limits: dict[str, tuple[int, int]] = {}
        """By topic id: the largest batch in bytes, and when it was looked up (`now_ms`)."""

    async def find(self, topic: str) -> ev.LetterBoxFound:
        """Return where the letters for the dead-letter topic ``topic`` go. A topic that does not exist is created."""
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
        """Create the topic: no retention limit, room for any record of this topic, and as many replicas as it has."""
        host = self._host
        config = {"retention.ms": "-1", LIMIT: limit_for_copies(host.config)}
        await create_as_source(host, await source_of(host), topic, CLUSTER_DEFAULT, config)

    def _nowhere(self, topic: str, *, is_missing: bool) -> ev.LetterBoxFound:
        return ev.LetterBoxFound(
            cause="not found", now_ms=self._host.now_ms(), topic=topic, box=None, is_missing=is_missing
        )

    async def _bytes_max(self, box: LetterBox) -> int:
        """Return the largest batch of letters, in bytes."""
        found = self._limits.get(box.topic_id)
        if found is None or self._host.now_ms() - found[1] >= LIMIT_FRESH_MS:
            try:
                row = (await self._host.metadata([box.topic])).topics[0]
                limit = int(dict(row.config).get(LIMIT, LIMIT_DEFAULT))
            except (RaylogError, OSError, ValueError) as trouble:
                logger.debug("%s: the limit of %s is not known: %s", self._host.partition, box.topic, trouble)
                limit = LIMIT_DEFAULT if found is None else found[0]
            self._limits.clear()  # a group's letters go to few topics, one after the other
            found = self._limits[box.topic_id] = limit, self._host.now_ms()
        return min(BATCH_BYTES, found[0])

    async def send(self, group: str, effect: ev.SendLetters) -> ev.LettersStored | ev.LettersRefused:
        """Append a batch of dead letters; repeated until its outcome is known."""
        letters, without_body = await self._letters(group, effect)
        circling = [letter for letter in letters if letter.is_circling]
        if circling:
            return await self._sent_aside(effect, circling, in_circles=True)
        if len(letters) < len(effect.letters):
            return self._refused(effect, "too many bytes", fits=len(letters))
        box = effect.box
        meta = BatchMeta(box.producer_id, 0, effect.sequence)
        place = TopicIdPartition(box.topic, box.topic_id, box.partition)
        stamp_ms, pause_s = await self._day_ms(), PAUSE_S
        while True:
            try:
                await self._host.targets.send(place, _encoded(letters, stamp_ms, meta))
            except DuplicateSequence:
                without_body = 0  # an earlier leader has appended the batch, and has counted these
            except (RaylogError, OSError) as error:
                trouble = trouble_of(error)
                if trouble in (Trouble.DELETED, Trouble.FORGOTTEN):
                    logger.warning("%s: another dead-letter topic is found: %s", self._host.partition, error)
                    return self._refused(effect, "topic deleted", is_replaced=True)
                if trouble is Trouble.REFUSED:
                    return await self._not_taken(effect, letters, error)
                logger.info("%s: dead letters for %s wait: %s", self._host.partition, box.topic, error)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
                continue
            return ev.LettersStored(
                cause="stored", now_ms=self._host.now_ms(), sequence=effect.sequence, without_body=without_body
            )

    async def _not_taken(
        self, effect: ev.SendLetters, letters: Sequence[_Letter], refusal: BaseException
    ) -> ev.LettersRefused:
        """Halve the batch until it is the one letter that the topic refuses; that one goes to ``__undeliverable``."""
        self._limits.clear()
        if half := split_at(len(letters)):
            return self._refused(effect, "refused", fits=half)
        logger.warning("%s: a dead letter is refused: %s", self._host.partition, refusal)
        offset = letters[0].offset
        if isinstance(refusal, RecordTooLarge):
            return self._refused(effect, "too large", too_large=(offset,))
        if effect.box.topic == UNDELIVERABLE_TOPIC:  # there is no other topic to try
            return self._refused(effect, "refused", too_large=(offset,))
        return await self._sent_aside(effect, letters, in_circles=False)

    async def _sent_aside(
        self, effect: ev.SendLetters, aside: Sequence[_Letter], *, in_circles: bool
    ) -> ev.LettersRefused:
        """Append letters to ``__undeliverable``, one by one. Circling letters that come from there are dropped."""
        host = self._host
        pause_s = PAUSE_S
        is_end = in_circles and host.partition.topic == UNDELIVERABLE_TOPIC
        waiting = [] if is_end else list(aside)
        too_large: list[int] = []
        stamp_ms = await self._day_ms()
        while waiting:
            try:
                made = await host.ensure_topic(UNDELIVERABLE_TOPIC)
                place = TopicIdPartition(UNDELIVERABLE_TOPIC, made.topic_id, 0)
                while waiting:
                    await host.targets.send(place, _encoded(waiting[:1], stamp_ms, PLAIN))
                    del waiting[0]
            except RecordTooLarge as refusal:
                logger.warning("%s: %s does not take a record: %s", host.partition, UNDELIVERABLE_TOPIC, refusal)
                too_large.append(waiting.pop(0).offset)
            except (RaylogError, OSError) as trouble:
                logger.info("%s: undeliverable records wait: %s", host.partition, trouble)
                await asyncio.sleep(pause_s)
                pause_s = min(PAUSE_MAX_S, 2 * pause_s)
        done = tuple(letter.offset for letter in aside if letter.offset not in too_large)
        return self._refused(
            effect,
            "in circles" if in_circles else "refused",
            finished=done if in_circles else (),
            undeliverable=() if in_circles else done,
            too_large=tuple(too_large),
        )

    def _refused(
        self,
        effect: ev.SendLetters,
        cause: str,
        *,
        fits: int = 0,
        finished: Sequence[int] = (),
        undeliverable: Sequence[int] = (),
        too_large: Sequence[int] = (),
        is_replaced: bool = False,
    ) -> ev.LettersRefused:
        return ev.LettersRefused(
            cause=cause,
            now_ms=self._host.now_ms(),
            sequence=effect.sequence,
            fits=fits,
            finished=finished,
            undeliverable=undeliverable,
            too_large=too_large,
            is_replaced=is_replaced,
        )

    async def _letters(self, group: str, effect: ev.SendLetters) -> tuple[list[_Letter], int]:
        """Return the first letters, as many as fit into one batch, and how many of them have no body."""
        found: list[_Letter] = []
        room = Room(None if effect.is_again else await self._bytes_max(effect.box))
        without_body = 0
        for letter in effect.letters:
            body, why = await self._records.body(letter.offset) if letter.keeps_body else (None, BODY_TOO_LARGE)
            made = self._letter(group, effect, letter, body, why)
            if not room.takes(made.size):
                break
            without_body += body is None
            found.append(made)
        return found, without_body

    def _letter(self, group: str, effect: ev.SendLetters, letter: ev.Letter, body: Body | None, why: str) -> _Letter:
        host = self._host
        message = letter.cause.message
        if body is None:
            message = f"{message}; {why}" if message else why
        own: Sequence[Header] = () if body is None else body.headers
        topic, partition, offset = (*host.partition, letter.offset)
        stamp_ms = -1 if body is None else body.stamp_ms
        origin = Origin.of(own) if host.config.get(OF) else None
        if origin is not None:  # it was retried in the group's retry topic; a redrive has to lead to its first topic
            topic, partition, offset, _ = origin
            stamp_ms = own_timestamp(own, stamp_ms)
        cause = Cause(
            reason=Reason(letter.cause.reason),
            topic=topic,
            partition=partition,
            offset=offset,
            message=message,
            group=group,
            delivery_count=letter.tries,
            timestamp_ms=stamp_ms,
        )
        is_circling = not may_hop(own) or effect.box.topic == host.partition.topic
        return _Letter(letter.offset, body, dead_headers(without(own), cause), is_circling=is_circling)


def _encoded(letters: Sequence[_Letter], stamp_ms: int, meta: BatchMeta) -> bytes:
    """Return the batch, compressed if a record was: uncompressed, a record may exceed the limit that it fitted in."""
    return encode_batch(
        [letter.key for letter in letters],
        [letter.value for letter in letters],
        [stamp_ms] * len(letters),
        [letter.headers for letter in letters],
        meta,
        compression=next((letter.compression for letter in letters if letter.compression), 0),
    )
