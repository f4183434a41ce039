"""A broker's files can be read by its owner only, under any umask and after any earlier version."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.storage.directory import DataDirectory
from raylog.storage.folder_lock import FolderLock
from tests.unit.storage.logs import NOW, batch, open_log


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def loose(root: Path) -> list[str]:
    """Everything from `root` down that others may read, write or enter."""
    return [str(path) for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077]


def fill(root: Path) -> None:
    with DataDirectory.open(root, cluster_id="c", broker_id=1):
        lock = FolderLock(root / "t-0")
        log = open_log(root / "t-0", segment_bytes=200)
        for number in range(5):
            log.append_as_leader(
                batch(b"%d" % number * 50, producer_id=1, producer_epoch=0, base_sequence=number), 1, NOW
            )
            log.sync()
        log.apply_retention(NOW, 5)
        log.truncate_to(4, NOW)
        log.close()
        lock.release()


def test_a_data_directory_and_all_in_it_is_private(tmp_path: Path, umask: int) -> None:
    fill(tmp_path / "broker-1")
    assert loose(tmp_path / "broker-1") == []
    assert len(list((tmp_path / "broker-1").rglob("*"))) > 10


def test_what_an_earlier_version_left_open_is_closed_at_the_start(tmp_path: Path) -> None:
    root = tmp_path / "broker-1"
    fill(root)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    outside = tmp_path / "outside"
    outside.write_text("not ours")
    outside.chmod(0o644)
    (root / "link").symlink_to(outside)
    with DataDirectory.open(root, cluster_id="c", broker_id=1):
        (root / "link").unlink()
        assert loose(root) == []
    assert outside.stat().st_mode & 0o777 == 0o644
    again = open_log(root / "t-0", segment_bytes=200)
    assert again.log_end_offset == 4
    again.close()
