"""Disks that are full or broken, and folders that do not fit together."""

import errno
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raylog.storage import descriptors, filesystem
from raylog.storage.errors import DescriptorsExhausted, DiskFull, LogClosed, LogDamaged, StorageIoError
from tests.unit.storage.logs import NOW, batch, crashed, open_files_below, open_log, produced, values_of, whole
from tests.unit.storage.page_cache import PageCache


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
        again.truncate_to(3, NOW)
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

    monkeypatch.setattr(filesystem, "pwrite", pwrite)


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


def test_a_follower_with_a_full_disk_forgets_epochs_of_unkept_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, log = open_log(tmp_path / "leader"), open_log(tmp_path / "t-0")
    for epoch in (1, 2, 3):
        leader.append_as_leader(batch(b"a"), epoch, NOW)
    failing = log.segments[-1].write
    monkeypatch.setattr(type(log.segments[-1]), "write", _raise_disk_full)
    with pytest.raises(DiskFull):
        log.append_as_follower(whole(leader), NOW)
    assert log.epochs.entries == [(1, 0)]
    monkeypatch.undo()
    assert failing is not None
    assert log.append_as_follower(whole(leader), NOW).epochs == ((1, 0), (2, 1), (3, 2)), (
        "the caller learns of them now"
    )
    assert log.epochs == leader.epochs
    leader.close()
    log.close()


def _raise_disk_full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def refusing(monkeypatch: pytest.MonkeyPatch, number: int, accepted: int = 0, suffix: str = "") -> None:
    """Let renames of files that end in `suffix` fail, after so many that succeed, until the patch is undone."""
    real, left = filesystem.replace, accepted

    def replace(source: filesystem.Place, target: filesystem.Place) -> None:
        nonlocal left
        if str(source).endswith(suffix):
            left -= 1
            if left < 0:
                raise OSError(number, os.strerror(number))
        real(source, target)

    monkeypatch.setattr(filesystem, "replace", replace)


def test_an_epoch_that_no_file_has_is_written_with_its_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    with monkeypatch.context() as patch:
        refusing(patch, errno.ENOSPC)
        with pytest.raises(DiskFull):
            log.assign_leader_epoch(2, 1)
    assert log.epochs.entries == [(1, 0)]
    log.append_as_leader(batch(b"b"), 2, NOW)
    assert log.sync() == 2
    again = open_log(crashed(log, tmp_path / "crash"))
    assert values_of(whole(again)) == [(0, b"a"), (1, b"b")]
    assert again.epochs.entries == [(1, 0), (2, 1)]
    again.close()


def test_a_log_closes_when_epochs_of_a_failed_append_stay_in_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, log = open_log(tmp_path / "leader"), open_log(tmp_path / "t-0")
    for epoch in (1, 2, 3):
        leader.append_as_leader(batch(b"a"), epoch, NOW)
    with monkeypatch.context() as patch:
        patch.setattr(type(log.segments[-1]), "write", _raise_disk_full)
        refusing(patch, errno.ENOSPC, accepted=1)
        with pytest.raises(DiskFull):
            log.append_as_follower(whole(leader), NOW)
    with pytest.raises(LogClosed, match="epochs of a failed append"):
        log.append_as_follower(whole(leader), NOW)
    log.close()
    again = open_log(tmp_path / "t-0")
    assert again.epochs.entries == [(1, 0)]
    again.append_as_follower(whole(leader), NOW)
    assert again.epochs == leader.epochs
    leader.close()
    again.close()


def test_retention_that_fails_halfway_leaves_a_log_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=200, retention_bytes=200)
    for number in range(6):
        log.append_as_leader(batch(b"%d" % number * 100), 1 + number, NOW)
    log.sync()
    with monkeypatch.context() as patch:
        refusing(patch, errno.EIO, accepted=1, suffix=".log")
        with pytest.raises(StorageIoError):
            log.apply_retention(NOW, 6)
    assert [segment.base_offset for segment in log.segments] == [1, 2, 3, 4, 5]
    assert log.log_start_offset == 1
    assert values_of(log.read(1, 1, 6)) == [(1, b"1" * 100)]
    with monkeypatch.context() as patch:
        refusing(patch, errno.EMFILE, suffix=".tmp")  # no epochs can be written
        assert log.apply_retention(NOW, 6) == [1, 2, 3]
    again = open_log(crashed(log, tmp_path / "crash"), segment_bytes=200)
    assert (again.log_start_offset, again.log_end_offset) == (4, 6)
    again.close()


def test_a_failed_append_is_taken_back_on_disk_before_a_segment_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=400)
    log.append_as_leader(batch(b"a" * 100), 1, NOW)
    log.sync()
    with monkeypatch.context() as patch:
        failing_writes(patch, errno.EIO, 50)
        with pytest.raises(StorageIoError):
            log.append_as_leader(batch(b"b"), 1, NOW)
    calls: list[str] = []
    real_sync, real_open = filesystem.fdatasync, filesystem.open

    def sync(fd: int) -> None:
        calls.append("sync")
        real_sync(fd)

    def opened(path: filesystem.Place, flags: int, mode: int) -> int:
        if flags & os.O_CREAT and str(path).endswith(".log"):
            calls.append("create")
        return real_open(path, flags, mode)

    monkeypatch.setattr(filesystem, "fdatasync", sync)
    monkeypatch.setattr(filesystem, "open", opened)
    log.append_as_leader(batch(b"c" * 300), 1, NOW)
    assert calls == ["sync", "create"], "recovery believes the segments before the last one"
    log.append_as_leader(batch(b"d" * 300), 1, NOW)
    assert calls == ["sync", "create", "create"]
    log.sync()
    with monkeypatch.context() as patch:
        failing_writes(patch, errno.EIO, 50)
        with pytest.raises(StorageIoError):
            log.append_as_leader(batch(b"e"), 1, NOW)
    calls.clear()
    log.close()
    assert calls == ["sync"], "a log that was closed cleanly is not scanned"


