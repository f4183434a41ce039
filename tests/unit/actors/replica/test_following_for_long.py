"""What a replica that has followed for days knows of its producers, and keeps on its disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.base.errors import InvalidProducerEpoch
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.log.config import DAY_MS, LogConfig
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.actors.replica.following import ME, OTHER, STARTED_MS, Clocks, Following, opened

HOUR_MS = 3_600_000
PLAIN, TXN = 7, 8


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def pair(tmp_path: Path, clocks: Clocks) -> Iterator[tuple[PartitionLog, Following]]:
    leader = opened(tmp_path / "1" / "t-0", LogConfig(), clocks)
    mine = Following(tmp_path / "2", LogConfig(), clocks)
    mine.state(OTHER, 1)
    yield leader, mine
    leader.close()
    mine.log.close()


def sent(clocks: Clocks, value: bytes, producer: int, epoch: int, sequence: int, bits: int = 0) -> bytes:
    meta = BatchMeta(producer, epoch, sequence, attributes=bits)
    return encode_batch(None, [value], [clocks.wall_ms()], None, meta)


def both_write(leader: PartitionLog, clocks: Clocks, number: int) -> None:
    """A plain producer sends a batch, and a transactional one commits one."""
    now_ms = clocks.wall_ms()
    leader.append_as_leader(bytearray(sent(clocks, b"plain", PLAIN, 0, number)), 1, now_ms)
    leader.append_as_leader(bytearray(sent(clocks, b"txn", TXN, number, 0, TRANSACTIONAL_BIT)), 1, now_ms)
    leader.append_marker(TxnMarker(TXN, number + 1, 1, committed=True), 1, now_ms)


def takes_over_as_it_must(mine: Following, number: int) -> None:
    """The replica leads: what the last leader stored is known again, and an ended epoch stays fenced."""
    end = mine.log.log_end_offset
    mine.state(ME, 2, isr=(ME,))
    mine.pass_time(1_000, tick_ms=100)  # retention looks soon after a leadership has begun
    again = mine.produce(sent(mine.clocks, b"plain", PLAIN, 0, number))
    assert again.answer.base_offset == end - 3, "a repeated batch is stored twice"
    late = mine.produce(sent(mine.clocks, b"late", TXN, number, 1, TRANSACTIONAL_BIT))
    assert isinstance(late.error, InvalidProducerEpoch), "a fenced producer writes"
    assert not mine.log.has_open_transactions


def test_a_replica_that_followed_for_days_knows_producers_when_it_leads(
    pair: tuple[PartitionLog, Following], clocks: Clocks
) -> None:
    leader, mine = pair
    for number in range(26):
        both_write(leader, clocks, number)
        mine.replicate(leader)
        mine.pass_time(HOUR_MS, tick_ms=HOUR_MS // 12)
    assert set(mine.log.producers.producers) == {PLAIN, TXN}
    both_write(leader, clocks, 26)
    mine.replicate(leader)
    takes_over_as_it_must(mine, 26)


@pytest.mark.parametrize("leads", [False, True])
def test_a_wall_clock_that_was_a_day_behind_makes_no_producer_old(
    pair: tuple[PartitionLog, Following], clocks: Clocks, leads: bool
) -> None:
    leader, mine = pair
    if leads:
        mine.state(ME, 2)
    mine.pass_time(HOUR_MS, tick_ms=HOUR_MS // 12)
    clocks.off_ms = -2 * DAY_MS
    payload = sent(clocks, b"plain", PLAIN, 0, 0)
    if leads:
        mine.produce(payload)
    else:
        leader.append_as_leader(bytearray(payload), 1, clocks.wall_ms())
        mine.replicate(leader)
    clocks.off_ms = 0
    mine.pass_time(HOUR_MS, tick_ms=HOUR_MS // 12)
    assert set(mine.log.producers.producers) == {PLAIN}
    mine.pass_time(2 * DAY_MS, tick_ms=HOUR_MS)
    assert not mine.log.producers.producers


def test_a_follower_begins_segments_by_time_and_removes_them(tmp_path: Path, clocks: Clocks) -> None:
    config = LogConfig(segment_ms=10 * 60_000, retention_ms=HOUR_MS)
    leader = opened(tmp_path / "1" / "t-0", config, clocks)
    mine = Following(tmp_path / "2", config, clocks)
    mine.state(OTHER, 1)
    for _ in range(12 * 60):
        leader.append_as_leader(bytearray(encode_batch(None, [b"v"], [clocks.wall_ms()])), 1, clocks.wall_ms())
        mine.replicate(leader)
        mine.pass_time(60_000, tick_ms=60_000)
    oldest_ms = (mine.log.log_end_offset - mine.log.log_start_offset) * 60_000
    assert HOUR_MS <= oldest_ms <= HOUR_MS + 20 * 60_000
    assert len(mine.log.segments) > 3
    assert mine.log.segments[-1].created_ms > STARTED_MS + 11 * HOUR_MS
    leader.close()
    mine.log.close()
