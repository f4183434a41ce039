"""The page of a node on whole clusters in one process: figures, health, several brokers on one port."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from raylog.actors.broker.node_page import NodePage
from raylog.base.ids import BrokerId, TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.asynchronous import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.metrics.prometheus_support import free_port
from tests.waiting import eventually

pytestmark = pytest.mark.cluster
SAMPLE = re.compile(r"(?P<name>[a-z_:]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")


async def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of a page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(20):
            answer = (await reader.read()).decode()
    finally:
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


def read(page: str, name: str, **labels: str) -> list[float]:
    """The values of the samples of one name that have these labels."""
    found = []
    for line in page.splitlines():
        match = SAMPLE.fullmatch(line)
        if match is not None and match["name"] == name:
            had = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"] or ""))
            if labels.items() <= had.items():
                found.append(float(match["value"].replace("Inf", "inf")))
    return found


def test_a_page_has_the_figures_of_all_brokers_of_its_node(tmp_path: Path) -> None:
    asyncio.run(all_brokers_of_a_node(tmp_path))


async def all_brokers_of_a_node(tmp_path: Path) -> None:
    port = free_port()
    async with LocalCluster(tmp_path, brokers=3, config={"metrics.port": str(port)}) as cluster:
        pages = [NodePage(server) for server in cluster.broker_servers.values()]
        try:
            for page in pages:
                page.start()
            await eventually(lambda: sum(page.endpoint is not None for page in pages) == 1, what="one broker serves")
            await work(cluster)
            status, body = await get(port, "/metrics")
            assert status == 200
            check_figures(body)
            status, body = await get(port, "/readyz")
            assert (status, json.loads(body)) == (200, {"status": "ok"})
            assert (await get(port, "/healthz"))[0] == 200
            status, body = await get(port, "/")
            assert status == 200
            assert "Every broker here is ready." in body
            assert "<tr><td>flights</td><td>2</td><td>30</td>" in body, "topic, partitions, records"
            assert "<tr><td>board</td><td>flights</td><td>10</td>" in body, "group, topic, lag"
            status, body = await get(port, "/sd")
            target = {"cluster_id": cluster.cluster_id, "brokers": "1,2,3"}
            assert json.loads(body) == [{"targets": [f"127.0.0.1:{port}"], "labels": target}]
            # Another broker takes over when the serving one ends.
            serving = next(page for page in pages if page.endpoint is not None)
            await serving.stop()
            await eventually(lambda: any(page.endpoint is not None for page in pages), what="another serves")
            assert (await get(port, "/healthz"))[0] == 200
        finally:
            for page in pages:
                await page.stop()


async def work(cluster: LocalCluster) -> None:
    """Produce 30 records to a replicated topic, read 20 of them in a group, and commit."""
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("flights", partitions=2, replication_factor=3)
    async with AsyncProducer(**cluster.clients()) as producer:
        for number in range(30):
            await (await producer.send("flights", b"x" * 100, partition=number % 2))
    async with AsyncConsumer(
        "flights", group_id="board", auto_offset_reset="earliest", enable_auto_commit=False, **cluster.clients()
    ) as consumer:
        seen = 0
        while seen < 30:
            seen += sum(len(records) for records in (await consumer.getmany(timeout_ms=500)).values())
        await consumer.commit({TopicPartition("flights", 0): 15, TopicPartition("flights", 1): 5})


def check_figures(body: str) -> None:
    assert sum(read(body, "kafka_server_brokertopicmetrics_messagesin_total", topic="flights")) == 30
    assert sum(read(body, "kafka_server_brokertopicmetrics_bytesin_total", topic="flights")) > 3000
    assert sum(read(body, "kafka_server_brokertopicmetrics_bytesout_total", topic="flights")) > 3000
    assert sum(read(body, "kafka_server_brokertopicmetrics_replicationbytesin_total", topic="flights")) > 6000
    assert len(read(body, "kafka_server_replicamanager_partitioncount")) == 3
    assert sum(read(body, "kafka_server_replicamanager_underreplicatedpartitions")) == 0
    assert read(body, "kafka_controller_kafkacontroller_activecontrollercount") == [1]
    assert read(body, "kafka_controller_kafkacontroller_offlinepartitionscount") == [0]
    assert read(body, "kafka_controller_kafkacontroller_activebrokercount") == [3]
    assert sum(read(body, "kafka_network_requestmetrics_totaltimems_count", request="Produce")) >= 30
    p99 = read(body, "kafka_network_requestmetrics_totaltimems", request="Produce", quantile="0.99")
    assert any(0 < value < 60_000 for value in p99)
    assert sum(read(body, "raylog_request_duration_seconds_bucket", request="Produce", le="+Inf")) > 0
    assert sum(read(body, "raylog_log_flush_duration_seconds_count")) > 0
    assert read(body, "kafka_log_log_logendoffset", topic="flights", partition="0") == [15, 15, 15]
    assert read(body, "kafka_consumergroup_lag", consumergroup="board", partition="1") == [10]
    assert read(body, "kafka_consumergroup_lag", consumergroup="board", partition="0") == [0]
    assert read(body, "raylog_consumergroup_lag_seconds", partition="1")[0] > 0
    assert read(body, "raylog_consumergroup_lag_seconds", partition="0") == [0]
    assert len(read(body, "raylog_process_cpu_seconds_total", process="replica", topic="flights")) == 6
    assert all(value > 0 for value in read(body, "raylog_disk_free_bytes"))


def test_a_node_is_not_ready_while_a_replica_is_missing(tmp_path: Path) -> None:
    asyncio.run(a_missing_replica(tmp_path))


async def a_missing_replica(tmp_path: Path) -> None:
    port = free_port()
    async with LocalCluster(tmp_path, brokers=2, config={"metrics.port": str(port)}) as cluster:
        page = NodePage(cluster.broker_servers[1])
        try:
            page.start()
            await eventually(lambda: page.endpoint is not None, what="the page is served")
            async with AsyncAdmin(**cluster.clients()) as admin:
                await admin.create_topic("t", partitions=1, replication_factor=2)
            await cluster.stop_broker(2)
            for name in [name for name in cluster.replicas if ":broker-1:" in name and ":t-0:" in name]:
                await cluster.replicas[name].stop()  # the factory has it registered, and makes no other
            await eventually(
                lambda: not cluster.running().image.brokers[BrokerId(2)].online, what="broker 2 is offline"
            )

            wanted = {"broker 2 is offline", "t-0 on broker 1 does not answer"}
            assert await reasons_within(15, port, wanted) == wanted
            assert (await get(port, "/healthz"))[0] == 200
            assert (await get(port, "/nothing"))[0] == 404
            body = (await get(port, "/metrics"))[1]
            assert read(body, "raylog_replicas", role="unreachable") == [1]
        finally:
            await page.stop()


async def reasons_within(timeout_s: float, port: int, wanted: set[str]) -> set[str]:
    """The reason why the node is not ready, once it is the expected one, or after the time."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        status, body = await get(port, "/readyz")
        reasons = set(json.loads(body)["reasons"]) if status == 503 else set()
        if reasons == wanted or asyncio.get_running_loop().time() > deadline:
            return reasons
        await asyncio.sleep(0.05)


def test_a_broker_that_starts_without_a_controller_is_alive_and_not_ready(tmp_path: Path) -> None:
    asyncio.run(no_controller(tmp_path))


async def no_controller(tmp_path: Path) -> None:
    port = free_port()
    async with LocalCluster(tmp_path, brokers=1, config={"metrics.port": str(port)}) as cluster:
        page = NodePage(cluster.broker_servers[1])
        page.start()
        await eventually(lambda: page.endpoint is not None, what="the page is served")
        await page.stop()
        await cluster.stop_controller()
        await cluster.stop_broker(1)
        await cluster.start_broker(1)
        page = NodePage(cluster.broker_servers[1])
        try:
            page.start()
            await eventually(lambda: page.endpoint == ("127.0.0.1", port), what="the page is where it was")
            assert (await get(port, "/healthz"))[0] == 200
            wanted = {"broker 1 is not registered with the controller"}
            assert await reasons_within(15, port, wanted) == wanted
            body = (await get(port, "/metrics"))[1]
            assert read(body, "kafka_controller_kafkacontroller_activecontrollercount") == [0]
            await cluster.start_controller()
            assert await reasons_within(15, port, set()) == set()
        finally:
            await page.stop()
