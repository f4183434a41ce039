"""What a leader finds out about the bodies of producers' batches before it stores them."""

import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cramjam
import msgspec
import pytest

from raylog.base.errors import InvalidRecord, RecordTooLarge
from raylog.storage.batch.compression import COMPRESSIONS, GZIP, LZ4, NONE, ZSTD, compress, plain_size
from raylog.storage.batch.header import MAGIC_COLUMNS, MAGIC_KAFKA
from raylog.storage.batch.records import BODY_BYTES_MAX, Header, assemble_batch, encode_batch
from raylog.storage.batch.rewriting import Rewriting
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, open_log

pack = msgspec.msgpack.encode
HUGE = BODY_BYTES_MAX + (1 << 20)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = open_log(tmp_path / "t-0")
    yield opened
    opened.close()


def sent(body: bytes, *, count: int = 3, codec: int = NONE, magic: int = MAGIC_COLUMNS) -> bytes:
    """A batch with a right checksum, whatever its body."""
    return assemble_batch(magic, body, [NOW] * count, compression=codec)


def bomb(codec: int, size: int) -> bytes:
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(bytes(size)))
    return compress(codec, bytes(size))


UNREADABLE = {
    "nothing": b"",
    "no msgpack": b"\xc1\x00",
    "a column is missing": pack([None, None, [b"a", b"b", b"c"]]),
    "a column too many": pack([None, None, [b"a", b"b", b"c"], None, [0, 1, 2]]),
    "too few values": pack([None, None, [b"a"], None]),
    "too many keys": pack([None, [b"a"] * 4, [b"a", b"b", b"c"], None]),
    "a column is no array": pack([None, None, b"abc", None]),
    "cut off": pack([None, None, [b"a", b"b", b"c"], None])[:-2],
    "more behind it": pack([None, None, [b"a", b"b", b"c"], None]) + b"x",
    "a nest": b"\x94" + b"\x91" * 5_000 + b"\xc0",
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_body_that_no_reader_opens_is_refused_for_good(log: PartitionLog, body: bytes) -> None:
    with pytest.raises(InvalidRecord, match="no reader can open it") as refusal:
        log.append_as_leader(sent(body), 1, NOW)
    assert not refusal.value.retriable
    assert log.log_end_offset == 0


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000, 300_000])
@pytest.mark.parametrize("count", [1, 15, 16, 300])
@pytest.mark.parametrize("codec", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_whatever_a_producer_makes_is_stored(log: PartitionLog, size: int, count: int, codec: int) -> None:
    values: list[bytes | None] = [os.urandom(size // count) for _ in range(count)]
    for key, stamps in ((None, [NOW] * count), (b"k", [NOW + at for at in range(count)])):
        keys: list[bytes | None] = [key] * count
        log.append_as_leader(encode_batch(keys, values, stamps, compression=codec), 1, NOW)
    headers: list[list[Header] | None] = [[("a", b"b")] for _ in range(count)]
    log.append_as_leader(encode_batch(None, [None] * count, [NOW] * count, headers, compression=codec), 1, NOW)
    assert log.log_end_offset == 3 * count


def test_a_large_body_is_looked_at_where_its_columns_begin(log: PartitionLog) -> None:
    values = [bytes(1_000)] * 100
    for body in (
        pack([None, None, values[:-1], None]),
        pack([[0] * 99, None, values, None]),
        pack([None, None, values]),
    ):
        with pytest.raises(InvalidRecord):
            log.append_as_leader(sent(body, count=100), 1, NOW)
    log.append_as_leader(sent(pack([list(range(100)), None, values, None]), count=100), 1, NOW)


@pytest.mark.parametrize("codec", [ZSTD, GZIP, LZ4])
def test_a_body_that_no_reader_would_decompress_is_too_large(log: PartitionLog, codec: int) -> None:
    body = bomb(codec, HUGE)
    with pytest.raises(RecordTooLarge, match="when decompressed") as refusal:
        log.append_as_leader(sent(body, codec=codec), 1, NOW)
    assert not refusal.value.retriable


@pytest.mark.parametrize("codec", COMPRESSIONS.values(), ids=COMPRESSIONS.keys())
def test_a_declared_size_is_at_most_the_true_one(codec: int) -> None:
    for size in (0, 1, 70_000, 3 << 20):
        found = plain_size(codec, memoryview(compress(codec, os.urandom(size))), 0)
        assert found is None or found <= size


@pytest.mark.parametrize("codec", [ZSTD, GZIP])
@pytest.mark.parametrize("rule", ["compact", "rewrite"])
def test_decompression_is_bounded_for_a_request(log: PartitionLog, codec: int, rule: str) -> None:
    """Each could be opened; together they would hold all other requests up for seconds."""
    if rule == "compact":
        log.config = replace(log.config, compaction=CompactionRules(min_cleanable_dirty_ratio=0.5))
    else:
        log.config = replace(log.config, rewriting=Rewriting(LZ4))
    one = encode_batch([b"k"], [bytes(40 << 20)], [NOW], compression=codec)
    began = time.perf_counter()
    with pytest.raises(RecordTooLarge):
        log.append_as_leader(one * 20, 1, NOW)
    assert time.perf_counter() - began < 5, "and not 800 MB"
    assert log.log_end_offset == 0


def test_a_size_that_is_a_lie_is_found_out(log: PartitionLog) -> None:
    body = bytearray(zlib.compress(bytes(HUGE), wbits=16 + zlib.MAX_WBITS))
    body[-4:] = (100).to_bytes(4, "little")
    with pytest.raises(InvalidRecord, match="more bytes than it declares"):
        log.append_as_leader(sent(bytes(body), codec=GZIP), 1, NOW)
    log.config = replace(log.config, rewriting=Rewriting(ZSTD))
    with pytest.raises(InvalidRecord, match="more bytes than it declares"):
        log.append_as_leader(sent(bytes(body), codec=GZIP), 1, NOW)


def test_rows_of_kafka_are_not_looked_at(log: PartitionLog) -> None:
    log.append_as_leader(sent(b"\x02\x00", magic=MAGIC_KAFKA, count=1), 1, NOW)
    assert log.log_end_offset == 1
