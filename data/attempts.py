"""Read tasks that Ray repeats after a worker was lost: the reader gets exact rows, or an error. Used by the sources.

Ray drops as many blocks of a repeated attempt as arrived from the one before, by their number. So a repeated attempt
has to give out the same blocks; and an error that it raises before it has given out as many is stored under a number
that the reader has passed, and never seen: the dataset would end without an error and without the rows (Ray 2.60). A
lost worker, on the other hand, is reported to the reader once all attempts are used up. So a repeated attempt that
fails ends its process. May touch: the process, whose end is the point.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import ray

logger = logging.getLogger(__name__)

REPETITIONS: Final = 4
"""How often Ray repeats a read task whose worker was lost, unless `ray_remote_args` has another `max_retries`."""
EXIT_CODE: Final = 70
"""EX_SOFTWARE: shown where the end of a worker is reported."""


def attempt_number() -> int:
    """How often Ray has repeated the task that runs here; 0 outside Ray."""
    if not ray.is_initialized():
        return 0
    worker: Any = ray._private.worker.global_worker
    return int(worker.core_worker.get_current_task_attempt_number())


def seen_by_reader(blocks: Iterator[Any], attempt: int) -> Iterator[Any]:
    """Pass blocks on; where an error of this attempt might never be seen, log it and end the process instead."""
    try:
        yield from blocks
    except ray.exceptions.TaskCancelledError:
        raise  # the reader has ended the task
    except Exception as error:  # whatever it is, the rows behind it must not be missing without an error
        if attempt == 0:
            raise
        _end_process(error)


def _end_process(error: Exception) -> None:
    logger.error(
        "A repeated read task failed; its process ends, because Ray would not show the error: %s", error, exc_info=error
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(EXIT_CODE)
