"""A work queue with retries and dead letters, in the order of each customer: ``python examples/work_queue.py``."""

from __future__ import annotations

import argparse
import threading
from collections import defaultdict

import raylog

ORDERS = 60
CUSTOMERS = 6


def main() -> None:
    """Work off orders in two workers, and show what became of them."""
    arguments = _arguments()
    with raylog.start(arguments.data_dir, address=arguments.address):
        work_off()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


def work_off() -> None:
    """Send orders, have them handled, and print the result."""
    with raylog.Admin() as admin:
        admin.create_topic("orders", partitions=2)
    with raylog.Producer() as producer:
        for number in range(ORDERS):
            producer.send("orders", b"%d" % number, key=b"customer-%d" % (number % CUSTOMERS))
        producer.flush()
    handled: dict[bytes, list[int]] = defaultdict(list)

    def handle(message: raylog.QueueMessage) -> None:
        number = int(message.value)
        if number == 13:
            raise raylog.Reject("order 13 has no address")
        if number % 10 == 7 and message.delivery_count == 1:
            raise ConnectionError("the shop does not answer")  # tried again after 100 ms
        handled[message.key].append(number)

    def work() -> None:
        with raylog.QueueConsumer(
            "orders",
            group_id="shop",
            order="key",
            retry="100ms 1s 10s",
            dead_letter_topic="dlq.orders",
            consumer_timeout_ms=5_000,
        ) as queue:
            queue.run(handle, concurrency=4)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for customer, numbers in sorted(handled.items()):
        print(f"{customer.decode()}: {numbers}")  # in order, although some were tried twice
    with raylog.Consumer("dlq.orders", auto_offset_reset="earliest", consumer_timeout_ms=5_000) as letters:
        for letter in letters:
            reason = dict(letter.headers)["__dlq.errors.message"]
            print(f"dead letter: order {letter.value.decode()}: {(reason or b'').decode()}")
            break


if __name__ == "__main__":
    main()
