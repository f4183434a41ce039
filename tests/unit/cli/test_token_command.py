"""`raylog token`: made from the secret, shown without its key, and used by the other commands."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.rpc.auth.token_text import PREFIX, parse_token
from tests.unit.cli.support import raylog, refusal
from tests.unit.client.toy_server import SECRET, ToyCluster


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster() as running:
        for topic in ("flights", "delays", "weather"):
            running.create_topic(topic, 1)
        yield running


def made(cluster: ToyCluster, *arguments: str) -> str:
    """The token that a command prints."""
    found = raylog("token", "create", *arguments, "--bootstrap", cluster.bootstrap, RAYLOG_SECRET=SECRET.hex())
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(PREFIX)
    return found.out.strip()


def test_a_token_is_made_shown_and_used(cluster: ToyCluster, tmp_path: Path) -> None:
    sink = ("--write", "delays", "--transactional-id-prefix", "sink", "--group", "g")
    line = made(cluster, "--read", "flights", "--read", "weather", *sink, "--lifetime", "7d")
    shown = raylog("token", "show", line)
    for words in ("for 7 d more", "flights", "weather", "delays", "sink*", "group"):
        assert words in shown.out
    assert parse_token(line).key.hex() not in shown.out
    assert line not in shown.out
    path = tmp_path / "token"
    path.write_text(line + "\n")
    piped = raylog("token", "show", "-", stdin=line + "\n")
    assert piped == shown, "it need not be an argument"
    described = json.loads(raylog("token", "show", "--json", "--token-file", str(path)).out)
    assert (described["read"], described["write"]) == (["flights", "weather"], ["delays"])
    place = ("--bootstrap", cluster.bootstrap)
    assert raylog("produce", "--topic", "delays", *place, "--token-file", str(path), stdin="late").code == 0
    for variable in ({"RAYLOG_TOKEN": line}, {"RAYLOG_TOKEN_FILE": str(path)}):
        assert raylog("topic", "list", *place, **variable).out.split() == ["delays", "flights", "weather"]
    refused = raylog("produce", "--topic", "weather", *place, stdin="late", RAYLOG_TOKEN=line)
    assert "lacks the right to write to 'weather'" in refusal(refused, 1)


def test_what_grants_nothing_is_refused(cluster: ToyCluster) -> None:
    place = ("--bootstrap", cluster.bootstrap)
    for arguments, sentence in (
        ((), "name topics to read or to write"),
        (("--read", "flight"), "did you mean 'flights'?"),
        (("--read", "flights", "--transactional-id-prefix", "p"), "has no use without topics to write"),
        (("--write", "flights", "--transactional-id-prefix", ""), "may not be empty"),
    ):
        outcome = raylog("token", "create", *arguments, *place, RAYLOG_SECRET=SECRET.hex())
        assert sentence in refusal(outcome, 1)


def test_wrong_tokens_get_one_sentence(cluster: ToyCluster, tmp_path: Path) -> None:
    line = made(cluster, "--read", "flights")
    place = ("topic", "list", "--bootstrap", cluster.bootstrap)
    assert "is incomplete" in refusal(raylog(*place, RAYLOG_TOKEN=line[:-5]), 1)
    assert "is incomplete" in refusal(raylog("token", "show", line[:-5]), 1)
    assert "unset one of them" in refusal(raylog(*place, RAYLOG_TOKEN=line, RAYLOG_SECRET=SECRET.hex()), 2)
    with ToyCluster(secret=b"the secret of another one") as other:
        outcome = raylog("topic", "list", "--bootstrap", other.bootstrap, RAYLOG_TOKEN=line)
        assert "that this cluster does not have" in refusal(outcome, 1)
