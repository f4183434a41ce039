"""A Ray actor that copies a topic, exactly once: records, and the group's offsets, in one transaction each time.

Ray starts a killed one again; its next life has the same transactional id, and so fences what is left of the last one.
"""

import os
import random
import threading
from typing import Any, Final

import raylog
from raylog.base.errors import RaylogError

SOURCE: Final = "chaos"
RESULTS: Final = "results"
GROUP: Final = "copiers"
CALL_TIMEOUT_MS: Final = 15_000
TRANSACTION_TIMEOUT_MS: Final = 10_000
POLL_MS: Final = 300
RETRY_S: Final = 0.3
ABORTED_SHARE: Final = 0.03
"""Share of transactions that the worker aborts at its own will."""


def copy_of(partition: int, offset: int, worker: str, value: bytes) -> bytes:
    """Return the copy of a record: it names its source, and differs from every other copy of it."""
    return b"%d@%d|%s|%s" % (partition, offset, worker.encode(), value)


def source_of(copy: bytes) -> tuple[int, int]:
    """Return partition and offset of the record that this is a copy of."""
    partition, _, offset = copy.partition(b"|")[0].partition(b"@")
    return int(partition), int(offset)


class CopyWorker:
    """One member of the group of copiers; copies in a thread of its own."""

    def __init__(self, number: int, clients: dict[str, Any], pause_s: float = 0.0) -> None:
        """Begin to copy. ``clients``: arguments with which a client finds the cluster.

        ``pause_s``: between two transactions, which are larger then, and cost less.
        """
        self._number, self._clients, self._pause_s = number, clients, pause_s
        self._random = random.Random(f"{number}-{os.getpid()}")
        self._over = threading.Event()
        self._copies = 0
        self._thread = threading.Thread(target=self._live, name="copies", daemon=True)
        self._thread.start()

    def pid(self) -> int:
        """Return the process id of this life."""
        return os.getpid()

    def end(self) -> bool:
        """End; returns whether the thread has ended."""
        self._over.set()
        self._thread.join(CALL_TIMEOUT_MS / 1000)
        return not self._thread.is_alive()

    def _live(self) -> None:
        while not self._over.is_set():
            try:
                self._copy_for_a_while()
            except RaylogError as error:
                print(f"copier {self._number}: {error!r}", flush=True)
                self._over.wait(RETRY_S)

    def _copy_for_a_while(self) -> None:
        with raylog.Producer(
            transactional_id=f"copier-{self._number}", transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            delivery_timeout_ms=CALL_TIMEOUT_MS, request_timeout_ms=CALL_TIMEOUT_MS // 3, max_block_ms=CALL_TIMEOUT_MS,
            **self._clients,
        ) as producer:  # fmt: skip
            producer.init_transactions()
            with raylog.Consumer(
                SOURCE, group_id=GROUP, isolation_level="read_committed", auto_offset_reset="earliest",
                enable_auto_commit=False, session_timeout_ms=6_000, heartbeat_interval_ms=500,
                request_timeout_ms=CALL_TIMEOUT_MS, default_api_timeout_ms=CALL_TIMEOUT_MS, **self._clients,
            ) as consumer:  # fmt: skip
                while not self._over.is_set():
                    self._copy_once(consumer, producer)
                    self._over.wait(self._pause_s)

    def _copy_once(self, consumer: raylog.Consumer, producer: raylog.Producer) -> None:
        """Copy what a poll brings; where that fails, abort and go back to what is committed."""
        polled = consumer.poll(POLL_MS)
        if not polled:
            return
        producer.begin_transaction()
        try:
            offsets: dict[raylog.TopicPartition, int] = {}
            for at, records in polled.items():
                for record in records:
                    self._copies += 1
                    name = f"{self._number}.{os.getpid()}.{self._copies}"
                    copy = copy_of(at.partition, record.offset, name, record.value)
                    producer.send(RESULTS, copy, partition=at.partition)
                    offsets[at] = record.offset + 1
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if self._random.random() >= ABORTED_SHARE:
                producer.commit_transaction()
                return
        except RaylogError as error:
            print(f"copier {self._number}: {error!r}", flush=True)
        producer.abort_transaction()
        consumer.seek_to_committed()
