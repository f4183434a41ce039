"""Group commit: one ``fdatasync`` for all waiting appends, in a thread. Owned by each shell that has a log.

Every acknowledged record waits for a sync. So the path to the thread and back is as short as possible: one queue to it,
and one callback back on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic_ns
from typing import Final

from raylog.actors.clock import monotonic_ms
from raylog.core.metrics.histogram import LatencyHistogram
from raylog.rpc import WriteCoalescer
from raylog.storage.errors import DescriptorsExhausted
from raylog.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

POSTPONED_S: Final = 0.2
"""Pause before the retry of a sync that failed because the process had no file descriptor left."""


class Flusher:
    """Syncs a log in one worker thread, repeatedly while there are unsynced records."""

    def __init__(
        self,
        log: PartitionLog,
        *,
        on_synced: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        name: str,
        durations: LatencyHistogram | None = None,
    ) -> None:
        """``on_synced`` gets the new durable end offset, on the event loop. ``on_failed`` gets the error of a sync;
        then there are no more syncs. ``durations`` counts how long each sync takes.
        """
        self._log = log
        self._durations = LatencyHistogram() if durations is None else durations
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """The calls that the thread runs, in order; None ends it."""
        self._thread = threading.Thread(target=self._serve, name=f"sync-{name}", daemon=True)
        self._is_wanted = False
        self._is_busy = False
        self._is_postponed = False
        self._is_settling = False
        self._began_ms = 0
        self.exclusive = threading.Lock()
        """Held while a sync runs. A truncation of the log takes it, so that no sync spans a truncation."""

    def start(self) -> None:
        """Begin; returns at once."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        if self._is_wanted:
            self._loop.call_soon(self._order)

    @property
    def busy_since_ms(self) -> int | None:
        """Start of the running sync, in monotonic milliseconds; None = no sync runs."""
        return self._began_ms if self._is_busy else None

    @property
    def is_idle(self) -> bool:
        """Whether no sync runs, waits or will be repeated."""
        return not (self._is_busy or self._is_wanted or self._is_postponed)

    def settle(self) -> bool:
        """Let the log write its postponed checkpoint now; returns whether nothing is left to write."""
        if self._log.behind_since is not None and not self._is_settling and self._loop is not None:
            self._is_settling = True
            self._orders.put(self._settle)
        return not self._is_settling

    def kick(self) -> None:
        """Request a sync after an append. Other appends of the same turn of the event loop are synced with it."""
        if not self._is_wanted:
            self._is_wanted = True
            if self._loop is not None and not self._is_busy:
                self._loop.call_soon(self._order)

    async def stop(self) -> None:
        """End the thread. Waits for a running sync, but does not report its outcome."""
        loop, self._loop = self._loop, None
        if loop is not None:
            self._orders.put(None)
            self._thread.join()

    def _order(self) -> None:
        if self._is_wanted and not self._is_busy and self._loop is not None:
            self._is_wanted, self._is_busy = False, True
            self._began_ms = monotonic_ms()
            self._orders.put(self._sync)

    def _synced(self, end: int) -> None:
        if self._loop is not None:
            self._is_busy = self._is_postponed = False
            self._order()
            with WriteCoalescer.on(self._loop):  # replies that waited for the disk leave at once
                self._on_synced(end)

    def _settled(self, _: None) -> None:
        self._is_settling = False

    def _postponed(self, error: DescriptorsExhausted) -> None:
        """Retry soon; requests in flight keep waiting, and nothing is lost."""
        if self._loop is not None:
            if not self._is_postponed:
                logger.warning("%s Syncing waits until there is one again.", error)
            self._is_postponed = True
            self._loop.call_later(POSTPONED_S, self._order_again)

    def _order_again(self) -> None:
        self._is_busy, self._is_wanted = False, True
        self._order()

    def _failed(self, error: Exception) -> None:
        """Report the failure. The flusher stays busy, so there are no more syncs."""
        if self._loop is not None:
            self._on_failed(error)

    # ------------------------------------------------------------ in the thread

    def _serve(self) -> None:
        while (order := self._orders.get()) is not None:
            order()

    def _sync(self) -> None:
        loop = self._loop
        try:
            with self.exclusive:
                began_ns = monotonic_ns()
                end = self._log.sync_records()
                self._durations.observe_ns(monotonic_ns() - began_ns)
        except DescriptorsExhausted as error:
            self._report(loop, self._postponed, error)
        except Exception as error:  # after any failed sync nothing more may be acknowledged
            self._report(loop, self._failed, error)
        else:
            self._report(loop, self._synced, end)
            with self.exclusive:
                self._log.checkpoint()  # after the report, because no request waits for it

    def _settle(self) -> None:
        with self.exclusive:
            self._log.checkpoint(early=True)
        self._report(self._loop, self._settled, None)

    @staticmethod
    def _report(loop: asyncio.AbstractEventLoop | None, receiver: Callable[..., None], what: object) -> None:
        if loop is not None:
            try:
                loop.call_soon_threadsafe(receiver, what)
            except RuntimeError:
                pass  # the loop has ended, and its waiting tasks with it
