"""A broker collects metrics of its replicas over real connections; some are slow, dead, or send malformed replies."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from raylog.actors.metrics import collector
from raylog.actors.metrics.broker import BrokerLooks, BrokerMetrics, unready
from raylog.actors.metrics.collector import CachedResult, MetricsClient
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.base.ids import BrokerId, Incarnation, TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import ReplicaPlaced, TopicCreated
from raylog.core.metrics.exposition import render
from raylog.core.metrics.families import ReplicaFigures
from raylog.rpc import Request, RpcServer

SECRET = b"a secret for tests"
ONE = BrokerId(1)


def figures(role: str = "leader") -> ReplicaFigures:
    return ReplicaFigures(role=role, size_bytes=1, log_start_offset=0, log_end_offset=1, high_watermark=1)


def answer(counters: ReplicaCounters) -> dict[str, object]:
    usage = {"figures": {"open_fds": 7}, "refusals": [["produce", 6, 2]]}
    offsets = {"log_start_offset": 0, "log_end_offset": 30, "high_watermark": 30}
    return {"role": "leader", "size_bytes": 1000, **offsets, **counters.to_wire(), "process": usage, "later": 1}


def image_of(places: list[tuple[str, int]]) -> MetadataImage:
    image = MetadataImage()
    image.apply(TopicCreated(topic_id="i", topic="t", config={}, partitions=tuple((ONE,) for _ in places)))
    for number, (host, port) in enumerate(places):
        image.apply(
            ReplicaPlaced(
                topic="t", partition=number, broker=ONE, incarnation=Incarnation(number + 1), host=host, port=port
            )
        )
    return image


def looked(handlers: list[Callable[[Request], None]]) -> tuple[str, list[str]]:
    """The page and the reasons of a broker with one replica for each handler."""

    async def run() -> tuple[str, list[str]]:
        servers = [RpcServer(handler, secret=SECRET) for handler in handlers]
        places = [await server.start() for server in servers]
        image = image_of([*places, ("127.0.0.1", 1), ("", 0)])
        metrics = BrokerMetrics(
            BrokerLooks(
                folder=Path("/"),
                secret=SECRET,
                server=RpcServer(lambda _: None, secret=SECRET),
                broker=lambda: 1,
                image=lambda: image,
                is_registered=lambda: True,
            )
        )
        try:
            async with asyncio.timeout(20):
                report = await metrics.report()
            return render(report.families), report.reasons
        finally:
            metrics.close()
            for server in servers:
                await server.close()

    return asyncio.run(run())


def test_replicas_that_do_not_answer_are_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "ANSWER_S", 0.5)
    counters = ReplicaCounters()
    counters.born_ms += 60_000  # not older than the broker, which counts from its first reading on
    counters.records_in = 30
    silent: list[Request] = []
    page, reasons = looked(
        [
            lambda request: request.reply(answer(counters)),
            silent.append,
            lambda request: request.reply("nonsense"),
            lambda request: request.reply({**answer(counters), "counters": [1]}),
        ]
    )
    assert reasons == [f"t-{number} on broker 1 does not answer" for number in (1, 2, 3, 4, 5)]
    assert 'raylog_replicas{broker="1",role="leader"} 1\n' in page
    assert 'raylog_replicas{broker="1",role="unreachable"} 5\n' in page
    assert 'kafka_server_brokertopicmetrics_messagesin_total{broker="1",topic="t"} 30\n' in page
    assert 'kafka_server_brokertopicmetrics_failedproducerequests_total{broker="1",topic="t"} 2\n' in page
    assert 'kafka_log_log_logendoffset{broker="1",topic="t",partition="0"} 30\n' in page
    assert 'kafka_log_log_logendoffset{broker="1",topic="t",partition="1"}' not in page
    error = 'raylog_request_errors_total{method="produce",error="NotLeaderOrFollower",process="replica",broker="1"} 2\n'
    assert error in page


async def test_a_connection_is_kept_and_opened_again_when_it_broke() -> None:
    made: list[object] = []
    server = RpcServer(lambda request: request.reply([1]), secret=SECRET, on_connect=made.append)
    place = await server.start()
    client = MetricsClient(SECRET)
    for _ in range(3):
        assert await client.call({place: ("x", [])}) == {place: [1]}
    assert len(made) == 1
    next(iter(server.connections)).abort("cut")
    await client.call({place: ("x", [])})  # may meet the broken connection
    assert await client.call({place: ("x", [])}) == {place: [1]}
    assert len(made) == 2
    client.keep([])
    assert await client.call({}) == {}
    client.close()
    await server.close()


def test_concurrent_looks_share_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms, looks = 0, 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.01)
        return looks

    async def run() -> None:
        nonlocal now_ms
        cached = CachedResult(look)
        assert await asyncio.gather(*(cached.get() for _ in range(5))) == [1] * 5
        now_ms = collector.HOLDS_MS - 1
        assert await cached.get() == 1
        now_ms = collector.HOLDS_MS
        assert await cached.get() == 2

    monkeypatch.setattr(collector, "monotonic_ms", lambda: now_ms)
    asyncio.run(run())


def test_a_broker_is_ready_when_registered_and_its_replicas_have_a_role() -> None:
    replicas = {TopicPartition("t", 0): figures(), TopicPartition("t", 1): figures("follower")}
    assert unready(1, True, replicas, (1 << 30, 1 << 40)) == []
    assert unready(1, True, {}, None) == []
    assert unready(1, False, replicas, None) == ["broker 1 is not registered with the controller"]
    assert unready(
        1, True, {**replicas, TopicPartition("u", 0): figures("idle"), TopicPartition("u", 1): None}, None
    ) == [
        "u-0 on broker 1 neither leads nor follows yet: it is idle",
        "u-1 on broker 1 does not answer",
    ]


def test_a_broker_with_a_full_disk_is_not_ready() -> None:
    assert unready(1, True, {}, (4096, 24 << 20)) == ["the disk of broker 1 is full: 4096 of 25165824 bytes are free"]
    assert unready(1, True, {}, (1 << 20, 24 << 20)) == []
