"""Compacts the log of a partition from time to time, in a thread of its own. Owned by the replica's shell.

One cleaning at a time runs on a data directory; a lock file there sees to that. May touch: the log's files, that lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.settings import CleanerPace
from raylog.base.errors import RaylogError
from raylog.core.metrics.cleaning import CleanerFigures
from raylog.storage.cleaner.cleaning import Cleaned, CleaningAborted, CleaningOrder, clean, discard_quietly
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.errors import LogDamaged, TooManyToClean
from raylog.storage.folder_lock import FolderLock
from raylog.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

LOCK: Final = "cleaner.lock"
NO_LAG_MS: Final = 2**63 - 1
"""Value of `max.compaction.lag.ms` for no limit (also its default)."""
TOO_MANY_PAUSE_MS: Final = 86_400_000
"""Pause after a cleaning that found too many records. The next one finds as many, unless retention deletes some."""
AGAIN_SHARE: Final = 0.618
"""Part of the pause between two tries after which one is repeated that has met another log's cleaning.

The tries of a log that is cleaned with the same pause would meet it each time; by this share they move through
all of the pause, so that each time in it that is free is found.
"""
LONGEST_PAUSE_S: Final = 1.0
"""Longest sleep of a throttled cleaning, after which it computes its pace again."""


class Throttle:
    """Slows a thread down to a number of bytes a second, and ends it on request."""

    def __init__(self, bytes_per_s: int) -> None:
        """Count from now on."""
        self._bytes = 0
        self._from = bytes_per_s, time.monotonic(), 0
        """The pace, the time since which it holds (monotonic, in s), and the bytes counted by then."""
        self._is_over = threading.Event()

    def change(self, bytes_per_s: int) -> None:
        """Set another pace, from now on."""
        self._from = bytes_per_s, time.monotonic(), self._bytes

    def pace(self, count: int) -> None:
        """Count these bytes, and sleep while they are ahead of the pace. Raises CleaningAborted after `end`."""
        self._bytes += count
        while not self._is_over.is_set():
            bytes_per_s, since_s, before = self._from
            early_s = (self._bytes - before) / bytes_per_s - (time.monotonic() - since_s)
            if early_s <= 0:
                return
            self._is_over.wait(min(early_s, LONGEST_PAUSE_S))
        raise CleaningAborted("the replica stops, or its topic is compacted no more")

    def end(self) -> None:
        """Make a call of `pace` that sleeps, and any later one, raise."""
        self._is_over.set()


@dataclass(slots=True)
class Cleaner:
    """The cleanings of one log, one after the other. `tick` begins one if it is due."""

    log: PartitionLog
    directory: Path
    name: str
    pace: CleanerPace
    counters: ReplicaCounters
    on_closed: Callable[[str], None] = lambda _: None
    """Called with a text when a disk error has closed the log."""
    _on_cleaned: Callable[[], None] = lambda: None
    _on_damaged: Callable[[LogDamaged], None] = lambda _: None
    _due_ms: int = 0
    _task: asyncio.Task[None] | None = None
    _throttle: Throttle | None = None
    _last_run_ms: int = 0
    _is_failing: bool = False
    _looked_to: int = -1
    """The high watermark at the last check; -1: check again."""
    _cleaning: LogCleaning = field(init=False)

    def __post_init__(self) -> None:
        """Order the cleanings of this log."""
        self._cleaning = LogCleaning(self.log)

    def tick(self, now_ms: int, wall_ms: int, high_watermark: int) -> None:
        """Begin a cleaning if one is due. `now_ms` is monotonic; retention of records is decided by `wall_ms`."""
        rules = self.log.config.compaction
        if rules is None and self._throttle is not None:
            self._throttle.end()
        if rules is None or self._task is not None or now_ms < self._due_ms:
            return
        self._due_ms, self._looked_to = now_ms + self.pace.backoff_ms, high_watermark
        try:
            order = self._cleaning.order_cleaning(high_watermark, wall_ms, rules)
        except RaylogError as error:
            self._failed(error)
            return
        if order is not None:
            self._throttle = Throttle(self.pace.bytes_per_s)  # not in the task: `stop` may come before that runs
            self._task = asyncio.create_task(self._run(order, self._throttle), name=f"clean {self.name}")

    def reconfigure(self, pace: CleanerPace) -> None:
        """Use this pace from now on, also for a cleaning that runs."""
        if pace == self.pace:
            return
        self._due_ms -= max(0, self.pace.backoff_ms - pace.backoff_ms)
        self.pace = pace
        if self._throttle is not None:
            self._throttle.change(pace.bytes_per_s)

    @property
    def is_busy(self) -> bool:
        """Whether a cleaning runs, or may become due: the replica must stay awake for it.

        Each closed segment is checked once after it was committed. If `max.compaction.lag.ms` is set, the replica
        stays awake until no uncleaned records are left. Control batches of transactions may wait.
        """
        rules, log = self.log.config.compaction, self.log
        if self._task is not None or rules is None:
            return self._task is not None
        closed_to = log.segments[-1].base_offset
        has_deadline = rules.max_compaction_lag_ms < NO_LAG_MS and self._cleaning.has_dirty_records
        return has_deadline or (log.cleaned_to < closed_to and self._looked_to < closed_to)

    def figures(self) -> CleanerFigures | None:
        """Return the state of the log's cleanings for metrics; None: the log is not compacted."""
        if self.log.config.compaction is None:
            return None
        return CleanerFigures(
            dirty_ratio=self._cleaning.dirty_ratio, last_run_ms=self._last_run_ms, is_failing=self._is_failing
        )

    def when_cleaned(self, callback: Callable[[], None]) -> None:
        """Set a callback for each cleaning: the log then has other batches at the same offsets."""
        self._on_cleaned = callback

    def when_damaged(self, callback: Callable[[LogDamaged], None]) -> None:
        """Set a callback for damage that a cleaning finds."""
        self._on_damaged = callback

    async def stop(self) -> None:
        """End a cleaning that runs, and remove its files."""
        if self._throttle is not None:
            self._throttle.end()
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(self, order: CleaningOrder, throttle: Throttle) -> None:
        began_s = time.monotonic()
        try:
            cleaned = await asyncio.get_running_loop().run_in_executor(None, self._clean, order, throttle)
            if cleaned is None:
                self._looked_to = -1  # another log of the directory is being cleaned; check again later
                self._due_ms -= round((1 - AGAIN_SHARE) * self.pace.backoff_ms)
            elif self.log.config.compaction is not None:
                self._take(cleaned, began_s)
            else:
                discard_quietly(cleaned)
        except CleaningAborted as reason:
            self._looked_to = -1
            logger.info("%s is not cleaned now: %s", self.name, reason)
        except TooManyToClean as error:
            self._due_ms += TOO_MANY_PAUSE_MS
            self._failed(error)
        except Exception as error:  # the log is unchanged, and a later check tries again
            self._failed(error)
        finally:
            self._task = self._throttle = None

    def _clean(self, order: CleaningOrder, throttle: Throttle) -> Cleaned | None:
        """Clean; None: another replica of this data directory does. Runs in a thread."""
        try:
            lock = FolderLock(self.directory, self.directory / LOCK, wait_s=0)
        except RaylogError:
            return None  # a later check tries again
        try:
            return clean(order, pace=throttle.pace)
        finally:
            lock.release()

    def _take(self, cleaned: Cleaned, began_s: float) -> None:
        try:
            is_taken = self._cleaning.take_cleaned(cleaned, cleaned.order.now_ms)
        except RaylogError as error:
            self.on_closed(
                f"{self.name}: a cleaned segment could not be put in place ({error}); restarting to recover."
            )
            raise
        if not is_taken:
            discard_quietly(cleaned)
            return
        self._on_cleaned()
        self._last_run_ms, self._is_failing = cleaned.order.now_ms, False
        self._count(cleaned, time.monotonic() - began_s)
        logger.info(
            "%s was cleaned up to offset %d: %d of %d records stay, %d of %d bytes",
            self.name,
            cleaned.order.next_offset,
            cleaned.records_kept,
            cleaned.records_read,
            cleaned.bytes_written,
            cleaned.bytes_read,
        )

    def _count(self, cleaned: Cleaned, seconds: float) -> None:
        counters = self.counters
        counters.cleanings += 1
        counters.cleaner_ms += round(1000 * seconds)
        counters.cleaner_bytes_read += cleaned.bytes_read
        counters.cleaner_bytes_written += cleaned.bytes_written
        counters.cleaner_records_removed += cleaned.records_read - cleaned.records_kept

    def _failed(self, error: Exception) -> None:
        self._is_failing = True
        self.counters.cleaner_failures += 1
        logger.warning("%s could not be cleaned, the next try follows: %s", self.name, error)
        if isinstance(error, LogDamaged):
            self._on_damaged(error)
