"""The waiting records, in the order in which they are due: fresh keys in a heap, the others in runs. Pure.

Memory is bounded whatever is due when: fresh keys are sealed into runs, and each run costs its directory and one block.
A cancelled key leaves a tombstone, which is sealed like a key; the two vanish when they come to the front together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from raylog.core.scheduling.keys import TOMBSTONE, due_of, first_after, key_of, offset_of
from raylog.core.scheduling.runs import Cursor, ReadBlock, Run, is_tombstone

REMEMBERED_MS: Final = 600_000
"""How long after the due time a cancellation is remembered, to answer later requests."""


class Pending:
    """The keys that are neither taken nor cancelled.

    Invariants:

    - A key in a run is pending if and only if it is greater than ``frontier`` and has no tombstone, be it in ``cut`` or
      in a run: keys are taken from runs in order only.
    - ``due of a sealed key > due of frontier`` when it is sealed, so a new run holds no key that was already passed.
    """

    def __init__(self, read: ReadBlock) -> None:
        """``read`` returns a part of a run."""
        self._read = read
        self._heap: list[int] = []
        self._fresh: set[int] = set()
        self.cut: set[int] = set()
        """Cancelled keys whose tombstones are in no run."""
        self.frontier = -1
        """Greatest key taken from a run."""
        self.runs: dict[int, Run] = {}
        """Runs that are not exhausted, by the offsets of their records."""
        self._cursors: list[tuple[int, int, Cursor]] = []
        """A heap of their cursors, by the keys under them."""
        self._exhausted: list[int] = []
        """Runs whose last key was taken: they are kept until the round that takes it is in the log."""
        self.count = 0
        """Number of waiting records."""

    @property
    def fresh(self) -> Iterable[int]:
        """The keys that are in no run."""
        return self._fresh

    @property
    def fresh_count(self) -> int:
        """Number of keys and tombstones that are in no run."""
        return len(self._fresh) + len(self.cut)

    # ------------------------------------------------------------ what comes and goes

    def add(self, keys: Iterable[int]) -> None:
        """Add records that do not wait yet."""
        for key in keys:
            if key not in self._fresh:
                self._fresh.add(key)
                heapq.heappush(self._heap, key)
                self.count += 1

    def holds(self, key: int) -> bool:
        """Return whether a record waits. Reads one block of each run that may hold it."""
        if key in self._fresh:
            return True
        return key > self.frontier and not self.was_cancelled(key) and self._is_in_a_run(key)

    def was_cancelled(self, key: int) -> bool:
        """Return whether a record was cancelled, as far as that is remembered."""
        return key in self.cut or self._is_in_a_run(key | TOMBSTONE)

    def _is_in_a_run(self, key: int) -> bool:
        runs: Iterable[Run] = self.runs.values()
        if is_tombstone(key):
            runs = (run for run in runs if run.facts.has_tombstones)
        at = offset_of(key)
        runs = (run for run in runs if run.facts.lowest_offset <= at <= run.facts.highest_offset)
        return any(run.holds(key, self._read) for run in runs)

    def cancel(self, key: int) -> None:
        """Remove a waiting record: it is cancelled, or goes on under another key."""
        self._fresh.discard(key)
        self.cut.add(key)
        self.count -= 1

    def taken(self, key: int) -> None:
        """Note that a record was taken by an earlier leader, whose log is replayed."""
        if key in self._fresh:
            self._fresh.remove(key)
        elif key > self.frontier:
            self.frontier = key
        else:
            return
        self.count -= 1

    def forget_cancelled(self, now_ms: int) -> list[int]:
        """Forget cancellations of keys that were due long ago and cannot come to the front again; return the keys."""
        end = min([first_after(now_ms - REMEMBERED_MS), *(head for head, _, _ in self._cursors[:1])])
        forgotten = [key for key in self.cut if key < end]
        self.cut.difference_update(forgotten)
        return forgotten

    def free_key(self, due_ms: int, offset: int) -> int:
        """Return a new key for a record whose due time changes: the first from ``due_ms`` on that has no tombstone."""
        while self.was_cancelled(key_of(due_ms, offset)):
            due_ms += 1
        return key_of(due_ms, offset)

    def between(self, low: int, high: int, limit: int) -> list[int]:
        """Return the first ``limit`` waiting keys in ``[low, high)``, in order, without taking them."""
        sources = [sorted(key for key in self._fresh if low <= key < high)]
        behind = max(low, self.frontier + 1)
        sources.extend(list(run.keys_between(behind, high, self._read)) for run in self.runs.values())
        found: list[int] = []
        for key in heapq.merge(*sources):
            if is_tombstone(key):
                if found and found[-1] == key ^ TOMBSTONE:
                    found.pop()
            elif key not in self.cut:
                if len(found) > limit:
                    break
                found.append(key)
        return found[:limit]

    # ------------------------------------------------------------ the order

    def add_run(self, run: Run) -> list[int]:
        """Take a run read from the log: its keys are no longer fresh. Return them, and those its tombstones cancel."""
        if run.offset in self.runs:
            return []
        self.runs[run.offset] = run
        keys = list(run.keys_between(0, 1 << 200, self._read))
        cut = [key ^ TOMBSTONE for key in keys if is_tombstone(key)]
        self.cut.difference_update(cut)
        self._fresh.difference_update(keys)
        self._heap = sorted(self._fresh)
        self._open(run)
        return keys + cut

    def replace_run(self, before: int, run: Run) -> None:
        """Go on with a copy of the run at ``before``, which is not needed any more."""
        if before not in self.runs:
            return
        # The copy takes the run's place among the others: they are in the order in which they were sealed.
        runs = (run if at == before else each for at, each in self.runs.items())
        self.runs = {each.offset: each for each in runs}
        self._cursors = [entry for entry in self._cursors if entry[1] != before]
        heapq.heapify(self._cursors)
        self._open(run)

    def restore(
        self,
        runs: Iterable[Run],
        frontier: int,
        fresh: Iterable[int],
        cut: Iterable[int],
        count: int,
    ) -> None:
        """Begin with what a checkpoint holds."""
        self.frontier, self.cut, self._fresh = frontier, set(cut), set(fresh)
        self._heap = sorted(self._fresh)
        for run in runs:  # opened one by one as the directories are read, while the reader still has the bytes
            self.runs[run.offset] = run
            self._open(run)
        self.count = count

    def align(self) -> None:
        """Move the cursors of all runs behind the frontier, after a replay that has moved the frontier."""
        cursors, self._cursors = self._cursors, []
        for _, offset, cursor in cursors:
            cursor.pass_to(self.frontier)
            if cursor.head is None:
                del self.runs[offset]
            else:
                heapq.heappush(self._cursors, (cursor.head, offset, cursor))

    def _open(self, run: Run) -> None:
        cursor = Cursor(run, self._read, self.frontier)
        if cursor.head is None:
            del self.runs[run.offset]
        else:
            heapq.heappush(self._cursors, (cursor.head, run.offset, cursor))

    def next_due_ms(self) -> int | None:
        """Return when the next record is due, even if that was cancelled; None = none waits."""
        self._drop_left()
        heads = self._heap[:1] + [head for head, _, _ in self._cursors[:1]]
        return due_of(min(heads)) if heads else None

    def _drop_left(self) -> None:
        heap, fresh = self._heap, self._fresh
        while heap and heap[0] not in fresh:
            heapq.heappop(heap)

    def take_due(self, now_ms: int, limit: int) -> list[int]:
        """Take the records that are due, at most ``limit`` of them, in order."""
        end = first_after(now_ms)
        found: list[int] = []
        while len(found) < limit:
            key = self._pop_before(end)
            if key is None:
                break
            found.append(key)
        self.count -= len(found)
        return found

    def _pop_before(self, end: int) -> int | None:
        while True:
            self._drop_left()
            fresh = self._heap[0] if self._heap else end
            sealed = self._cursors[0][0] if self._cursors else end
            if fresh >= end and sealed >= end:
                return None
            if fresh < sealed:
                heapq.heappop(self._heap)
                self._fresh.remove(fresh)
                return fresh
            self._step()
            self.frontier = sealed
            if is_tombstone(sealed) or sealed in self.cut:
                continue
            if self._cursors and self._cursors[0][0] == sealed | TOMBSTONE:
                continue  # the tombstone is passed over in the next turn
            return sealed

    def _step(self) -> None:
        """Move the front run's cursor on."""
        _, offset, cursor = self._cursors[0]
        cursor.advance()
        if cursor.head is None:
            heapq.heappop(self._cursors)
            self._exhausted.append(offset)
        else:
            heapq.heapreplace(self._cursors, (cursor.head, offset, cursor))

    def drop_exhausted(self) -> None:
        """Forget the runs whose last key was taken, now that the log says so."""
        for offset in self._exhausted:
            self.runs.pop(offset, None)
        self._exhausted.clear()

    # ------------------------------------------------------------ sealing

    def to_seal(self, due_after_ms: int, limit: int) -> list[int]:
        """Return what the next run may hold, sorted: keys and tombstones that are due later than a time.

        They are due later than the frontier, too. At most ``limit`` are returned, the latest: the others leave soon.
        """
        first = first_after(max(due_after_ms, due_of(self.frontier) if self.frontier >= 0 else 0))
        keys = [key for key in self._fresh if key >= first]
        keys.extend(key | TOMBSTONE for key in self.cut if key >= first)
        keys.sort()
        return keys[-limit:]
