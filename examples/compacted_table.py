"""A table in a compacted topic: ``python examples/compacted_table.py``.

Each record is the new value of its key, and one without a value removes it. A reader of the whole topic has
the table. The cleaner keeps the last record of each key, so reading stays quick however often keys change.
"""

from __future__ import annotations

import argparse
import sys
import time

import raylog

TOPIC = "balances"
ACCOUNTS = 20
CHANGES = 20_000
CLEANED_S = 60.0


def main() -> int:
    """Do all of it; returns the process's exit code."""
    arguments = _arguments()
    often = {"log.cleaner.backoff.ms": 500}  # a first look at a cleaner should not wait for 15 seconds
    with raylog.start(arguments.data_dir, address=arguments.address, config=often):
        with raylog.Admin() as admin:
            if TOPIC not in admin.list_topics():
                # Only closed segments are cleaned: small ones show it at once.
                admin.create_topic(TOPIC, config={"cleanup.policy": "compact", "segment.bytes": 100_000})

        with raylog.Producer() as producer:
            for number in range(CHANGES):
                account = f"account {number % ACCOUNTS}".encode()
                producer.send(TOPIC, key=account, value=f"{number}".encode())
            producer.send(TOPIC, key=b"account 7", value=None)

        expected = {f"account {number % ACCOUNTS}": number for number in range(CHANGES - ACCOUNTS, CHANGES)}
        del expected["account 7"]
        table, read = read_table()
        print(f"{len(table)} accounts from {read} records")
        until = time.monotonic() + CLEANED_S
        while table == expected and read > CHANGES / 2 and time.monotonic() < until:
            time.sleep(0.5)
            table, read = read_table()
        print(f"{len(table)} accounts from {read} records, once the log was cleaned")
    if table != expected or read > CHANGES / 2:
        print(f"another table was expected, from fewer records: {table}", file=sys.stderr)
        return 1
    return 0


def read_table() -> tuple[dict[str, int], int]:
    """Read the topic from its start to its end: the table, and how many records that took."""
    table: dict[str, int] = {}
    read = 0
    where = raylog.TopicPartition(TOPIC, 0)
    with raylog.Consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([where])
        end = consumer.end_offsets([where])[where]
        while consumer.position(where) < end:
            for record in consumer.poll(timeout_ms=500, max_records=10_000).get(where, ()):
                read += 1
                if record.value is None:
                    table.pop(record.key.decode(), None)
                else:
                    table[record.key.decode()] = int(record.value)
    return table, read


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
