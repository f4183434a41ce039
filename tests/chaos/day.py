"""The part `day`: a day of services outside Ray beside a cluster on hosts in namespaces, see `tests.hosts.day`.

May touch: processes, namespaces that it makes itself, a temporary folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from tests.hosts.entering import play, programs_of_hosts
from tests.hosts.environment import build_wheel
from tests.hosts.programs import LeftOut

PART: Final = "day"
TIMEOUT_S: Final = 840.0


def run_part() -> int:
    """Return 0 when the day ended as it should, or cannot be played here; prints what happened."""
    try:
        programs = programs_of_hosts()
    except LeftOut as reason:
        print(f"{PART}: {reason}", flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="raylog-day-") as folder:
        build_wheel(Path(folder))
        try:
            print(play("tests.hosts.day", Path(folder), programs, TIMEOUT_S), flush=True)
        except AssertionError as failure:
            print(failure, flush=True)
            return 1
    return 0
