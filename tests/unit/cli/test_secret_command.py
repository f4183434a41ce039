"""`raylog secret`: a secret is changed in two steps, and never printed."""

from pathlib import Path

import pytest

from raylog.client.cluster.credentials import parse_secret
from raylog.rpc.auth.secret_files import CLIENT_FILE, CLUSTER_FILE, SecretFiles, make_secrets
from tests.unit.cli.support import raylog, refusal


@pytest.mark.parametrize(("name", "option"), [(CLUSTER_FILE, ()), (CLIENT_FILE, ("--client",))])
def test_a_secret_is_changed_in_two_steps(tmp_path: Path, name: str, option: tuple[str, ...]) -> None:
    make_secrets(tmp_path)
    place = ("--data-dir", str(tmp_path), *option)
    old = (tmp_path / name).read_text().split()
    begun = raylog("secret", "change", *place)
    assert begun.code == 0, begun
    both = (tmp_path / name).read_text().split()
    assert len(both) == 2
    assert both[1:] == old
    assert parse_secret((tmp_path / name).read_text()) == bytes.fromhex(both[0]), "the newest is what a client takes"
    assert "finish` first" in refusal(raylog("secret", "change", *place), 1)
    ended = raylog("secret", "finish", *place)
    assert ended.code == 0, ended
    assert (tmp_path / name).read_text().split() == both[:1]
    assert "no old one" in refusal(raylog("secret", "finish", *place), 1)
    SecretFiles(tmp_path)()
    for value in both:
        assert value not in begun.out + begun.err + ended.out + ended.err


def test_the_other_secret_stays_as_it_is(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    client = (tmp_path / CLIENT_FILE).read_text()
    assert raylog("secret", "change", "--data-dir", str(tmp_path)).code == 0
    assert raylog("secret", "finish", "--data-dir", str(tmp_path)).code == 0
    assert (tmp_path / CLIENT_FILE).read_text() == client


def test_a_directory_without_a_secret_is_named(tmp_path: Path) -> None:
    assert str(tmp_path) in refusal(raylog("secret", "change", "--data-dir", str(tmp_path)), 2)
