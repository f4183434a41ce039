"""What a program works with: a kit, topics and groups of its own, and clients that are closed at its end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

from tests.conformance.base import Kit, Operator, Options, Place, Read, Reader, Stored, Writer

READ_S = 20.0
_numbers = itertools.count(1)


class Stage:
    """One run of record program."""

    def __init__(self, kit: Kit) -> None:
        """Nothing is opened before it is wanted."""
        self._kit = kit
        self._closing = ExitStack()
        self._operator: Operator | None = None

    def __enter__(self) -> Self:
        """Nothing more."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close every client."""
        self._closing.close()

    @property
    def operator(self) -> Operator:
        """The administrator's client."""
        if self._operator is None:
            self._operator = self._kit.operator()
            self._closing.callback(self._closed, self._operator.close)
        return self._operator

    def name(self, what: str = "t") -> str:
        """A name that no other run has."""
        return f"{what}-{self._kit.name}-{next(_numbers)}"

    def topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic."""
        name = self.name()
        self.operator.create_topic(name, partitions, config)
        return name

    def filled(self, count: int, partitions: int = 1) -> str:
        """Create a topic whose partition 0 has the records 0, 1, 2, ..."""
        name = self.topic(partitions)
        self.put(name, *(b"%d" % number for number in range(count)))
        return name

    def put(self, topic: str, *values: bytes, **options: Any) -> list[Stored]:
        """Store records in partition 0, in their order."""
        writer = self.writer({"acks": "all"})
        waits = [writer.send(topic, value, partition=0, **options) for value in values]
        return [wait() for wait in waits]

    def writer(self, options: Options | None = None) -> Writer:
        """Make a producer."""
        made = self._kit.writer(options)
        self._closing.callback(self._closed, made.close)
        return made

    def reader(self, options: Options | None = None) -> Reader:
        """Make a consumer."""
        made = self._kit.reader(options)
        self._closing.callback(self._closed, made.close)
        return made

    def at(self, place: Place, options: Options | None = None) -> Reader:
        """A consumer of record partition, from its beginning."""
        reader = self.reader({"auto.offset.reset": "earliest", "enable.auto.commit": False, **(options or {})})
        reader.assign([place])
        return reader

    def member(self, topic: str, group: str, options: Options | None = None) -> Reader:
        """A consumer in a group, which has its partitions."""
        reader = self.reader(
            {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **(options or {})}
        )
        reader.subscribe([topic])
        return reader

    def refused(self, call: Callable[[], object]) -> str:
        """The name of the error that a call raises; empty = it raises none."""
        try:
            call()
        except Exception as error:  # any: its name is the outcome
            return self._kit.name_of(error)
        return ""

    @staticmethod
    def _closed(close: Callable[[], object]) -> None:
        with suppress(Exception):  # a client that its program has broken
            close()


def values(records: Sequence[Read]) -> list[str]:
    """The values as text."""
    return [(record.value or b"").decode() for record in records]


def read(reader: Reader, count: int, timeout_s: float = READ_S) -> list[Read]:
    """Read so many records, or what comes in the time."""
    found: list[Read] = []
    deadline_s = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline_s:
        found += reader.poll(0.5)
    return found


def until(holds: Callable[[], bool], *readers: Reader, timeout_s: float = READ_S) -> bool:
    """Have consumers poll until a condition holds; whether it does in the time."""
    deadline_s = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline_s:
        for reader in readers:
            reader.poll(0.1)
    return holds()
