"""What a leader takes from a producer, judged by headers alone: counts, sizes, attribute bits and timestamps."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from raylog.base.errors import InvalidRecord, InvalidTimestamp, RecordTooLarge
from raylog.storage.batch import header as header_format
from raylog.storage.batch import records
from raylog.storage.batch.header import CONTROL_BIT, TIMESTAMP_TYPE_BIT, TRANSACTIONAL_BIT
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, batch, open_log

HOUR = 3_600_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = open_log(tmp_path / "t-0", message_timestamp_after_max_ms=HOUR)
    yield opened
    assert opened.log_end_offset == 0
    opened.close()


def forged(data: bytes, **fields: int) -> bytes:
    """The batch with other header fields and a right CRC."""
    header = header_format.parse_header(data)._replace(**fields)
    changed = header_format.HEADER.pack(*header) + data[header_format.HEADER_BYTES :]
    crc = google_crc32c.value(changed[header_format.CRC_START :])
    return header_format.HEADER.pack(*header._replace(crc=crc)) + data[header_format.HEADER_BYTES :]


@pytest.mark.parametrize("bit", [CONTROL_BIT, TRANSACTIONAL_BIT, CONTROL_BIT | TRANSACTIONAL_BIT])
def test_a_client_writes_no_control_batch_and_no_nameless_transaction(log: PartitionLog, bit: int) -> None:
    with pytest.raises(InvalidRecord) as caught:
        log.append_as_leader(batch(b"a", attributes=bit), 1, NOW)
    assert (caught.value.code, caught.value.retriable) == (87, False)


def test_a_client_does_not_say_that_the_broker_set_the_timestamps(log: PartitionLog) -> None:
    with pytest.raises(InvalidTimestamp):
        log.append_as_leader(batch(b"a", attributes=TIMESTAMP_TYPE_BIT), 1, NOW)


@pytest.mark.parametrize("count", [2, 1000, 2**31 - 1])
def test_a_count_that_does_not_fit_the_last_offset_is_refused(log: PartitionLog, count: int) -> None:
    with pytest.raises(InvalidRecord):
        log.append_as_leader(forged(batch(b"a"), record_count=count), 1, NOW)


@pytest.mark.parametrize("count", [200_000, 2_000_000, 2**31 - 1])
@pytest.mark.parametrize("encode", [records.encode_batch, records.encode_kafka_batch])
@pytest.mark.parametrize("compression", [0, 4])
def test_a_few_bytes_do_not_hold_millions_of_records(
    log: PartitionLog, count: int, encode: Any, compression: int
) -> None:
    if compression and count < 1_048_588:
        return  # possible: what is compressed may be larger than it looks
    data = encode(None, [None], [NOW], compression=compression)
    assert len(data) < 100
    with pytest.raises(InvalidRecord, match="cannot be in a batch of"):
        log.append_as_leader(forged(data, record_count=count, last_offset_delta=count - 1), 1, NOW)


def test_as_many_empty_records_as_a_producer_puts_into_a_batch_are_taken(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    count = 1_048_576 // 12
    for compression in (0, 4):
        log.append_as_leader(records.encode_batch(None, None, [NOW] * count, compression=compression), 1, NOW)
    assert log.log_end_offset == 2 * count
    log.close()


def test_a_batch_is_measured_with_its_header(tmp_path: Path) -> None:
    fits, too_large = batch(b"x" * 929), batch(b"x" * 930)
    log = open_log(tmp_path / "t-0", max_message_bytes=len(fits))
    log.append_as_leader(fits, 1, NOW)
    with pytest.raises(RecordTooLarge, match=f"of {len(fits) + 1} bytes exceeds max.message.bytes={len(fits)}"):
        log.append_as_leader(too_large, 1, NOW)
    log.close()


@pytest.mark.parametrize("unit", [1000, 1_000_000])
def test_a_timestamp_in_microseconds_or_nanoseconds_is_refused(log: PartitionLog, unit: int) -> None:
    with pytest.raises(InvalidTimestamp, match=r"message.timestamp.after.max.ms=3600000.*check the unit") as caught:
        log.append_as_leader(batch(b"a", timestamps=[NOW * unit]), 1, NOW)
    assert (caught.value.code, caught.value.retriable) == (32, False)


@pytest.mark.parametrize("timestamps", [[NOW + HOUR + 1], [NOW, NOW + HOUR + 1], [NOW + HOUR + 1, NOW]])
def test_a_timestamp_too_far_ahead_is_refused(log: PartitionLog, timestamps: list[int]) -> None:
    with pytest.raises(InvalidTimestamp, match="ahead of"):
        log.append_as_leader(batch(*[b"a"] * len(timestamps), timestamps=timestamps), 1, NOW)


def test_timestamp_limits_include_their_ends_and_pass_timeless_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", message_timestamp_before_max_ms=HOUR, message_timestamp_after_max_ms=HOUR)
    for timestamp in (NOW + HOUR, NOW - HOUR, -1):
        log.append_as_leader(batch(b"a", timestamps=[timestamp]), 1, NOW)
    with pytest.raises(InvalidTimestamp, match=r"behind.*message.timestamp.before.max.ms=3600000"):
        log.append_as_leader(batch(b"a", timestamps=[NOW // 1000]), 1, NOW)
    assert log.log_end_offset == 3
    log.close()


def test_a_follower_takes_what_its_leader_has(tmp_path: Path) -> None:
    """Rules may differ between versions and configurations: a follower must not part from its leader over them."""
    log = open_log(tmp_path / "t-0", message_timestamp_after_max_ms=0, max_message_bytes=1)
    log.append_as_follower(
        batch(b"a", timestamps=[NOW * 1000], attributes=CONTROL_BIT, partition_leader_epoch=1), now_ms=NOW
    )
    assert log.log_end_offset == 1
    log.close()


def test_one_batch_without_codec_and_transaction_is_plain() -> None:
    plain = batch(b"a", b"b")
    assert header_format.is_plain(plain)
    assert header_format.is_plain(memoryview(bytearray(plain)))
    for other in (
        b"",
        plain[:-1],
        plain + plain,
        plain + b"x",
        plain[: header_format.HEADER_BYTES],
        records.encode_batch(None, [b"a" * 100], [NOW], compression=1),
        batch(b"a", attributes=TRANSACTIONAL_BIT),
    ):
        assert not header_format.is_plain(other)
