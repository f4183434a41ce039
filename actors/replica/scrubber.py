"""Reads the log of a replica again, slowly, to find damage before a reader does. Owned by the replica's shell.

A thread reads one slice at a time, and only while the process is awake anyway: a dozing replica is not woken for it,
and one may doze between two slices (docs/adr/0112). The replicas of a broker take turns by a file in its data
directory. May touch: the log's files, that file, and the note of the passes in the partition's folder.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raylog.actors.clock import since_boot_ms
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.settings import ScrubPace
from raylog.base.errors import RaylogError
from raylog.core.metrics.scrubbing import ScrubFigures
from raylog.storage.errors import LogDamaged
from raylog.storage.files import read_text, write_atomically
from raylog.storage.folder_lock import FolderLock
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.scrub.log_scrub import LogScrub
from raylog.storage.scrub.plan import Passes, Place, behind, slice_bytes, take_turn
from raylog.storage.scrub.slices import NO_TIMESTAMP, Scrubbed, ScrubOrder, read_passes, scrub, write_passes

logger = logging.getLogger(__name__)

LOCK: Final = "scrub.lock"
TURNS: Final = "scrub-turns"
"""File in a data directory: the time from which on the next slice of any of its replicas may be read."""
LOCK_WAIT_S: Final = 1.0
SOON_MS: Final = 5
"""A turn that begins within this time is taken at once, not at a later tick."""
RETRY_MS: Final = 5_000
"""Interval of checks whether a pass is due; also the pause after a failed step."""


@dataclass(frozen=True, slots=True)
class _Done:
    """The outcome of one step in a thread: the slice that was read, if any, and the time until the next turn."""

    scrubbed: Scrubbed | None
    wait_ms: int | None
    """None = the file of turns could not be read or written."""


@dataclass(slots=True)
class Scrubber:
    """The passes over one log. `tick` begins a slice if one is due."""

    log: PartitionLog
    directory: Path
    name: str
    pace: ScrubPace
    counters: ReplicaCounters
    _on_damaged: Callable[[LogDamaged], None] = lambda _: None
    _on_remade: Callable[[str], None] = lambda _: None
    _passes: Passes | None = None
    """None = the note of an earlier incarnation is not read yet."""
    _has_turn: bool = False
    _due_ms: int = 0
    _newest: int = NO_TIMESTAMP
    _task: asyncio.Task[None] | None = None
    _is_over: bool = False
    _is_failing: bool = False
    _scrub: LogScrub = field(init=False)

    def __post_init__(self) -> None:
        """Know nothing of earlier passes yet."""
        self._scrub = LogScrub(self.log)

    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Take a turn, or read the slice whose turn has come, if that is due.

        `now_ms` is monotonic, `wall_ms` the time of day.
        """
        if not self.pace.is_on or self._task is not None or now_ms < self._due_ms or self._is_over:
            return
        self._due_ms = now_ms + RETRY_MS
        if self._passes is None and self.log.created:
            self._passes = Passes(last_ms=wall_ms)  # a new log has nothing old to check
        if self._passes is not None and not self._passes.is_due(wall_ms, self.pace.interval_ms):
            return
        self._task = asyncio.create_task(self._run(now_ms, wall_ms), name=f"scrub {self.name}")

    def reconfigure(self, pace: ScrubPace) -> None:
        """Use this pace from the next slice on."""
        self.pace = pace

    @property
    def is_busy(self) -> bool:
        """Whether a slice is being read."""
        return self._task is not None

    def figures(self) -> ScrubFigures:
        """Return the state of the passes, for metrics and the status."""
        passes = self._passes or Passes()
        at = -1 if passes.place is None else max(0, passes.place.offset)
        return ScrubFigures(last_ms=passes.last_ms, offset=at)

    def when_damaged(self, callback: Callable[[LogDamaged], None]) -> None:
        """Set a callback for damage that a slice finds."""
        self._on_damaged = callback

    def when_remade(self, callback: Callable[[str], None]) -> None:
        """Set a callback for a rebuilt file; it gets a description of the file's damage."""
        self._on_remade = callback

    async def stop(self) -> None:
        """Read no more; returns after a slice that is being read."""
        self._is_over = True
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self, now_ms: int, wall_ms: int) -> None:
        try:
            while await self._step(now_ms, wall_ms) and not self._is_over:
                pass
            self._is_failing = False
        except Exception as error:  # the log is unchanged, and a later step tries again
            if not self._is_failing:
                logger.warning("%s is not scrubbed now, trying again: %s", self.name, error)
            self._is_failing = True
        finally:
            self._task = None

    async def _step(self, now_ms: int, wall_ms: int) -> bool:
        """Take a turn, read a slice, or end the pass; returns whether the next step may follow at once."""
        loop = asyncio.get_running_loop()
        if self._passes is None:
            self._passes = await loop.run_in_executor(None, read_passes, self.log.folder)
        if not self._passes.is_due(wall_ms, self.pace.interval_ms):
            return False
        log = self._scrub.stretches()
        place = self._passes.next_place(log)
        if place is None:
            self._passes, self._has_turn = self._passes.ended(wall_ms), False
            self.counters.scrub_passes += 1
            damaged = await loop.run_in_executor(None, self._end_pass, self._passes)
            if damaged and not self._is_over:
                self._remade(self._scrub.write_again(damaged), f"{', '.join(damaged)}: the content was wrong")
            return False
        order, size = None, slice_bytes(place, log)
        if self._has_turn:
            if place.position == 0:
                self._newest = NO_TIMESTAMP
            order = self._scrub.order_scrub(place, size, self._newest)
            if order is None:
                return False
        self._has_turn = False
        done = await loop.run_in_executor(None, self._work, order, size, self._passes.read_to(place))
        if done.scrubbed is not None and not self._is_over:
            self._take(place, done.scrubbed)
        if done.wait_ms is None:
            return False
        self._has_turn, self._due_ms = True, now_ms + done.wait_ms
        return done.wait_ms <= SOON_MS

    def _work(self, order: ScrubOrder | None, size: int, passes: Passes) -> _Done:
        """Read a slice, and take a turn for the next one. Runs in a thread."""
        scrubbed = None if order is None else scrub(order)
        if order is not None and order.place.position == 0:
            with suppress(RaylogError):  # without it, the next incarnation begins a segment earlier
                write_passes(self.log.folder, passes)
        try:
            return _Done(scrubbed, self._turn(size if scrubbed is None else scrubbed.bytes_read))
        except RaylogError:
            if scrubbed is None:
                raise
            return _Done(scrubbed, None)

    def _end_pass(self, passes: Passes) -> list[str]:
        """Note the end of a pass, and return the names of damaged small files. Runs in a thread."""
        write_passes(self.log.folder, passes)
        return self._scrub.damaged_files()

    def _turn(self, size: int) -> int:
        """Take a turn for the next slice, of about ``size`` bytes; returns the milliseconds until it begins."""
        lock = FolderLock(self.directory, self.directory / LOCK, wait_s=LOCK_WAIT_S)
        try:
            text = (read_text(self.directory / TURNS) or "").strip()
            now_ms = since_boot_ms()
            free_ms = int(text) if re.fullmatch("[0-9]{1,18}", text) else 0
            begins_ms, free_ms = take_turn(now_ms, free_ms, size, self.pace.bytes_per_s)
            write_atomically(self.directory / TURNS, b"%d\n" % free_ms, durable=False)
        finally:
            lock.release()
        return begins_ms - now_ms

    def _remade(self, count: int, what: str) -> None:
        self.counters.scrub_remade += count
        if count:
            self._on_remade(f"{what}; made again")

    def _take(self, place: Place, scrubbed: Scrubbed) -> None:
        assert self._passes is not None
        self.counters.scrub_bytes += scrubbed.bytes_read
        after = scrubbed.place
        found = None if scrubbed.damage is None else self._scrub.confirm_damage(scrubbed.damage)
        try:
            if scrubbed.wrong_index and scrubbed.damage is None:
                done = self._scrub.remake_indexes(place, scrubbed.wrong_index)
                self._remade(done, f"the indexes of the segment at {place.base}: {scrubbed.wrong_index}")
            if scrubbed.wrong_aborted:
                done = self._scrub.remake_aborted(place)
                self._remade(done, f"the aborted transactions of the segment at {place.base} could not be read")
        except LogDamaged as damage:
            found = found or damage
        if scrubbed.damage is not None:  # skip the damage for this pass, even if it was cut or cleaned away meanwhile
            after = behind(place, self._scrub.stretches())
        self._passes, self._newest = self._passes.read_to(after), scrubbed.newest
        if found is not None:
            self.counters.scrub_damages += 1
            self._on_damaged(found)
