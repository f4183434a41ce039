"""One writer to a folder, regardless of other live processes."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from raylog.storage.errors import DirectoryInUse
from raylog.storage.folder_lock import FolderLock


def test_a_second_holder_is_refused_with_the_first_ones_name(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "t-0")
    with pytest.raises(DirectoryInUse, match=f"in use by process {os.getpid()} "):
        FolderLock(tmp_path / "t-0", wait_s=0.05)
    lock.release()
    lock.release()
    FolderLock(tmp_path / "t-0", wait_s=0).release()


def test_a_successor_waits_for_one_that_is_ending(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "t-0")
    threading.Timer(0.1, lock.release).start()
    FolderLock(tmp_path / "t-0", wait_s=10).release()


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from raylog.storage.folder_lock import FolderLock\n"
        "lock = FolderLock(pathlib.Path(sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "t-0")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryInUse, match=f"in use by process {holder.pid} "):
            FolderLock(tmp_path / "t-0", wait_s=0.05)
        holder.kill()
        FolderLock(tmp_path / "t-0", wait_s=10).release()


def test_a_lock_that_is_removed_permanently_has_one_holder_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []

    def hold(number: int) -> None:
        for _ in range(50):
            lock = FolderLock(tmp_path / "t-0", wait_s=30)
            inside.append(number)
            assert inside == [number]
            inside.clear()
            lock.release(for_good=True)

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert list(tmp_path.iterdir()) == []
