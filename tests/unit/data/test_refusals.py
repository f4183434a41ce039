"""A wrong topic, offset, credential or address of raylog.data.read is one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

import raylog
from raylog.base.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    ConnectionFailed,
    InvalidConfig,
    NoClusterFound,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.client.admin.admin import Admin
from raylog.client.cluster import reachable
from raylog.data import joining
from raylog.rpc import Grant, TopicGrant, mint
from raylog.rpc.auth.token_text import token_text
from raylog.rpc.auth.tokens import ALL_PARTITIONS
from tests.cluster.ray_support import own_ray
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import fill
from tests.waiting import free_port


@pytest.fixture(scope="module", autouse=True)
def private_ray() -> Iterator[None]:
    """The Ray that reads join. They would start one otherwise, and further tests of this process would use it."""
    with own_ray():
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[ToyCluster]:
    """A cluster with 50 records in `flights`."""
    with ToyCluster(brokers=1) as running:
        running.create_topic("flights", 1)
        running.create_topic("other", 1)
        fill(running, "flights", 0, [50])
        yield running


def minted(cluster: ToyCluster, secret: bytes, expires_s: int) -> str:
    """A token that reads `flights` until then."""
    granted = TopicGrant(cluster.topics["flights"][0], "flights", reads=ALL_PARTITIONS)
    return token_text(mint(secret, Grant(expires_s, (granted,))))


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ({"topics": "fligths"}, UnknownTopicOrPartition, r"^Unknown topic 'fligths'; did you mean 'flights'\?$"),
        ({"end_offset": {"flights": {0: 60}}, "start_offset": 70}, InvalidConfig, "behind"),
        ({"secret": "ab" * 32}, AuthenticationFailed, "refused our secret: use the secret of the cluster"),
    ],
)
def test_a_wrong_topic_offset_or_secret(
    cluster: ToyCluster, given: dict[str, Any], kind: type[RaylogError], sentence: str
) -> None:
    place = {"bootstrap_servers": cluster.bootstrap, "secret": SECRET.hex()}
    with pytest.raises(kind, match=sentence):
        raylog.data.read(**{"topics": "flights", **place, **given})


def test_wrong_tokens(cluster: ToyCluster) -> None:
    def refused(token: str) -> RaylogError:
        with pytest.raises(RaylogError) as caught:
            raylog.data.read("flights", bootstrap_servers=cluster.bootstrap, token=token)
        return caught.value

    expired, foreign = minted(cluster, SECRET, 1_000), minted(cluster, b"another secret", 2**33)
    assert "it has expired. Make a new one" in str(refused(expired))
    assert "Make a new one for this" in str(refused(foreign))
    with Admin(**cluster.options) as admin:
        other = admin.create_token(read=["other"])
    assert isinstance(refused(other), ClusterAuthorizationFailed)
    assert str(refused(other)).endswith("make one with `raylog token create --read flights`.")
    assert "The token is incomplete" in str(refused(other[:-3]))


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A machine without Ray; the options with which a private one would be started."""
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(joining, "running_ray_address", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: started.append(options))
    monkeypatch.delenv("RAYLOG_BOOTSTRAP", raising=False)
    return started


def test_no_ray_and_no_address(no_ray: list[dict[str, Any]]) -> None:
    with pytest.raises(
        NoClusterFound, match=r"No Raylog cluster runs here: call raylog.start\(\), or give its address"
    ):
        raylog.data.read("flights")
    assert not no_ray


def test_an_address_in_the_environment_is_read_in_a_private_ray(
    no_ray: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYLOG_BOOTSTRAP", "127.0.0.1:1")
    joining.join_ray(None)
    assert [options["address"] for options in no_ray] == ["local"]


def test_no_broker_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable.require_an_answer, "__kwdefaults__", {"timeout_s": 0.1, "waited_s": 0.0})
    port = free_port()
    with pytest.raises(ConnectionFailed, match=f"No broker answers at 127.0.0.1:{port}"):
        raylog.data.read("flights", bootstrap_servers=f"127.0.0.1:{port}", secret=SECRET.hex())
