"""A request never ends a process: what goes wrong in the handling of one is its answer, and is logged.

For the shells whose requests are answered by tasks. A defect that may have left a machine's state half changed is
another matter: its runner begins again from the log (``runner.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import Any, Final, Protocol

from raylog.core.errors import RaylogError
from raylog.core.invariants import InvariantBroken
from raylog.rpc.host.occasional import OccasionalDefects

logger = logging.getLogger(__name__)
defects: Final = OccasionalDefects(logger)
"""Of this process: a peer can repeat its request as often as it likes."""


class Failable(Protocol):
    """A request."""

    @property
    def method(self) -> str: ...
    def fail(self, error: BaseException) -> None:
        """Answer with an error."""


async def answering(work: Coroutine[Any, Any, None], request: Failable) -> None:
    """Run what answers a request; every error becomes the answer, and an unexpected one is logged.

    Raises InvariantBroken.
    """
    try:
        await work
    except RaylogError as refusal:
        request.fail(refusal)
    except InvariantBroken as broken:  # the state cannot be trusted: the owner of the task ends the process
        request.fail(broken)
        raise
    except Exception as defect:  # whatever it is, it concerns this request alone
        spoiled(request, defect)


def spoiled(request: Failable, defect: Exception) -> None:
    """Answer a request with the unexpected error that is being handled, and log it."""
    defects.report(defect, "A request for %s could not be handled.", request.method)
    request.fail(defect)
