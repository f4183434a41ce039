"""The end of a program, or of a Ray actor, whose producers were not closed: send what is left, and say what was lost.

Used by producer.py and asynchronous.py. `send_rest` belongs to the producer's loop. May touch: the log, and what the
process does at its end.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable

from raylog.client.producer.engine import Engine
from raylog.core.errors import RequestTimedOut

logger = logging.getLogger(__name__)

QUIET_S = 1.0
"""The end of a program says what it waits for when it takes longer than this."""
INTERRUPTED_S = 2.0
"""How long the end of a program waits, once it is interrupted, to learn how many records were not stored."""


_ends: list[Callable[[], None]] = []
_covered = -1
"""The child of multiprocessing that ends in order."""


def at_exit(end: Callable[[], None]) -> None:
    """Call `end` when this process ends; in a child of multiprocessing once `cover_child` was called there."""
    atexit.register(end)
    _ends.append(end)


def cover_child() -> None:
    """A producer is made: if this is a forked child of multiprocessing, it ends by `os._exit`, without exit handlers.

    What multiprocessing calls before that are its own finalizers, and it has cleared those at the child's beginning.
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


async def send_rest(engine: Engine, verb: str) -> None:
    """Send what is left, for at most `delivery_timeout_ms`, as `close` does; say what was not stored.

    `verb`: how its user ends such a producer.
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
        await engine.stop(0)  # what was cut short goes on to its end
        log_lost(engine, engine.failed_records - failed, verb)


def log_lost(engine: Engine, count: int, verb: str) -> None:
    """Say how many records were not stored."""
    if count:
        name = engine.config.client_id
        logger.error("%s records of producer %r were not stored: it was not %s or flushed.", count, name, verb)
