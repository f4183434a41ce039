"""At the end of a program or a Ray actor: sends the pending records of producers that were not closed, logs lost ones.

Used by producer.py and asynchronous.py. `send_rest` belongs to the producer's loop. May touch: the log, and the exit
handlers of the process.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable

from raylog.base.errors import RequestTimedOut
from raylog.client.producer.engine import ProducerEngine

logger = logging.getLogger(__name__)

QUIET_S = 1.0
"""If sending takes longer than this, a warning says what the end of the program waits for."""
INTERRUPTED_S = 2.0
"""How long the end of a program still waits after Ctrl-C, so that the number of lost records can be logged."""


_ends: list[Callable[[], None]] = []
_covered = -1
"""Process id of the multiprocessing child in which a finalizer was registered; -1 = none."""


def at_exit(end: Callable[[], None]) -> None:
    """Call `end` when this process ends. In a multiprocessing child this needs `cover_child`."""
    atexit.register(end)
    _ends.append(end)


def cover_child() -> None:
    """Make the exit handlers run in a forked child of multiprocessing too. Called when a producer is made.

    Such a child ends with `os._exit`, without exit handlers. Before that multiprocessing only calls its own finalizers,
    and those of the parent were cleared when the child began: so one is registered here, in the child.
    """
    global _covered
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _covered == os.getpid():
        return
    from multiprocessing import get_start_method, util

    _covered = os.getpid()
    if get_start_method() != "spawn":
        util.Finalize(None, _end_child, exitpriority=0)


def _end_child() -> None:
    for thread in threading.enumerate():  # as the interpreter does before its exit handlers: they may send
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    for end in reversed(_ends):
        end()


async def send_rest(engine: ProducerEngine, verb: str) -> None:
    """Send the pending records, for at most `delivery_timeout_ms`, as `close` does; log how many were not stored.

    `verb`: what the user should have done, "closed" or "stopped".
    """
    name, limit_s, failed = engine.config.client_id, engine.config.delivery_timeout_ms / 1000, engine.failed_records
    try:
        try:
            if engine.is_usable:
                await engine.flush(min(QUIET_S, limit_s))
        except RequestTimedOut:
            logger.warning(
                "Producer %r was not %s; the program ends when its records are stored, within %.0f seconds.",
                name,
                verb,
                limit_s,
            )
        await engine.stop(max(0.0, limit_s - QUIET_S))
    finally:
        await engine.stop(0)  # completes a stop that was interrupted
        log_lost(engine, engine.failed_records - failed, verb)


def log_lost(engine: ProducerEngine, count: int, verb: str) -> None:
    """Log how many records were not stored, if any."""
    if count:
        name = engine.config.client_id
        logger.error("%s records of producer %r were not stored: it was not %s or flushed.", count, name, verb)
