"""Folders of deleted, replaced and damaged partitions."""

import errno
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from raylog.actors.replica.set_aside import (
    clear_half_deleted,
    clear_replaced,
    remove_partition_folder,
    set_aside,
    topic_id_of,
)
from raylog.storage import filesystem
from raylog.storage.errors import StorageIoError
from raylog.storage.files import exists, list_files, make_folder
from raylog.storage.folder_lock import FolderLock
from tests.simulation.storage.disk import PowerLost, VirtualDisk
from tests.simulation.storage.filesystem import VirtualFileSystem


def partition(root: Path, topic_id: str, name: str = "t-0") -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\ntopic: t\npartition: 0\n")
    return folder


def test_the_folder_of_a_deleted_topic_is_removed_with_its_lock(tmp_path: Path) -> None:
    folder = partition(tmp_path, "a" * 32)
    FolderLock(folder).release()
    remove_partition_folder(folder, "a" * 32)
    assert [path.name for path in tmp_path.rglob("*")] == [".deleted"]
    remove_partition_folder(folder, "a" * 32)


def test_the_folder_of_another_topic_of_that_name_stays(tmp_path: Path) -> None:
    folder = partition(tmp_path, "b" * 32)
    remove_partition_folder(folder, "a" * 32)
    assert topic_id_of(folder) == "b" * 32


def test_a_removal_that_a_crash_interrupted_is_finished(tmp_path: Path) -> None:
    doomed = set_aside(partition(tmp_path, "a" * 32), ".deleted", "a" * 32, 0)
    (doomed / "partition.metadata").unlink()
    partition(tmp_path, "a" * 32)
    clear_half_deleted(tmp_path)
    assert not doomed.exists()
    assert topic_id_of(tmp_path / "t-0") == "a" * 32
    assert list((tmp_path / ".deleted").iterdir()) == []
    assert topic_id_of(tmp_path / "none") == ""


def test_two_that_are_set_aside_in_one_millisecond_both_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.actors.replica.set_aside.wall_ms", lambda: 1_700_000_000_000)
    first = set_aside(partition(tmp_path, "a" * 32), ".damaged", "a" * 32, 0)
    second = set_aside(partition(tmp_path, "a" * 32), ".damaged", "a" * 32, 0)
    assert first != second
    assert first.is_dir()
    assert second.is_dir()


def test_what_is_set_aside_and_locked_stays(tmp_path: Path) -> None:
    doomed = set_aside(partition(tmp_path, "a" * 32), ".deleted", "a" * 32, 0)
    lock = FolderLock(doomed)
    clear_half_deleted(tmp_path)
    assert doomed.is_dir()
    lock.release()
    clear_half_deleted(tmp_path)
    assert not doomed.exists()


def test_what_was_replaced_is_removed_with_its_topic(tmp_path: Path) -> None:
    former = set_aside(partition(tmp_path, "b" * 32), ".replaced", "b" * 32, 0)
    clear_replaced(tmp_path, {"a" * 32})
    assert former.exists()
    clear_replaced(tmp_path, {"b" * 32})
    assert not former.exists()


TOPIC_ID = "a" * 32
DISK = Path("/disk")


def found_after(act: Callable[[Path, VirtualDisk], object]) -> set[tuple[bool, int]]:
    """Let `act` handle a synced folder, cut the power: is the folder in its place, and how many lie in `.deleted`?"""
    found = set()
    for seed in range(40):
        files, disk = VirtualFileSystem(), VirtualDisk(seed, image={"t-0": {"partition.metadata": _metadata()}})
        files.mount(DISK, disk)
        with files.bound():
            with suppress(PowerLost):
                act(DISK / "t-0", disk)
            disk.lose_power()
            aside = list_files(DISK / ".deleted") if exists(DISK / ".deleted") else []
            found.add((exists(DISK / "t-0"), sum(not path.name.startswith(".") for path in aside)))
    return found


def _refuse(_: str) -> None:
    raise OSError(errno.EIO, "Input/output error")


def _metadata() -> bytes:
    return f"version: 0\ntopic_id: {TOPIC_ID}\ntopic: t\npartition: 0\n".encode()


def test_a_folder_set_aside_is_in_its_new_place_alone_after_a_power_cut() -> None:
    assert found_after(lambda folder, _: set_aside(folder, ".deleted", TOPIC_ID, 0)) == {(False, 1)}


@pytest.mark.parametrize("calls", range(6))
def test_a_power_cut_while_a_folder_is_set_aside_never_loses_it(calls: int) -> None:
    def cut_off(folder: Path, disk: VirtualDisk) -> None:
        disk.faults.fuse = calls
        set_aside(folder, ".deleted", TOPIC_ID, 0)

    assert (False, 0) not in found_after(cut_off)


def test_a_removed_partition_does_not_come_back_after_a_power_cut() -> None:
    assert {there for there, _ in found_after(lambda folder, _: remove_partition_folder(folder, TOPIC_ID))} == {False}


def test_a_removal_that_is_repeated_after_a_failed_sync_is_durable() -> None:
    def repeated(folder: Path, disk: VirtualDisk) -> None:
        disk.faults.pace = _refuse
        with pytest.raises(StorageIoError):
            remove_partition_folder(folder, TOPIC_ID)
        disk.faults.pace = None
        remove_partition_folder(folder, TOPIC_ID)

    assert {there for there, _ in found_after(repeated)} == {False}


def test_a_removal_that_a_kill_interrupted_is_durable_once_it_is_finished() -> None:
    def interrupted(folder: Path, disk: VirtualDisk) -> None:
        make_folder(DISK / ".deleted")
        filesystem.replace(folder, DISK / ".deleted" / f"{TOPIC_ID}-0.1")
        clear_half_deleted(DISK)

    assert {there for there, _ in found_after(interrupted)} == {False}
