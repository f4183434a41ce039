"""The virtual partition of the offsets topic: a fenced, durable log that several lives of a coordinator write to.

It stands for a replicated partition whose own faults the partition world plays out: what it has said to be stored stays
so. What a coordinator sees of it may come late, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.simulation import GroupSimulation

APPEND_TIMEOUT_MS = 900


class Sender(NamedTuple):
    """On whose behalf a commit was written; kept beside the log for the checkers, no reader sees it."""

    process: int
    """Number of the member's process; 0 = somebody outside the group."""
    member_id: str
    generation: int
    asked_back: bool
    """The client went back of its own will."""


class Row(NamedTuple):
    """One record, with what an observer knows about it."""

    key: list[object]
    value: list[object] | None
    decided_ms: int
    life: int
    request: int
    sender: Sender | None
    size: int = 0
    """Bound of the bytes that it takes."""


class OffsetsTopic:
    """One partition, fenced by producer epochs."""

    def __init__(self, simulation: GroupSimulation) -> None:
        """Start empty."""
        self.simulation = simulation
        self.world = simulation.world
        self.end = 0
        self.epoch = -1
        self.start = 0
        self._rows: list[tuple[int, Row]] = []
        self._holds: dict[str, Row] = {}
        """The last row of each key, as every row that was ever stored has it; without tombstones."""

    def append(self, epoch: int, rows: Sequence[Row], done: Callable[[str, int], None]) -> None:
        """Append after a while; ``done`` gets "ok" and the end, "fenced", or "timeout" with the outcome unknown."""
        size = sum(row.size for row in rows)
        if len(rows) > 1 and size > self.simulation.faults.batch_bytes_max:
            # In life every batch with these rows is refused, so the coordinator loads all its groups again for ever.
            raise Violation(
                "B1", f"a batch of {size} bytes is appended, the log takes {self.simulation.faults.batch_bytes_max}"
            )
        world, faults = self.world, self.simulation.faults
        delay = world.between_us(0.2, faults.append_ms)
        if not self.simulation.healed and world.chance(faults.append_timeout):
            if world.chance(0.7):
                world.after(world.between_us(1, 2 * APPEND_TIMEOUT_MS), self._store, epoch, rows, None)
            world.after(APPEND_TIMEOUT_MS * 1000, done, "timeout", 0)
            return
        world.after(delay, self._store, epoch, rows, done)

    def _store(self, epoch: int, rows: Sequence[Row], done: Callable[[str, int], None] | None) -> None:
        if self._is_fenced(epoch):
            if done is not None:
                self.world.after(self.world.between_us(0.1, 2), done, "fenced", 0)
            return
        self.epoch = max(self.epoch, epoch)
        for row in rows:
            self._rows.append((self.end, row))
            self.end += 1
            _keep_last(self._holds, row)
            self.simulation.books.stored(self.end - 1, row)
        self.world.note(epoch, self.end)
        if self.world.chance(self.simulation.faults.compact):
            self._compact()
        if done is not None:
            self.world.after(self.world.between_us(0.1, 2), done, "ok", self.end)

    def _is_fenced(self, epoch: int) -> bool:
        return epoch < self.epoch

    def read(self, end: int) -> list[Row]:
        """Return what is left of the rows below ``end``."""
        return [row for offset, row in self._rows if offset < end]

    def trim(self, before: int, done: Callable[[], None]) -> None:
        """Delete the rows below an offset after a while; ``done`` is not called for a deletion whose answer is lost."""
        world, faults = self.world, self.simulation.faults
        lost = not self.simulation.healed and world.chance(faults.trim_lost)
        if not lost or world.chance(0.5):
            world.after(world.between_us(0.5, 20 * faults.append_ms), self._trim, before, None if lost else done)

    def _trim(self, before: int, done: Callable[[], None] | None) -> None:
        if not 0 <= before <= self.end:
            raise Violation("B2", f"records below {before} are deleted of a log that ends at {self.end}")
        self.start = max(self.start, before)
        self._rows = [(offset, row) for offset, row in self._rows if offset >= before]
        left: dict[str, Row] = {}
        for _, row in self._rows:
            _keep_last(left, row)
        gone = sorted(
            key for key, row in self._holds.items() if left.get(key, row).value != row.value or key not in left
        )
        if gone:
            raise Violation("B2", f"the log starts at {before} now, and what holds of {gone[0]} is gone")
        if done is not None:
            self.world.after(self.world.between_us(0.1, 2), done)

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows that are left."""
        return sum(row.size for _, row in self._rows)

    @property
    def live_bytes(self) -> int:
        """Bytes of the rows that hold."""
        return sum(row.size for row in self._holds.values())

    def _compact(self) -> None:
        """Keep the last row of each key; tombstones stay, as they do for a day in life."""
        last = {tuple(map(str, row.key)): offset for offset, row in self._rows}
        self._rows = [(offset, row) for offset, row in self._rows if last[tuple(map(str, row.key))] == offset]


def _keep_last(holds: dict[str, Row], row: Row) -> None:
    if row.value is not None:
        holds[str(row.key)] = row
    else:
        holds.pop(str(row.key), None)