def test_after_a_failed_sync_the_log_stops_and_the_next_reads_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PageCache(monkeypatch)
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    log.sync()
    log.append_as_leader(batch(b"b"), 1, NOW)
    cache.failing_syncs = 1
    with pytest.raises(StorageIoError):
        log.sync()
    assert log.synced_end_offset == 1
    for call in (log.sync, lambda: log.append_as_leader(batch(b"c"), 1, NOW), lambda: log.read(0, 1, 1)):
        with pytest.raises(LogClosed, match="sync failed"):
            call()
    log.close()
    again = open_log(tmp_path / "t-0")
    assert not again.recovered.clean
    assert values_of(whole(again)) == [(0, b"a")], "record b is in the page cache and not on the disk"
    again.append_as_leader(batch(b"c"), 1, NOW)
    assert again.sync() == 2
    again.close()
    cache.lose_power()
    last = open_log(tmp_path / "t-0")
    assert values_of(whole(last)) == [(0, b"a"), (1, b"c")], "what was reported as synced survives"
    last.close()


def test_an_open_that_cannot_write_dirty_data_fails_and_the_next_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PageCache(monkeypatch)
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    for segment in log.segments:  # like a kill: no sync, no clean close
        segment.release()
    cache.failing_syncs = 1
    with pytest.raises(StorageIoError):
        open_log(tmp_path / "t-0")
    again = open_log(tmp_path / "t-0")
    assert (again.log_end_offset, open_files_below(tmp_path) != []) == (0, True)
    again.close()
    assert open_files_below(tmp_path) == []


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.lists(st.sampled_from(["append", "append", "sync", "failing sync", "kill", "power"]), max_size=25))
def test_what_was_synced_survives_failed_syncs_kills_and_power_cuts(steps: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as name:
        patch.setattr("raylog.storage.log.partition_log.CHECKPOINT_SECONDS", 0.0)
        cache, folder = PageCache(patch), Path(name) / "t-0"
        log = open_log(folder, segment_bytes=6000)
        promised: list[tuple[int, bytes | None]] = []
        for number, step in enumerate([*steps, "power"]):
            cache.failing_syncs = int(step == "failing sync")
            if step == "append":
                log.append_as_leader(batch(b"%d" % number * 700), 1, NOW)
                continue
            if "sync" in step:
                try:
                    end = log.sync()
                    promised = values_of(log.read(0, 1 << 20, end)) if end else []
                    continue
                except StorageIoError:
                    pass  # the process ends now
            for segment in log.segments:
                segment.release()
            if step == "power":
                cache.lose_power()
            cache.failing_syncs = 0
            log = open_log(folder, segment_bytes=6000)
            promised_before, promised = promised, values_of(whole(log))
            assert promised[: len(promised_before)] == promised_before
        log.close()


@pytest.fixture
def no_descriptors() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A context in which this process has no descriptor left, not even in reserve."""

    @contextmanager
    def exhausted() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        taken = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            yield
        finally:
            for fd in taken:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    yield exhausted
    descriptors.keep_reserve()


def test_a_sync_and_a_roll_succeed_without_a_free_descriptor(
    tmp_path: Path, no_descriptors: Callable[[], AbstractContextManager[None]]
) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=200)
    log.append_as_leader(batch(b"a"), 1, NOW)
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        assert log.sync() == 1
        for number in range(3):
            log.append_as_leader(batch(b"%d" % number * 100), 1, NOW)
        assert log.sync() == 4
    log.close()
    again = open_log(tmp_path / "t-0", segment_bytes=200)
    assert (again.recovered.clean, again.log_end_offset) == (True, 4)
    again.close()


def test_a_sync_without_a_descriptor_is_no_disk_failure_and_is_repeated(
    tmp_path: Path, no_descriptors: Callable[[], AbstractContextManager[None]]
) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=200)
    for number in range(2):
        log.append_as_leader(batch(b"%d" % number * 100), 1, NOW)
    descriptors._reserve.release()
    with no_descriptors():
        with pytest.raises(DescriptorsExhausted, match="ulimit"):
            log.sync()  # the folder has to be opened
        with pytest.raises(DescriptorsExhausted):
            log.append_as_leader(batch(b"roll" * 50), 1, NOW)
    assert log.sync() == 2
    log.append_as_leader(batch(b"roll" * 50), 1, NOW)
    assert log.sync() == 3
    log.close()
    assert open_files_below(tmp_path) == []


def test_a_sync_uses_no_descriptor_of_its_own_and_survives_a_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    log.sync()
    log.append_as_leader(batch(b"b"), 1, NOW)
    before, during, real = len(os.listdir("/proc/self/fd")), [0], os.fdatasync

    def released_meanwhile(fd: int) -> None:
        log.segments[0].release()
        real(fd)
        during[0] = len(os.listdir("/proc/self/fd"))

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "fdatasync", released_meanwhile)
        assert log.sync() == 2
    assert during == [before]
    assert open_files_below(tmp_path) == []
    assert values_of(whole(log)) == [(0, b"a"), (1, b"b")]
    log.close()


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


def test_a_log_without_any_of_its_segments_is_damaged(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    log.close()
    (tmp_path / "t-0" / "00000000000000000000.log").unlink()
    with pytest.raises(LogDamaged, match="all segments are missing"):
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
