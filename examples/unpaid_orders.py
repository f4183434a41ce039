"""Orders that are closed unless they are paid in time: ``python examples/unpaid_orders.py --minutes 0.1``.

An order is placed together with a delayed record that closes it. Paying cancels that record; where it comes too late,
the answer says so, and the order stays closed. No timer runs in any process of the shop, so none can be lost.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field

import raylog
from raylog import ScheduleOutcome

ORDERS = "order-deadlines"


@dataclass
class Shop:
    """Orders, and the handles of the records that close them."""

    producer: raylog.Producer
    admin: raylog.Admin
    closes: dict[str, str] = field(default_factory=dict)

    def place(self, order: str, minutes: float) -> None:
        """Place an order that has to be paid within some minutes."""
        sent = self.producer.send(ORDERS, key=order.encode(), value=b"close", delay=int(minutes * 60_000))
        self.closes[order] = sent.result(10).schedule

    def pay(self, order: str) -> bool:
        """Take the money, unless the order is closed already."""
        return self.admin.cancel_scheduled(self.closes[order]) is ScheduleOutcome.CANCELLED


def closed_orders(count: int, timeout_s: float) -> set[str]:
    """Wait for the records that close orders."""
    found: set[str] = set()
    until = time.monotonic() + timeout_s
    with raylog.Consumer(ORDERS, auto_offset_reset="earliest") as consumer:
        while len(found) < count and time.monotonic() < until:
            for records in consumer.poll(timeout_ms=500).values():
                found.update(record.key.decode() for record in records)
    return found


def main() -> int:
    """Place three orders, pay two of them, the second one too late."""
    arguments = _arguments()
    with (
        raylog.start(arguments.data_dir, address=arguments.address),
        raylog.Admin() as admin,
        raylog.Producer() as producer,
    ):
        if ORDERS not in admin.list_topics():
            admin.create_topic(ORDERS, partitions=1)
        shop = Shop(producer, admin)
        for order in ("book", "lamp", "chair"):
            shop.place(order, arguments.minutes)
        print(f"the book is paid in time: {shop.pay('book')}")
        print(f"the other orders close in {arguments.minutes:g} minutes (--minutes)", flush=True)
        closed = closed_orders(2, arguments.minutes * 60 + 60)
        print(f"closed: {', '.join(sorted(closed))}")
        print(f"the lamp is paid in time: {shop.pay('lamp')}")
    return 0 if closed == {"lamp", "chair"} else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="time to pay (default: 30)")
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
