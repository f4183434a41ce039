"""One checkout's part of a pair: a cluster of three brokers, and the rows that it is requested to run.

Run by path, with the Python of the checkout that it measures, which may be an earlier release: it uses nothing of this
one. Reads names of rows from its input, and writes rate, processor time of the machine and seconds for each.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import raylog

PARTITIONS = 3
READ = 120_000
"""Records of the topic that is read."""
READS = 20
AT_ONCE = 1_000
"""Records of one call of `send_batch`."""
FLUSH_S = 60.0
KEPT_BYTES = 200_000_000


def create(admin: raylog.Admin, topic: str, partitions: int, factor: int, config: dict[str, Any]) -> None:
    """Create a topic whose partitions stay awake. In a release in which none sleeps there is no such key."""
    with suppress(raylog.InvalidConfig):
        awake = {"replica.sleep.after.ms": -1, **config}
        admin.create_topic(topic, partitions=partitions, replication_factor=factor, config=awake)
        return
    admin.create_topic(topic, partitions=partitions, replication_factor=factor, config=config)


class Rows:
    """The rows of one cluster; each runs a fixed number of records and returns it."""

    def __init__(self, admin: raylog.Admin, producer: raylog.Producer, at_once: raylog.Producer) -> None:
        """`producer` waits for more records (5 ms); `at_once` does not."""
        self._producer = producer
        self._at_once = at_once
        self.rows: dict[str, Callable[[], int]] = {
            "send-1k-rf1": lambda: self._send("one", 200_000, 1_000),
            "batch-1k-rf1": lambda: self._send_batch("one", 400_000, 1_000),
            "send-100-rf3": lambda: self._send("three", 1_500_000, 100),
            "batch-100-rf3": lambda: self._send_batch("three", 900_000, 100),
            "send-100-rf3-flushed": lambda: self._send("flushed", 1_500_000, 100),
            "small-rf1": lambda: self._one_by_one("one", 1_500),
            "small-rf3": lambda: self._one_by_one("three", 1_000),
            "consume": self._consume,
        }
        create(admin, "one", PARTITIONS, 1, {"retention.bytes": KEPT_BYTES})
        create(admin, "three", PARTITIONS, 3, {"retention.bytes": KEPT_BYTES})
        create(admin, "flushed", PARTITIONS, 3, {"retention.bytes": KEPT_BYTES, "flush.messages": 1})
        create(admin, "read", 1, 1, {})
        for _ in range(READ):
            producer.send("read", bytes(100))
        producer.flush(FLUSH_S)

    def wake(self) -> None:
        """Send a record to each partition: what the other checkout's turn has left dozing runs then, as under load."""
        for topic in ("one", "three", "flushed"):
            for partition in range(PARTITIONS):
                for producer in (self._producer, self._at_once):
                    producer.send(topic, b"wake", partition=partition)
        self._producer.flush(FLUSH_S)
        self._at_once.flush(FLUSH_S)

    def _send(self, topic: str, count: int, size: int) -> int:
        send, value = self._producer.send, bytes(size)
        for _ in range(count):
            send(topic, value)
        self._producer.flush(FLUSH_S)
        return count

    def _send_batch(self, topic: str, count: int, size: int) -> int:
        values = [bytes(size)] * AT_ONCE
        for _ in range(count // AT_ONCE):
            self._producer.send_batch(topic, values)
        self._producer.flush(FLUSH_S)
        return count

    def _one_by_one(self, topic: str, count: int) -> int:
        for _ in range(count):
            self._at_once.send(topic, bytes(100), partition=0).result(FLUSH_S)
        return count

    def _consume(self) -> int:
        for _ in range(READS):
            with raylog.Consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
                consumer.assign([raylog.TopicPartition("read", 0)])
                found = 0
                while found < READ:
                    found += sum(map(len, consumer.poll(timeout_ms=500, max_records=10_000).values()))
        return READS * READ


def processor_s() -> float:
    """Seconds that all processors of this machine have worked so far."""
    user, nice, system, _, _, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Serve the rows that are requested until the input ends."""
    with tempfile.TemporaryDirectory(prefix="rlb-") as folder:
        cluster: Any = raylog.start(Path(folder), brokers=3)
        try:
            with raylog.Admin() as admin, raylog.Producer() as producer, raylog.Producer(linger_ms=0) as at_once:
                work = Rows(admin, producer, at_once)
                print(json.dumps(list(work.rows)), flush=True)
                for line in sys.stdin:
                    work.wake()
                    used_s, began_s = processor_s(), time.perf_counter()
                    count = work.rows[line.strip()]()
                    took_s = time.perf_counter() - began_s
                    print(json.dumps([count / took_s, (processor_s() - used_s) / count, took_s]), flush=True)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
