"""What a start finds out about addresses before it starts anything."""

import socket
from pathlib import Path

import pytest

from raylog.base.errors import InvalidConfig, StartFailed
from raylog.launch.addresses import check_advertised, check_listeners
from raylog.launch.placement import BrokerPlacement
from tests.waiting import free_port

HERE = "127.0.0.1"


def embedded(folder: Path, *brokers: int) -> list[BrokerPlacement]:
    return [BrokerPlacement(broker=each, node_id="n", host=HERE, folder=folder / f"broker-{each}") for each in brokers]


def check(folder: Path, config: dict[str, str], *brokers: int, allow_plaintext: bool = False) -> None:
    check_listeners(config, embedded(folder, *brokers or (1,)), allow_plaintext=allow_plaintext)


def test_what_can_work_passes(tmp_path: Path) -> None:
    port = free_port()
    check(tmp_path, {}, 1, 2, 3)
    check(tmp_path, {"listeners": f"RAYLOG://:{port}"})
    check(tmp_path, {"listeners": "RAYLOG://127.0.0.9:0"}, 1, 2)
    check(tmp_path, {"advertised.listeners": "RAYLOG://localhost:0"}, 1, 2)
    check(tmp_path, {"listeners": f"RAYLOG://:{port}", "advertised.listeners": "RAYLOG://localhost:0"})


def test_brokers_of_one_machine_share_no_port(tmp_path: Path) -> None:
    port = free_port()
    with pytest.raises(StartFailed, match=rf"broker 1, broker 2 run on one machine \(127.0.0.1\).*port {port}"):
        check(tmp_path, {"listeners": f"RAYLOG://:{port}"}, 1, 2)
    nodes = [BrokerPlacement(broker=None, node_id=each, host="10.0.0.1", folder=tmp_path) for each in "ab"]
    with pytest.raises(StartFailed, match=r"10\.0\.0\.1, 10\.0\.0\.1 run on one machine"):
        check_listeners({"listeners": "RAYLOG://:9092"}, nodes, allow_plaintext=True)


def test_a_setting_from_before_counts_for_a_broker_that_joins(tmp_path: Path) -> None:
    port = free_port()
    for broker in (1, 2):
        (tmp_path / f"broker-{broker}").mkdir()
        (tmp_path / f"broker-{broker}" / "listeners.properties").write_text(f"listeners=RAYLOG://:{port}\n")
    with pytest.raises(StartFailed, match="run on one machine"):
        check(tmp_path, {}, 1, 2)


def test_a_port_that_is_taken_is_found_before_the_start(tmp_path: Path) -> None:
    with socket.create_server((HERE, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartFailed, match=rf"broker 1 cannot listen at 127.0.0.1:{port}: another process has this"):
            check(tmp_path, {"listeners": f"RAYLOG://:{port}"})


def test_addresses_of_the_network_need_tls_or_a_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    config = {"listeners": "RAYLOG://0.0.0.0:0", "advertised.listeners": "RAYLOG://localhost:0"}
    with pytest.raises(StartFailed, match="without TLS"):
        check(tmp_path, config)
    check(tmp_path, config, allow_plaintext=True)
    with pytest.raises(InvalidConfig, match=r"set advertised\.listeners"):
        check(tmp_path, {"listeners": "RAYLOG://0.0.0.0:0"}, allow_plaintext=True)


def test_an_advertised_address_has_to_lead_to_the_broker(tmp_path: Path) -> None:
    nowhere = {"listeners": f"RAYLOG://:{free_port()}", "advertised.listeners": f"RAYLOG://localhost:{free_port()}"}
    with pytest.raises(StartFailed, match=r"^advertised\.listeners: broker 1 is not reached at localhost:"):
        check(tmp_path, nowhere)
    with pytest.raises(StartFailed, match=r"names port 443 of localhost.*fix that as well"):
        check(tmp_path, {"advertised.listeners": "RAYLOG://localhost:443"})


def test_a_broker_elsewhere_is_tried_once_it_runs() -> None:
    port = free_port()
    row = {"broker": 4, "host": HERE, "port": port, "online": True}
    config = {"advertised.listeners": "RAYLOG://n4:0"}
    check_advertised({"config": {}, "brokers": [row]})
    check_advertised({"config": config, "brokers": [{**row, "online": False}]})
    with pytest.raises(StartFailed, match=rf"broker 4 is not reached at 127.0.0.1:{port}"):
        check_advertised({"config": config, "brokers": [row]})
