"""What a leader finds out by opening compressed bodies, on the loop where they are small, else in a thread."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cramjam
import lz4.frame
import msgspec
import pytest

from raylog.base.errors import InvalidRecord, RaylogError, RecordTooLarge
from raylog.storage.batch import structure
from raylog.storage.batch.compression import COMPRESSIONS, GZIP, LZ4, SNAPPY, ZSTD, compress, decompress, plain_bound
from raylog.storage.batch.header import HEADER_BYTES, MAGIC_COLUMNS, MAGIC_KAFKA, with_body
from raylog.storage.batch.records import assemble_batch, encode_batch, encode_kafka_batch
from raylog.storage.batch.rewriting import Rewriting
from raylog.storage.log.bodies import open_bodies, takes_long
from raylog.storage.log.config import CompactionRules, LogConfig
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.log.validation import AT_ONCE_BYTES, DECOMPRESSED_BYTES_MAX, inspect
from tests.unit.storage.logs import NOW, batch, open_log, values_of, whole

pack = msgspec.msgpack.encode
CODECS = [pytest.param(number, id=name) for name, number in COMPRESSIONS.items() if number]
PLAIN = LogConfig()
LARGE = AT_ONCE_BYTES * 4


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = open_log(tmp_path / "t-0", max_message_bytes=1 << 30)
    yield opened
    opened.close()


def sent(body: bytes, *, codec: int, count: int = 3, magic: int = MAGIC_COLUMNS) -> bytes:
    """A batch with a right checksum, whatever its body."""
    return assemble_batch(magic, body, [NOW] * count, compression=codec)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def values(size: int) -> list[bytes | None]:
    return [noise(size), b"b", b"c"]


def wrong_bodies(value: bytes) -> dict[str, object]:
    return {
        "a column is missing": [None, None, [value, b"b", b"c"]],
        "a column too many": [None, None, [value, b"b", b"c"], None, [0, 1, 2]],
        "too few values": [None, None, [value, b"b"], None],
        "too many keys": [None, [b"a"] * 4, [value, b"b", b"c"], None],
        "no columns": [1, value, 3, 4],
        "an object": {"a": value},
    }


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("what", wrong_bodies(b""))
@pytest.mark.parametrize("size", [0, LARGE])
def test_a_body_that_opens_to_something_else_is_refused(log: PartitionLog, codec: int, what: str, size: int) -> None:
    body = pack(wrong_bodies(noise(size))[what])
    refused(log, sent(compress(codec, body), codec=codec))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, LARGE])
@pytest.mark.parametrize("magic", [MAGIC_COLUMNS, MAGIC_KAFKA])
def test_a_body_that_does_not_open_is_refused(log: PartitionLog, codec: int, size: int, magic: int) -> None:
    whole_body = compress(codec, pack([None, None, values(size), None]))
    refused(log, sent(whole_body[: len(whole_body) * 2 // 3], codec=codec, magic=magic))
    refused(log, sent(b"no frame of a codec at all", codec=codec, magic=magic))


def refused(log: PartitionLog, sent_bytes: bytes) -> None:
    """It is refused, in the thread where that has to look first, else where it is appended."""
    payload = bytearray(sent_bytes)
    config = log.config
    if takes_long(payload, config):
        with pytest.raises((InvalidRecord, RecordTooLarge)):  # a cut off body of gzip may declare any size
            open_bodies(payload, config, "t-0")
        return
    with pytest.raises(InvalidRecord, match="no reader can open it"):
        log.append_as_leader(payload, 1, NOW)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 100, LARGE])
def test_what_opens_is_stored_as_it_came(log: PartitionLog, codec: int, size: int) -> None:
    for made in (encode_batch, encode_kafka_batch):
        payload = made(None, values(size), [NOW] * 3, compression=codec)
        is_long = takes_long(payload, log.config)
        assert is_long == (size == LARGE) or codec == SNAPPY, "the bound of snappy is a wide one"
        opened = bytearray(open_bodies(payload, log.config, "t-0"))
        assert opened == payload
        log.opened_for = log.config
        log.append_as_leader(opened, 1, NOW)
    assert [value for _, value in values_of(whole(log))] == 2 * values(size)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 5_000, 70_000, 300_000])
@pytest.mark.parametrize("kind", ["noise", "zeros"])
def test_no_body_has_more_than_its_bound(codec: int, size: int, kind: str) -> None:
    plain = noise(size) if kind == "noise" else bytes(size)
    bodies = [compress(codec, plain)]
    if codec == ZSTD:
        bodies.append(bytes(cramjam.zstd.compress(plain)))
    if codec == LZ4:
        bodies.append(lz4.frame.compress(plain, store_size=True, block_size=lz4.frame.BLOCKSIZE_MAX4MB))
        bodies.append(lz4.frame.compress(plain, store_size=False, content_checksum=True, block_checksum=True))
    for body in bodies:
        assert len(decompress(codec, body, max_bytes=1 << 27)) == size <= plain_bound(codec, memoryview(body))


def test_small_requests_and_those_without_a_codec_are_not_long() -> None:
    assert not takes_long(batch(b"x"), PLAIN)
    assert not takes_long(batch(bytes(LARGE)), PLAIN)
    assert not takes_long(batch(b"x") * 50, PLAIN)
    assert not takes_long(b"", PLAIN)
    assert not takes_long(b"\x00" * 300, PLAIN)
    small = encode_batch(None, [b"x" * 1000], [NOW], compression=LZ4)
    assert not takes_long(small, PLAIN)
    assert takes_long(small * 100, PLAIN), "together they are"
    assert takes_long(batch(bytes(LARGE)), LogConfig(rewriting=Rewriting(ZSTD))), "it is to be compressed"
    assert not takes_long(batch(bytes(LARGE)), LogConfig(rewriting=Rewriting(None, append_time=True)))


def test_a_batch_that_is_not_the_first_is_looked_at_as_well(log: PartitionLog) -> None:
    good, bad = batch(b"x"), sent(compress(GZIP, b"\xc1"), codec=GZIP)
    with pytest.raises(InvalidRecord):
        log.append_as_leader(bytearray(good + bad), 1, NOW)
    large = sent(zlib.compress(bytes(LARGE), wbits=16 + zlib.MAX_WBITS), codec=GZIP)
    assert takes_long(good + large, PLAIN)


def test_a_request_of_bombs_costs_a_bounded_time() -> None:
    body = pack([None, [b"k"] * 3, [bytes(DECOMPRESSED_BYTES_MAX - 100), b"", b""], None])
    bombs = sent(compress(ZSTD, body), codec=ZSTD) * 40
    seen: list[int] = []

    def counted(codec: int, data: memoryview, *, max_bytes: int) -> bytes:
        plain = decompress(codec, data, max_bytes=max_bytes)
        seen.append(len(plain))
        return plain

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(structure, "decompress", counted)
        assert open_bodies(bombs, PLAIN, "t-0") is bombs, "they are no lie"
    assert sum(seen) <= DECOMPRESSED_BYTES_MAX
    with pytest.raises(RecordTooLarge):
        open_bodies(bombs, replace(PLAIN, compaction=CompactionRules()), "t-0")
    with pytest.raises(RecordTooLarge):
        open_bodies(bombs, replace(PLAIN, rewriting=Rewriting(GZIP)), "t-0")


def test_a_topics_codec_is_given_in_the_thread(log: PartitionLog) -> None:
    log.config = config = replace(log.config, rewriting=Rewriting(ZSTD, append_time=True))
    payload = encode_batch(None, values(LARGE), [NOW] * 3, compression=LZ4)
    assert takes_long(payload, config)
    opened = open_bodies(payload, config, "t-0")
    assert [header.compression for _, header in inspect(opened)] == [ZSTD]
    log.opened_for = config
    done = log.append_as_leader(opened, 1, NOW + 7)
    assert done.rewritten is not None
    assert done.rewritten.append_ms == NOW + 7
    assert whole(log) == bytes(done.rewritten.payload)
    assert [value for _, value in values_of(whole(log))] == values(LARGE)


def test_what_was_opened_for_another_configuration_is_checked_again(log: PartitionLog) -> None:
    before = log.config
    payload = bytearray(encode_batch(None, values(LARGE), [NOW] * 3, compression=LZ4))
    open_bodies(payload, before, "t-0")
    log.config = replace(before, compaction=CompactionRules())
    log.opened_for = before
    with pytest.raises(InvalidRecord, match="needs a key"):
        log.append_as_leader(payload, 1, NOW)


def test_a_key_that_is_missing_is_found_in_the_thread() -> None:
    config = replace(PLAIN, compaction=CompactionRules())
    payload = encode_batch([b"k", None, b"l"], values(LARGE), [NOW] * 3, compression=ZSTD)
    with pytest.raises(InvalidRecord, match="needs a key"):
        open_bodies(payload, config, "t-0")


def test_any_flipped_bit_of_a_body_is_an_error_of_the_tree_or_none() -> None:
    dice = random.Random(5)
    for _, codec in sorted(COMPRESSIONS.items()):
        right = encode_batch([b"k"] * 3, values(200), [NOW] * 3, compression=codec)
        body, header = right[HEADER_BYTES:], inspect(right)[0][1]
        for _ in range(300):
            changed = bytearray(body)
            changed[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
            payload = with_body(header, bytes(changed)) + bytes(changed)
            try:
                open_bodies(payload, PLAIN, "t-0")
            except RaylogError:
                pass
