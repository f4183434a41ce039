"""The bodies that an append takes at once are those that a closer look would find sound: no other passes."""

from pathlib import Path

import pytest

from raylog.base.errors import RaylogError
from raylog.storage.batch.header import HEADER_BYTES, BatchHeader, parse_header, with_body
from raylog.storage.batch.records import encode_batch
from raylog.storage.batch.structure import check_structure
from raylog.storage.errors import CorruptBatch
from raylog.storage.log.config import LogConfig
from raylog.storage.log.validation import check_bodies
from tests.unit.storage.logs import NOW

USUAL = {
    "one short value": encode_batch(None, [b"v" * 200], [NOW]),
    "one empty value": encode_batch(None, [b""], [NOW]),
    "many values": encode_batch(None, [b"v" * 100] * 100, [NOW] * 100),
    "values of some times": encode_batch(None, [b"v" * 100] * 100, [NOW + n for n in range(100)]),
    "values with keys": encode_batch([b"k"] * 100, [b"v" * 100] * 100, [NOW] * 100),
    "many records": encode_batch(None, [b""] * 70_000, [NOW] * 70_000),
}
every_shape = pytest.mark.parametrize("data", USUAL.values(), ids=list(USUAL))


def taken(data: bytes) -> bool:
    """Whether an append takes the body."""
    header = parse_header(data)
    try:
        check_bodies(memoryview(bytearray(data)), [(0, header)], LogConfig(), Path("t-0"))
    except RaylogError:
        return False
    return True


def sound(data: bytes) -> bool:
    """Whether the look at its structure finds nothing."""
    try:
        check_structure(data, 0, parse_header(data))
    except CorruptBatch:
        return False
    return True


def rebuilt(header: BatchHeader, body: bytes) -> bytes:
    return with_body(header, body) + body


@every_shape
def test_what_a_producer_makes_is_taken(data: bytes) -> None:
    assert taken(data)
    assert sound(data)


@every_shape
def test_one_changed_byte_is_judged_as_by_the_closer_look(data: bytes) -> None:
    header, body = parse_header(data), data[HEADER_BYTES:]
    for at in [*range(min(10, len(body))), len(body) - 2, len(body) - 1]:
        for changed in {0x00, 0x0F, 0x90, 0x91, 0x94, 0xC0, 0xC4, 0xDC, 0xDD, 0xFF, body[at] ^ 1}:
            other = rebuilt(header, body[:at] + bytes((changed,)) + body[at + 1 :])
            assert taken(other) == sound(other), (at, changed)


@every_shape
def test_another_count_or_length_is_judged_as_by_the_closer_look(data: bytes) -> None:
    header, body = parse_header(data), data[HEADER_BYTES:]
    for count in (1, 2, 15, 16, 99, 101, 65_535, 65_536, 70_001):
        other = rebuilt(header._replace(record_count=count, last_offset_delta=count - 1), body)
        assert taken(other) == sound(other), count
    for shorter in (body[:-1], body[:6], body[:5], body[:1], body + b"\xc0"):
        other = rebuilt(header, shorter)
        assert taken(other) == sound(other), len(shorter)
