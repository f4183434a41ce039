"""Clients that were given `bootstrap=` once find their cluster again, whatever became of its addresses.

Nothing is lost, read twice or out of order meanwhile, and nothing waits for the age of the metadata (five minutes).
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from raylog.base.errors import AuthenticationFailed
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from tests.unit.client.consumer_support import fill, numbers, read, with_coordinator
from tests.unit.client.toy_coordinator import ToyCoordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

PARTITIONS = 3
DEADLINE_S = 20.0


class Services:
    """A producer and a consumer that were there from the start, and what went through them."""

    def __init__(self, cluster: ToyCluster, producer: Producer, consumer: Consumer) -> None:
        self._cluster, self._producer, self._consumer = cluster, producer, consumer
        self.sent = 0
        self._read: dict[TopicPartition, list[int]] = {}

    def go_on(self) -> None:
        """Send to every partition, and read exactly that, in order."""
        first, self.sent = self.sent, self.sent + 2 * PARTITIONS
        futures = [
            self._producer.send("t", b"%d" % each, partition=each % PARTITIONS) for each in range(first, self.sent)
        ]
        for future in futures:
            future.result(DEADLINE_S)
        end_s = time.monotonic() + DEADLINE_S
        while sum(map(len, self._read.values())) < self.sent:
            assert time.monotonic() < end_s, f"read {self._read}, sent {self.sent}"
            for place, records in self._consumer.poll(100).items():
                self._read.setdefault(place, []).extend(int(record.value or b"") for record in records)
        for place, values in self._read.items():
            assert values == list(range(place.partition, self.sent, PARTITIONS))


@contextmanager
def services(cluster: ToyCluster, group: str | None) -> Iterator[Services]:
    cluster.create_topic("t", PARTITIONS)
    more: dict[str, Any] = {} if group is None else {"group_id": group, "heartbeat_interval_ms": 50}
    with (
        Producer(**cluster.options) as producer,
        Consumer("t", auto_offset_reset="earliest", **cluster.options, **more) as consumer,
    ):
        found = Services(cluster, producer, consumer)
        found.go_on()
        yield found


def take_over(stack: ExitStack) -> Callable[[str, int], object]:
    """Have a broker of another cluster, with another secret, listen at an address that has become free."""

    def start(host: str, port: int) -> None:
        other = ToyCluster(secret=b"the secret of others")
        other.first_port = port
        thread = threading.Thread(target=lambda: stack.enter_context(other))
        thread.start()  # the caller is on the loop of the cluster that has moved away
        thread.join(10)

    return start


@pytest.mark.parametrize("group", [None, "board"])
@pytest.mark.parametrize("seed", range(12))
def test_services_go_on_wherever_the_cluster_has_moved(cluster: ToyCluster, group: str | None, seed: int) -> None:
    coordinator: ToyCoordinator = with_coordinator(cluster)
    chance = random.Random(seed)

    def move(broker: int, successor: Callable[[str, int], object] | None = None) -> None:
        """Another address, as where the port of before was taken: its machine's other processes restart as well."""
        cluster.move_broker(broker, successor)
        cluster.cut_connections()

    def restart() -> None:
        with cluster.outage():
            time.sleep(chance.choice((0.0, 0.3)))
        cluster.runtime.run(coordinator.start(), 10)

    with ExitStack() as stack, services(cluster, group) as service:
        events: list[Callable[[], object]] = [
            restart,
            restart,
            lambda: move(0),
            lambda: move(1),
            lambda: move(chance.randrange(2), take_over(stack)),
            lambda: cluster.move_replica(("t", 0, cluster.partitions["t", 0].leader), take_over(stack)),
            lambda: cluster.move_leader("t", chance.randrange(PARTITIONS)),
            cluster.cut_connections,
        ]
        chance.shuffle(events)
        for event in events:
            event()
            service.go_on()


def test_a_client_fails_where_every_address_is_another_clusters() -> None:
    with ExitStack() as stack:
        with ToyCluster() as cluster:
            cluster.create_topic("t")
            host, port = cluster.brokers[0].host, cluster.brokers[0].port
            consumer = Consumer("t", **cluster.options)
            consumer.poll(100)
        take_over(stack)(host, port)
        try:
            with pytest.raises(AuthenticationFailed):
                consumer.partitions_for_topic("other")
        finally:
            consumer.close(timeout=1)


def test_a_partition_without_a_leader_at_the_start_delays_no_other(cluster: ToyCluster) -> None:
    cluster.create_topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        fill(cluster, "t", partition, numbers(0, 2))
    cluster.do(lambda: cluster.leaderless.add(("t", 1)))
    began_s = time.monotonic()
    with Consumer("t", auto_offset_reset="earliest", **cluster.options) as consumer:
        found: set[TopicPartition] = set()
        while len(found) < 2:
            assert time.monotonic() < began_s + DEADLINE_S
            found |= consumer.poll(100).keys()
        assert found == {TopicPartition("t", 0), TopicPartition("t", 2)}
        cluster.do(cluster.leaderless.clear)
        while TopicPartition("t", 1) not in found:
            assert time.monotonic() < began_s + 2 * DEADLINE_S
            found |= consumer.poll(100).keys()


def test_a_group_without_brokers_logs_once_that_positions_wait(
    cluster: ToyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = with_coordinator(cluster)
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    often = {"auto_commit_interval_ms": 20, "request_timeout_ms": 200, "heartbeat_interval_ms": 50}
    options: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", **often, **cluster.options}
    place = TopicPartition("t", 0)
    with Consumer("t", **options) as consumer:
        assert len(read(consumer, 3)) == 3
        with cluster.outage():
            end_s = time.monotonic() + 2.0
            while time.monotonic() < end_s:
                consumer.poll(50)
        cluster.runtime.run(coordinator.start(), 10)
        fill(cluster, "t", 0, numbers(3, 4))
        assert len(read(consumer, 1)) == 1
        wait_for(lambda: consumer.poll(50) == {} and consumer.committed(place) == 4, "positions are committed again")
    assert sum("Positions were not committed" in line for line in caplog.messages) == 1, caplog.messages
