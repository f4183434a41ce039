"""One bit flips in a small file of a partition's folder: the log is opened whole, or what is wrong is known."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raylog.base.epochs import EpochHistory
from raylog.storage.errors import LogDamaged, WrongTopicId
from raylog.storage.log.checkpoints import (
    CLEAN,
    CLEANED_TO,
    EPOCHS,
    LOG_START,
    METADATA,
    RECOVERY_POINT,
    TOMBSTONES_DUE,
    Checkpoints,
)
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, batch, crashed, open_log, produced, whole

SMALL_FILES = (METADATA, EPOCHS, RECOVERY_POINT, LOG_START, CLEANED_TO, TOMBSTONES_DUE, CLEAN)
CACHES = (EPOCHS, RECOVERY_POINT, CLEANED_TO, TOMBSTONES_DUE, CLEAN)
"""Files whose loss costs no more than time."""
BITS = 12


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def filled(folder: Path) -> PartitionLog:
    log = open_log(folder, segment_bytes=400, index_interval_bytes=100)
    log.assign_leader_epoch(3, 0)
    for number in range(16):
        log.append_as_leader(bytearray(produced(number)), 3 if number < 9 else 14, NOW)
    log.append_as_leader(bytearray(batch(b"plain", b"ones")), 14, NOW)
    log.sync()
    log.advance_log_start(4)
    log.checkpoints.write_cleaned_to(6)
    log.checkpoints.write_tombstones_due(NOW)
    log.checkpoint(early=True)
    return log


@pytest.fixture(params=["closed", "killed"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    log = filled(tmp_path / "t-0")
    if request.param == "killed":
        return crashed(log, tmp_path / "killed")
    log.close()
    return tmp_path / "t-0"


def opened_with(folder: Path, copy: Path, name: str, data: bytes) -> PartitionLog:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    (copy / name).write_bytes(data)
    return open_log(copy, segment_bytes=400, index_interval_bytes=100)


def state(log: PartitionLog) -> tuple[object, ...]:
    """What readers and followers see of a log; a history of epochs may begin below its start."""
    epochs = EpochHistory(log.epochs.entries)
    epochs.truncate_start(log.log_start_offset)
    found = (log.log_start_offset, log.log_end_offset, epochs.entries, log.log_id, whole(log))
    log.close()
    return found


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_log_with_a_flipped_bit_is_whole_or_known_as_damaged(folder: Path, tmp_path: Path, name: str) -> None:
    if not (folder / name).exists():
        assert name == CLEAN, "a killed process leaves all files but the mark of a clean stop"
        return
    right = (folder / name).read_bytes()
    expected = state(opened_with(folder, tmp_path / "copy", name, right))
    assert expected[:2] == (4, 18)
    for bit in random.Random(name).sample(range(8 * len(right)), BITS):
        try:
            found = state(opened_with(folder, tmp_path / "copy", name, flipped(right, bit)))
        except LogDamaged:
            assert name not in CACHES, f"{name} can be made again, also with bit {bit} flipped"
        else:
            assert found == expected, f"bit {bit} of {name}"


READS: dict[str, tuple[Callable[[Checkpoints], object], object]] = {
    METADATA: (lambda found: (found.claim("a topic", "t", 0), found.read_log_id()), LogDamaged),
    EPOCHS: (Checkpoints.read_epochs, None),
    RECOVERY_POINT: (Checkpoints.read_recovery_point, None),
    LOG_START: (Checkpoints.read_log_start, LogDamaged),
    CLEANED_TO: (Checkpoints.read_cleaned_to, 0),
    TOMBSTONES_DUE: (Checkpoints.read_tombstones_due, 1),
}
"""How a file is read, and what that gives where it is damaged."""


@pytest.mark.parametrize("name", sorted(READS))
def test_every_single_bit_that_flips_is_noticed(tmp_path: Path, name: str) -> None:
    files = Checkpoints(tmp_path)
    files.claim("a topic", "t", 0)
    files.write_epochs(EpochHistory([(3, 0), (14, 9), (15, 400)]))
    files.write_recovery_point(400)
    files.write_log_start(14)
    files.write_cleaned_to(300)
    files.write_tombstones_due(NOW)
    read, damaged = READS[name]
    right, expected = (tmp_path / name).read_bytes(), read(files)
    for bit in range(8 * len(right)):
        (tmp_path / name).write_bytes(flipped(right, bit))
        try:
            found = read(files)
        except (LogDamaged, WrongTopicId) as error:
            found = type(error)
        assert found in (damaged, expected), f"bit {bit} of {name}"


def test_a_file_without_a_checksum_is_damaged(tmp_path: Path) -> None:
    files = Checkpoints(tmp_path)
    (tmp_path / LOG_START).write_text("0\n14\n")
    (tmp_path / RECOVERY_POINT).write_text("0\n14\n")
    (tmp_path / EPOCHS).write_text("0\n2\n3 0\n14 9\n")
    (tmp_path / METADATA).write_text("version: 0\ntopic_id: a topic\ntopic: t\npartition: 0\nlog_id: x\n")
    with pytest.raises(LogDamaged, match=r"log-start-offset-checkpoint.*rebuild this replica from its peers"):
        files.read_log_start()
    with pytest.raises(LogDamaged, match=r"partition\.metadata.*checksum .* is missing.*rebuild this replica"):
        files.claim("a topic", "t", 0)
    assert (files.read_recovery_point(), files.read_epochs()) == (None, None)
    assert files.damaged() == [METADATA, EPOCHS, RECOVERY_POINT, LOG_START]
