"""Files of a start that other users may neither read nor change, whatever the umask is."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.launch.private_files import keep_ray_token_private, open_private, write_private
from raylog.launch.ray_note import NOTE, noted_address, write_note
from raylog.launch.voters import VOTERS, keep_voters, kept_voters


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_notes_are_private_under_any_umask(tmp_path: Path) -> None:
    write_note(tmp_path, "127.0.0.1:6379", None)
    keep_voters(tmp_path, (1, 2, 3))
    assert (mode(tmp_path / NOTE), mode(tmp_path / VOTERS)) == (0o600, 0o600)
    assert (noted_address(tmp_path), kept_voters(tmp_path)) == ("127.0.0.1:6379", (1, 2, 3))


def test_a_file_that_was_open_to_others_is_no_more(tmp_path: Path) -> None:
    path = tmp_path / "ray.out"
    path.write_text("before")
    with open_private(path) as file:
        file.write(b"now")
    assert (mode(path), path.read_text()) == (0o600, "now")


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "note").mkdir()
    (tmp_path / "note" / "inside").touch()
    with pytest.raises(OSError, match="note"):
        write_private(tmp_path / "note", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["note"]


@pytest.mark.parametrize(("found", "trusted"), [(0o600, True), (0o644, True), (0o664, False), (0o666, False)])
def test_a_note_that_others_may_change_counts_as_none(tmp_path: Path, found: int, trusted: bool) -> None:
    write_note(tmp_path, "127.0.0.1:6379", None)
    (tmp_path / NOTE).chmod(found)
    assert (noted_address(tmp_path) is not None) is trusted


def test_the_token_of_ray_is_taken_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    keep_ray_token_private()
    assert not token.exists(), "a Ray without a token"
    token.write_text("secret")
    assert mode(token) == 0o666
    keep_ray_token_private()
    assert mode(token) == 0o600
    token.chmod(0o400)
    keep_ray_token_private()
    assert mode(token) == 0o400, "it is private already"


def test_the_token_is_in_the_home_unless_a_variable_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    token = tmp_path / ".ray" / "auth_token"
    token.write_text("secret")
    keep_ray_token_private()
    assert mode(token) == 0o600
