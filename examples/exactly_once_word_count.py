"""Words counted exactly once, by workers that die: ``python examples/exactly_once_word_count.py``.

A worker reads lines, and writes in one transaction the new counts and how far it has read. Two workers die in the
middle of a transaction; the next one aborts it, goes on from the last committed one, and no word is counted twice.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter

import ray

import raylog

LINES, COUNTS = "lines", "word-counts"
PARTITIONS = 2
WORDS = ("ray", "log", "broker", "stream", "actor")


@ray.remote(max_retries=0)
def count_words(dies_in: int | None) -> int:
    """Count up to the last line; returns the number of transactions. Dies inside the one with this number."""
    transactions = 0
    with (
        raylog.Producer(transactional_id="word-count") as producer,
        raylog.Consumer(
            group_id="word-count",
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as lines,
    ):
        producer.init_transactions()  # fences the worker before, and aborts what it left open
        counts = committed_counts()
        partitions = [raylog.TopicPartition(LINES, number) for number in range(PARTITIONS)]
        lines.assign(partitions)
        ends = lines.end_offsets(partitions)
        while any(lines.position(where) < end for where, end in ends.items()):
            found = lines.poll(timeout_ms=1_000, max_records=100)
            if not found:
                continue
            with producer.transaction():
                words = [word for records in found.values() for record in records for word in record.value.split()]
                counts.update(words)
                for word in sorted(set(words)):
                    producer.send(COUNTS, key=word, value=str(counts[word]).encode())
                offsets = {where: records[-1].offset + 1 for where, records in found.items()}
                producer.send_offsets_to_transaction(offsets, lines.group_metadata())
                transactions += 1
                if transactions == dies_in:
                    producer.flush()
                    os._exit(1)
    return transactions


def committed_counts() -> Counter[bytes]:
    """The last committed count of each word."""
    counts: Counter[bytes] = Counter()
    with raylog.Consumer(isolation_level="read_committed", auto_offset_reset="earliest") as reader:
        partitions = [raylog.TopicPartition(COUNTS, number) for number in range(PARTITIONS)]
        reader.assign(partitions)
        ends = reader.end_offsets(partitions)
        while any(reader.position(where) < end for where, end in ends.items()):
            for records in reader.poll(timeout_ms=1_000).values():
                for record in records:
                    counts[record.key] = int(record.value)
    return counts


def main() -> int:
    """Write lines, have them counted by three workers, compare; returns the process's exit code."""
    arguments = _arguments()
    chance = random.Random(7)
    lines = [" ".join(chance.choices(WORDS, k=8)).encode() for _ in range(2_000)]
    expected = Counter(word for line in lines for word in line.split())
    with raylog.start(arguments.data_dir, address=arguments.address):
        with raylog.Admin() as admin:
            for topic in {LINES, COUNTS} & set(admin.list_topics()):
                admin.delete_topic(topic)
            admin.create_topic(LINES, partitions=PARTITIONS)
            admin.create_topic(COUNTS, partitions=PARTITIONS, config={"cleanup.policy": "compact"})
        with raylog.Producer() as producer:
            for line in lines:
                producer.send(LINES, line)
        for dies_in in (3, 5, None):
            try:
                done = ray.get(count_words.remote(dies_in))
                print(f"a worker finished after {done} transactions")
            except ray.exceptions.WorkerCrashedError:
                print(f"a worker died inside transaction {dies_in}")
        found = committed_counts()
    for word, count in sorted(found.items()):
        print(f"{word.decode()}: {count}, expected {expected[word]}")
    return 0 if found == expected else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default="raylog-data", help="where the broker keeps its files")
    parser.add_argument("--address", help="Ray cluster to use; default: the one that runs here, else a new one")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
