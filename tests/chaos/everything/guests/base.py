"""What the guests share: the scene they play in, threads with a name, producers that live one after the other.

May touch: threads, the network through Raylog's clients, the file of their remarks.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import raylog
from raylog.base.errors import InvalidReplicationFactor, RaylogError, TopicAlreadyExists
from raylog.client.producer.futures import SendFuture
from tests.chaos.everything.journal import Awaited, Journal, Sent, now_ms
from tests.chaos.workload import CALL_TIMEOUT_MS, DELIVERY_TIMEOUT_MS, RETRY_S, in_words, outcome_of

START_S: Final = 180.0
LIFE_S: Final = (15.0, 60.0)
"""Of a producer or a consumer, before another one takes its place."""
BURSTS_PER_S: Final = 10
CATCH_UP_S: Final = 2.0


class Scene:
    """What is common to the guests of a run."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        rate: float,
        brokers: int,
        partitions: int,
        clients: Callable[[], dict[str, Any]],
        config: Mapping[str, object],
    ) -> None:
        """``rate``: records a second of each feature; ``config``: of each topic that is not compacted.

        ``partitions``: of topics that may have several.
        """
        self.folder = folder
        self.seed = seed
        self.rate = rate
        self.partitions = partitions
        self.replicas = min(3, brokers)
        self.clients = clients
        self.config = config
        self.journal = Journal(folder / "journal.jsonl")
        self.no_more = threading.Event()
        """Nothing is sent from now on."""
        self.over = threading.Event()
        """Nothing is read from now on."""
        self.errors: list[str] = []
        """What no client should ever raise."""
        self.late: list[str] = []
        """What did not happen in time."""
        self._lock = threading.Lock()
        self._remarks = (folder / "guests.log").open("w", buffering=1)

    def remark(self, text: str) -> None:
        """Note what a guest met, such as an error that is allowed."""
        with self._lock:
            if not self._remarks.closed:
                self._remarks.write(f"{now_ms()} {threading.current_thread().name}: {text}\n")

    def close(self) -> None:
        """Finish the files."""
        self.journal.close()
        with self._lock:
            self._remarks.close()

    def create(
        self, admin: raylog.Admin, topic: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic, however often the request has to be repeated; raises RaylogError after the deadline."""
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                admin.create_topic(
                    topic,
                    partitions,
                    self.replicas,
                    {**self.config, **(config or {})},
                    timeout_s=CALL_TIMEOUT_MS / 1000,
                )
            except TopicAlreadyExists:
                pass  # by a request whose answer was lost
            except RaylogError as error:
                if time.monotonic() > deadline_s:
                    raise
                known = not isinstance(error, InvalidReplicationFactor) and _exists(admin, topic)
                self.remark(f"{topic} was not created: {in_words(error)}")
                if not known:
                    self.over.wait(RETRY_S)
                    continue
            return


def _exists(admin: raylog.Admin, topic: str) -> bool:
    try:
        return topic in admin.list_topics()
    except RaylogError:
        return False


class Guest:
    """The clients of one feature. A thread each."""

    def __init__(self, scene: Scene) -> None:
        """Nothing runs yet."""
        self.scene = scene
        self.journal = scene.journal
        self.awaited = Awaited()
        self._senders: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []

    def prepare(self, admin: raylog.Admin) -> None:
        """Create the topics."""

    def start(self) -> None:
        """Begin."""
        for thread in (*self._readers, *self._senders):
            thread.start()

    def end_senders(self, timeout_s: float) -> list[str]:
        """Wait until what sends has ended; returns the names of threads that have not."""
        return _late(self._senders, timeout_s)

    def end_readers(self, timeout_s: float) -> list[str]:
        """Wait until what reads has ended; returns the names of threads that have not."""
        return _late(self._readers, timeout_s)

    def behind(self) -> str:
        """What has yet to happen when nothing more is sent; "" = nothing."""
        missing = self.awaited.missing()
        return f"{len(missing)} are missing, such as {missing[0]}" if missing else ""

    # For the guests themselves

    def sends(self, name: str, work: Callable[[random.Random], None]) -> None:
        """Add a thread that ends when nothing more is to be sent."""
        self._senders.append(self._thread(name, work))

    def reads(self, name: str, work: Callable[[random.Random], None]) -> None:
        """Add a thread that ends when the run is over."""
        self._readers.append(self._thread(name, work))

    def _thread(self, name: str, work: Callable[[random.Random], None]) -> threading.Thread:
        rng = random.Random(f"{self.scene.seed}-{name}")

        def run() -> None:
            try:
                work(rng)
            except Exception as error:  # report any death of a client
                self.scene.errors.append(f"{name} died: {in_words(error)}")
                self.scene.remark("".join(traceback.format_exception(error)))

        return threading.Thread(target=run, name=name, daemon=True)

    def producers(self, rng: random.Random, send: Callable[[raylog.Producer, random.Random], None]) -> None:
        """Call ``send`` at the rate, with producers that live one after the other, until nothing more is to be sent."""
        no_more, rate = self.scene.no_more, self.scene.rate
        largest = max(1, round(2 * rate / BURSTS_PER_S) - 1)
        next_s = time.monotonic()
        while not no_more.is_set():
            ends_s = time.monotonic() + rng.uniform(*LIFE_S)
            try:
                producer = raylog.Producer(
                    delivery_timeout_ms=DELIVERY_TIMEOUT_MS, linger_ms=rng.choice((0, 5, 20)),
                    request_timeout_ms=CALL_TIMEOUT_MS, max_block_ms=CALL_TIMEOUT_MS, **self.scene.clients(),
                )  # fmt: skip
            except RaylogError as error:
                self.scene.remark(f"no producer: {in_words(error)}")
                no_more.wait(RETRY_S)
                continue
            try:
                while time.monotonic() < ends_s and not no_more.is_set():
                    burst = rng.randint(1, largest)
                    for _ in range(burst):
                        send(producer, rng)
                    next_s = max(next_s + burst * rng.uniform(0.2, 1.8) / rate, time.monotonic() - CATCH_UP_S)
                    no_more.wait(max(0.0, next_s - time.monotonic()))
            finally:
                producer.close(timeout=DELIVERY_TIMEOUT_MS / 1000)

    def send(
        self,
        producer: raylog.Producer,
        topic: str,
        sent: Sent,
        *,
        ttl_ms: int = 0,
        on_stored: Callable[[Sent, raylog.RecordMetadata], None] | None = None,
        **options: Any,
    ) -> None:
        """Send a record, and note its end. ``ttl_ms``: its time to live, from its timestamp on."""
        sent_ms = now_ms()

        def done(future: SendFuture) -> None:
            error = future.exception(0)
            if error is not None:
                self._note(sent, sent_ms, error, ttl_ms)
                return
            stored = future.result(0)
            found = Sent(
                sent.feature, sent.name, "ok", sent.key, stored.partition, stored.offset, sent_ms, now_ms(),
                stored.timestamp_ms + ttl_ms if ttl_ms else sent.due_ms,
            )  # fmt: skip
            self.journal.add(found)
            if on_stored is not None:
                on_stored(found, stored)

        try:
            future = producer.send(topic, sent.name.encode(), sent.key.encode() or None, **options)
        except RaylogError as error:  # raised here, the record was never queued
            self._note(sent, sent_ms, error, ttl_ms, was_queued=False)
        else:
            future.add_done_callback(done)

    def _note(self, sent: Sent, sent_ms: int, error: BaseException, ttl_ms: int, *, was_queued: bool = True) -> None:
        outcome = outcome_of(error) if was_queued else "fail"
        due_ms = sent_ms + ttl_ms if ttl_ms else sent.due_ms
        words = in_words(error)
        self.journal.add(Sent(sent.feature, sent.name, outcome, sent.key, -1, -1, sent_ms, now_ms(), due_ms, words))
        self.scene.remark(f"{sent.name} was not stored: {words}")

    def expects(self, sent: Sent, _: raylog.RecordMetadata) -> None:
        """A record was stored that has to come."""
        self.awaited.expect(sent.name)


def _late(threads: list[threading.Thread], timeout_s: float) -> list[str]:
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline_s - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
