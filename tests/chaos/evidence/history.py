"""What happened in a run, as the clients saw it: every operation with its outcome, and every fault.

Written by the workload's threads and the faults, read by the checker and the report; stored as one JSON object a line,
so that a run can be judged again. Times are seconds since the run began.

An outcome is ``ok`` (it happened), ``fail`` (it certainly did not) or ``unknown`` (it may have, or may yet). Unknown is
a normal result: an answer can be lost after the operation took effect.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

Outcome = Literal["ok", "fail", "unknown"]
Seen: TypeAlias = tuple[int, int, str]
"""Partition, offset and value of one record."""


class Send(msgspec.Struct, tag="send", frozen=True, gc=False):
    """One record that a producer sent. ``number`` orders the sends of a process by their start."""

    process: str
    number: int
    value: str
    outcome: Outcome
    partition: int = -1
    offset: int = -1
    """Where it was stored; -1 = unknown."""
    invoked_s: float = 0.0
    completed_s: float = 0.0
    error: str = ""


class Poll(msgspec.Struct, tag="poll", frozen=True, gc=False):
    """Records that one client got. ``reader`` is the reading party: a group, or a client without a group."""

    client: str
    reader: str
    records: tuple[Seen, ...] = ()
    outcome: Outcome = "ok"
    invoked_s: float = 0.0
    completed_s: float = 0.0
    error: str = ""


class Moved(msgspec.Struct, tag="moved", frozen=True, gc=False):
    """A client's partitions or positions changed, by a rebalance or a seek: its next records may begin anywhere."""

    client: str
    reader: str
    kind: Literal["assigned", "revoked", "lost", "seek"]
    partitions: tuple[int, ...] = ()
    at_s: float = 0.0


class Commit(msgspec.Struct, tag="commit", frozen=True, gc=False):
    """Offsets that a client committed for its group."""

    client: str
    reader: str
    offsets: dict[int, int]
    outcome: Outcome
    invoked_s: float = 0.0
    completed_s: float = 0.0
    error: str = ""


class Fault(msgspec.Struct, tag="fault", frozen=True, gc=False):
    """One fault: its kind and target, and when the cluster was whole again."""

    kind: str
    target: str
    at_s: float
    healed_s: float
    """When the cause was removed: at once for a kill, later for a pause or a full disk."""
    whole_s: float | None
    """When every actor answered again and every replica was in sync; None = not within the deadline."""
    note: str = ""


Operation: TypeAlias = Send | Poll | Moved | Commit | Fault
Kind = TypeVar("Kind", Send, Poll, Moved, Commit, Fault)


class History:
    """All operations in order of completion. Any thread may add."""

    def __init__(self, path: Path | None = None, operations: Iterable[Operation] = ()) -> None:
        """``path``: also write every operation there, a line each."""
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._file = path.open("wb", buffering=1 << 16) if path is not None else None
        self._encoder = msgspec.json.Encoder()
        self.operations: list[Operation] = []
        self.outcomes: dict[str, int] = {"ok": 0, "fail": 0, "unknown": 0}
        self.records_read = 0
        self.reached: dict[tuple[str, int], int] = {}
        """Next offset after everything a reader has got of a partition."""
        self._values: dict[str, str] = {}
        for operation in operations:
            self.add(operation)

    def shared(self, value: str) -> str:
        """The same value, interned: a run reads millions."""
        return self._values.setdefault(value, value)

    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began_s

    def add(self, operation: Operation) -> None:
        """Add a completed operation."""
        with self._lock:
            self.operations.append(operation)
            if isinstance(operation, Send):
                self.outcomes[operation.outcome] += 1
            elif isinstance(operation, Poll):
                self.records_read += len(operation.records)
                for partition, offset, _ in operation.records:
                    place = (operation.reader, partition)
                    self.reached[place] = max(self.reached.get(place, 0), offset + 1)
            if self._file is not None and not self._file.closed:
                self._file.write(self._encoder.encode(operation) + b"\n")

    def of(self, kind: type[Kind]) -> list[Kind]:
        """All operations of one kind, in order."""
        with self._lock:
            return [operation for operation in self.operations if isinstance(operation, kind)]

    def close(self) -> None:
        """Finish the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()

    @classmethod
    def load(cls, path: Path) -> History:
        """Read a stored history. A truncated last line is left out."""
        decoder: Any = msgspec.json.Decoder(Operation)
        history = cls()
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                history.add(decoder.decode(line))
        return history
