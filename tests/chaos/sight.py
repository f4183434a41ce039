"""Inspects a running cluster and its processes, with a short deadline for each query.

Used by the faults to find their targets, and by the run to check that the cluster is whole. An actor without an answer
is a normal sight here.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from raylog.actors.naming import CONTROLLER, NAMESPACE, SPARE_PREFIX, broker_name, node_broker_name
from raylog.actors.processes.spare_roles import actors_by_role
from tests.chaos.arena import incomplete

CALL_TIMEOUT_S: Final = 3.0
LOOK_S: Final = 0.2
_ROLES: Final[dict[str, str]] = {}
"""Replicas by the names of actors that were spares. Cached, because a paused process does not answer."""


def handle_of(name: str) -> Any:
    """The handle of an actor, including a replica that was a spare; raises ValueError when there is none."""
    import ray

    was_spare = next((actor for actor, replica in list(_ROLES.items()) if replica == name), name)
    return ray.get_actor(was_spare, namespace=NAMESPACE)


def call(name: str, method: str, timeout_s: float = CALL_TIMEOUT_S) -> Any:
    """The answer of an actor, None when there is none in time."""
    import ray

    try:
        return ray.get(getattr(handle_of(name), method).remote(), timeout=timeout_s)
    except (ValueError, ray.exceptions.RayError):  # no such actor, dead, restarting, too late, or its own error
        return None


def actor_names(*prefixes: str) -> list[str]:
    """Names of the cluster's actors with this prefix, sorted; without unused spares."""
    names = actors_by_role(_ROLES, CALL_TIMEOUT_S)
    return sorted(name for name in names if name.startswith(prefixes) and not name.startswith(SPARE_PREFIX))


def spares() -> list[str]:
    """Names of the unused spares that answer, sorted."""
    names = [name for name in actors_by_role(_ROLES, CALL_TIMEOUT_S) if name.startswith(SPARE_PREFIX)]
    return sorted(name for name in names if call(name, "role") == "")


def pid_of(name: str) -> int | None:
    """Process id of an actor, None when it does not answer."""
    if name.startswith("replica:"):
        status = call(name, "status")
        return None if status is None else int(status["pid"])
    pid = call(name, "pid")
    return None if pid is None else int(pid)


def pid_of_broker(broker: int) -> int | None:
    """Process id of a broker, None when it does not answer. One of several nodes is named after its node."""
    names = [broker_name(broker)]
    view = status()
    names += (
        [] if view is None else [node_broker_name(row["node_id"]) for row in view["brokers"] if row["broker"] == broker]
    )
    found = actor_names("broker-")
    return next((pid_of(name) for name in names if name in found), None)


def is_actor_process(pid: int) -> bool:
    """Whether the process is one of Ray's workers: no other process may ever be signalled."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::")
    except OSError:
        return False


def status() -> dict[str, Any] | None:
    """The controller's view, None when it does not answer."""
    found: dict[str, Any] | None = call(CONTROLLER, "status")
    return found


def replica_of(topic: str, partition: int, broker: int) -> str | None:
    """Actor name of a replica."""
    names = actor_names(f"replica:{topic}-{partition}:broker-{broker}:")
    return names[0] if names else None


def replica_states() -> dict[str, dict[str, Any]]:
    """Status of every replica that answers, by actor name."""
    import ray

    calls: dict[str, Any] = {}
    for name in actor_names("replica:"):
        try:
            calls[name] = handle_of(name).status.remote()
        except ValueError:
            continue  # it ended since the names were listed
    found = {}
    deadline_s = time.monotonic() + CALL_TIMEOUT_S
    for name, answer in calls.items():
        try:
            found[name] = ray.get(answer, timeout=max(0.01, deadline_s - time.monotonic()))
        except ray.exceptions.RayError:  # dead, restarting, paused, or still recovering
            continue
    return found


def missing(brokers: int) -> str:
    """The reason why the cluster is not whole, as text; "" when it is whole."""
    lacking = incomplete(status(), brokers)
    if lacking:
        return lacking
    silent = set(actor_names("replica:")) - set(replica_states())
    silent |= {
        name
        for name in actor_names("broker-", "group-coordinator-", "transaction-coordinator-")
        if pid_of(name) is None
    }
    return f"{', '.join(sorted(silent))} does not answer" if silent else ""


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition came true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(LOOK_S)
    return True
