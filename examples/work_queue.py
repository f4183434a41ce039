"""A work queue: several workers, order by customer, retries with growing pauses, and dead letters.

Run it with ``python -m examples.work_queue``: it starts a broker of its own in a temporary folder.
"""

from __future__ import annotations

import tempfile
import threading
from collections import defaultdict

import raylog

ORDERS = 60
CUSTOMERS = 6


def main() -> None:
    """Work off orders in two workers, and show what became of them."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = raylog.start(data_dir=folder)
        try:
            work_off()
        finally:
            cluster.stop()


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
