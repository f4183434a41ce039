"""The clients of a run: producers, a group with changing members, and one reader without a group; a thread each.

Every operation goes into the history. A thread ends on request; one that does not is a hang. May touch: threads, the
network through Raylog's clients.
"""

import random
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import raylog
from raylog.base.errors import (
    CommitFailed,
    FencedInstanceId,
    IllegalGeneration,
    OffsetOutOfRange,
    RaylogError,
    RecordTooLarge,
    UnknownMemberId,
)
from raylog.client.producer.futures import SendFuture
from tests.chaos.evidence.history import Commit, History, Moved, Outcome, Poll, Seen, Send

TOPIC: Final = "chaos"
GROUP: Final = "group"
READER: Final = "reader"
MAX_MESSAGE_BYTES: Final = 65_536
TOO_LARGE: Final = b"x" * (MAX_MESSAGE_BYTES + 1000)
KEYS: Final = 24
REFUSED_COMMITS: Final = (CommitFailed, IllegalGeneration, UnknownMemberId, FencedInstanceId)
DELIVERY_TIMEOUT_MS: Final = 60_000
POLL_MS: Final = 300
CALL_TIMEOUT_MS: Final = 15_000
POLL_PAUSE_S: Final = 0.02
RETRY_S: Final = 0.3
BURSTS_PER_S: Final = 50
CATCH_UP_S: Final = 2.0
"""Largest delay that a producer makes up for by sending faster."""
REFUSED_SHARE: Final = 0.001
"""Share of sends that are too large for the topic and always refused."""


def outcome_of(error: BaseException | None) -> Outcome:
    """The record's outcome at the end of its send: a leader refuses an oversized record before it appends."""
    if error is None:
        return "ok"
    return "fail" if isinstance(error, RecordTooLarge) else "unknown"


def in_words(error: BaseException) -> str:
    """The error as stored in the history."""
    return f"{type(error).__name__}: {error}"


