"""A request never ends a process: an error while handling it becomes its answer, and unexpected errors are logged.

For the shells whose requests are answered by tasks. A defect that may have left a machine's state half changed is
different: its runner ends the process, which begins again from the log (``runner.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from raylog.base.errors import RaylogError
from raylog.base.invariants import InvariantBroken
from raylog.rpc.occasional import OccasionalDefects

logger = logging.getLogger(__name__)
defects: Final = OccasionalDefects(logger)
"""Limits how often this process logs a defect, because a peer may repeat the same request endlessly."""


class Failable(Protocol):
    """A request that can be answered with an error."""

    @property
    def method(self) -> str: ...
    def fail(self, error: BaseException) -> None:
        """Answer with an error."""


async def answering(work: Coroutine[Any, Any, None], request: Failable) -> None:
    """Run the task that answers a request; an error becomes the answer, and an unexpected one is logged.

    Raises InvariantBroken after it was answered.
    """
    try:
        await work
    except RaylogError as refusal:
        request.fail(refusal)
    except InvariantBroken as broken:  # the state cannot be trusted, so the owner of the task ends the process
        request.fail(broken)
        raise
    except Exception as defect:  # any error: it concerns this request alone
        spoiled(request, defect)


def spoiled(request: Failable, defect: Exception) -> None:
    """Answer a request with the unexpected error that an except block is handling, and log it."""
    defects.report(defect, "A request for %s could not be handled.", request.method)
    request.fail(defect)
