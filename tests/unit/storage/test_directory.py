"""The data directory: one process at a time, one broker, one cluster."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from raylog.base.errors import DataDirectoryError, InvalidTopic
from raylog.storage.directory import META, DataDirectory, parse_partition_folder, partition_folder
from raylog.storage.errors import DirectoryInUse, NotDurable, StorageIoError, WrongDirectory
from raylog.storage.files import write_atomically


def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path / "d", cluster_id=None, broker_id=3) as first:
        identity = (first.cluster_id, first.broker_id, first.directory_id)
    with DataDirectory.open(tmp_path / "d", cluster_id=identity[0], broker_id=3) as again:
        assert (again.cluster_id, again.broker_id, again.directory_id) == identity


def test_another_broker_or_cluster_is_refused_with_both_names(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path, cluster_id="ours", broker_id=1).close()
    with pytest.raises(WrongDirectory, match=r"broker.id=1.*broker.id=2"):
        DataDirectory.open(tmp_path, cluster_id="ours", broker_id=2)
    with pytest.raises(WrongDirectory, match=r"cluster.id=ours.*cluster.id=theirs"):
        DataDirectory.open(tmp_path, cluster_id="theirs", broker_id=1)
    DataDirectory.open(tmp_path, cluster_id="ours", broker_id=1).close()


def test_a_second_process_is_refused_with_the_directorys_holder(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib; from raylog.storage.directory import DataDirectory as D\n"
        "d = D.open(pathlib.Path(sys.argv[1]), cluster_id='c', broker_id=1)\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(DirectoryInUse) as caught:
            DataDirectory.open(tmp_path, cluster_id="c", broker_id=1)
        assert caught.value.pid == holder.pid
        assert str(holder.pid) in str(caught.value)
        holder.kill()
        holder.wait(timeout=30)
    DataDirectory.open(tmp_path, cluster_id="c", broker_id=1).close()


def test_partition_folders_are_named_and_found(tmp_path: Path) -> None:
    with DataDirectory.open(tmp_path, cluster_id="c", broker_id=1) as directory:
        for topic, partition in (("b-1", 0), ("a", 10), ("a", 2)):
            partition_folder(tmp_path, topic, partition).mkdir()
        (tmp_path / "a-02").mkdir()
        assert [found[:2] for found in directory.partition_folders()] == [("a", 2), ("a", 10), ("b-1", 0)]
    assert parse_partition_folder("no-number-x") is None
    assert parse_partition_folder("a-2147483647") == ("a", 2**31 - 1)
    assert parse_partition_folder("a-2147483648") is None
    assert parse_partition_folder("t-0.damaged-1700000000000") is None, "no partition has such a number"


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "ü", "a b", "x" * 250, "a\n"])
def test_names_that_cannot_be_folders_are_refused(tmp_path: Path, topic: str) -> None:
    with pytest.raises(InvalidTopic):
        partition_folder(tmp_path, topic, 0)


def test_the_identity_of_a_new_directory_and_its_name_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    for module in ("directory", "files"):
        monkeypatch.setattr(f"raylog.storage.{module}.sync_folder", synced.append)
    with DataDirectory.open(tmp_path / "broker", cluster_id="c", broker_id=None) as directory:
        assert tmp_path not in synced
        directory.assign_broker(4)
    assert synced == [tmp_path / "broker", tmp_path]


def test_a_file_whose_folder_cannot_be_synced_is_there_and_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    write_atomically(path, b"old")

    def refuse(folder: Path) -> None:
        raise StorageIoError(f"sync the folder {folder}", OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr("raylog.storage.files.sync_folder", refuse)
    with pytest.raises(NotDurable, match="was written, but may be lost"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    monkeypatch.setattr("raylog.storage.filesystem.replace", _refuse)
    with pytest.raises(StorageIoError, match="Could not write"):
        write_atomically(path, b"newer")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def _refuse(*_: object) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version=9\ncluster.id=c\nbroker.id=1\ndirectory.id=d\n", r"written by a newer Raylog \(version=9;.*install"),
        ("\x00\x00\x00", r"meta.properties is damaged: it has no cluster.id, broker.id, directory.id"),
        ("version=1\ncluster.id=c\nbroker.id=1\n", "damaged: it has no directory.id"),
        ("cluster.id=c\nbroker.id=1\ndirectory.id=d\n", r"damaged: it has version=\(missing\)"),
    ],
)
def test_a_file_of_another_release_or_a_damaged_one_is_named_as_such(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / META).write_text(text)
    with pytest.raises(DataDirectoryError, match=reason):
        DataDirectory.open(tmp_path, cluster_id="c", broker_id=1)
