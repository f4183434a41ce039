"""What the leader of the schedule takes: batches that it can open, whose records name targets that may get them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raylog.actors.scheduling.checks import check_batch
from raylog.actors.scheduling.rows import read_batches
from raylog.base.errors import InvalidRecord
from raylog.core.scheduling.envelope import HALF_HEADER, HEADER, ID_HEADER, Envelope, HalfName, id_among, without
from raylog.core.scheduling.events import DataRead, Unreadable
from raylog.core.scheduling.keys import HELD_MS
from raylog.storage.batch.header import MAGIC_COLUMNS, BatchMeta, header_before, parse_header
from raylog.storage.batch.records import encode_batch
from raylog.storage.errors import CorruptBatch

NOW = 1_800_000_000_000
LATEST = NOW + 10**10
META = BatchMeta(7, 0, 0)
TO_T = Envelope("t", "i" * 4, 0, NOW).header()


def raw(body: list[object] | bytes, count: int, first: int, latest: int | None = None) -> bytes:
    packed = body if isinstance(body, bytes) else msgspec.msgpack.encode(body)
    return (
        header_before(
            packed,
            magic=MAGIC_COLUMNS,
            count=count,
            first_timestamp=first,
            max_timestamp=first if latest is None else latest,
            compression=0,
            meta=META,
        )
        + packed
    )


def one(headers: list[tuple[str, bytes | None]], timestamp_ms: int = NOW) -> bytes:
    return encode_batch([b"k"], [b"v"], [timestamp_ms], [headers], META)


def check(batch: bytes) -> Any:
    return check_batch(batch, 0, parse_header(batch, 0), LATEST)


UNREADABLE = {
    "no msgpack": raw(b"\xc1\xc1", 1, NOW),
    "values are no bytes": raw([None, [5], [7], [[TO_T]]], 1, NOW),
    "headers are no pairs": raw([None, [b"k"], [b"v"], [[1, 2]]], 1, NOW),
    "keys of wrong length": raw([None, [b"k", b"l"], [b"v"], [[TO_T]]], 1, NOW),
    "a column is missing": raw([None, [b"k"]], 1, NOW),
}
LIES = {
    "due far behind what the header says": raw([[2**62], [b"k"], [b"v"], [[TO_T]]], 1, NOW),
    "due later than any number": raw([[2**64 - 1], [b"k"], [b"v"], [[TO_T]]], 1, NOW),
    "held behind a plain header": raw([[HELD_MS], [b"k"], [b"v"], [[TO_T]]], 1, NOW),
    "the header is a checkpoint's": raw([None, [b"k"], [b"v"], [[TO_T]]], 1, 2**62 + 2**61),
}
HEADERS = {
    "no target": [("x", b"y")],
    "a target that is no text": [(HEADER, b"iiii:0:1:\xff\xfe")],
    "a topic of a megabyte": [(HEADER, b"iiii:0:1:" + b"n" * 1_000_000)],
    "a partition of 5,000 digits": [(HEADER, b"iiii:" + b"9" * 5_000 + b":1:t")],
    "a time of 5,000 digits": [(HEADER, b"iiii:0:" + b"9" * 5_000 + b":t")],
    "a partition of another alphabet": [(HEADER, "iiii:٣:1:t".encode())],
    "an internal target": [(HEADER, b"iiii:0:1:__consumer_offsets")],
    "an internal target behind a plain one": [TO_T, (HEADER, b"iiii:0:1:__transaction_state")],
}
HALVES = {
    "a group's length of 5,000 digits": b"0:" + b"9" * 5_000 + b":g:x",
    "a check after 5,000 digits": b"9" * 5_000 + b":1:gx",
    "no text": b"10:3:\xff\xff\xfftx\xff",
    "a length of another alphabet": "0:²:gxx".encode(),
}


@pytest.mark.parametrize("batch", [*UNREADABLE.values(), *LIES.values()], ids=[*UNREADABLE, *LIES])
def test_a_batch_that_does_not_say_what_it_holds_is_refused(batch: bytes) -> None:
    with pytest.raises((InvalidRecord, CorruptBatch)):
        check(batch)


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_a_record_that_names_no_target_of_its_sender_is_refused(headers: list[tuple[str, bytes | None]]) -> None:
    with pytest.raises(InvalidRecord):
        check(one(headers))


@pytest.mark.parametrize("name", HALVES.values(), ids=HALVES)
def test_a_half_message_without_a_name_is_refused(name: bytes) -> None:
    with pytest.raises(InvalidRecord):
        check(one([TO_T, (HALF_HEADER, name)], HELD_MS + NOW))


def test_what_a_producer_adds_counts_and_not_what_a_record_brings_along() -> None:
    foreign = Envelope("secret", "s" * 4, 3, 1).header()
    assert Envelope.of([foreign, ("x", b"y"), TO_T]).topic == "t"
    assert check(one([foreign, TO_T])).targets == {("t", "iiii")}
    mine = HalfName("g", "tx", 5)
    assert HalfName.of([HalfName("other", "tx", 5).header(), TO_T, mine.header()]) == mine
    assert id_among([(ID_HEADER, b"theirs"), (ID_HEADER, b"mine")]) == "mine"
    assert without([foreign, ("x", b"y"), TO_T, mine.header()]) == [("x", b"y")]


def test_a_stored_batch_that_does_not_open_is_passed_over() -> None:
    good = one([TO_T])
    for bad in UNREADABLE.values():
        at = bytearray(bad)
        at[:8] = (5).to_bytes(8, "big")
        behind = bytearray(good)
        behind[:8] = (6).to_bytes(8, "big")
        found = list(read_batches(bytes(at + behind), 5))
        assert found[0] == Unreadable(base_offset=5, records=1, size_bytes=len(bad))
        assert isinstance(found[1], DataRead)
        assert found[1].base_offset == 6


def test_bytes_that_changed_on_the_disk_are_not_passed_over() -> None:
    bad = bytearray(next(iter(UNREADABLE.values())))
    bad[-1] ^= 1
    with pytest.raises(CorruptBatch):
        list(read_batches(bytes(bad), 0))
