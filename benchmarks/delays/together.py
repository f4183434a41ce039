"""Records that become due in the same millisecond: how long until a consumer has them all, and whether in order."""

from __future__ import annotations

import os
import time
from typing import Any

import raylog
from benchmarks.report.stats import percentile
from raylog.base.ids import TopicPartition

WAIT_S = 60.0
"""For the last of a round."""


def run(topic: str, count: int, size: int, rounds: int) -> dict[str, Any]:
    """Send `count` records of `size` bytes in each round, and read them; milliseconds behind their due time."""
    place = TopicPartition(topic, 0)
    firsts: list[float] = []
    lasts: list[float] = []
    is_ordered, arrived = True, 0
    lead_s = 2.0 + count * size / 20_000_000
    with (
        raylog.Producer(linger_ms=5) as producer,
        raylog.Consumer(auto_offset_reset="latest", enable_auto_commit=False) as consumer,
    ):
        producer.send(topic, b"warm", delay=1).result(60)
        consumer.assign([place])
        consumer.position(place)
        for _ in range(rounds):
            due_ms = int((time.time() + lead_s) * 1000)
            sent = [
                producer.send(topic, b"%08d" % number + bytes(size - 8), deliver_at=due_ms, partition=0)
                for number in range(count)
            ]
            producer.flush(60)
            for future in sent:
                future.result(60)
            numbers, last_ms = _read(consumer, count, firsts, due_ms)
            arrived += len(numbers)
            is_ordered &= numbers == list(range(count))
            lasts.append(last_ms)
    return {
        "records": count,
        "bytes_each": size,
        "rounds": rounds,
        "arrived": arrived,
        "each_once_in_order": is_ordered,
        "first_late_p50_ms": round(percentile(sorted(firsts), 50), 1),
        "last_late_p50_ms": round(percentile(sorted(lasts), 50), 1),
        "last_late_max_ms": round(max(lasts), 1),
        "load": round(os.getloadavg()[0], 1),
    }


def _read(consumer: raylog.Consumer, count: int, firsts: list[float], due_ms: int) -> tuple[list[int], float]:
    """The numbers of one round as they come, and how late the last one came."""
    numbers: list[int] = []
    until = time.monotonic() + WAIT_S
    late_ms = 0.0
    while len(numbers) < count and time.monotonic() < until:
        for records in consumer.poll(timeout_ms=500, max_records=10_000).values():
            late_ms = time.time() * 1000 - due_ms
            if not numbers and records[0].value != b"warm":
                firsts.append(late_ms)
            numbers += [int(record.value[:8]) for record in records if record.value != b"warm"]
    return numbers, late_ms
