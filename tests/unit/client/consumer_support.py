"""Shared by the consumers' tests: filling a toy partition, reading until enough has come, members on threads."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.types import Record
from raylog.storage.batch.records import encode_batch
from tests.unit.client.toy_coordinator import ToyCoordinator
from tests.unit.client.toy_server import ToyCluster

DEADLINE_S = 15.0


def fill(cluster: ToyCluster, topic: str, partition: int, values: Iterable[bytes | None], **options: Any) -> None:
    """Append one batch and replicate it. Timestamps are the offsets, unless given."""
    column = list(values)

    def append() -> None:
        one = cluster.partitions[topic, partition]
        moments = options.pop("timestamps", list(range(one.log_end, one.log_end + len(column))))
        one.append(memoryview(bytearray(encode_batch(options.pop("keys", None), column, moments, **options))))
        one.advance()

    cluster.do(append)


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % each for each in range(first, end)]


def read(consumer: Consumer, count: int, deadline_s: float = DEADLINE_S) -> list[Record]:
    """Poll until `count` records have come."""
    found: list[Record] = []
    end_s = time.monotonic() + deadline_s
    while len(found) < count:
        assert time.monotonic() < end_s, f"only {len(found)} of {count} records came: {found[-3:]}"
        for records in consumer.poll(100).values():
            found += records
    return found


def offsets(records: Iterable[Record]) -> list[int]:
    return [record.offset for record in records]


def with_coordinator(cluster: ToyCluster, **options: Any) -> ToyCoordinator:
    """Give the toy cluster a group coordinator."""
    coordinator: ToyCoordinator = cluster.do(lambda: ToyCoordinator(cluster, **options))
    cluster.runtime.run(coordinator.start(), 10)
    return coordinator


class Member:
    """A consumer on its own thread, like a process of the group: polls until it is stopped."""

    def __init__(self, cluster: ToyCluster, name: str, *topics: str, **options: Any) -> None:
        self.name = name
        self.seen: dict[TopicPartition, list[int]] = defaultdict(list)
        self.errors: list[BaseException] = []
        self.assignments: list[set[TopicPartition]] = []
        self.crashes = False
        self._options = {
            "group_id": "board",
            "client_id": name,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": 1_000,
            "heartbeat_interval_ms": 50,
            "auto_commit_interval_ms": 50,
            "max_poll_records": 20,
            "retry_backoff_max_ms": 100,
            **cluster.options,
            **options,
        }
        self._topics = topics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            consumer = Consumer(**self._options)
            consumer.subscribe(self._topics, on_assigned=lambda held: self.assignments.append(set(held)))
            while not self._stop.is_set():
                for partition, records in consumer.poll(20).items():
                    self.seen[partition] += offsets(records)
            if self.crashes:
                # Like a killed process: no commit, no notification, the connections just end.
                consumer._is_open = False
                consumer._engine.is_closed = True
                consumer._runtime.run(_vanish(consumer))
            else:
                consumer.close()
        except BaseException as error:  # shown by the test, which runs on another thread
            self.errors.append(error)

    def count(self) -> int:
        return sum(map(len, list(self.seen.values())))

    def stop(self, *, crash: bool = False) -> None:
        self.crashes = crash
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), f"{self.name} did not end"
        assert not self.errors, self.errors


async def _vanish(consumer: Consumer) -> None:
    engine = consumer._engine
    if engine.group is not None:
        await engine.group.close()
    await engine.fetcher.close()
    for task in list(engine._tasks):
        task.cancel()
    await engine.cluster.close()
