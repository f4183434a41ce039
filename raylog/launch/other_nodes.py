"""Ends Ray on the other machines of a cluster. For machines that exist already, `ray down` ends it on the head alone.

A node that loses its head continues for about a minute, and so do the actors on it. Called by the command line before
the head ends. Imports Ray when a function is called, not before.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class EndedNodes:
    """Addresses of the nodes where Ray has ended, and of those where it did not end in time."""

    ended: tuple[str, ...]
    remaining: tuple[str, ...]


def nodes_elsewhere(nodes: Iterable[Mapping[str, Any]], this_node: str) -> dict[str, str]:
    """Return the addresses, by node id, of the nodes on other machines than the node ``this_node``. Pure.

    Ray's own command for ending a node ends every Ray of a machine, so nodes that share this machine are left alone.
    """
    alive = [node for node in nodes if node["Alive"]]
    here = {node["NodeManagerAddress"] for node in alive if node["NodeID"] == this_node}
    return {node["NodeID"]: node["NodeManagerAddress"] for node in alive if node["NodeManagerAddress"] not in here}


def end_other_nodes(timeout_s: float) -> EndedNodes:
    """Run `ray stop` on every other machine of this Ray cluster and wait until its nodes have left it."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    deadline = time.monotonic() + timeout_s
    wanted = nodes_elsewhere(ray.nodes(), ray.get_runtime_context().get_node_id())  # type: ignore[no-untyped-call]
    remote = ray.remote(num_cpus=0, max_retries=0)(_end_this_node)
    for node in wanted:  # the results are not waited for: a node may end before it has sent one
        _ = remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
    remaining = dict(wanted)
    while remaining and time.monotonic() < deadline:
        time.sleep(POLL_S)
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
        remaining = {node: address for node, address in remaining.items() if node in alive}
    ended = [address for node, address in wanted.items() if node not in remaining]
    return EndedNodes(tuple(sorted(ended)), tuple(sorted(remaining.values())))


def _end_this_node() -> None:
    """Start a process that ends this node and, with it, this task's process."""
    subprocess.Popen(
        [sys.executable, "-P", "-m", "ray.scripts.scripts", "stop"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
