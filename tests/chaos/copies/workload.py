"""The clients beside the workers: sources that write in transactions, and a reader of the results; a thread each.

Everything goes into the ledger of the simulator's claims before it is done, and into the history for the report.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import raylog
from raylog.base.errors import RaylogError
from tests.chaos.copies.worker import CALL_TIMEOUT_MS, POLL_MS, RESULTS, RETRY_S, SOURCE, TRANSACTION_TIMEOUT_MS
from tests.chaos.evidence.history import History, Poll, Send
from tests.simulation.whole.transactions.ledger import Ledger, Txn
from tests.simulation.world import Violation

READER: Final = "results"
PAUSE_S: Final = (0.0, 0.2)
RECORDS: Final = (1, 40)
"""Records of a transaction."""
ABORTED_SHARE: Final = 0.15


class CopiesWorkload:
    """The sources and the reader of one run."""

    def __init__(
        self,
        history: History,
        *,
        seed: int,
        partitions: int,
        sources: int,
        clients: Callable[[], dict[str, Any]],
        pause_s: tuple[float, float] = PAUSE_S,
        topics: tuple[str, ...] = (RESULTS,),
    ) -> None:
        """``clients``: arguments with which a client finds the cluster; ``topics``: those that the reader reads.

        ``pause_s``: shortest and longest pause of a source between two transactions.
        """
        self.ledger = Ledger()
        self._history, self._seed, self._clients = history, seed, clients
        self._partitions, self._pause_s, self._topics = partitions, pause_s, topics
        self._no_more = threading.Event()
        self._over = threading.Event()
        self.errors: list[str] = []
        """Exceptions that no client should ever raise."""
        self.violations: list[Violation] = []
        self.read: dict[raylog.TopicPartition, dict[int, bytes]] = {}
        """What the reader has got, by offset."""
        self._sources = [self._thread(f"source-{number}", self._be_source) for number in range(sources)]
        self._reader = self._thread(READER, self._be_reader)

    def start(self) -> None:
        """Begin."""
        for thread in (*self._sources, self._reader):
            thread.start()

    def end_sources(self, timeout_s: float) -> list[str]:
        """Wait for the sources to finish; returns the names of those that did not."""
        self._no_more.set()
        return _late(self._sources, timeout_s)

    def end_reader(self, timeout_s: float) -> list[str]:
        """Wait for the reader to finish; returns its name if it did not."""
        self._over.set()
        return _late([self._reader], timeout_s)

    def read_of(self, topic: str) -> dict[raylog.TopicPartition, dict[int, bytes]]:
        """Return what the reader has got of a topic, by partition and offset."""
        return {place: records for place, records in self.read.items() if place.topic == topic}

    def _thread(self, name: str, work: Callable[[str, random.Random], None]) -> threading.Thread:
        def run() -> None:
            try:
                work(name, random.Random(f"{self._seed}-{name}"))
            except Violation as found:
                self.violations.append(found)
            except Exception as error:  # report any death of a client
                self.errors.append(f"{name} died: {error!r}")

        return threading.Thread(target=run, name=name, daemon=True)

    # Sources

    def _be_source(self, name: str, rng: random.Random) -> None:
        life = 0
        while not self._no_more.is_set():
            life += 1
            ends_s = time.monotonic() + rng.uniform(8, 25)
            try:
                with raylog.Producer(
                    transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                    delivery_timeout_ms=CALL_TIMEOUT_MS, request_timeout_ms=CALL_TIMEOUT_MS // 3,
                    max_block_ms=CALL_TIMEOUT_MS, **self._clients(),
                ) as producer:  # fmt: skip
                    producer.init_transactions()
                    number = 0
                    while time.monotonic() < ends_s and not self._no_more.is_set():
                        number += 1
                        self._transaction(producer, f"{name}.{life}.{number}", rng)
                        self._no_more.wait(rng.uniform(*self._pause_s))
            except RaylogError:
                self._no_more.wait(RETRY_S)

    def _transaction(self, producer: raylog.Producer, name: str, rng: random.Random) -> None:
        """Send and end one transaction; raises RaylogError where its producer cannot go on."""
        ledger, history = self.ledger, self._history
        txn = ledger.begin(name)
        began_s = history.now_s()
        producer.begin_transaction()
        try:
            for number in range(rng.randint(*RECORDS)):
                at = raylog.TopicPartition(SOURCE, rng.randrange(self._partitions))
                value = f"{name}.{number}".encode()
                ledger.sends(txn, at, value)
                producer.send(SOURCE, value, partition=at.partition)
            if rng.random() >= ABORTED_SHARE:
                ledger.commits(txn)
                producer.commit_transaction()
                ledger.committed(txn)
                self._note(txn, began_s)
                return
        except RaylogError as error:
            self._note(txn, began_s, repr(error))
        producer.abort_transaction()
        ledger.aborted(txn)

    def _note(self, txn: Txn, began_s: float, error: str = "") -> None:
        """Add a transaction's records to the history, for the report."""
        now_s, outcome = self._history.now_s(), "unknown" if error else "ok"
        for number, (at, value) in enumerate(txn.values):
            send = Send(txn.name, number, value.decode(), outcome, at.partition, -1, began_s, now_s, error)  # type: ignore[arg-type]
            self._history.add(send)

    # The reader

    def _be_reader(self, name: str, _: random.Random) -> None:
        """One reader of committed records for the whole run: it gets each once, in order."""
        places = [raylog.TopicPartition(topic, number) for topic in self._topics for number in range(self._partitions)]
        self.read = {place: {} for place in places}
        positions = dict.fromkeys(places, 0)
        with raylog.Consumer(
            client_id=name, isolation_level="read_committed", auto_offset_reset="none",
            request_timeout_ms=CALL_TIMEOUT_MS, default_api_timeout_ms=CALL_TIMEOUT_MS, **self._clients(),
        ) as consumer:  # fmt: skip
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            while not self._over.is_set():
                invoked_s = self._history.now_s()
                try:
                    polled = consumer.poll(POLL_MS)
                except RaylogError as error:
                    print(f"{name} at {positions}: {error!r}", flush=True)
                    self._over.wait(RETRY_S)
                    continue
                seen = []
                for place, records in polled.items():
                    for record in records:
                        self.ledger.step(name, place, positions[place], record.offset)
                        positions[place] = record.offset + 1
                        self.read[place][record.offset] = record.value
                        seen.append((place.partition, record.offset, ""))
                if seen:
                    self._history.add(Poll(name, READER, tuple(seen), "ok", invoked_s, self._history.now_s()))


def _late(threads: list[threading.Thread], timeout_s: float) -> list[str]:
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
