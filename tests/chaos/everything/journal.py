"""What the clients of every feature did and saw, in the order in which they noted it; stored as one JSON object a line.

Written by the guests' threads, read by the claims. Times are milliseconds since 1970. A record is known by its value,
its name, of which there is one in the whole run: ``feature/number``, or ``topic/life/number`` of a topic that is
created again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from tests.chaos.evidence.history import Outcome

Verdict = Literal["ack", "retry", "reject"]


class Sent(msgspec.Struct, tag="sent", frozen=True, gc=False, omit_defaults=True):
    """A record that was sent, at the end of its send."""

    feature: str
    name: str
    outcome: Outcome
    key: str = ""
    partition: int = -1
    offset: int = -1
    at_ms: int = 0
    """When the send began."""
    done_ms: int = 0
    due_ms: int = 0
    """When it is due, or expires; 0 = at once, or never."""
    error: str = ""


class Seen(msgspec.Struct, tag="seen", frozen=True, gc=False, omit_defaults=True):
    """A record that a reader got."""

    reader: str
    topic: str
    partition: int
    offset: int
    name: str
    at_ms: int = 0
    stamp_ms: int = 0
    reason: str = ""
    """Of a dead letter."""
    key: str = ""


class Handed(msgspec.Struct, tag="handed", frozen=True, gc=False, omit_defaults=True):
    """A record of a queue that a member of a group took, and is about to work on."""

    group: str
    member: str
    partition: int
    offset: int
    name: str
    key: str = ""
    at_ms: int = 0


class Ruled(msgspec.Struct, tag="ruled", frozen=True, gc=False, omit_defaults=True):
    """A member's verdict on a record, which is about to be reported."""

    group: str
    name: str
    verdict: Verdict
    at_ms: int = 0
    pause_ms: int = 0
    """Of a retry."""


class Kept(msgspec.Struct, tag="kept", frozen=True, gc=False):
    """The broker has answered that it has stored these verdicts."""

    group: str
    names: tuple[str, ...]


class Lived(msgspec.Struct, tag="lived", frozen=True, gc=False):
    """A topic was created, or is about to be deleted."""

    topic: str
    life: int
    what: Literal["created", "ends"]
    at_ms: int = 0


class Withdrawn(msgspec.Struct, tag="withdrawn", frozen=True, gc=False):
    """A record that is never to be seen: its transaction rolled back, or its delay was cancelled."""

    feature: str
    name: str
    is_sure: bool = True
    """False: there was no answer to the cancellation, so it may or may not be seen."""


Event: TypeAlias = Sent | Seen | Handed | Ruled | Kept | Lived | Withdrawn


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def number_of(name: str) -> int:
    """The number in a name: those of a key were sent in its order."""
    return int(name.rpartition("/")[2])


class Journal:
    """All events in the order of their arrival. Any thread may add."""

    def __init__(self, path: Path | None = None, events: Iterable[Event] = ()) -> None:
        """``path``: also write every event there, a line each."""
        self._lock = threading.Lock()
        self._file = path.open("wb", buffering=1 << 16) if path is not None else None
        self._encoder = msgspec.json.Encoder()
        self.events: list[Event] = []
        for event in events:
            self.add(event)

    def add(self, *events: Event) -> None:
        """Add events, next to each other."""
        with self._lock:
            self.events.extend(events)
            if self._file is not None and not self._file.closed:
                for event in events:
                    self._file.write(self._encoder.encode(event) + b"\n")

    def close(self) -> None:
        """Finish the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()

    @classmethod
    def load(cls, path: Path) -> Journal:
        """Read a stored journal. A truncated last line is left out."""
        decoder: Any = msgspec.json.Decoder(Event)
        return cls(events=[decoder.decode(line) for line in path.read_bytes().splitlines(True) if line.endswith(b"\n")])


class Awaited:
    """Records that have to be seen and have not been yet. Any thread may call."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._missing: set[str] = set()
        self._early: set[str] = set()

    def expect(self, name: str) -> None:
        """It has to come; it may have come before its send was acknowledged."""
        with self._lock:
            if name in self._early:
                self._early.discard(name)
            else:
                self._missing.add(name)

    def came(self, name: str) -> None:
        """It came. One that comes again counts no more than once."""
        with self._lock:
            if name in self._missing:
                self._missing.discard(name)
            else:
                self._early.add(name)

    def drop(self, name: str) -> None:
        """It need not come after all."""
        with self._lock:
            self._missing.discard(name)
            self._early.discard(name)

    def missing(self) -> list[str]:
        """Those that have not come."""
        with self._lock:
            return sorted(self._missing)

    def __len__(self) -> int:
        return len(self._missing)
