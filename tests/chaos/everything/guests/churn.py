"""Topics that are deleted and created again, over and over, under readers and a producer that stay.

May touch: threads, the network through Raylog's clients.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

import raylog
from raylog.base.errors import RaylogError, UnknownTopicOrPartition
from tests.chaos.everything.claims.churn import ASSIGNED, FEATURE, LATE, READERS, SUBSCRIBED
from tests.chaos.everything.guests.base import Guest, Scene
from tests.chaos.everything.guests.watcher import poll, reader_of
from tests.chaos.everything.journal import Awaited, Lived, Sent, now_ms
from tests.chaos.workload import CALL_TIMEOUT_MS, DELIVERY_TIMEOUT_MS, RETRY_S, in_words

TOPICS: Final = ("churn-a", "churn-b")
RECORDS: Final = (1, 120)
"""Of a life."""
READ_WITHIN_S: Final = 180.0
"""How soon readers have got a life, whatever is broken meanwhile."""
LOOK_S: Final = 0.05
BETWEEN_S: Final = (0.0, 3.0)
"""Between a deletion and the next life."""
CALM_S: Final = (2.0, 8.0)
"""How long a life goes on once it was read."""
LATE_MS: Final = (500, 6_000)
Client = TypeVar("Client", raylog.Admin, raylog.Producer)


class Churn(Guest):
    """A thread for each topic, and the two readers."""

    def __init__(self, scene: Scene) -> None:
        """Nothing runs yet."""
        super().__init__(scene)
        self._got = {reader: Awaited() for reader in READERS}
        self._first = threading.Event()
        self.lives = 0
        for topic in TOPICS:
            self.sends(topic, partial(self._live, topic))
        self.reads(ASSIGNED, self._read_assigned)
        self.reads(SUBSCRIBED, self._read_subscribed)

    def prepare(self, admin: raylog.Admin) -> None:
        """Create the first lives."""
        for topic in TOPICS:
            self.scene.create(admin, topic, 1)
            self.journal.add(Lived(topic, 0, "created", now_ms()))

    def behind(self) -> str:
        """Which reader has not got everything."""
        for reader, awaited in self._got.items():
            if missing := awaited.missing():
                return f"{reader} has not got {len(missing)} records, such as {missing[0]}"
        return ""

    # Lives

    def _live(self, topic: str, rng: random.Random) -> None:
        life = 0
        with self._patiently(self._new_admin) as admin, self._patiently(self._new_producer) as producer:
            while not self.scene.no_more.is_set():
                self._fill(producer, topic, life, rng)
                self.scene.no_more.wait(rng.uniform(*CALM_S))
                if self.scene.no_more.is_set():
                    return  # the last life stays
                self._end(admin, producer, topic, life, rng)
                life += 1
                self.lives += 1
                self.scene.create(admin, topic, 1)
                self.journal.add(Lived(topic, life, "created", now_ms()))

    def _new_admin(self) -> raylog.Admin:
        return raylog.Admin(**self.scene.clients())

    def _new_producer(self) -> raylog.Producer:
        return raylog.Producer(
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS, request_timeout_ms=CALL_TIMEOUT_MS, max_block_ms=CALL_TIMEOUT_MS,
            **self.scene.clients(),
        )  # fmt: skip

    def _patiently(self, make: Callable[[], Client]) -> Client:
        while True:
            try:
                return make()
            except RaylogError as error:
                self.scene.remark(in_words(error))
                self.scene.over.wait(RETRY_S)

    def _fill(self, producer: raylog.Producer, topic: str, life: int, rng: random.Random) -> None:
        """Write a life, and wait until both readers have got it."""
        for number in range(rng.randint(*RECORDS)):
            sent = Sent(FEATURE, f"{topic}/{life}/{number}", "ok")
            self.send(producer, topic, sent, on_stored=self._stored)
        try:
            producer.flush(DELIVERY_TIMEOUT_MS / 1000 + CALL_TIMEOUT_MS / 1000)
        except RaylogError as error:
            self.scene.remark(f"{topic} in life {life}: {in_words(error)}")
        deadline_s = time.monotonic() + READ_WITHIN_S
        prefix = f"{topic}/"
        while any(name.startswith(prefix) for awaited in self._got.values() for name in awaited.missing()):
            if time.monotonic() > deadline_s:
                self.scene.late.append(f"{topic} was not read in life {life}: {self.behind()}")
                return
            if self.scene.over.wait(LOOK_S):
                return

    def _stored(self, sent: Sent, _: raylog.RecordMetadata) -> None:
        for awaited in self._got.values():
            awaited.expect(sent.name)

    def _end(self, admin: raylog.Admin, producer: raylog.Producer, topic: str, life: int, rng: random.Random) -> None:
        """Delete the topic, with a record on its way that is due later."""
        due_ms = now_ms() + rng.randint(*LATE_MS)
        self.send(producer, topic, Sent(LATE, f"{topic}/{life}/late-0", "ok", due_ms=due_ms), deliver_at=due_ms)
        self.journal.add(Lived(topic, life, "ends", now_ms()))
        while not self.scene.over.is_set():
            try:
                admin.delete_topic(topic, timeout_s=CALL_TIMEOUT_MS / 1000)
            except UnknownTopicOrPartition:
                break  # by a request whose answer was lost
            except RaylogError as error:
                self.scene.remark(f"{topic} was not deleted: {in_words(error)}")
                self.scene.over.wait(RETRY_S)
            else:
                break
        self.scene.over.wait(rng.uniform(*BETWEEN_S))

    # Readers

    def _read_assigned(self, _: random.Random) -> None:
        places = [raylog.TopicPartition(topic, 0) for topic in TOPICS]
        with reader_of(self.scene, ASSIGNED, auto_offset_reset="earliest") as consumer:
            consumer.assign(places)
            self._read(consumer, ASSIGNED)

    def _read_subscribed(self, _: random.Random) -> None:
        with reader_of(
            self.scene, SUBSCRIBED, auto_offset_reset="earliest", group_id=SUBSCRIBED, session_timeout_ms=6_000,
            heartbeat_interval_ms=500,
        ) as consumer:  # fmt: skip
            consumer.subscribe(list(TOPICS))
            self._read(consumer, SUBSCRIBED)

    def _read(self, consumer: raylog.Consumer, name: str) -> None:
        while not self.scene.over.is_set():
            for seen in poll(self.scene, consumer, name):
                self._got[name].came(seen.name)
