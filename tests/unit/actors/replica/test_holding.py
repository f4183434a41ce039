"""Retention waits for what a leader role still has to copy elsewhere, and not without a limit."""

from pathlib import Path

import pytest

from raylog.core.replication.holding import HELD_BYTES_MAX, HELD_MS_MAX, Hold
from raylog.storage.batch.records import encode_batch
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.actors.replica.following import ME, OTHER, Clocks, Following

HOUR_MS = 3_600_000


def limit(hold: Hold, needed: int | None, *, now_ms: int = 0, size_bytes: int = 0, log_start: int = 0) -> int:
    return hold.limit(needed, log_start=log_start, watermark=100, size_bytes=size_bytes, now_ms=now_ms)


def test_nothing_is_held_where_nothing_is_needed() -> None:
    hold = Hold()
    assert limit(hold, None) == 100
    assert limit(hold, 4, log_start=5) == 100
    assert (hold.offset, hold.given_up) == (-1, False)


def test_the_lowest_offset_is_held_until_it_was_for_too_long() -> None:
    hold = Hold()
    assert limit(hold, 7) == 7
    assert limit(hold, 7, now_ms=HELD_MS_MAX - 1) == 7
    assert limit(hold, 7, now_ms=HELD_MS_MAX) == 100
    assert hold.given_up
    assert limit(hold, 8, now_ms=HELD_MS_MAX) == 8, "a role that makes progress begins its time again"
    assert limit(hold, 200, now_ms=HELD_MS_MAX) == 100
    assert not hold.given_up


def test_a_log_that_has_become_large_is_held_no_more() -> None:
    hold = Hold()
    assert limit(hold, 7, size_bytes=HELD_BYTES_MAX - 1) == 7
    assert limit(hold, 7, size_bytes=HELD_BYTES_MAX) == 100
    assert hold.given_up


@pytest.mark.parametrize("kind", ["time", "size"])
def test_retention_leaves_what_is_needed_and_deleting_on_request_does_not(tmp_path: Path, kind: str) -> None:
    needed: list[int | None] = [12]
    config = LogConfig(
        segment_bytes=500,
        file_delete_delay_ms=0,
        retention_ms=HOUR_MS if kind == "time" else -1,
        retention_bytes=-1 if kind == "time" else 500,
    )
    mine = Following(tmp_path, config, Clocks(), needed_from=lambda: needed[0])
    mine.state(ME, 1, isr=(ME,))
    for _ in range(40):
        mine.produce(encode_batch(None, [bytes(100)], [mine.clocks.wall_ms()]))
    mine.pass_time(3 * HOUR_MS, tick_ms=HOUR_MS // 12)
    assert 0 < mine.log.log_start_offset <= 12
    assert mine.runner.hold.offset == 12
    mine.log.advance_log_start(20)
    mine.runner._records_deleted()
    assert mine.log.log_start_offset >= 20
    needed[0] = None
    mine.pass_time(HOUR_MS, tick_ms=HOUR_MS // 12)
    assert mine.log.log_start_offset > 30
    mine.log.close()


def inheriting(hold: Hold, needed: int | None, inherited: int, *, log_start: int = 0, now_ms: int = 0) -> int:
    return hold.limit(needed, inherited=inherited, log_start=log_start, watermark=100, size_bytes=0, now_ms=now_ms)


def test_a_new_leader_holds_what_the_last_one_did_until_its_roles_know_it() -> None:
    hold = Hold()
    assert inheriting(hold, None, 7) == 7, "nothing is loaded yet"
    assert inheriting(hold, 30, 7) == 7, "one queue is loaded, and another one needs what is before"
    assert hold.stated(30, inherited=7, log_start=0) == 7
    assert inheriting(hold, 7, 7) == 7
    assert inheriting(hold, 30, 7) == 30
    assert inheriting(hold, None, 7) == 100
    hold.followed()
    assert inheriting(hold, None, 7) == 7, "the next leader has reported it"


def test_what_is_inherited_is_held_for_a_day_and_not_below_the_start() -> None:
    hold = Hold()
    assert inheriting(hold, None, 7, log_start=8) == 100
    assert inheriting(hold, None, 7) == 7
    assert inheriting(hold, None, 7, now_ms=HELD_MS_MAX) == 100
    assert hold.stated(None, inherited=7, log_start=0) == -1, "no follower holds it either"


@pytest.mark.parametrize("leads_next", [False, True])
def test_a_follower_leaves_what_its_leader_still_copies(tmp_path: Path, leads_next: bool) -> None:
    config = LogConfig(segment_bytes=500, file_delete_delay_ms=0, retention_ms=HOUR_MS)
    clocks = Clocks()
    leader = PartitionLog.open(
        tmp_path / "leader", config, topic_id="id", topic="t", partition=0, now_ms=clocks.wall_ms()
    )
    for _ in range(40):
        leader.append_as_leader(encode_batch(None, [bytes(100)], [clocks.wall_ms()]), 1, clocks.wall_ms())
    (tmp_path / "mine").mkdir()
    mine = Following(tmp_path / "mine", config, clocks)
    mine.state(OTHER, 1)
    mine.replicate(leader)
    mine.answer(leader, held_from=12)
    if leads_next:
        mine.state(ME, 2)
    mine.pass_time(3 * HOUR_MS, tick_ms=HOUR_MS // 12)
    assert mine.log.log_start_offset <= 12
    if not leads_next:
        mine.answer(leader, held_from=-1)
        mine.pass_time(HOUR_MS, tick_ms=HOUR_MS // 12)
        assert mine.log.log_start_offset > 30
    leader.close()
    mine.log.close()
