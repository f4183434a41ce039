"""What a leader changes about a producer's batches: their codec, and the times of their records."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raylog.base.errors import InvalidRecord, InvalidTimestamp, RecordTooLarge, UnsupportedCompression
from raylog.storage.batch import compression as codecs
from raylog.storage.batch.compression import COMPRESSIONS, GZIP, LZ4, NONE, ZSTD
from raylog.storage.batch.header import TIMESTAMP_TYPE_BIT, check_crc, iter_headers, parse_header, with_body
from raylog.storage.batch.records import decode_batch, encode_batch, encode_kafka_batch
from raylog.storage.batch.rewriting import Rewriting
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, batch, open_log, produced, values_of, whole

LATER = NOW + 5_000
TWO = [NOW - 7, NOW - 3]
Encode = Callable[..., bytes]
both_bodies = pytest.mark.parametrize("encode", [encode_batch, encode_kafka_batch])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = open_log(tmp_path / "t-0")
    yield opened
    opened.close()


def rewriting(log: PartitionLog, codec: int | None = None, *, append_time: bool = False, **config: Any) -> None:
    log.config = LogConfig(rewriting=Rewriting(codec, append_time), **config)


@both_bodies
def test_every_record_has_the_time_of_its_append(log: PartitionLog, encode: Encode) -> None:
    rewriting(log, append_time=True)
    payload = bytearray(encode([b"k", None], [b"a", b"b"], TWO, compression=ZSTD))
    done = log.append_as_leader(payload, 3, LATER)
    stored = whole(log)
    ((position, header),) = iter_headers(stored)
    check_crc(stored, position, header)
    assert (header.max_timestamp, header.partition_leader_epoch, header.compression) == (LATER, 3, ZSTD)
    assert decode_batch(stored, 0, header).timestamps == [LATER, LATER]
    assert done.rewritten is not None
    assert (bytes(done.rewritten.payload), done.rewritten.append_ms) == (stored, LATER)
    assert bytes(payload) == stored, "writable memory is changed in place"


def test_lookups_by_time_go_by_the_time_of_the_append(log: PartitionLog) -> None:
    rewriting(log, append_time=True)
    for at in (LATER, LATER + 10, LATER + 10):
        log.append_as_leader(batch(b"a", b"b", timestamps=[5, 4_000_000_000_000]), 1, at)
    assert log.offset_for_timestamp(LATER + 1, 6) == (2, LATER + 10)
    assert log.offset_for_timestamp(LATER + 11, 6) is None
    assert log.max_timestamp(6) == (2, LATER + 10)
    assert log.oldest_ms == LATER + 10


def test_retention_goes_by_the_time_of_the_append(log: PartitionLog) -> None:
    rewriting(log, append_time=True, segment_bytes=1, retention_ms=100)
    for at in (NOW, NOW + 90):
        log.append_as_leader(batch(b"a", timestamps=[1]), 1, at)
    assert log.apply_retention(NOW + 101, 2) == [0]


def test_a_follower_keeps_the_times_that_its_leader_gave(log: PartitionLog, tmp_path: Path) -> None:
    rewriting(log, GZIP, append_time=True)
    log.append_as_leader(batch(b"a", b"b", timestamps=TWO), 1, LATER)
    follower = open_log(tmp_path / "follower")
    follower.append_as_follower(whole(log), NOW)
    assert whole(follower) == whole(log)
    follower.close()


def test_a_repeated_batch_is_answered_with_the_time_of_the_first(log: PartitionLog) -> None:
    rewriting(log, append_time=True)
    log.append_as_leader(produced(0, 2), 1, LATER)
    again = log.append_as_leader(produced(0, 2), 1, LATER + 50)
    assert again.duplicate
    assert again.rewritten is not None
    assert (again.first_offset, again.rewritten.append_ms) == (0, LATER)
    log.config = LogConfig()
    assert log.append_as_leader(produced(0, 2), 1, LATER + 90).rewritten is None


def test_a_producer_still_may_not_say_that_the_broker_set_its_times(log: PartitionLog) -> None:
    rewriting(log, append_time=True)
    with pytest.raises(InvalidTimestamp):
        log.append_as_leader(batch(b"a", attributes=TIMESTAMP_TYPE_BIT), 1, NOW)


@both_bodies
@pytest.mark.parametrize("wanted", COMPRESSIONS.values())
@pytest.mark.parametrize("sent", COMPRESSIONS.values())
def test_every_batch_gets_the_topics_codec(log: PartitionLog, encode: Encode, sent: int, wanted: int) -> None:
    rewriting(log, wanted)
    values = [b"a" * 100, None, b"b"]
    pairs = [[("h", b"1")], None, None]
    payload = encode([b"k", b"l", None], values, [NOW, NOW + 1, NOW + 2], pairs, compression=sent)
    done = log.append_as_leader(payload, 1, NOW)
    stored = whole(log)
    ((position, header),) = iter_headers(stored)
    check_crc(stored, position, header)
    columns = decode_batch(stored, position, header)
    assert header.compression == wanted
    assert (columns.keys, columns.values, columns.timestamps) == ([b"k", b"l", None], values, [NOW, NOW + 1, NOW + 2])
    assert columns.headers == pairs
    assert done.rewritten is not None
    assert bytes(done.rewritten.payload) == stored
    if sent == wanted:
        assert stored[21:] == payload[21:], "a batch in the topic's form keeps its bytes"


def test_only_batches_in_another_form_are_compressed_again(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    compress = codecs.compress

    def counted(codec: int, *rest: object) -> bytes:
        calls.append(codec)
        return compress(codec, *rest)  # type: ignore[arg-type]  # what was given

    monkeypatch.setattr("raylog.storage.batch.rewriting.compress", counted)
    rewriting(log, LZ4)
    fits = encode_batch(None, [b"1"], [NOW], compression=LZ4)
    log.append_as_leader(fits, 1, NOW)
    assert calls == []
    log.append_as_leader(fits + encode_batch(None, [b"2", b"3"], [NOW] * 2, compression=GZIP) + fits, 1, NOW)
    assert calls == [LZ4]
    assert values_of(whole(log)) == [(0, b"1"), (1, b"1"), (2, b"2"), (3, b"3"), (4, b"1")]


def test_an_idempotent_producer_stays_known_behind_another_codec(log: PartitionLog) -> None:
    rewriting(log, ZSTD)
    for sequence in (0, 1, 1, 2):
        log.append_as_leader(produced(sequence), 1, NOW)
    assert [value for _, value in values_of(whole(log))] == [b"0", b"1", b"2"]


def test_what_grows_beyond_the_limit_is_refused_and_not_kept(log: PartitionLog) -> None:
    rewriting(log, NONE, max_message_bytes=10_000)
    with pytest.raises(RecordTooLarge, match=r"exceeds max\.message\.bytes=10000"):
        log.append_as_leader(encode_batch(None, [bytes(20_000)], [NOW], compression=ZSTD), 1, NOW)
    assert log.log_end_offset == 0


def test_a_codec_that_is_not_installed_refuses_the_append(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    rewriting(log, LZ4)
    with pytest.raises(UnsupportedCompression, match="Install the package lz4"):
        log.append_as_leader(batch(b"a"), 1, NOW)
    assert log.log_end_offset == 0


def test_a_body_that_cannot_be_opened_is_refused(log: PartitionLog) -> None:
    header = parse_header(encode_batch(None, [b"a" * 99], [NOW], compression=GZIP))
    broken = with_body(header, b"no gzip") + b"no gzip"
    rewriting(log, ZSTD)
    with pytest.raises(InvalidRecord, match="gzip body is invalid"):
        log.append_as_leader(broken, 1, NOW)
    assert log.log_end_offset == 0
    rewriting(log, GZIP)
    with pytest.raises(InvalidRecord, match="gzip body is invalid"):
        log.append_as_leader(broken, 1, NOW)
    assert log.log_end_offset == 0, "it is in the topic's form, and no reader could open it"


def test_a_recovered_log_shows_the_same_times_and_forms(log: PartitionLog, tmp_path: Path) -> None:
    rewriting(log, ZSTD, append_time=True)
    log.append_as_leader(batch(b"a", b"b", timestamps=TWO), 1, LATER)
    stored = whole(log)
    log.close()
    (log.folder / "00000000000000000000.timeindex").unlink(missing_ok=True)
    again = open_log(log.folder, now_ms=LATER)
    assert whole(again) == stored
    assert again.max_timestamp(2) == (0, LATER)
    again.close()
