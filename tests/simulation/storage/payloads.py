"""Batches as producers send them: every codec and both formats, and payloads that a log has to refuse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from raylog.base.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    OutOfOrderSequence,
    RaylogError,
)
from raylog.storage.batch.header import (
    CONTROL_BIT,
    HEADER_BYTES,
    PLAIN,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    parse_header,
    with_body,
)
from raylog.storage.batch.records import BatchMeta, Header, encode_batch, encode_kafka_batch
from raylog.storage.errors import CorruptBatch
from tests.simulation.storage.model import Records, Stored

RECORDS_MAX = 4
_CODECS = (0, 0, 0, 0, 1, 3)
_STAMPED = (*range(8), *range(12, 16))
"""Bytes of a header that the leader writes."""
Refused = tuple[bytes, type[RaylogError]]
"""A payload, and the error that it has to meet."""


class Keys(NamedTuple):
    """How often batches have keys, and how often records lack a value."""

    share: float = 0.3
    number: int = 0
    """Records take one of so many keys, or seldom none; 0 = each place in a batch has its own."""
    removals: float = 0.05
    """Share of records without a value."""

    @classmethod
    def few(cls, number: int) -> Keys:
        """Nearly all records have one of a few keys."""
        return cls(0.95, number, 0.2)

    def draw(self, draw: random.Random, place: int) -> bytes | None:
        """The key of a record by its place in the batch."""
        if not self.number:
            return draw.choice((None, b"", b"key %d" % place))
        return None if draw.random() < 0.02 else b"key %d" % draw.randrange(self.number)


SOME = Keys()


def draw_records(draw: random.Random, serial: int, now_ms: int, record_bytes: int, about: Keys = SOME) -> Records:
    """Records whose values begin with rising numbers, some without key, value or headers."""
    times = [now_ms + draw.randint(-500, 500) for _ in range(draw.randint(1, RECORDS_MAX))]
    values: list[bytes | None] = [
        None
        if draw.random() < about.removals
        else b"%d:" % (serial + place) + draw.randbytes(draw.randint(0, record_bytes))
        for place in range(len(times))
    ]
    keys: list[bytes | None] | None = None
    headers: list[list[Header] | None] | None = None
    if draw.random() < about.share:
        keys = [about.draw(draw, place) for place in range(len(times))]
    if draw.random() < 0.1:
        headers = [[("name", draw.choice((None, b"value")))] for _ in times]
    return Records(times, keys, values, headers)


def encode(draw: random.Random, records: Records, meta: BatchMeta) -> bytes:
    """The batch of these records."""
    encoder = encode_kafka_batch if draw.random() < 0.1 else encode_batch
    times, keys, values, headers = records
    return encoder(keys, values, times, headers, meta, compression=draw.choice(_CODECS))


def draw_damaged(draw: random.Random, batches: list[bytes]) -> Refused:
    """The batches with a changed bit in one of them, or without the last bytes."""
    if draw.random() < 0.3:
        return b"".join(batches)[: -draw.randint(1, 60)], CorruptBatch
    changed = [bytearray(batch) for batch in batches]
    hurt = draw.choice(changed)
    while (place := draw.randrange(len(hurt))) in _STAMPED:
        pass
    hurt[place] ^= 1 << draw.randrange(8)
    return b"".join(changed), CorruptBatch


def draw_attributes(draw: random.Random, records: Records) -> Refused:
    """A batch that no producer may send."""
    bit = draw.choice((CONTROL_BIT, TRANSACTIONAL_BIT, TIMESTAMP_TYPE_BIT))
    times, keys, values, headers = records
    payload = encode_batch(keys, values, times, headers, BatchMeta(attributes=bit))
    return payload, InvalidTimestamp if bit == TIMESTAMP_TYPE_BIT else InvalidRecord


def draw_unopened(draw: random.Random, records: Records) -> Refused:
    """A batch with a right checksum, and a compressed body that does not open, or opens to other records."""
    times, keys, values, headers = records
    codec = draw.choice((1, 3))
    whole = encode_batch(keys, values, times, headers, PLAIN, compression=codec)
    header, body = parse_header(whole), whole[HEADER_BYTES:]
    if draw.random() < 0.5:
        body = body[: draw.randrange(len(body))]
    else:
        others = encode_batch(None, [b""] * (len(times) + 1), [0] * (len(times) + 1), None, PLAIN, compression=codec)
        body = others[HEADER_BYTES:]
    return with_body(header, body) + body, InvalidRecord


def draw_out_of_turn(draw: random.Random, records: Records, known: Sequence[Stored]) -> Refused:
    """A batch of a producer whose last batches are `known`, with a sequence or an epoch that cannot follow."""
    last, times = known[-1], records.timestamps

    def batch(epoch: int, sequence: int) -> bytes:
        meta = BatchMeta(last.producer, epoch, sequence)
        return encode_batch(records.keys, records.values, times, records.headers, meta)

    following = last.last_sequence + 1
    choices: list[Refused] = [
        (batch(last.producer_epoch, following + draw.randint(1, 3)), OutOfOrderSequence),
        (batch(last.producer_epoch + 1, draw.randint(1, 3)), OutOfOrderSequence),
        (last.data + batch(last.producer_epoch, following), DuplicateSequence),
        (batch(last.producer_epoch, following) * 2, DuplicateSequence),
    ]
    if last.end - last.base > 1:
        choices.append((batch(last.producer_epoch, following - 1), OutOfOrderSequence))
    if last.producer_epoch:
        before = last.producer_epoch - 1
        choices += [(batch(before, first), InvalidProducerEpoch) for first in (0, following, following)]
    if len(known) > BATCHES_KNOWN:
        choices.append((known[-BATCHES_KNOWN - 1].data, OutOfOrderSequence))
    return draw.choice(choices)


BATCHES_KNOWN = 5
"""The last batches of a producer by which a log knows a repeated one."""
