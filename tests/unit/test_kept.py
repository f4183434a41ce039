"""The secret and the cluster's id: made once, private, and the same for all that start at once."""

import errno
import logging
import os
import threading
from pathlib import Path

import pytest

from raylog.base.errors import DataDirectoryError, RaylogError, StartFailed
from raylog.launch.kept_directories import check_room, embedded_folders, kept


def test_what_was_made_once_stays_and_is_private(tmp_path: Path) -> None:
    root = tmp_path / "data"
    before = os.umask(0)
    try:
        made = kept(root, "secret")
    finally:
        os.umask(before)
    assert (len(made), int(made, 16) > 0) == (64, True)
    assert kept(root, "secret") == made
    assert [path.name for path in root.iterdir()] == ["secret"]
    assert (root / "secret").stat().st_mode & 0o777 == 0o600
    assert root.stat().st_mode & 0o777 == 0o700


def test_starts_at_once_keep_one_value(tmp_path: Path) -> None:
    for number in range(20):
        root, found, together = tmp_path / str(number), list[str](), threading.Barrier(8)

        def start(root: Path = root, found: list[str] = found, together: threading.Barrier = together) -> None:
            together.wait(30)
            found.append(kept(root, "secret"))

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 8
        assert set(found) == {(root / "secret").read_text()}


def test_a_start_that_comes_second_does_not_replace_what_the_first_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept(tmp_path, "secret")
    with monkeypatch.context() as patch:
        real, queried = Path.exists, list[str]()

        def not_yet(path: Path) -> bool:
            queried.append(path.name)
            return False if path.name == "secret" else real(path)

        patch.setattr(Path, "exists", not_yet)
        assert kept(tmp_path, "secret") == first
    assert queried


def test_a_loose_secret_of_ours_is_tightened_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = kept(tmp_path, "secret")
    (tmp_path / "secret").chmod(0o644)
    with caplog.at_level(logging.WARNING):
        assert kept(tmp_path, "secret") == made
    assert "could be read by others (mode 644)" in caplog.text
    assert made not in caplog.text
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_loose_secret_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, "secret")
    (tmp_path / "secret").chmod(0o640)
    monkeypatch.setattr("raylog.launch.kept_directories.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(DataDirectoryError, match=r"belongs to user \d+ and can be read by others \(mode 640\)"):
        kept(tmp_path, "secret")


def test_a_root_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    kept(tmp_path, "cluster-id")
    assert tmp_path.stat().st_mode & 0o777 == 0o755, "it may be the working directory"


def test_a_copy_of_a_brokers_folder_is_no_broker(tmp_path: Path) -> None:
    for name in ("broker-1", "broker-2", "broker-10", "broker-1.bak", "broker-02", "broker-", "broker"):
        (tmp_path / name).mkdir()
    (tmp_path / "broker-3").write_text("a file")
    assert [path.name for path in embedded_folders(tmp_path)] == ["broker-1", "broker-10", "broker-2"]
    assert embedded_folders(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("number", "error", "sentence"),
    [
        (errno.ENOSPC, StartFailed, "The disk of .*data is full .*: free some space there"),
        (errno.EDQUOT, StartFailed, "The disk of .*data is full .*: free some space there"),
        (errno.EROFS, DataDirectoryError, "data cannot be used as a data directory: .*Read-only"),
    ],
)
def test_a_start_at_a_full_disk_names_it_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[RaylogError], sentence: str
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    root = tmp_path / "data"
    check_room(root)
    root.mkdir()
    check_room(root)
    assert list(root.iterdir()) == []
    monkeypatch.setattr("raylog.launch.kept_directories.os.fsync", full)
    with pytest.raises(error, match=sentence):
        check_room(root)
    assert list(root.iterdir()) == []
