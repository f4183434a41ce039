"""Ends every actor of a Raylog cluster in an order that loses nothing. Called by ``raylog.launch.cluster``.

Imports Ray when a function is called, not before.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Any, Final

from raylog.core.errors import StartFailed

logger = logging.getLogger(__name__)

POLL_S: Final = 0.05
SLEEP_S: Final = 10.0
"""How long partitions may take to fall asleep before a stop."""
CLEAN_STOP_S: Final = 15.0
"""How long actors may take to write and close their files; then they are ended, and their logs scanned at the start."""


def stop_actors(timeout_s: float) -> None:
    """End every Raylog actor of this Ray cluster in the order that loses nothing, and wait until they have ended."""
    from raylog.actors.naming import CONTROLLER

    deadline = time.monotonic() + timeout_s
    put_to_sleep(min(SLEEP_S, timeout_s / 4))
    while names := actor_names():
        first = [name for name in names if name == CONTROLLER]
        brokers = [name for name in names if name.startswith("broker-")]
        others = [name for name in names if name not in first and name not in brokers]
        for group in (first, brokers, others):
            _end(group, deadline)
        # Once more: a controller or broker may have been making an actor when the stop request arrived.


def put_to_sleep(timeout_s: float) -> None:
    """Have the partitions fall asleep that may: a cluster that stops asleep starts without a process for each.

    The others stop awake. A controller that does not answer holds nothing up: all logs are closed cleanly anyway.
    """
    import ray

    from raylog.actors.naming import CONTROLLER, NAMESPACE

    with suppress(ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        controller: Any = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        asleep, awake = ray.get(controller.put_to_sleep.remote(timeout_s), timeout=timeout_s + 1.0)
        logger.info("%d partitions sleep, %d stop awake", asleep, awake)


def stop_broker_actors(broker: int, node_id: str, timeout_s: float) -> None:
    """End the actors of one broker, the supervisor of its replicas first, and wait until they have ended."""
    from raylog.actors.naming import broker_name, node_broker_name

    deadline = time.monotonic() + timeout_s
    mine = (broker_name(broker), node_broker_name(node_id))
    while names := [name for name in actor_names() if name in mine or f":broker-{broker}:" in name]:
        _end([name for name in names if name in mine], deadline)
        _end([name for name in names if name not in mine], deadline)
        # Once more: the broker may have been making a replica when the stop request arrived.


def actor_names() -> list[str]:
    """Return the names of all Raylog actors of this Ray cluster, including those that are being restarted."""
    import ray

    from raylog.actors.naming import NAMESPACE

    known = ray.util.list_named_actors(all_namespaces=True)
    return sorted(entry["name"] for entry in known if entry["namespace"] == NAMESPACE)


def _end(names: list[str], deadline: float) -> None:
    import ray

    from raylog.actors.naming import NAMESPACE

    handles: dict[str, Any] = {}
    for name in names:
        try:
            handles[name] = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            continue
    stops = [handle.stop.remote() for handle in handles.values()]
    if stops:
        ray.wait(stops, num_returns=len(stops), timeout=max(0.1, min(CLEAN_STOP_S, deadline - time.monotonic())))
    for handle in handles.values():
        ray.kill(handle, no_restart=True)
    while lasting := [name for name in handles if _exists(name)]:
        if time.monotonic() >= deadline:
            raise StartFailed(f"Actors did not end in time: {', '.join(lasting)}; `ray list actors` shows their state.")
        time.sleep(POLL_S)


def _exists(name: str) -> bool:
    import ray

    from raylog.actors.naming import NAMESPACE

    try:
        ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return False
    return True
