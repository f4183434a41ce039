"""How late delayed records come, on three brokers with three replicas each.

`rate`: records become due evenly. `burst`: many become due within a minute. `together`: all become due in the same
millisecond, `--rounds` times. A consumer reads their topic; late is the time from a record's due time until the
consumer has it. `pending`: what a new leader needs for many that wait.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import raylog
from benchmarks.delays import pending, together
from benchmarks.options import Parser, one_of
from benchmarks.report.stats import percentile
from benchmarks.scratch import three_brokers
from raylog.base.ids import TopicPartition

CASES = ("rate", "burst", "together", "pending")
TOPIC = "due"
SIZE = 100
LEAD_S = 8.0
"""Time between the first send and the first due time."""


def main(given: Sequence[str]) -> int:
    """Run the case that is named."""
    parser = Parser("delays", __doc__)
    parser.add_argument("case", type=one_of(CASES), help=", ".join(CASES))
    parser.add_argument("--per-second", type=int, default=1_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--records", type=int, default=1_000_000, help="of a burst, together, or pending")
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of each that is due together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--named", action="store_true", help="each pending record has a schedule id")
    parser.add_data()
    chosen = parser.parse_args(given)
    if chosen.case == "pending":
        with tempfile.TemporaryDirectory(dir=chosen.data) as folder:
            found = pending.run(chosen.records, Path(folder), named=chosen.named)
    else:
        with three_brokers(chosen.data):
            found = delivered(chosen)
    print(json.dumps(found, indent=2))
    return 0


def delivered(chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure one of the cases in which a consumer reads."""
    with raylog.Admin() as admin:
        admin.create_topic(TOPIC, partitions=1, replication_factor=3)
    if chosen.case == "rate":
        return run(chosen.per_second * chosen.seconds, chosen.seconds)
    if chosen.case == "together":
        return together.run(TOPIC, chosen.records, chosen.size, chosen.rounds)
    return run(chosen.records, 60, lead_s=max(LEAD_S, chosen.records / 60_000))


def run(count: int, seconds: float, lead_s: float = LEAD_S) -> dict[str, Any]:
    """Send so many records that become due evenly within some seconds, and read them."""
    value = bytes(SIZE)
    with raylog.Producer(linger_ms=5) as producer:
        producer.send(TOPIC, value, delay=1).result(60)
        began = time.time()
        first_ms = int((began + lead_s) * 1000)
        for number in range(count):
            producer.send(TOPIC, value, deliver_at=first_ms + int(number * seconds * 1000 / count))
        producer.flush(300)
        sent_s = time.time() - began
        late: list[float] = []
        last_s, in_order, previous = 0.0, True, 0
        with raylog.Consumer(auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            consumer.assign([TopicPartition(TOPIC, 0)])
            until = time.monotonic() + lead_s + seconds + 120
            while len(late) <= count and time.monotonic() < until:
                for records in consumer.poll(timeout_ms=500, max_records=10_000).values():
                    now_ms = time.time() * 1000
                    last_s = now_ms / 1000
                    for record in records:
                        in_order &= record.timestamp_ms >= previous
                        previous = record.timestamp_ms
                        late.append(now_ms - record.timestamp_ms)
    ordered = sorted(late[1:])
    return {
        "records": count,
        "arrived": len(ordered),
        "in_order": in_order,
        "sent_per_s": round(count / sent_s),
        "delivered_per_s": round(count / max(0.001, last_s - first_ms / 1000)),
        "late_p50_ms": round(percentile(ordered, 50), 1),
        "late_p99_ms": round(percentile(ordered, 99), 1),
        "late_max_ms": round(ordered[-1], 1),
    }
