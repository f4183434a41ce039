"""What a cluster keeps over its starts: addresses; and what a block, a handle and a start leave alone."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import raylog
from raylog.launch.replica_reports import metrics_pages
from tests.cluster.ray_support import AWAKE, call_actor, kill, online
from tests.waiting import free_port, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.usefixtures("shared_ray")]

CONFIG = {**AWAKE, "metrics.port": "0"}


def crash(name: str) -> None:
    """Kill an actor's process, and wait until it is back."""
    pid = call_actor(name, "pid")
    kill(pid)
    wait_for(lambda: call_actor(name, "pid") != pid, f"{name} is back")


def test_a_block_stops_only_what_its_start_began(tmp_path: Path) -> None:
    outer = raylog.start(tmp_path, config=CONFIG)
    assert outer.was_started_here
    with raylog.start(tmp_path) as joined:
        assert not joined.was_started_here
        with raylog.connect():
            pass
    assert online(outer) == {1}
    outer.stop()
    for call in (outer.status, outer.bootstrap, outer.replicas, outer.secret):
        with pytest.raises(raylog.NoClusterFound, match=r"stopped by stop\(\)"):
            call()
    with raylog.start(tmp_path):
        pass
    with pytest.raises(raylog.NoClusterFound):
        raylog.connect()


def test_addresses_stay_over_crashes_and_starts(tmp_path: Path) -> None:
    """Also without the file `cluster-id`, which a start once took for a new cluster."""
    cluster = raylog.start(tmp_path, brokers=2, config=CONFIG)
    bootstrap = cluster.bootstrap()
    with raylog.Admin() as admin:
        admin.create_topic("t", partitions=1, replication_factor=1)
    with raylog.Producer() as producer:
        producer.send("t", b"before").result(30)
    endpoints = {name: call_actor(name, "endpoint") for name in ("controller", "broker-1", "broker-2")}
    for name, endpoint in endpoints.items():
        crash(name)
        assert call_actor(name, "endpoint") == endpoint
    wait_for(lambda: online(cluster) == {1, 2}, "both brokers")
    secret = cluster.secret()
    with raylog.Producer(bootstrap=bootstrap, secret=secret) as producer:
        producer.send("t", b"between").result(30)
        cluster.stop()
        (tmp_path / "cluster-id").unlink()
        cluster = raylog.start(tmp_path)
        assert cluster.bootstrap() == bootstrap
        assert producer.send("t", b"after").result(60).offset == 2
    cluster.stop()


def test_a_fixed_port_is_taken_or_the_start_fails_at_once(tmp_path: Path) -> None:
    port = free_port()
    fixed = {**CONFIG, "listeners": f"RAYLOG://:{port}"}
    with pytest.raises(raylog.StartFailed, match=rf"broker 1, broker 2 run on one machine.*port {port}"):
        raylog.start(tmp_path, brokers=2, config=fixed)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(raylog.StartFailed, match="another process has thi"):
        raylog.start(tmp_path, config=fixed)
    with raylog.start(tmp_path, config=fixed) as cluster:
        assert cluster.bootstrap() == f"127.0.0.1:{port}"
        assert cluster.status()["config"]["listeners"] == f"RAYLOG://:{port}"
    with raylog.start(tmp_path) as cluster:
        assert cluster.bootstrap() == f"127.0.0.1:{port}", "the settings are the cluster's"


def test_an_advertised_address_that_leads_nowhere_fails_the_start(tmp_path: Path) -> None:
    listens = {**CONFIG, "listeners": f"RAYLOG://:{free_port()}"}
    nowhere = {**listens, "advertised.listeners": f"RAYLOG://localhost:{free_port()}"}
    with pytest.raises(raylog.StartFailed, match=r"advertised\.listeners: broker 1 is not reached at localhost"):
        raylog.start(tmp_path / "nowhere", config=nowhere)
    named = {**CONFIG, "listeners": "RAYLOG://127.0.0.1:0", "advertised.listeners": "RAYLOG://localhost:0"}
    with raylog.start(tmp_path / "named", config=named) as cluster, raylog.Admin() as admin:
        assert cluster.bootstrap().startswith("localhost:")
        admin.create_topic("t", partitions=1)
        with raylog.Producer(bootstrap=cluster.bootstrap(), secret=cluster.secret()) as producer:
            assert producer.send("t", b"x").result(30).offset == 0


def test_where_the_metrics_are_is_known_and_why_there_are_none(tmp_path: Path) -> None:
    port = free_port()
    config = {**AWAKE, "metrics.port": str(port)}
    with raylog.start(tmp_path, brokers=2, config=config):
        assert metrics_pages(10) == ([f"127.0.0.1:{port}"], [])
    with socket.create_server(("127.0.0.1", port)), raylog.start(tmp_path):
        assert metrics_pages(10) == ([], [f"127.0.0.1:{port}"])
