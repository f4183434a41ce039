"""How soon a queue goes on behind an outage of its handlers.

A member holds as many records as a queue hands out at most (`queue.acquired.max`, 2,000). `retried`: it gives all of
them back with a long pause; the time from the first one until it has a record behind them. `silent`: it stops, and its
locks run out; the time from the end of the first lock until another member, which waits, has a record.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from typing import Any

import raylog
from benchmarks.options import Parser, one_of
from benchmarks.report.stats import percentile
from benchmarks.scratch import three_brokers

WINDOW = 2_000
LOCK_S = 3.0


def main(given: Sequence[str]) -> int:
    """Run the case that is named."""
    parser = Parser("queues", __doc__)
    parser.add_argument("case", type=one_of(("outage",)), help="outage")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_data()
    chosen = parser.parse_args(given)
    logging.getLogger("raylog").setLevel(logging.ERROR)  # of each lock that runs out, as it shall
    with three_brokers(chosen.data):
        found = {"retried": [retried(number) for number in range(chosen.rounds)]}
        found["silent"] = [silent(number) for number in range(chosen.rounds)]
    report: dict[str, Any] = {
        name: {"p50_ms": round(percentile(sorted(times), 50), 1), "max_ms": round(max(times), 1)}
        for name, times in found.items()
    }
    print(json.dumps({**report, "rounds": chosen.rounds, "load": round(os.getloadavg()[0], 1)}, indent=2))
    return 0


def retried(number: int) -> float:
    """Milliseconds from the first retry of a whole window until the first record behind it."""
    topic = _filled(f"retried-{number}")
    with raylog.QueueConsumer(topic, group_id="g", max_poll_records=WINDOW) as worker:
        held = _window(worker)
        began_s = time.monotonic()
        for message in held:
            message.retry("1h")
        _next(worker)
        return 1000 * (time.monotonic() - began_s)


def silent(number: int) -> float:
    """Milliseconds from the end of the first lock of a member that has stopped until another has a record."""
    topic = _filled(f"silent-{number}", records=WINDOW)
    options: dict[str, Any] = {"group_id": "g", "lock": f"{LOCK_S:g}s", "renew_locks": False}
    with (
        raylog.QueueConsumer(topic, max_poll_records=WINDOW, **options) as stopped,
        raylog.QueueConsumer(topic, **options) as other,
    ):
        began_s = time.monotonic()
        _window(stopped)
        _next(other)
        return 1000 * (time.monotonic() - began_s - LOCK_S)


def _filled(topic: str, records: int = 2 * WINDOW) -> str:
    with raylog.Admin() as admin, raylog.Producer() as producer:
        admin.create_topic(topic, partitions=1, replication_factor=3)
        producer.send_batch(topic, [b"%d" % number for number in range(records)], partition=0).result(60)
    return topic


def _window(worker: raylog.QueueConsumer) -> list[Any]:
    held: list[Any] = []
    while len(held) < WINDOW:
        held += worker.poll(timeout_ms=1_000)
    return held


def _next(worker: raylog.QueueConsumer) -> None:
    until = time.monotonic() + 60
    while not worker.poll(timeout_ms=1_000, max_records=1):
        if time.monotonic() > until:
            raise TimeoutError("no record came behind the outage")
