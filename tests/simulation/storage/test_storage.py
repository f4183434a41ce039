"""The shipped log on a virtual disk, and the disk itself: what it may lose, and what it may not."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from raylog.storage import filesystem
from raylog.storage.files import list_files, read_bytes, sync_folder, write_atomically
from tests.simulation.storage.disk import PowerLost, VirtualDisk
from tests.simulation.storage.filesystem import Process, VirtualFileSystem, running
from tests.simulation.storage.runs import STORAGE_CLEANER, run_storage

pytestmark = pytest.mark.sim

ROOT = Path("/disk")
SEEDS = 100


@pytest.mark.parametrize("first", range(1, SEEDS, 50))
def test_a_log_keeps_its_promises_on_a_disk_that_fails(first: int) -> None:
    for seed in range(first, first + 50):
        result = run_storage(seed)
        assert result.violation is None, "\n".join([f"seed {seed} of storage", *result.story])


def test_a_cleaner_changes_nothing_that_is_to_stay() -> None:
    for seed in range(1, 51):
        result = run_storage(seed, STORAGE_CLEANER)
        assert result.violation is None, "\n".join([f"seed {seed} of storage-cleaner", *result.story])


def test_a_seed_always_takes_the_same_course() -> None:
    first, second = run_storage(7), run_storage(7)
    assert (first.trace, first.events, first.story) == (second.trace, second.events, second.story)


def outcomes(change: str, syncs: tuple[str, ...] = ()) -> set[bytes | None]:
    """The possible contents of a file after a loss of power: two sectors of a, a change, and these syncs."""
    found: set[bytes | None] = set()
    for seed in range(200):
        files, disk = VirtualFileSystem(), VirtualDisk(seed, image={"f": b"a" * 1024})
        files.mount(ROOT, disk)
        with files.bound():
            if change == "replace":
                write_atomically(ROOT / "f", b"b" * 1024, durable=bool(syncs))
            else:
                fd = filesystem.open(ROOT / "f", os.O_RDWR, 0o600)
                filesystem.pwrite(fd, b"b" * 1024, 0) if change == "write" else filesystem.ftruncate(fd, 512)
                if syncs:
                    filesystem.fdatasync(fd)
            disk.lose_power()
            found.add(read_bytes(ROOT / "f"))
    return found


def test_each_sector_of_an_unsynced_write_is_lost_or_kept_by_itself() -> None:
    old, new = b"a" * 512, b"b" * 512
    assert outcomes("write") == {old + old, old + new, new + old, new + new}
    assert outcomes("write", ("file",)) == {new + new}


def test_a_cut_may_come_back_until_it_is_synced() -> None:
    assert outcomes("cut") == {b"a" * 512, b"a" * 1024}
    assert outcomes("cut", ("file",)) == {b"a" * 512}


def test_a_renamed_file_may_lack_its_bytes_unless_they_were_synced() -> None:
    found = outcomes("replace")
    assert {b"a" * 1024, b"b" * 1024, b""} <= found
    assert outcomes("replace", ("file", "folder")) == {b"b" * 1024}


def test_a_failed_sync_drops_data_that_the_cache_still_shows() -> None:
    old, new, lost = b"a" * 4096, b"b" * 4096, 0
    for seed in range(20):
        files, disk = VirtualFileSystem(), VirtualDisk(seed, image={"f": old})
        files.mount(ROOT, disk)
        with files.bound():
            fd = filesystem.open(ROOT / "f", os.O_RDWR, 0o600)
            filesystem.pwrite(fd, new, 0)
            disk.faults.failing_syncs = 1
            with pytest.raises(OSError, match="Input/output"):
                filesystem.fdatasync(fd)
            filesystem.fdatasync(fd)
            assert filesystem.pread(fd, 4096, 0) == new
            held = disk.image()["f"]
            filesystem.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert filesystem.pread(fd, 4096, 0) == held
            lost += held != new
    assert lost > 5, "the second sync had nothing to write"


def test_a_full_disk_takes_part_of_a_write_until_a_file_is_removed() -> None:
    files, disk = VirtualFileSystem(), VirtualDisk(1, image={"f": b"", "old": b"x" * 100})
    files.mount(ROOT, disk)
    disk.faults.room = 10
    with files.bound():
        fd = filesystem.open(ROOT / "f", os.O_RDWR, 0o600)
        assert filesystem.pwrite(fd, b"b" * 50, 0) == 10
        with pytest.raises(OSError, match="No space") as full:
            filesystem.pwrite(fd, b"b" * 40, 10)
        assert full.value.errno == errno.ENOSPC
        filesystem.unlink(ROOT / "old")
        assert filesystem.pwrite(fd, b"b" * 40, 10) == 40


def test_a_killed_process_has_no_effect_and_leaves_its_writes_to_others() -> None:
    files, disk, process = VirtualFileSystem(), VirtualDisk(1), Process()
    files.mount(ROOT, disk)
    with files.bound():
        token = running.set(process)
        write_atomically(ROOT / "f", b"content")
        fd = filesystem.open(ROOT / "f", os.O_RDWR, 0o600)
        filesystem.pwrite(fd, b"CON", 0)
        files.kill(process)
        with pytest.raises(PowerLost):
            filesystem.pwrite(fd, b"tent", 3)
        running.reset(token)
        assert read_bytes(ROOT / "f") == b"CONtent"
        assert files.open_descriptors(disk) == 0


def test_a_loss_of_power_removes_a_name_unless_its_folder_was_synced() -> None:
    kept = set()
    for seed in range(40):
        files, disk = VirtualFileSystem(), VirtualDisk(seed)
        files.mount(ROOT, disk)
        with files.bound():
            for name in ("a", "b"):
                write_atomically(ROOT / name, b"", durable=False)
                if name == "a":
                    sync_folder(ROOT)
            disk.lose_power()
            kept.add(tuple(path.name for path in list_files(ROOT)))
    assert {("a",), ("a", "b")} <= kept <= {("a",), ("a", "b"), ("a", "b.tmp")}


KEPT_SEEDS = {
    47: "a cut took what superseded the batches that half a cleaning had removed",
    194: "the same, found in another way",
    219: "a file that an earlier cleaning replaced was thought to be replaced again",
    271: "cleaners went by another limit of offsets than segments",
}


@pytest.mark.parametrize("seed", sorted(KEPT_SEEDS))
def test_a_seed_of_the_cleaner_that_failed_once_passes(seed: int) -> None:
    result = run_storage(seed, STORAGE_CLEANER)
    assert result.violation is None, "\n".join([KEPT_SEEDS[seed], *result.story])
