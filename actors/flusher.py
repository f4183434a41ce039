"""Group commit: one ``fdatasync`` for all appends that wait, off the event loop. Owned by each shell that has a log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from raylog.storage.log import PartitionLog


class Flusher:
    """Syncs a log in one worker thread, again and again while there is something unsynced."""

    def __init__(
        self,
        log: PartitionLog,
        *,
        on_synced: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        name: str,
    ) -> None:
        """``on_synced`` gets the new durable end on the event loop, ``on_failed`` a failed sync; then it stops."""
        self._log = log
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._name = name
        self._wanted = asyncio.Event()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"sync-{name}")
        self._task: asyncio.Task[None] | None = None
        self.exclusive = threading.Lock()
        """Held while a sync runs; whoever truncates the log takes it, so that no sync spans a truncation."""

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run(), name=f"flusher of {self._name}")

    def kick(self) -> None:
        """Say that something was appended."""
        self._wanted.set()

    async def stop(self) -> None:
        """End the task and the thread; a running sync is waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pool.shutdown(wait=True)

    def _sync(self) -> int:
        with self.exclusive:
            return self._log.sync()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                end = await loop.run_in_executor(self._pool, self._sync)
            except Exception as error:  # any failed sync, whatever its kind, means that nothing more may be promised
                self._on_failed(error)
                return
            self._on_synced(end)
