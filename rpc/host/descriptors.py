"""The descriptor limit of this process: raised as far as allowed, and the share for connections.

Called by `RpcServer.start`. May touch: this process's resource limits.
"""

from __future__ import annotations

import resource

MOST_DESCRIPTORS = 1_048_576
"""Upper bound for the soft limit: some systems allow billions, and programs that iterate over all of them hang."""
_SHARE_OF_CONNECTIONS = 0.5


def raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard one, `MOST_DESCRIPTORS` at most; return the soft limit in force.

    Never lowers it. A system that refuses leaves the limit as it was.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = MOST_DESCRIPTORS if hard == unlimited else min(hard, MOST_DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a container may forbid what the hard limit promises
            return soft
        soft = wanted
    return MOST_DESCRIPTORS if soft == unlimited else soft


def connections_within(descriptors: int, max_connections: int) -> int:
    """How many connections a server accepts in a process with this limit of open files.

    The other half stays for segments, indexes and the process's own connections: accept() never takes the descriptor
    that an append or a sync needs.
    """
    return max(1, min(max_connections, int(descriptors * _SHARE_OF_CONNECTIONS)))