class Workload:
    """All clients of a run."""

    def __init__(
        self,
        history: History,
        *,
        seed: int,
        partitions: int,
        producers: int,
        members: int,
        rate: float,
        clients: Callable[[], dict[str, Any]],
    ) -> None:
        """``rate``: records a second of each producer; ``clients``: arguments with which a client finds the cluster."""
        self._clients = clients
        self._history = history
        self._seed = seed
        self._partitions = partitions
        self._rate = rate
        self.no_more_sends = threading.Event()
        self.no_more_changes = threading.Event()
        """Membership is fixed from now on, so that the group can read to the end."""
        self.stop = threading.Event()
        self.errors: list[str] = []
        """Exceptions that no client should ever raise, each with its traceback's last line."""
        self._producers = [self._thread(f"producer-{n}", self._produce) for n in range(producers)]
        self._readers = [self._thread(f"member-{n}", self._be_member) for n in range(members)]
        self._readers.append(self._thread(READER, self._read_alone))

    def start(self) -> None:
        """Begin."""
        for thread in [*self._producers, *self._readers]:
            thread.start()

    def end_producers(self, timeout_s: float) -> list[str]:
        """Wait for the producers to finish; returns the names of those that did not."""
        self.no_more_sends.set()
        return _join(self._producers, timeout_s)

    def end_readers(self, timeout_s: float) -> list[str]:
        """Wait for the readers to finish; returns the names of those that did not."""
        self.stop.set()
        return _join(self._readers, timeout_s)

    def _thread(self, name: str, work: Callable[[str, random.Random], None]) -> threading.Thread:
        rng = random.Random(f"{self._seed}-{name}")

        def run() -> None:
            try:
                work(name, rng)
            except Exception as error:  # report any death of a client
                self.errors.append(f"{name} died: {in_words(error)}")

        return threading.Thread(target=run, name=name, daemon=True)

    # Producing

    def _produce(self, name: str, rng: random.Random) -> None:
        """Run producers one after another; each life is a producer of its own, with an id of its own."""
        life = 0
        while not self.no_more_sends.is_set():
            ends_s = time.monotonic() + rng.uniform(8, 25)
            try:
                producer = raylog.Producer(
                    client_id=name, delivery_timeout_ms=DELIVERY_TIMEOUT_MS, linger_ms=rng.choice((0, 5, 20)),
                    request_timeout_ms=CALL_TIMEOUT_MS, max_block_ms=CALL_TIMEOUT_MS, **self._clients(),
                )  # fmt: skip
            except RaylogError:
                self.no_more_sends.wait(RETRY_S)  # no broker is reachable; nothing was sent
                continue
            try:
                self._send_until(producer, f"{name}.{life}", rng, ends_s)
                producer.close(timeout=rng.choice((1.0, DELIVERY_TIMEOUT_MS / 1000)))
            finally:
                producer.close(timeout=1.0)
            life += 1

    def _send_until(self, producer: raylog.Producer, process: str, rng: random.Random, ends_s: float) -> None:
        number = 0
        next_s = time.monotonic()
        burst_max = max(1, round(2 * self._rate / BURSTS_PER_S) - 1)
        while time.monotonic() < ends_s and not self.no_more_sends.is_set():
            burst = rng.randint(1, burst_max)
            for _ in range(burst):
                self._send(producer, process, number, rng)
                number += 1
            next_s = max(next_s + burst * rng.uniform(0.2, 1.8) / self._rate, time.monotonic() - CATCH_UP_S)
            self.no_more_sends.wait(max(0.0, next_s - time.monotonic()))

    def _send(self, producer: raylog.Producer, process: str, number: int, rng: random.Random) -> None:
        history = self._history
        value = history.shared(f"{process}-{number}")
        key = b"%d" % rng.randrange(KEYS)
        is_refused = rng.random() < REFUSED_SHARE
        content = value.encode() + (b" " + TOO_LARGE if is_refused else b"")
        invoked_s = history.now_s()

        def done(future: SendFuture) -> None:
            error = future.exception(0)
            metadata = future.result(0) if error is None else None
            history.add(
                Send(
                    process, number, value, outcome_of(error),
                    metadata.partition if metadata is not None else -1, metadata.offset if metadata is not None else -1,
                    invoked_s, history.now_s(), "" if error is None else in_words(error),
                )
            )  # fmt: skip

        try:
            future = producer.send(TOPIC, content, key)
        except RaylogError as error:  # raised here, the record was never queued
            history.add(Send(process, number, value, "fail", -1, -1, invoked_s, history.now_s(), in_words(error)))
        else:
            future.add_done_callback(done)

    # Reading

    def _be_member(self, name: str, rng: random.Random) -> None:
        life = 0
        while not self.stop.is_set():
            stays = self.no_more_changes.is_set()
            ends_s = time.monotonic() + rng.uniform(8, 25)
            client = f"{name}.{life}"
            life += 1
            try:
                consumer = self._member(client)
            except RaylogError as error:
                self._note_error(client, GROUP, error)
                self.stop.wait(RETRY_S)
                continue
            try:
                while not self.stop.is_set() and (stays or self.no_more_changes.is_set() or time.monotonic() < ends_s):
                    self._poll(consumer, client, GROUP, commits=True)
            finally:
                self._close(consumer, client)
            if not self.no_more_changes.is_set():
                self.no_more_changes.wait(rng.uniform(0.2, 3))

    def _member(self, client: str) -> raylog.Consumer:
        consumer = raylog.Consumer(
            client_id=client, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False,
            session_timeout_ms=6_000, heartbeat_interval_ms=500, request_timeout_ms=CALL_TIMEOUT_MS,
            default_api_timeout_ms=CALL_TIMEOUT_MS, **self._clients(),
        )  # fmt: skip
        consumer.subscribe(
            [TOPIC],
            on_assigned=lambda partitions: self._moved(client, "assigned", partitions),
            on_revoked=lambda partitions: self._moved(client, "revoked", partitions),
            on_lost=lambda partitions: self._moved(client, "lost", partitions),
        )
        return consumer

    def _moved(self, client: str, kind: str, partitions: list[raylog.TopicPartition]) -> None:
        numbers = tuple(partition.partition for partition in partitions)
        now_s = self._history.now_s()
        self._history.add(Moved(client, GROUP, kind, numbers, now_s))  # type: ignore[arg-type]  # one of the three

    def _read_alone(self, name: str, _: random.Random) -> None:
        """One client for the whole run: it sees every record once, through all faults."""
        places = [raylog.TopicPartition(TOPIC, number) for number in range(self._partitions)]
        with raylog.Consumer(
            client_id=name, auto_offset_reset="none", request_timeout_ms=CALL_TIMEOUT_MS,
            default_api_timeout_ms=CALL_TIMEOUT_MS, **self._clients(),
        ) as consumer:  # fmt: skip
            consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            while not self.stop.is_set():
                if isinstance(self._poll(consumer, name, READER, commits=False), OffsetOutOfRange):
                    for place in places:
                        consumer.seek(place, 0)
                    numbers = tuple(range(self._partitions))
                    self._history.add(Moved(name, READER, "seek", numbers, self._history.now_s()))

    def _poll(self, consumer: raylog.Consumer, client: str, reader: str, *, commits: bool) -> RaylogError | None:
        """Poll once; the error if there was one."""
        history = self._history
        invoked_s = history.now_s()
        try:
            polled = consumer.poll(POLL_MS)
        except RaylogError as error:
            self._note_error(client, reader, error)
            self.stop.wait(RETRY_S)
            return error
        if polled:
            seen: list[Seen] = [
                (place.partition, record.offset, history.shared(bytes(record.value).split(b" ", 1)[0].decode()))
                for place, records in polled.items()
                for record in records
            ]
            history.add(Poll(client, reader, tuple(seen), "ok", invoked_s, history.now_s()))
            if commits:
                self._commit(consumer, client, seen)
            self.stop.wait(POLL_PAUSE_S)  # larger polls, for a small machine
        return None

    def _commit(self, consumer: raylog.Consumer, client: str, seen: list[Seen]) -> None:
        """Commit what is in the history by now, so that no unread record can be committed."""
        history = self._history
        offsets: dict[int, int] = {}
        for partition, offset, _ in seen:
            offsets[partition] = max(offsets.get(partition, 0), offset + 1)
        invoked_s = history.now_s()
        outcome: Outcome = "ok"
        words = ""
        try:
            consumer.commit({raylog.TopicPartition(TOPIC, number): offset for number, offset in offsets.items()})
        except RaylogError as error:
            outcome = "fail" if isinstance(error, REFUSED_COMMITS) else "unknown"
            words = in_words(error)
        history.add(Commit(client, GROUP, offsets, outcome, invoked_s, history.now_s(), words))

    def _note_error(self, client: str, reader: str, error: RaylogError) -> None:
        now_s = self._history.now_s()
        self._history.add(Poll(client, reader, (), "fail", now_s, now_s, in_words(error)))

    def _close(self, consumer: raylog.Consumer, client: str) -> None:
        try:
            consumer.close(autocommit=False)
        except RaylogError as error:
            self._note_error(client, GROUP, error)


def _join(threads: list[threading.Thread], timeout_s: float) -> list[str]:
    deadline_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]
