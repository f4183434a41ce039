"""Which Ray a command takes: the note in the data directory comes before a Ray that happens to run on the machine."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import raylog as raylog_package
from raylog.base.errors import NoClusterFound
from raylog.cli.ray_node import find
from raylog.client.cluster.ray_session import require_ray_address
from raylog.launch.ray_note import NOTE, noted_address, process_began, write_note
from tests.unit.cli.support import raylog, refusal


@pytest.fixture(autouse=True)
def no_other_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))


@pytest.fixture
def answering() -> Iterator[str]:
    """An address where a process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_without_a_note_no_ray_is_found(tmp_path: Path) -> None:
    assert find(None, tmp_path) is None


@pytest.mark.parametrize("holder", [None, os.getpid()], ids=["ray start", "a living process"])
def test_a_noted_ray_is_found(tmp_path: Path, answering: str, holder: int | None) -> None:
    write_note(tmp_path, answering, holder)
    assert find(None, tmp_path) == answering
    assert find("auto", tmp_path) == answering
    assert find("10.0.0.1:6379", tmp_path) == "10.0.0.1:6379", "an address that is named comes first"
    assert find("local", tmp_path) is None, "`local` means a Ray that `raylog start` starts itself"


def test_a_ray_that_ended_with_its_process_is_not_looked_for(tmp_path: Path, answering: str) -> None:
    """Its port may belong to another program by now, and Ray would wait for minutes for an answer there."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        write_note(tmp_path, answering, process.pid)
        assert noted_address(tmp_path) == answering
        process.communicate()
    assert noted_address(tmp_path) is None


def test_a_process_with_a_reused_id_is_another_one(tmp_path: Path, answering: str) -> None:
    began = process_began(os.getpid())
    assert began is not None
    (tmp_path / NOTE).write_text(json.dumps({"address": answering, "pid": os.getpid(), "began": began - 1}))
    assert noted_address(tmp_path) is None


def test_a_ray_that_was_shut_down_is_not_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    write_note(tmp_path, closed, None)
    assert find(None, tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"adress": "127.0.0.1:1"}'])
def test_a_note_that_is_none_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / NOTE).write_text(text)
    assert noted_address(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_note_of_another_user_does_not_get_this_users_token(tmp_path: Path, answering: str) -> None:
    write_note(tmp_path, answering, None)
    os.chown(tmp_path / NOTE, 65534, 65534)
    assert noted_address(tmp_path) is None


NO_ADDRESSES = ["foo", "foo:", ":6379", "foo:bar", "foo:65536", "foo:\u0661", "foo:0"]


@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address_of_a_ray_is_refused(text: str) -> None:
    with pytest.raises(NoClusterFound, match=r"^address is no HOST:PORT of a Ray cluster"):
        require_ray_address(text, "address")


@pytest.mark.parametrize("text", ["auto", "local", "ray://head:10001", "head:6379", "[::1]:6379", "10.0.0.1:65535"])
def test_what_ray_can_read_is_an_address(text: str) -> None:
    assert require_ray_address(text, "address") == text


def test_a_wrong_option_is_wrong_usage_and_a_wrong_variable_is_not(tmp_path: Path) -> None:
    for words in (["topic", "list"], ["status"], ["start"], ["stop"]):
        where = ["--data-dir", str(tmp_path / "data")]
        assert "--address is no HOST:PORT" in refusal(raylog(*words, *where, "--address", "foo"), 2)
        assert "RAY_ADDRESS is no HOST:PORT" in refusal(raylog(*words, *where, RAY_ADDRESS="foo"), 1)
    assert not (tmp_path / "data").exists()


def test_a_variable_that_does_not_count_may_be_wrong() -> None:
    line = refusal(raylog("topic", "list", "--bootstrap", "127.0.0.1:1", RAY_ADDRESS="foo"), 2)
    assert "RAYLOG_SECRET" in line, "the secret is what is missing"


def test_the_python_interface_refuses_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoClusterFound, match=r"^address is no HOST:PORT"):
        raylog_package.connect(address="foo")
    with pytest.raises(NoClusterFound, match=r"^address is no HOST:PORT"):
        raylog_package.start(tmp_path / "data", address="foo")
    monkeypatch.setenv("RAY_ADDRESS", "foo")
    with pytest.raises(NoClusterFound, match=r"^RAY_ADDRESS is no HOST:PORT"):
        raylog_package.connect()
    with pytest.raises(NoClusterFound, match=r"^RAY_ADDRESS is no HOST:PORT"):
        raylog_package.Admin()
