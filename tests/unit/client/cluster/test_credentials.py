"""What a client proves: given once, or in a file that is looked at for each new connection."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from raylog.base.errors import InvalidConfig
from raylog.client.cluster.credentials import CredentialFile, choose_credentials
from raylog.client.config import AdminConfig, load
from raylog.rpc import Grant, mint
from raylog.rpc.auth.token_text import token_text

OLD, NEW = b"\x11" * 32, b"\x22" * 32
TOKEN, LATER = (mint(secret, Grant(2**33)) for secret in (OLD, NEW))


def replace(path: Path, text: str) -> None:
    """Put another text there as tools do it: a reader sees all of the old one or all of the new one."""
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.chmod(0o600)
    fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "client-secret"
    replace(found, OLD.hex() + "\n")
    return found


def test_a_file_is_read_again_when_it_has_changed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = CredentialFile(path)
    assert (file().offered, file.newest) == ((OLD,), OLD)
    replace(path, f"{NEW.hex()}\n{OLD.hex()}\n")
    assert (file().offered, file.newest) == ((NEW, OLD), NEW), "both are proved while brokers take both"
    replace(path, f"{NEW.hex()}\n")
    assert file().offered == (NEW,)
    assert file().offered == (NEW,)
    assert len(caplog.messages) == 2
    assert f"{path} has changed: new connections prove what it holds now." in caplog.messages[0]
    assert OLD.hex() not in caplog.text + repr(file)
    assert NEW.hex() not in caplog.text + repr(file)


def test_the_same_text_in_another_file_is_no_news(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = CredentialFile(path)
    replace(path, OLD.hex())
    assert file().offered == (OLD,)
    assert not caplog.messages


def test_a_mounted_secret_of_kubernetes_is_a_link_that_is_replaced(tmp_path: Path) -> None:
    for name, value in (("..1", OLD), ("..2", NEW)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "client-secret").write_text(value.hex())
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "client-secret").symlink_to("..data/client-secret")
    file = CredentialFile(tmp_path / "client-secret")
    assert file.newest == OLD
    (tmp_path / "..fresh").symlink_to("..2")
    (tmp_path / "..fresh").replace(tmp_path / "..data")
    assert file().offered == (NEW,)


@pytest.mark.parametrize("broken", ["", "c0ffee", "no secret at all", "\n".join([NEW.hex()] * 3), token_text(TOKEN)])
def test_what_cannot_be_used_leaves_the_one_from_before(
    path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = CredentialFile(path)
    path.write_text(broken)  # as `cp` does it, which a reader may meet half done
    for _ in range(3):
        assert file().offered == (OLD,)
    (line,) = caplog.messages
    assert f"The secret_file {path} cannot be used: " in line or f"The secret_file {path} holds 3 values" in line
    path.write_text(NEW.hex())
    assert file().offered == (NEW,)


def test_a_file_that_is_away_for_a_while_is_waited_for(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = CredentialFile(path)
    path.unlink()
    assert file().offered == file().offered == (OLD,)
    (line,) = caplog.messages
    assert line == f"The secret_file {path} cannot be read: No such file or directory. What it held before is used."
    replace(path, NEW.hex())
    assert file().offered == (NEW,)


def test_a_token_in_a_file_is_replaced_in_the_same_way(path: Path) -> None:
    replace(path, token_text(TOKEN) + "\n")
    file = CredentialFile(path, is_token=True)
    assert (file().token, file.newest) == (TOKEN, TOKEN)
    replace(path, token_text(LATER))
    assert file().token == LATER


@pytest.mark.parametrize(
    ("text", "is_token", "complaint"),
    [
        ("", False, "The secret_file .* cannot be used: The secret is empty"),
        ("c0ffee", False, "The secret_file .* cannot be used: .*at least 16 bytes"),
        (token_text(TOKEN), False, "cannot be used: The secret is a token: give it as token, not as secret"),
        (OLD.hex(), True, "The token_file .* cannot be used: .*A secret is given as secret, not as token"),
    ],
)
def test_a_new_client_refuses_what_is_no_such_file(path: Path, text: str, is_token: bool, complaint: str) -> None:
    replace(path, text)
    with pytest.raises(InvalidConfig, match=complaint) as refusal:
        CredentialFile(path, is_token=is_token)
    assert not text or text not in str(refusal.value)


@pytest.mark.parametrize(("text", "is_token"), [(OLD.hex(), False), (token_text(TOKEN), True), (OLD.hex(), True)])
def test_a_secret_in_the_place_of_a_path_is_not_shown(text: str, is_token: bool) -> None:
    with pytest.raises(InvalidConfig, match="takes the path of a file") as refusal:
        CredentialFile(text, is_token=is_token)
    assert text not in str(refusal.value)


def test_a_file_that_every_user_may_change_is_refused(path: Path) -> None:
    path.chmod(0o646)
    with pytest.raises(InvalidConfig, match="may be changed by every user: run `chmod o-w"):
        CredentialFile(path)
    path.chmod(0o644)  # as mounted secrets of Kubernetes
    assert CredentialFile(path).newest == OLD


def test_it_is_never_pickled(path: Path) -> None:
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(CredentialFile(path))


def test_the_environment_may_name_the_file(path: Path) -> None:
    found = choose_credentials({}, {"RAYLOG_SECRET_FILE": str(path)})
    assert isinstance(found, CredentialFile)
    assert found.newest == OLD
    replace(path, token_text(TOKEN))
    found = choose_credentials({"secret": None}, {"RAYLOG_TOKEN_FILE": str(path)})
    assert isinstance(found, CredentialFile)
    assert found.newest == TOKEN


@pytest.mark.parametrize(
    ("given", "environ", "complaint"),
    [
        ({"secret": "00ff" * 8, "secret_file": "f"}, {}, "secret and secret_file are both given"),
        ({"token_file": "t", "secret_file": "f"}, {}, "secret_file and token_file are both given"),
        ({}, {"RAYLOG_SECRET": "00ff" * 8, "RAYLOG_SECRET_FILE": "f"}, "RAYLOG_SECRET and RAYLOG_SECRET_FILE are both"),
    ],
)
def test_two_of_them_in_one_place_are_refused(given: dict[str, Any], environ: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        choose_credentials(given, environ)


def test_a_path_is_text_or_a_path(path: Path) -> None:
    assert load(AdminConfig, {"secret.file": str(path)}, {}) == load(AdminConfig, None, {"secret_file": path})
    assert load(AdminConfig, None, {"secret_file": path}).secret_file == os.fspath(path)
    for wrong in (5, b"path", "", True):
        with pytest.raises(InvalidConfig, match="secret_file must be the path of a file"):
            load(AdminConfig, None, {"secret_file": wrong})
