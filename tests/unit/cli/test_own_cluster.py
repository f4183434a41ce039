"""Commands that cannot be undone name their cluster, and an address that is out of date is named as such."""

import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from raylog.cli.own_cluster import require_own
from raylog.launch import controller_calls
from tests.unit.cli.support import raylog, refusal
from tests.waiting import free_port

SECRET = "00ff" * 8


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """The address of a broker whose directory is below `tmp_path`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (tmp_path / "broker-1").mkdir()
        (tmp_path / "broker-1" / "listeners.properties").write_text(f"port.RAYLOG={port}\n")
        yield f"127.0.0.1:{port}"


def test_a_cluster_of_another_folder_is_named_and_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    monkeypatch.setattr(controller_calls, "running_folder", lambda: str(theirs))
    with pytest.raises(click.UsageError, match=rf"data in {theirs}, not in {mine}; give --data-dir {theirs} if"):
        require_own(None, mine)
    require_own(None, theirs)
    require_own("10.0.0.1:6379", mine)
    monkeypatch.setattr(controller_calls, "running_folder", lambda: None)
    require_own(None, mine)


def test_a_variable_that_is_out_of_date_is_named_with_the_remedy(tmp_path: Path, broker: str) -> None:
    stale = f"127.0.0.1:{free_port()}"
    words = ("status", "--data-dir", str(tmp_path))
    shown = refusal(raylog(*words, RAYLOG_BOOTSTRAP=stale, RAYLOG_SECRET=SECRET), 1)
    assert f"No broker answers at {stale}, which RAYLOG_BOOTSTRAP names." in shown
    assert f"{tmp_path} answers at {broker}: `export RAYLOG_BOOTSTRAP={broker}`, or `unset RAYLOG_BOOTSTRAP`" in shown
    (tmp_path / "broker-1" / "listeners.properties").unlink()
    shown = refusal(raylog(*words, RAYLOG_BOOTSTRAP=stale, RAYLOG_SECRET=SECRET), 1)
    assert "Start that cluster, or `unset RAYLOG_BOOTSTRAP`" in shown


def test_an_address_that_was_typed_is_compared_with_the_folder(tmp_path: Path, broker: str) -> None:
    words = ("topic", "list", "--data-dir", str(tmp_path), "--bootstrap", f"127.0.0.1:{free_port()}")
    assert f"check the address: the cluster in {tmp_path} answers at {broker}." in refusal(
        raylog(*words, RAYLOG_SECRET=SECRET), 1
    )
