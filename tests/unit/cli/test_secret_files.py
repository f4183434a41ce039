"""The file of a secret goes to a command's clients as it is: a command may outlive the secret."""

import os
import threading
from pathlib import Path

import pytest

from raylog.cli.options import Target
from tests.unit.cli.support import raylog, refusal
from tests.unit.client.toy_server import SECRET, ToyCluster


def target(secret_file: Path) -> Target:
    return Target("127.0.0.1:1", secret_file, None, Path("nowhere"))


def test_a_file_is_left_to_the_client_and_a_pipe_is_read_once(tmp_path: Path) -> None:
    path, pipe = tmp_path / "client-secret", tmp_path / "pipe"
    path.write_text(SECRET.hex())
    assert target(path)._proved() == {"secret_file": str(path)}
    os.mkfifo(pipe)
    writing = threading.Thread(target=pipe.write_text, args=(SECRET.hex(),))
    writing.start()
    assert target(pipe)._proved() == {"secret": SECRET.hex()}, "as of `--secret-file <(command)`"
    writing.join(10)


def test_the_variable_names_a_file(tmp_path: Path) -> None:
    path = tmp_path / "client-secret"
    path.write_text(SECRET.hex())
    with ToyCluster() as cluster:
        cluster.create_topic("flights")
        place = ("topic", "list", "--bootstrap", cluster.bootstrap)
        assert raylog(*place, RAYLOG_SECRET_FILE=str(path)).out.split() == ["flights"]
        assert raylog(*place, "--secret-file", str(path), RAYLOG_SECRET="c0ffee").out.split() == ["flights"]
        both = raylog(*place, RAYLOG_SECRET_FILE=str(path), RAYLOG_SECRET=SECRET.hex())
        assert "RAYLOG_SECRET and RAYLOG_SECRET_FILE are both set; unset one of them" in refusal(both, 2)
        missing = raylog(*place, RAYLOG_SECRET_FILE=str(tmp_path / "missing"))
        assert "cannot be read: No such file or directory" in refusal(missing, 1)


@pytest.mark.parametrize("option", ["--secret-file", "--token-file"])
def test_a_secret_in_the_place_of_a_path_is_not_shown(option: str) -> None:
    refused = raylog("topic", "list", "--bootstrap", "127.0.0.1:1", option, SECRET.hex())
    assert "it takes the path of a file" in refusal(refused, 2)
    assert SECRET.hex() not in refused.out + refused.err


@pytest.mark.parametrize("text", ["", "no secret"])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "client-secret"
    path.write_text(text)
    refused = raylog("topic", "list", "--bootstrap", "127.0.0.1:1", "--secret-file", str(path))
    assert f"{path} holds no secret in hexadecimal digits" in refusal(refused, 2)
