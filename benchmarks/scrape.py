"""Cost of a node's metrics page: a broker collects 200 replicas over real connections and renders the page.

The replicas are endpoints in one other process with the answers of replicas; counted is the CPU time of the collecting
thread, from the request to the bytes of the page, and that of the endpoints, all together.
`tests/cluster/metrics/test_scrape_cost.py` holds the number of calls in it to
a bound, which no other load on the machine changes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import timeit
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.options import Parser
from raylog.actors.metrics.broker import BrokerLooks, BrokerMetrics
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.metrics.process import usage_of
from raylog.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionEpoch
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import PartitionChanged, ReplicaPlaced, TopicCreated
from raylog.core.metrics.exposition import render
from raylog.rpc import Request, RpcServer, connect
from tests.cluster.counts import ThreadCounter
from tests.cluster.local_cluster import SECRET

REPLICAS = 200
TOPICS = 20
BROKER = BrokerId(1)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU milliseconds of one scrape, the calls in the collecting thread (0 = not counted), and the page's size."""

    collector_ms: float
    replicas_ms: float
    calls: int
    page_bytes: int
    lines: int


class Answering:
    """Endpoints in this process with the answers of replicas, which report their CPU time on request."""

    def __init__(self, count: int) -> None:
        self._counters = ReplicaCounters()
        for number in range(20_000):  # latencies in as many buckets as a working replica has
            self._counters.produce.observe_ns(200_000 + number * 300)
            self._counters.fetch.observe_ns(400_000 + number * 30_000)
            self._counters.flush.observe_ns(300_000 + number * 500)
        self._servers = [RpcServer(self._answer, secret=SECRET) for _ in range(count)]

    async def serve(self) -> None:
        """Print the addresses, and serve until the standard input is closed."""
        places = [await server.start() for server in self._servers]
        print(json.dumps(places), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for server in self._servers:
            await server.close()

    def _answer(self, request: Request) -> None:
        if request.method == "cpu":
            request.reply([time.process_time()])
            return
        self._counters.batches_in += 1
        self._counters.records_in += 100
        request.reply(
            {
                "topic_id": "x" * 32,
                "role": "leader",
                "size_bytes": 123_456_789,
                "log_start_offset": 0,
                "log_end_offset": 1_234_567,
                "high_watermark": 1_234_567,
                **self._counters.to_wire(),
                "process": usage_of(self._servers[0]).to_wire(),
            }
        )


def counting_us() -> tuple[float, float]:
    """Cost of the counters per produce request and consumer fetch, in microseconds; the lowest of several runs."""
    counters = ReplicaCounters()

    def produce() -> None:
        began_ns = time.monotonic_ns()
        counters.batches_in += 1
        counters.records_in += 100
        counters.bytes_in += 10_000
        counters.produce.observe_ns(time.monotonic_ns() - began_ns)

    def fetch() -> None:
        began_ns = time.monotonic_ns()
        counters.fetches += 1
        counters.bytes_out += 10_000
        counters.fetch.observe_ns(time.monotonic_ns() - began_ns)

    rounds = 100_000
    lowest = [min(timeit.repeat(item, number=rounds, repeat=5)) / rounds * 1e6 for item in (produce, fetch)]
    return lowest[0], lowest[1]


def image_of(places: list[tuple[str, int]]) -> MetadataImage:
    """Metadata with one replica at each address, all led by the broker."""
    image = MetadataImage()
    per_topic = len(places) // TOPICS
    for topic in range(TOPICS):
        partitions = tuple((BROKER,) for _ in range(per_topic))
        image.apply(TopicCreated(topic_id=f"{topic:032}", topic=f"topic-{topic}", config={}, partitions=partitions))
        for partition in range(per_topic):
            host, port = places[topic * per_topic + partition]
            image.apply(
                ReplicaPlaced(
                    topic=f"topic-{topic}",
                    partition=partition,
                    broker=BROKER,
                    incarnation=Incarnation(1),
                    host=host,
                    port=port,
                )
            )
            image.apply(
                PartitionChanged(
                    topic=f"topic-{topic}",
                    partition=partition,
                    leader=BROKER,
                    leader_epoch=LeaderEpoch(1),
                    isr=(BROKER,),
                    replicas=(BROKER,),
                    partition_epoch=PartitionEpoch(1),
                )
            )
    return image


def measure(replicas: int = REPLICAS, scrapes: int = 5, *, counts_calls: bool = False) -> list[Cost]:
    """Scrape several times; the first one connects, and is excluded. Counting calls makes the times longer."""
    command = [sys.executable, "-m", "benchmarks.scrape", str(replicas)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            places = [(str(host), int(port)) for host, port in json.loads(process.stdout.readline())]
            return asyncio.run(_scrape(places, scrapes, counts_calls=counts_calls))[1:]
        finally:
            process.stdin.close()
            process.wait(30)


async def _scrape(places: list[tuple[str, int]], scrapes: int, *, counts_calls: bool) -> list[Cost]:
    image = image_of(places)
    metrics = BrokerMetrics(
        BrokerLooks(
            folder=Path("/"),
            secret=SECRET,
            server=RpcServer(lambda _: None, secret=SECRET),
            broker=lambda: int(BROKER),
            image=lambda: image,
            is_registered=lambda: True,
        )
    )
    costs, counter = [], ThreadCounter()
    others = await connect(*places[0], secret=SECRET, timeout_s=5)
    try:
        for _ in range(scrapes + 1):
            await asyncio.sleep(1.05)  # a scrape's result is cached for a second
            (before,) = (await others.call("cpu", [], timeout_s=5)).args
            if counts_calls:
                counter.on()
            began = time.thread_time()
            report = await metrics.report()
            page = render(report.families).encode()
            took = time.thread_time() - began
            calls = counter.off()
            assert not report.reasons, report.reasons
            (after,) = (await others.call("cpu", [], timeout_s=5)).args
            counted = calls["python_calls"] + calls["c_calls"]
            costs.append(Cost(took * 1000, (after - before) * 1000, counted, len(page), page.count(b"\n")))
    finally:
        metrics.close()
        others.close()
    return costs


def main(given: Sequence[str]) -> int:
    """Print what counting and scraping cost."""
    Parser("scrape", __doc__).parse_args(given)
    produce, fetch = counting_us()
    print(f"counting: {produce:.2f} us a produce request, {fetch:.2f} us a fetch")
    for cost in measure():
        print(
            f"{REPLICAS} replicas: {cost.collector_ms:.1f} ms CPU in the broker, {cost.replicas_ms:.1f} ms in all "
            f"replicas together; {cost.lines} lines, {cost.page_bytes / 1000:.0f} kB"
        )
    return 0


if __name__ == "__main__":  # the process of the endpoints
    asyncio.run(Answering(int(sys.argv[1])).serve())
