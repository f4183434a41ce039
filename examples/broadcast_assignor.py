"""An assignor of one's own, by which every member gets every partition: ``python examples/broadcast_assignor.py``.

Three workers keep a table of prices in memory, so each has to see every update. They are members of one group with an
assignor that gives all of them everything. The group's committed offsets would be common to them, so they commit none:
each begins at the first record, and reads the whole topic.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import raylog

TOPIC = "prices"
UPDATES, WORKERS, PARTITIONS = 300, 3, 4
DEADLINE_S = 30.0


class BroadcastAssignor(raylog.PartitionAssignor):
    """Every member gets every partition of the topics that it subscribes to."""

    name = "broadcast"

    def assign(
        self, subscriptions: Mapping[str, raylog.Subscription], partition_counts: Mapping[str, int]
    ) -> dict[str, list[raylog.TopicPartition]]:
        """The partitions of each member."""
        return {
            member: [
                raylog.TopicPartition(topic, number)
                for topic in subscription.topics
                for number in range(partition_counts.get(topic, 0))
            ]
            for member, subscription in subscriptions.items()
        }


def main() -> int:
    """Do all of it; returns the process's exit code."""
    arguments = _arguments()
    with raylog.start(arguments.data_dir, address=arguments.address):
        with raylog.Admin() as admin:
            if TOPIC in admin.list_topics():
                admin.delete_topic(TOPIC)
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        tables: list[dict[bytes, bytes]] = [{} for _ in range(WORKERS)]
        with ExitStack() as stack:
            workers = [stack.enter_context(raylog.Consumer(TOPIC, **_options())) for _ in range(WORKERS)]
            with raylog.Producer() as producer:
                for number in range(UPDATES):
                    producer.send(TOPIC, key=b"item %d" % (number % 40), value=b"%d" % number)
            latest = {b"item %d" % (number % 40): b"%d" % number for number in range(UPDATES)}
            deadline_s = time.monotonic() + DEADLINE_S
            while any(table != latest for table in tables) and time.monotonic() < deadline_s:
                for worker, table in zip(workers, tables, strict=True):
                    for records in worker.poll(timeout_ms=50).values():
                        table |= {record.key: record.value for record in records}
            held = [len(worker.assignment()) for worker in workers]
    prices = [len(table) for table in tables]
    print(f"{WORKERS} workers hold {held} of {PARTITIONS} partitions, and know {prices} prices")
    return 0 if all(table == latest for table in tables) and held == [PARTITIONS] * WORKERS else 1


def _options() -> dict[str, Any]:
    return {
        "group_id": "price-tables",
        "partition_assignment_strategy": [BroadcastAssignor],
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
