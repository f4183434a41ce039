"""A real Prometheus scrapes a real cluster, and accepts names, page and rules."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import raylog
from raylog.cli.cluster.alerts import ALERTS, alert_rules
from raylog.cli.cluster.dashboard import queries
from tests.cluster.metrics.prometheus_support import Tools, fetch, find_tools, free_port, prometheus
from tests.cluster.ray_support import ray_folder
from tests.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.cluster, pytest.mark.timeout(300)]

KNOWN_COMPLAINTS = ("kafka_consumergroup_lag_sum", "kafka_log_logcleanermanager_uncleanable_partitions_count")
"""Names from kafka_exporter and Kafka that dashboards query; promtool would reserve "_sum" and "_count" for others."""


@pytest.fixture(scope="module")
def tools() -> Tools:
    found = find_tools()
    if found is None:
        pytest.skip("Prometheus is not installed, and Debian's package cannot be downloaded")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of a cluster after some activity."""
    port = free_port()
    config = {"metrics.port": port, "offsets.topic.replication.factor": 1}
    with ray_folder(), raylog.start(tmp_path_factory.mktemp("data"), brokers=2, config=config, address="local"):
        use_the_cluster()
        wait_for(lambda: answers(port), "a broker serves the page")
        yield f"http://127.0.0.1:{port}"


def answers(port: int) -> bool:
    try:
        return bool(fetch(f"http://127.0.0.1:{port}/healthz"))
    except OSError:
        return False


def use_the_cluster() -> None:
    with raylog.Admin() as admin:
        admin.create_topic("flights", partitions=2, replication_factor=2)
    with raylog.Producer() as producer:
        for number in range(1000):
            producer.send("flights", b"x" * 100, partition=number % 2)
        producer.flush(60)
    seen = 0
    with raylog.Consumer("flights", group_id="board", auto_offset_reset="earliest") as consumer:
        while seen < 500:
            seen += sum(len(records) for records in consumer.poll(timeout_ms=500, max_records=100).values())
        consumer.commit()


def test_promtool_finds_the_page_in_order(tools: Tools, page: str) -> None:
    body = fetch(f"{page}/metrics")
    checked = subprocess.run(
        [tools.promtool, "check", "metrics"], input=body, capture_output=True, text=True, timeout=60, check=False
    )
    complaints = [line for line in (checked.stdout + checked.stderr).splitlines() if line.strip()]
    assert [line for line in complaints if not line.startswith(KNOWN_COMPLAINTS)] == []
    assert checked.returncode in (0, 3), "3 = there are complaints about names, 1 = the page cannot be read"
    assert len(body.splitlines()) > 300


def test_promtool_finds_the_rules_in_order(tools: Tools, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(alert_rules(), encoding="utf-8")
    checked = subprocess.run(
        [tools.promtool, "check", "rules", rules], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout


def test_prometheus_finds_the_nodes_and_has_their_figures(tools: Tools, page: str, tmp_path: Path) -> None:
    with prometheus(tools, tmp_path / "prometheus", page=page, rules=alert_rules()) as server:
        wait_for(lambda: bool(server.query("up == 1")), "Prometheus has scraped the page")
        (target,) = server.targets()
        assert (target["health"], target["lastError"]) == ("up", "")
        assert target["labels"]["brokers"] == "1,2"

        def total(query: str) -> float:
            (sample,) = server.query(query)
            return float(sample["value"][1])

        assert total('sum(kafka_server_brokertopicmetrics_messagesin_total{topic="flights"})') == 1000
        assert total("sum(kafka_controller_kafkacontroller_activecontrollercount)") == 1
        assert total('sum(kafka_consumergroup_lag{consumergroup="board"})') <= 500
        assert total('count(raylog_process_cpu_seconds_total{process="replica",topic="flights"})') == 4
        for query in queries():
            server.query(re.sub(r"\$__rate_interval", "1m", query))  # HTTP 400 for one that cannot be read
        wait_for(lambda: len(server.rules()) == len(ALERTS), "all rules are looked at")
        assert "firing" not in server.rules().values()
