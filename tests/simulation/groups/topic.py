"""The virtual partition of the offsets topic: a fenced, durable log that several lives of a coordinator write to.

It stands for a replicated partition: acknowledged rows stay stored. An append may fail, or its answer be lost though it
is stored. When the leader changes, appends in flight survive or are truncated; their sender retries until its timeout
and gets one answer for one append. Rows of a fenced epoch are refused at each try.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.groups.transactions.ledgers import POT
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.simulation import GroupSimulation

APPEND_TIMEOUT_MS = 900
TOMBSTONE_MS = 2_000
"""How long compaction keeps a tombstone: longer than any append takes."""
TOPIC = "orders"
TOPIC_ID = "t" * 32
OTHER_ID = "u" * 32
"""A topic of the same name that was deleted."""
ELSEWHERE = "returns"
ELSE_ID = "r" * 32
"""A topic that no member reads."""


class Sender(NamedTuple):
    """The sender of a commit; kept beside the log for the checkers, invisible to readers."""

    process: int
    """Number of the member's process; 0 = a client outside the group."""
    member_id: str
    generation: int
    moved_back: bool
    """The client moved the offset back on purpose."""


class Row(NamedTuple):
    """One record, with its observer's notes."""

    key: list[object]
    value: list[object] | None
    decided_ms: int
    life: int
    request: int
    sender: Sender | None
    size: int = 0
    """Upper bound of its size in bytes."""


class _Append:
    """One append, with its retries."""

    __slots__ = ("deadline_us", "done", "end", "epoch", "rows", "tries")

    def __init__(self, epoch: int, rows: Sequence[Row], done: Callable[[str, int], None], deadline_us: int) -> None:
        self.epoch = epoch
        self.rows = rows
        self.done: Callable[[str, int], None] | None = done
        """None = its sender has given up."""
        self.deadline_us = deadline_us
        self.end: int | None = None
        """Log end offset after it; None = not stored."""
        self.tries = 0


class OffsetsTopic:
    """One partition, fenced by producer epochs."""

    def __init__(self, simulation: GroupSimulation) -> None:
        """Start empty."""
        self.simulation = simulation
        self.world = simulation.world
        self.end = 0
        self.epoch = -1
        self._down_until_us = 0
        """No leader before then."""
        self._under_way: list[_Append] = []
        self._rows: list[tuple[int, Row]] = []

    def append(self, epoch: int, rows: Sequence[Row], done: Callable[[str, int], None]) -> None:
        """Append after a while; ``done`` gets "ok" and the end, or the failure: "fenced", "failed", or "timeout".

        The outcome of an append that timed out is unknown.
        """
        size = sum(row.size for row in rows)
        if len(rows) > 1 and size > self.simulation.faults.batch_bytes_max:
            # In production every batch with these rows is refused, so the coordinator reloads its groups without end.
            raise Violation(
                "B1", f"a batch of {size} bytes is appended, the log takes {self.simulation.faults.batch_bytes_max}"
            )
        world, faults, calm = self.world, self.simulation.faults, self.simulation.is_calm
        append = _Append(epoch, rows, done, world.now_us + APPEND_TIMEOUT_MS * 1000)
        delay = world.between_us(0.2, faults.append_ms)
        if not calm and world.chance(faults.append_timeout):
            if world.chance(0.7):
                world.after(world.between_us(1, 2 * APPEND_TIMEOUT_MS), self._store, append)
            self._give_up_in_time(append)
        elif not calm and world.chance(faults.append_fails):
            world.after(delay, done, "failed", 0)
        else:
            self._under_way.append(append)
            if self._down_until_us > world.now_us:
                delay += self._down_until_us - world.now_us
                self._give_up_in_time(append)
            world.after(delay, self._try, append, 0)

    def change_leader(self) -> None:
        """Elect another leader after a while; appends in flight are in its log, or were truncated."""
        world = self.world
        outage_us = world.between_us(5, self.simulation.faults.outage_ms)
        self._down_until_us = max(self._down_until_us, world.now_us + outage_us)
        world.log("the offsets topic has no leader for {} us", outage_us)
        for append in self._under_way:
            if append.end is None and world.chance(0.5):
                self._store(append)
            append.tries += 1
            again_us = self._down_until_us + world.between_us(0.2, 30)
            world.at(again_us, self._try, append, append.tries)
            self._give_up_in_time(append)

    def _give_up_in_time(self, append: _Append) -> None:
        self.world.at(max(self.world.now_us, append.deadline_us), self._give_up, append)

    def _give_up(self, append: _Append) -> None:
        done, append.done = append.done, None
        if append in self._under_way:
            self._under_way.remove(append)
            if self.world.chance(0.5):
                append.tries += 1  # the last try did not reach the leader
        if done is not None:
            done("timeout", 0)

    def _try(self, append: _Append, tries: int) -> None:
        """The leader gets an append, or a retry of one that it has stored already."""
        if append.tries != tries:
            return
        if append in self._under_way:
            self._under_way.remove(append)
        if append.end is None:
            self._store(append)
        done, append.done = append.done, None
        if done is not None:
            how, late = ("ok", append.end) if append.end is not None else ("fenced", 0)
            self.world.after(self.world.between_us(0.1, 2), done, how, late)

    def _store(self, append: _Append) -> None:
        if self._is_fenced(append.epoch):
            return
        self.epoch = max(self.epoch, append.epoch)
        for row in append.rows:
            self._rows.append((self.end, row))
            self.end += 1
            if str(row.key[1]).startswith(POT):
                self.simulation.ledgers.stored(row)
            else:
                self.simulation.books.stored(self.end - 1, row)
        append.end = self.end
        self.world.note(append.epoch, self.end)
        if self.world.chance(self.simulation.faults.compact):
            self._compact()

    def _is_fenced(self, epoch: int) -> bool:
        return epoch < self.epoch

    def read(self, end: int) -> list[Row]:
        """Return the live rows below ``end``, as a coordinator reads them: the last of each key, without tombstones."""
        last = {str(row.key): row for offset, row in self._rows if offset < end}
        return [row for row in last.values() if row.value is not None]

    def _compact(self) -> None:
        """Keep the last row of each key; a tombstone goes when it is old."""
        last = {str(row.key): offset for offset, row in self._rows}
        oldest_ms = self.world.now_ms - TOMBSTONE_MS
        self._rows = [
            (offset, row)
            for offset, row in self._rows
            if last[str(row.key)] == offset and (row.value is not None or row.decided_ms > oldest_ms)
        ]
