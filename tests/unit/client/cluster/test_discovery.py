"""Finding the cluster by address and environment. (Through Ray: tests/cluster.)"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from raylog.base.errors import InvalidConfig, NoClusterFound
from raylog.client.cluster import discovery
from raylog.client.cluster.credentials import parse_secret
from raylog.client.cluster.discovery import find_cluster, parse_bootstrap
from raylog.rpc import Grant, mint
from raylog.rpc.auth.credentials import to_dial
from raylog.rpc.auth.token_text import token_text


def test_addresses_are_read() -> None:
    assert parse_bootstrap("a:1, b:2") == (("a", 1), ("b", 2))
    assert parse_bootstrap(["[::1]:9"]) == (("::1", 9),)
    assert parse_bootstrap("a:1,, b:2,") == (("a", 1), ("b", 2)), "a comma too many is skipped, as of Kafka"


@pytest.mark.parametrize("wrong", ["", ",", [], [9092], 9092, {"a": 1}, b"a:1"])
def test_what_names_no_broker_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidConfig, match="bootstrap must be 'host:port"):
        parse_bootstrap(wrong)


@pytest.mark.parametrize("wrong", ["a", "a:", ":1", "a:b", "a:0", "a:70000"])
def test_a_wrong_address_is_named(wrong: str) -> None:
    with pytest.raises(InvalidConfig, match="host:port"):
        parse_bootstrap(wrong)


def test_a_secret_as_text_is_hexadecimal() -> None:
    assert parse_secret("0aff" * 8) == b"\x0a\xff" * 8
    with pytest.raises(InvalidConfig, match="hexadecimal"):
        parse_secret("secret")
    with pytest.raises(InvalidConfig, match="empty"):
        parse_secret(b"")
    with pytest.raises(InvalidConfig, match="at least 16 bytes"):
        parse_secret("c0ffee")


def test_the_environment_names_the_cluster() -> None:
    environ = {"RAYLOG_BOOTSTRAP": "a:1", "RAYLOG_SECRET": "00ff" * 8}
    found = asyncio.run(find_cluster(None, None, timeout_s=1, environ=environ))
    assert (found.endpoints, found.secret) == ((("a", 1),), b"\x00\xff" * 8)


def test_arguments_win_over_the_environment() -> None:
    environ = {"RAYLOG_BOOTSTRAP": "a:1", "RAYLOG_SECRET": "00ff" * 8}
    found = asyncio.run(find_cluster("b:2", b"another secret x", timeout_s=1, environ=environ))
    assert (found.endpoints, found.secret) == ((("b", 2),), b"another secret x")


def test_an_address_without_secret_says_what_is_missing() -> None:
    with pytest.raises(InvalidConfig, match="RAYLOG_SECRET"):
        asyncio.run(find_cluster("b:2", None, timeout_s=1, environ={}))


TOKEN = mint(b"a secret of the tests", Grant(2**33))
LINE = token_text(TOKEN)


def credentials(environ: dict[str, str], **given: Any) -> object:
    return asyncio.run(find_cluster("b:2", given.pop("secret", None), **given, timeout_s=1, environ=environ)).secret


def test_a_token_takes_the_place_of_the_secret() -> None:
    assert credentials({}, token=LINE) == credentials({}, token=TOKEN) == credentials({}, secret=TOKEN) == TOKEN
    assert credentials({"RAYLOG_TOKEN": LINE}) == TOKEN
    assert credentials({"RAYLOG_SECRET": "00ff" * 8}, token=LINE) == TOKEN, "arguments win"
    assert credentials({"RAYLOG_TOKEN": LINE}, secret="00ff" * 8) == b"\x00\xff" * 8


def test_a_secret_and_a_token_in_one_place_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="secret and token are both given: leave one out"):
        credentials({}, secret="00ff" * 8, token=LINE)
    with pytest.raises(InvalidConfig, match="RAYLOG_SECRET and RAYLOG_TOKEN are both given"):
        credentials({"RAYLOG_SECRET": "00ff" * 8, "RAYLOG_TOKEN": LINE})


def test_a_secret_and_a_token_are_not_mistaken_for_each_other() -> None:
    with pytest.raises(InvalidConfig, match="give it as token, not as secret"):
        credentials({}, secret=LINE)
    with pytest.raises(InvalidConfig, match="A secret is given as secret, not as token"):
        credentials({}, token="00ff" * 8)


def test_the_secret_is_never_shown() -> None:
    found = asyncio.run(find_cluster("b:2", b"hush hush hush hush", timeout_s=1, environ={}))
    assert "hush" not in repr(found)


def restarting(monkeypatch: pytest.MonkeyPatch, failures: int, without_brokers: int = 0, **stated: object) -> None:
    """A controller in Ray that cannot be reached for so many queries, and then knows no broker for so many."""
    ray = pytest.importorskip("ray")
    left = [ray.exceptions.ActorUnavailableError("it is being restarted", b"\0" * 16) for _ in range(failures)]
    rows: list[list[list[object]]] = [[[1, "a", 1]], *([] for _ in range(without_brokers))]

    def answer(_: object, *, timeout: float) -> dict[str, Any]:
        assert timeout > 0
        if left:
            raise left.pop()
        brokers = rows.pop() if len(rows) > 1 else rows[0]
        return {"secret": "00ff" * 8, "replaced_secret": None, "brokers": brokers, **stated}

    controller = SimpleNamespace(connection_info=SimpleNamespace(remote=lambda: None))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: controller)
    monkeypatch.setattr(ray, "get", answer)
    monkeypatch.setattr(discovery, "RETRY_S", 0.01)


def test_a_client_that_starts_while_the_controller_restarts_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    restarting(monkeypatch, 3)
    assert asyncio.run(find_cluster(None, None, timeout_s=10, environ={})).endpoints == (("a", 1),)


def test_a_client_inside_ray_proves_both_values_amid_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, old = b"\x00\xff" * 8, b"\x11" * 16
    restarting(monkeypatch, 0, replaced_secret=old)
    found = asyncio.run(find_cluster(None, None, timeout_s=10, environ={}))
    assert to_dial(found.proved).offered == (new, old)
    assert found.secret == new, "tokens are made with the new one"
    restarting(monkeypatch, 0, replaced_secret=None)
    assert asyncio.run(find_cluster(None, None, timeout_s=10, environ={})).proved == new
    restarting(monkeypatch, 0, replaced_secret=old)
    token = asyncio.run(find_cluster(None, None, token=LINE, timeout_s=10, environ={}))
    assert token.proved == TOKEN


def test_a_controller_that_stays_away_is_named_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    restarting(monkeypatch, 1000)
    with pytest.raises(NoClusterFound, match="being restarted"):
        asyncio.run(find_cluster(None, None, timeout_s=0.1, environ={}))


def test_a_client_that_starts_while_all_brokers_restart_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    restarting(monkeypatch, 1, without_brokers=3)
    assert asyncio.run(find_cluster(None, None, timeout_s=10, environ={})).endpoints == (("a", 1),)


def test_a_cluster_without_brokers_is_named_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    restarting(monkeypatch, 0, without_brokers=1000)
    with pytest.raises(NoClusterFound, match="no live broker"):
        asyncio.run(find_cluster(None, None, timeout_s=0.1, environ={}))
