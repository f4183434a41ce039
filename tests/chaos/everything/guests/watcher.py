"""One reader for the whole run, of every topic in which records are to arrive once. May touch: threads, the network."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import raylog
from raylog.base.errors import RaylogError
from raylog.core.dead_letters import REASON
from tests.chaos.everything.guests.base import Guest, Scene
from tests.chaos.everything.journal import Seen, now_ms
from tests.chaos.workload import CALL_TIMEOUT_MS, POLL_MS, RETRY_S, in_words

NAME: Final = "watcher"


def seen_of(reader: str, record: raylog.Record) -> Seen:
    """A record as a reader has got it."""
    reason = b""
    for header, value in record.headers:
        if header == REASON:
            reason = value or b""
    key = b"" if record.key is None else bytes(record.key)
    value = b"" if record.value is None else bytes(record.value)
    return Seen(
        reader, record.topic, record.partition, record.offset, value.decode(), now_ms(), record.timestamp_ms,
        reason.decode(), key.decode(),
    )  # fmt: skip


class Watcher(Guest):
    """Reads topics from their first record on."""

    def __init__(self, scene: Scene) -> None:
        """Topics are to be added before the start."""
        super().__init__(scene)
        self._watched: dict[str, Callable[[str], None]] = {}
        self._places: list[raylog.TopicPartition] = []
        self.reads(NAME, self._read)

    def watch(self, topic: str, came: Callable[[str], None], partitions: int = 1) -> None:
        """Read a topic as well, and pass on the names of its records."""
        self._watched[topic] = came
        self._places += [raylog.TopicPartition(topic, number) for number in range(partitions)]

    def _read(self, _: random.Random) -> None:
        with reader_of(self.scene, NAME) as consumer:
            consumer.assign(self._places)
            for place in self._places:
                consumer.seek(place, 0)
            while not self.scene.over.is_set():
                for seen in poll(self.scene, consumer, NAME):
                    self._watched[seen.topic](seen.name)


def reader_of(scene: Scene, name: str, **options: Any) -> raylog.Consumer:
    """A consumer without a group."""
    options = {"auto_offset_reset": "none", **options}
    return raylog.Consumer(
        client_id=name, request_timeout_ms=CALL_TIMEOUT_MS, default_api_timeout_ms=CALL_TIMEOUT_MS,
        **options, **scene.clients(),
    )  # fmt: skip


def poll(scene: Scene, consumer: raylog.Consumer, name: str) -> list[Seen]:
    """Poll once, and note what comes; an error is a remark."""
    try:
        polled = consumer.poll(POLL_MS)
    except RaylogError as error:
        scene.remark(f"{name}: {in_words(error)}")
        scene.over.wait(RETRY_S)
        return []
    found = [seen_of(name, record) for records in polled.values() for record in records]
    if found:
        scene.journal.add(*found)
    return found
