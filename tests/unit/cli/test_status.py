"""What `raylog status` says of the metadata log and of disks."""

import errno
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from raylog.cli.error_sentences import explain
from raylog.cli.ray_node import why_not_started
from raylog.cli.status import full_disks, voters_line


def test_the_brokers_with_the_metadata_are_named() -> None:
    assert voters_line({"voters": [1, 2, 4], "max": 3}) == "Metadata log: on brokers 1,2,4."


def test_fewer_voters_than_there_may_be_are_pointed_out() -> None:
    line = voters_line({"voters": [1], "max": 3})
    assert line.startswith("Metadata log: on brokers 1; metadata.voters.max is 3")


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


@pytest.mark.parametrize(("free", "named"), [(4096, True), (1 << 20, False)])
def test_brokers_of_this_machine_with_a_full_disk_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, named: bool
) -> None:
    for name in ("broker-1", "broker-2", "controller"):
        (tmp_path / name).mkdir()
    small, large = Usage(24 << 20, 24 << 20, free), Usage(9, 0, 1 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: small if folder.name == "broker-2" else large)
    expected = [[str(tmp_path / "broker-2"), free, 24 << 20]] if named else []
    assert full_disks(tmp_path) == expected


def test_a_ray_that_had_no_room_to_start_names_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Ray did not start (no route); " in why_not_started("trace\nno route\n\n", tmp_path / "ray.out")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(9, 9, 0))
    assert why_not_started("", tmp_path / "ray.out").startswith(f"Ray did not start: the disk of {tmp_path} is full")


def test_no_space_is_explained_with_or_without_a_place() -> None:
    assert explain(OSError(errno.ENOSPC, "No space left on device", "/data/x")).startswith("/data/x: No space left")
    assert "the disk of the data directory" in explain(OSError(errno.ENOSPC, "No space left on device"))
