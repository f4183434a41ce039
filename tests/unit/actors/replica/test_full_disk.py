"""A disk that is full at any look of a replica at its log: nothing ends, and old records make room."""

import errno
from pathlib import Path
from typing import cast

import pytest

from raylog.actors.replica.ports import ReplicaRequest
from raylog.protocol.replica import WriteTxnMarkersRequest
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.errors import DiskFull
from raylog.storage.log.checkpoints import Checkpoints
from raylog.storage.log.config import LogConfig
from raylog.storage.segments.segment import Segment
from tests.unit.actors.replica.following import ME, Clocks, Following, Request

DAY_MS = 86_400_000
CONFIG = LogConfig(segment_bytes=500, retention_ms=DAY_MS, file_delete_delay_ms=0)


def full(*_: object) -> None:
    raise DiskFull("write", OSError(errno.ENOSPC, "No space left on device"))


@pytest.fixture
def leading(tmp_path: Path) -> Following:
    """A leader with sealed segments, and an aborted transaction in the one that takes appends."""
    mine = Following(tmp_path, CONFIG, Clocks())
    mine.state(ME, 1, isr=(ME,))
    for _ in range(20):
        mine.produce(encode_batch(None, [bytes(100)], [mine.clocks.wall_ms()]))
    meta = BatchMeta(7, 0, 0, attributes=TRANSACTIONAL_BIT)
    mine.produce(encode_batch(None, [b"aborted"], [mine.clocks.wall_ms()], None, meta))
    ended = Request()
    mine.runner.receive(cast(ReplicaRequest, ended), WriteTxnMarkersRequest("id", 0, -1, 7, 1, 1, False, 1_000))
    assert ended.error is None
    assert mine.runner.machine is not None
    assert mine.runner.machine.high_watermark == mine.log.log_end_offset
    assert len(mine.log.segments) > 3
    return mine


def test_retention_removes_what_is_closed_though_no_segment_can_begin(
    leading: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    active = leading.log.segments[-1].base_offset
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "keep_aborted", full)
        for _ in range(3):
            leading.pass_time(2 * DAY_MS, tick_ms=DAY_MS)
        assert not leading.fatal
        assert [segment.base_offset for segment in leading.log.segments] == [active]
        machine = leading.runner.machine
        assert machine is not None
        assert machine._log.start == leading.log.log_start_offset == active
        assert not list(leading.log.folder.glob("*.deleted"))
    leading.pass_time(6_000, tick_ms=1_000)
    assert leading.log.log_start_offset == leading.log.log_end_offset, "it goes on as soon as there is room"


def test_deleting_records_on_a_full_disk_ends_nothing(leading: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    end = leading.log.log_end_offset
    leading.clocks.passed_ms += 2 * DAY_MS
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "keep_aborted", full)
        leading.log.advance_log_start(end)
        leading.runner._records_deleted()
        leading.pass_time(10_000, tick_ms=1_000)
    assert not leading.fatal
    assert leading.runner.machine is not None
    assert leading.runner.machine._log.start == end


def test_a_leader_whose_epoch_cannot_be_noted_serves_what_it_has(
    leading: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = encode_batch(None, [b"more"], [leading.clocks.wall_ms()])
    end = leading.log.log_end_offset
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write_epochs", full)
        leading.state(ME, 2, isr=(ME,))
        assert not leading.fatal
        machine = leading.runner.machine
        assert machine is not None
        assert (machine.role, machine.leader_epoch) == ("leader", 2)
        assert leading.produce(payload).error is not None
        assert leading.log.read(0, 1 << 20, end)
    assert leading.produce(payload).answer.base_offset == end
    assert leading.log.epochs.entries[-1] == (2, end)
