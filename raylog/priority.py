"""Lets brokers run at the priority of other servers: Ray gives its workers a lower one, so that they yield to all else.

Called by whoever starts Ray for Raylog, before that: Ray hands its environment on to its workers. May touch:
`os.environ`.
"""

from __future__ import annotations

import os

WORKER_NICENESS = "RAY_worker_niceness"
"""Ray's own variable; its default is 15, with which a process gets a thirtieth of what a busy one of 0 gets."""


def let_workers_serve() -> None:
    """Have the Ray that is started next run its workers at the usual priority, unless the user has said otherwise."""
    os.environ.setdefault(WORKER_NICENESS, "0")
