"""Start a cluster, create a topic, produce ten records, consume them, stop: ``python examples/quickstart.py``.

Run it twice: the second run finds the records of the first, and its group continues at its committed offset.
"""

from __future__ import annotations

import argparse
import sys

import raylog

TOPIC = "greetings"
RECORDS = 10


def main() -> int:
    """Do all of it; returns the process's exit code."""
    arguments = _arguments()
    with raylog.start(arguments.data_dir, address=arguments.address):
        with raylog.Admin() as admin:
            if TOPIC not in admin.list_topics():
                admin.create_topic(TOPIC, partitions=3)

        with raylog.Producer(acks="all") as producer:
            # send() returns at once; a future holds where its record was stored.
            futures = [
                producer.send(TOPIC, value=f"hello {number}".encode(), key=(b"Ada", b"Grace", b"Alan")[number % 3])
                for number in range(RECORDS)
            ]
            for future in futures:
                place = future.result(timeout=30)
                print(f"stored in {place.topic}-{place.partition} at offset {place.offset}")

        with raylog.Consumer(
            TOPIC, group_id="readers", auto_offset_reset="earliest", consumer_timeout_ms=30_000
        ) as consumer:
            for number, record in enumerate(consumer, start=1):
                print(f"read {record.value.decode()!r} from partition {record.partition}, offset {record.offset}")
                if number == RECORDS:
                    break  # leaving the block commits the position
            else:
                print(f"fewer than {RECORDS} records came within 30 s", file=sys.stderr)
                return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
