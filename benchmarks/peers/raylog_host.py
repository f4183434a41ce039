"""The process that holds a Raylog cluster and its Ray.

`python -m benchmarks.peers.raylog_host FOLDER BROKERS CONFIG SECONDS`: CONFIG is the cluster's, in JSON; the cluster
may take SECONDS to start, and to stop. The host reports the cluster's address, then reads one command a line
(`describe`, `spares`, `status`, `kill TOPIC`, `stop`) and answers each but the last with one line of JSON. It ends
with status 0 when the cluster has stopped cleanly.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import psutil

import raylog
from benchmarks.children import answering
from raylog.actors.naming import SPARE_PREFIX
from raylog.actors.processes.ray_support import find_actor
from raylog.base.errors import RaylogError
from raylog.launch.cluster import Cluster

CALL_TIMEOUT_S = 30.0
SPARE_FOR_RAY: dict[str, Any] = {"address": "local"}


def address(cluster: Cluster) -> dict[str, Any]:
    """Connection settings of the cluster's clients, and of Ray's."""
    import ray

    return {
        "bootstrap": cluster.bootstrap(),
        "secret": cluster.secret(),
        "ray": ray.get_runtime_context().gcs_address,
    }


def describe(cluster: Cluster) -> dict[str, Any]:
    """Address and processes of the cluster: those of Ray count as the server's, too."""
    return {
        **address(cluster),
        "pids": [child.pid for child in psutil.Process().children(recursive=True)],
        "replicas": _replicas(cluster),
    }


def spares() -> dict[str, Any]:
    """Number of processes that are ready to become replicas."""
    import ray

    known = ray.util.list_named_actors(all_namespaces=True)
    names = [entry["name"] for entry in known if entry["name"].startswith(SPARE_PREFIX)]
    handles = [find_actor(name) for name in names]
    calls: list[Any] = [handle.role.remote() for handle in handles if handle is not None]
    try:
        roles: list[Any] = ray.get(calls, timeout=CALL_TIMEOUT_S)
    except ray.exceptions.RayError as error:  # an actor has ended since it was listed: the waiting caller retries
        print(f"The spares are not known at the moment: {error}", file=sys.stderr)
        roles = []
    return {"ready": roles.count("")}


def _replicas(cluster: Cluster) -> list[dict[str, Any]]:
    """All replicas; none while the controller does not answer: that fails one measurement, not the cluster."""
    try:
        return cluster.replicas()
    except RaylogError as error:
        print(f"The replicas are not known at the moment: {error}", file=sys.stderr)
        return []


def status(cluster: Cluster) -> dict[str, Any]:
    """Seconds that the cluster's status takes, and the number of partitions in it."""
    began_s = time.monotonic()
    topics = cluster.status()["topics"]
    return {"seconds": time.monotonic() - began_s, "partitions": sum(map(len, topics.values()))}


def kill(cluster: Cluster, topic: str) -> dict[str, Any]:
    """Kill the leader process of a topic's partition 0."""
    for replica in cluster.replicas():
        if (replica["topic"], replica["partition"], replica["role"]) == (topic, 0, "leader"):
            os.kill(replica["pid"], signal.SIGKILL)
            return {"killed": replica["pid"]}
    return {"killed": None}


def main() -> None:
    """Start, answer, stop."""
    say = answering()
    folder, brokers, timeout_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[4])
    cluster = raylog.start(
        folder, brokers=brokers, config=json.loads(sys.argv[3]), timeout_s=timeout_s, **SPARE_FOR_RAY
    )
    try:
        say(address(cluster))
        for line in sys.stdin:
            command, *rest = line.split()
            if command == "stop":
                break
            say(answer(cluster, command, rest))
    finally:
        cluster.stop(timeout_s)


def answer(cluster: Cluster, command: str, rest: list[str]) -> dict[str, Any]:
    """The result of a command. A failed one costs one measurement, not the cluster."""
    import ray

    try:
        if command == "kill":
            return kill(cluster, rest[0])
        if command == "status":
            return status(cluster)
        return spares() if command == "spares" else describe(cluster)
    except (RaylogError, ray.exceptions.RayError, ValueError, OSError, psutil.Error) as error:
        # ValueError: an actor that has ended since it was listed. OSError: a process, likewise.
        traceback.print_exc()
        return {"failed": f"Raylog did not answer to {command}: {error}"}


if __name__ == "__main__":
    main()
