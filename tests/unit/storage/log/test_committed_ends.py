"""Damage behind the recovery point after a kill: what was committed is no torn end, and is not cut."""

import shutil
from pathlib import Path

import pytest

from raylog.storage.batch.header import iter_headers
from raylog.storage.errors import LogDamaged
from raylog.storage.log.checkpoints import Checkpoints
from raylog.storage.log.kept_watermark import HIGH_WATERMARK, KeptWatermark
from raylog.storage.log.partition_log import LogConfig, PartitionLog
from tests.unit.storage.logs import NOW, TOPIC_ID, crashed, open_log, produced

RECOVERY_POINT, COMMITTED, END = 3, 7, 10


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Ten records in one segment, of which seven are known to be committed, and three to be synced."""
    log = open_log(tmp_path / "t-0")
    log.assign_leader_epoch(1, 0)
    for number in range(END):
        log.append_as_leader(bytearray(produced(number)), 1, NOW)
        if number + 1 == RECOVERY_POINT:
            log.sync()
            log.checkpoint(early=True)
    log.sync_records()
    kept = KeptWatermark(log.folder, log.log_end_offset)
    kept.want(COMMITTED)
    kept.keep()
    return crashed(log, tmp_path / "killed")


def damage(folder: Path, offset: int, *, cut: bool) -> None:
    """Flip a bit in the batch at an offset, or cut the file in the middle of it."""
    path = next(folder.glob("*.log"))
    data = bytearray(path.read_bytes())
    place = next(position + header.size - 3 for position, header in iter_headers(data) if header.base_offset == offset)
    data[place] ^= 4
    path.write_bytes(data[:place] if cut else data)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("cut", [False, True], ids=["bit", "cut"])
@pytest.mark.parametrize("offset", [RECOVERY_POINT, COMMITTED - 1])
def test_damage_below_the_kept_watermark_is_raised_and_changes_nothing(killed: Path, offset: int, cut: bool) -> None:
    damage(killed, offset, cut=cut)
    before = contents(killed)
    with pytest.raises(LogDamaged) as caught:
        open_log(killed)
    assert caught.value.offset == offset
    assert contents(killed) == before


@pytest.mark.parametrize("cut", [False, True], ids=["bit", "cut"])
def test_what_may_never_have_been_acknowledged_is_cut_and_reported(killed: Path, cut: bool) -> None:
    damage(killed, COMMITTED, cut=cut)
    log = open_log(killed)
    assert log.log_end_offset == COMMITTED
    assert log.recovered.reason is not None
    assert log.recovered.end_cut
    log.close()


def test_a_cut_is_known_until_it_is_reported(killed: Path) -> None:
    damage(killed, COMMITTED, cut=False)
    open_log(killed).close()
    log = open_log(killed)
    assert log.recovered.clean
    assert log.recovered.end_cut, "the life that cut it may have died before it could report it"
    log.close()
    Checkpoints(killed).remove_end_cut()
    log = open_log(killed)
    assert not log.recovered.end_cut
    log.close()


def test_a_lost_end_below_the_kept_watermark_is_raised(killed: Path) -> None:
    path = next(killed.glob("*.log"))
    data = path.read_bytes()
    path.write_bytes(data[: next(position for position, header in iter_headers(data) if header.base_offset == 5)])
    with pytest.raises(LogDamaged, match="everything below 7"):
        open_log(killed)
    path.unlink()
    with pytest.raises(LogDamaged, match="all segments are missing"):
        open_log(killed)


def test_an_end_in_doubt_is_cut(killed: Path) -> None:
    damage(killed, RECOVERY_POINT + 1, cut=False)
    log = PartitionLog.open(
        killed, LogConfig(), topic_id=TOPIC_ID, topic="t", partition=0, now_ms=NOW, end_in_doubt=True
    )
    assert log.log_end_offset == RECOVERY_POINT + 1
    log.close()


def test_a_watermark_below_the_start_of_a_log_says_nothing(tmp_path: Path) -> None:
    """A reset was interrupted behind the note of its start: the log is begun there again."""
    log = open_log(tmp_path / "t-0")
    for number in range(END):
        log.append_as_leader(bytearray(produced(number)), 1, NOW)
    log.sync()
    kept = KeptWatermark(log.folder, log.log_end_offset)
    kept.want(END)
    kept.keep()
    log.checkpoints.write_recovery_point(0)
    log.checkpoints.write_log_start(END + 5)
    folder = crashed(log, tmp_path / "killed")
    for path in folder.glob("*.log"):
        path.unlink()
    again = open_log(folder)
    assert (again.log_start_offset, again.log_end_offset) == (END + 5, END + 5)
    again.close()


def test_the_end_after_a_cut_is_known_before(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for number in range(0, 12, 3):
        log.append_as_leader(bytearray(produced(number, 3)), 1, NOW)
    for offset in (0, 4, 6, 11, 12, 20):
        copy = tmp_path / f"cut-{offset}"
        shutil.copytree(log.folder, copy)
        cut = open_log(copy)
        expected = cut.end_after_cut(offset)
        cut.truncate_to(offset, NOW)
        assert cut.log_end_offset == min(expected, 12)
        cut.close()
    log.close()


def test_a_damaged_watermark_says_nothing(killed: Path) -> None:
    (killed / HIGH_WATERMARK).write_bytes(b"7 00000000\n")
    damage(killed, RECOVERY_POINT + 1, cut=False)
    log = open_log(killed)
    assert log.log_end_offset == RECOVERY_POINT + 1
    log.close()
