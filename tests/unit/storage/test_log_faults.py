"""Disks that are full or broken, and folders that do not fit together."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.storage.errors import DiskFull, LogClosed, LogDamaged, StorageIoError
from tests.unit.storage.logs import NOW, batch, crashed, open_log, produced, values_of, whole


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = tmp_path / "tiny"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a tmpfs needs root; the injected failures below test the same code")
    yield mount
    subprocess.run(["umount", str(mount)], check=True, timeout=30)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount command")
def test_a_really_full_disk_keeps_the_log_readable_and_writable_again(tiny_disk: Path) -> None:
    log = open_log(tiny_disk / "t-0")
    error = None
    while error is None:
        try:
            log.append_as_leader(batch(os.urandom(20_000)), 1, NOW)
        except DiskFull as full:
            error = full
    before, end = whole(log), log.log_end_offset
    assert end == len(values_of(before)) > 5
    assert (tiny_disk / "t-0" / "00000000000000000000.log").stat().st_size == len(before)
    log.append_as_leader(batch(b"small"), 1, NOW)
    expected = before + log.read(end, 1000, end + 1)
    assert whole(log) == expected
    assert log.sync() == end + 1
    log.close()  # there is no room for its small files, so the next open scans
    again = open_log(tiny_disk / "t-0")
    assert (again.recovered.clean, whole(again)) == (False, expected)
    try:
        again.truncate_to(3)
    except DiskFull:
        assert whole(again) == expected
    again.close()


def failing_writes(monkeypatch: pytest.MonkeyPatch, error: int, after_bytes: int) -> None:
    """The first write puts `after_bytes` into the file, and what follows fails, until the patch is undone."""
    real, left = os.pwrite, after_bytes

    def pwrite(fd: int, data: bytes, position: int) -> int:
        nonlocal left
        part, left = bytes(data)[:left], 0
        if part:
            return real(fd, part, position)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("raylog.storage.files.os", _Os(pwrite=pwrite))
    assert os.pwrite is real


class _Os:
    """The module os with some calls replaced."""

    def __init__(self, **replaced: object) -> None:
        self._replaced = replaced

    def __getattr__(self, name: str) -> object:
        return self._replaced.get(name) or getattr(os, name)


@pytest.mark.parametrize("after_bytes", [0, 1, 60, 61, 100])
@pytest.mark.parametrize(("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageIoError)])
def test_a_write_that_fails_at_any_byte_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_bytes: int, number: int, error: type[Exception]
) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(produced(0), 1, NOW)
    before = whole(log)
    with monkeypatch.context() as patch:
        failing_writes(patch, number, after_bytes)
        with pytest.raises(error):
            log.append_as_leader(produced(1, 20), 1, NOW)
    assert whole(log) == before
    assert log.segments[-1].path.stat().st_size == len(before)
    assert log.append_as_leader(produced(1, 20), 1, NOW)[:3] == (1, 21, False)
    log.sync()
    again = open_log(crashed(log, tmp_path / "crash"))
    assert again.log_end_offset == 21
    again.close()


def test_a_follower_whose_disk_is_full_forgets_epochs_of_batches_it_did_not_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, log = open_log(tmp_path / "leader"), open_log(tmp_path / "t-0")
    for epoch in (1, 2, 3):
        leader.append_as_leader(batch(b"a"), epoch, NOW)
    failing = log.segments[-1].write
    monkeypatch.setattr(type(log.segments[-1]), "write", _raise_disk_full)
    with pytest.raises(DiskFull):
        log.append_as_follower(whole(leader))
    assert log.epochs.entries == [(1, 0)]
    monkeypatch.undo()
    assert failing is not None
    log.append_as_follower(whole(leader))
    assert log.epochs == leader.epochs
    leader.close()
    log.close()


def _raise_disk_full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_after_a_failed_sync_the_log_refuses_to_go_on_and_is_scanned_when_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", _raise_io_error)
        with pytest.raises(StorageIoError):
            log.sync()
    assert log.synced_end_offset == 0
    for call in (log.sync, lambda: log.append_as_leader(batch(b"b"), 1, NOW)):
        with pytest.raises(LogClosed, match="sync failed"):
            call()
    log.close()
    again = open_log(tmp_path / "t-0")
    assert not again.recovered.clean
    assert values_of(whole(again)) == [(0, b"a")]
    again.close()


def _raise_io_error(_: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_missing_segment_is_damage_and_nothing_is_changed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=200)
    for number in range(8):
        log.append_as_leader(batch(b"%d" % number), 1, NOW)
    log.close()
    (tmp_path / "t-0" / "00000000000000000004.log").unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.log")}
    with pytest.raises(LogDamaged, match="next segment begins at 6"):
        open_log(tmp_path / "t-0", segment_bytes=200)
    assert {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.log")} == before


def test_a_log_whose_segments_are_all_gone_is_damaged(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    log.close()
    (tmp_path / "t-0" / "00000000000000000000.log").unlink()
    with pytest.raises(LogDamaged, match="all segments are gone"):
        open_log(tmp_path / "t-0")


def test_indexes_and_epochs_that_are_missing_or_wrong_are_rebuilt(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=2000, index_interval_bytes=1)
    for number in range(60):
        log.append_as_leader(batch(b"%d" % number, timestamps=[NOW + number]), 1 + number // 20, NOW)
    expected, epochs = whole(log), log.epochs
    log.close()
    folder = tmp_path / "t-0"
    kept = {path: path.read_bytes() for path in folder.glob("*.*index")}
    assert len(kept) >= 6
    for damage in (lambda data: None, lambda data: b"", lambda data: data[:-3], lambda data: bytes(len(data))):
        for path, data in kept.items():
            changed = damage(data)
            path.unlink(missing_ok=True) if changed is None else path.write_bytes(changed)
        (folder / "leader-epoch-checkpoint").unlink()
        log = open_log(folder, segment_bytes=2000, index_interval_bytes=1)
        assert log.recovered.epochs_rebuilt
        assert log.recovered.indexes_rebuilt > 0
        assert (whole(log), log.epochs) == (expected, epochs)
        assert log.offset_for_timestamp(NOW + 33, 60) == (33, NOW + 33)
        assert log.read(45, 1, 60) != b""
        log.close()
