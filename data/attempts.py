"""Read tasks that Ray repeats after a worker was lost: the reader gets exact rows, or an error. Used by the sources.

Ray numbers the blocks of an attempt, and drops as many blocks of a repeated attempt as have arrived from the one before
it. This has two consequences (Ray 2.60):

- A repeated attempt has to give out the same blocks.
- If it raises an error earlier than that, Ray stores the error under the number of a block that the reader has passed.
  The reader never sees it: the dataset would end without an error and without the rows.

Ray does report a lost worker to the reader, once all attempts are used up. So a repeated attempt that fails ends its
process. May touch: the process, which it ends.
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
"""EX_SOFTWARE: Ray shows it where it reports the end of the worker."""


def attempt_number() -> int:
    """How often Ray has repeated the task that runs here; 0 outside Ray."""
    if not ray.is_initialized():
        return 0
    worker: Any = ray._private.worker.global_worker
    return int(worker.core_worker.get_current_task_attempt_number())


def seen_by_reader(blocks: Iterator[Any], attempt: int) -> Iterator[Any]:
    """Pass blocks on. In a repeated attempt (above 0) log an error and end the process: the reader might not see it."""
    try:
        yield from blocks
    except ray.exceptions.TaskCancelledError:
        raise  # the reader has ended the task
    except Exception as error:  # any error: rows must not be missing without one
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
