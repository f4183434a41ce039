"""A compacted topic under faults: a thread writes records of a few keys; at the end the last value of each is there.

What it knows comes from acknowledgements alone. The topic's segments are small, and its cleaners run all the time. May
touch: a thread, the network through Raylog's clients.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import raylog
from raylog.base.errors import RaylogError
from raylog.client.producer.futures import SendFuture
from tests.chaos.evidence.checker import Anomaly
from tests.chaos.workload import CALL_TIMEOUT_MS, DELIVERY_TIMEOUT_MS, RETRY_S, in_words

TABLE: Final = "chaos-table"
CONFIG: Final[dict[str, object]] = {
    "cleanup.policy": "compact",
    "segment.bytes": 16_384,
    "min.cleanable.dirty.ratio": 0.1,
    "file.delete.delay.ms": 1_000,
}
COMPACTED: Final = (TABLE, "__consumer_offsets", "__transaction_state")
"""Topics whose replicas hold equal records, and not equal bytes."""
KEYS: Final = 50
REMOVALS: Final = 0.1
LIFE_S: Final = (8.0, 25.0)
PAUSE_S: Final = 0.05
BURST: Final = 10
READ_S: Final = 60.0


class Table:
    """The writer of the table, and the judge of what is left of it."""

    def __init__(self, seed: int, clients: Callable[[], dict[str, Any]]) -> None:
        """``clients``: arguments with which a client finds the cluster."""
        self._draw = random.Random(f"{seed}-table")
        self._clients = clients
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._sent: dict[str, tuple[bytes, bool]] = {}
        """Key of each record, and whether it has a value, by the name in its header."""
        self._acked: dict[int, str] = {}
        """Name of each acknowledged record, by offset."""
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run, name="table", daemon=True)

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged."""
        with self._lock:
            return len(self._acked)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, timeout_s: float) -> bool:
        """Write no more; returns whether the writer has ended."""
        self._over.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._live()
        except Exception as error:  # report any death of a client
            self.errors.append(f"the writer of the table died: {in_words(error)}")

    def _live(self) -> None:
        """One producer's life."""
        ends_s = time.monotonic() + self._draw.uniform(*LIFE_S)
        try:
            producer = raylog.Producer(
                client_id="table", delivery_timeout_ms=DELIVERY_TIMEOUT_MS, request_timeout_ms=CALL_TIMEOUT_MS,
                max_block_ms=CALL_TIMEOUT_MS, **self._clients(),
            )  # fmt: skip
        except RaylogError:
            self._over.wait(RETRY_S)
            return
        try:
            while time.monotonic() < ends_s and not self._over.is_set():
                for _ in range(self._draw.randint(1, BURST)):
                    self._put(producer)
                self._over.wait(PAUSE_S)
        finally:
            producer.close(timeout=DELIVERY_TIMEOUT_MS / 1000)

    def _put(self, producer: raylog.Producer) -> None:
        key = b"key %d" % int(KEYS * self._draw.random() ** 2)
        has_value = self._draw.random() >= REMOVALS
        with self._lock:
            name = f"{len(self._sent)}"
            self._sent[name] = (key, has_value)

        def done(future: SendFuture) -> None:
            if future.exception(0) is None:
                with self._lock:
                    self._acked[future.result(0).offset] = name

        try:
            value = name.encode() + b" " * 60 if has_value else None
            future = producer.send(TABLE, value, key, [("name", name.encode())])
        except RaylogError:
            return
        future.add_done_callback(done)

    # ------------------------------------------------------------ the judgement

    def judge(self) -> tuple[list[Anomaly], str]:
        """Read the table from its start to its end; what is wrong with it, and a remark."""
        found: dict[int, str] = {}
        anomalies: list[Anomaly] = []
        where = raylog.TopicPartition(TABLE, 0)
        until_s = time.monotonic() + READ_S
        with raylog.Consumer(auto_offset_reset="earliest", **self._clients()) as consumer:
            consumer.assign([where])
            end = consumer.end_offsets([where])[where]
            while consumer.position(where) < end:
                if time.monotonic() > until_s:
                    return [Anomaly("table not read", f"at {consumer.position(where)} of {end} after {READ_S} s")], ""
                for record in consumer.poll(500).get(where, []):
                    name = bytes(dict(record.headers)["name"] or b"").decode()
                    if self._sent.get(name) != (record.key, record.value is not None):
                        anomalies.append(Anomaly("table invented", f"{record} was never sent"))
                    found[record.offset] = name
        anomalies += self._compared(found)
        return anomalies, f"{len(found):,} records are left of {self.acknowledged:,} that the table was given"

    def _compared(self, found: dict[int, str]) -> list[Anomaly]:
        """The last acknowledged record of each key is there, or a later one; and every record has its offset."""
        wrong = [
            Anomaly("table changed", f"offset {offset} has {name!r}, {self._acked[offset]!r} was acknowledged there")
            for offset, name in found.items()
            if self._acked.get(offset, name) != name
        ]
        last_read: dict[bytes, int] = {}
        for offset, name in sorted(found.items()):
            last_read[self._sent[name][0]] = offset
        last_acked: dict[bytes, int] = {}
        for offset, name in sorted(self._acked.items()):
            last_acked[self._sent[name][0]] = offset
        return wrong + [
            Anomaly("table lost", f"the last record of {key!r}, acknowledged at {offset}, is not there")
            for key, offset in last_acked.items()
            if last_read.get(key, -1) < offset
        ]
