"""One consumer, many workers: ``python examples/worker_pool.py``.

Each order takes a handler some milliseconds, as a call of a service would. Eight workers handle them at the same time;
the orders of a customer are handled one after the other, and an offset is committed when all before it are finished.
Run it twice: the second run handles only what is new.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import defaultdict
from typing import Any

import raylog

TOPIC = "orders"
ORDERS, CUSTOMERS, WORKERS = 400, 40, 8
HANDLER_S = 0.005
IDLE_S = 3.0


def main() -> int:
    """Do all of it; returns the process's exit code."""
    arguments = _arguments()
    lock = threading.Lock()
    handled: dict[bytes, list[int]] = defaultdict(list)

    def handle(record: raylog.Record) -> None:
        time.sleep(HANDLER_S)
        with lock:
            handled[record.key].append(record.offset)

    with raylog.start(arguments.data_dir, address=arguments.address):
        with raylog.Admin() as admin:
            if TOPIC not in admin.list_topics():
                admin.create_topic(TOPIC, partitions=2)
        with raylog.Producer() as producer:
            for number in range(ORDERS):
                producer.send(TOPIC, key=f"customer {number % CUSTOMERS}".encode(), value=f"order {number}".encode())

        options: dict[str, Any] = {"group_id": "shipping", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with raylog.Consumer(TOPIC, **options) as consumer:
            pool = raylog.WorkerPool(consumer, handle, workers=WORKERS)
            began_s = time.monotonic()
            pool.run(idle_timeout=IDLE_S)
            took_s = time.monotonic() - began_s - IDLE_S

    count = sum(map(len, handled.values()))
    is_in_order = all(offsets == sorted(offsets) for offsets in handled.values())
    print(f"{count} orders of {len(handled)} customers handled, those of each in order: {is_in_order}")
    print(f"in {took_s:.1f} s; one after the other it would be {count * HANDLER_S:.1f} s")
    return 0 if count == ORDERS and is_in_order else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
