"""Collects, through Ray, what replicas report about themselves, and where nodes serve their metrics."""

from __future__ import annotations

import logging
import time
from typing import Any

from raylog.launch.controller_calls import POLL_S
from raylog.launch.stopping import actor_names

logger = logging.getLogger(__name__)


def replica_reports(timeout_s: float) -> list[dict[str, Any]]:
    """Return role, offsets and process id of every replica that answers in time, by topic, partition and broker.

    Brokers answer for dozing replicas, whose processes they have stopped while idle, so that these need not wake.
    """
    from raylog.actors.naming import SPARE

    names = actor_names()
    dozing: dict[str, Any] = {}
    for found in _answers([name for name in names if name.startswith("broker-")], "dozing", timeout_s):
        dozing |= found
    awake = _answers(
        [name for name in names if name.startswith("replica:") and name not in dozing], "status", timeout_s
    )
    rows = [{**row, "dozing": True} for row in dozing.values()]
    rows += [{**row, "dozing": False} for row in awake if row["role"] != SPARE]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["broker"]))


def metrics_pages(timeout_s: float) -> tuple[list[str], list[str]]:
    """Return where nodes serve their metrics, and the addresses where another program has the port instead.

    Waits for brokers that do not know yet where their page should be. Both lists are empty if pages are switched off.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        names = [name for name in actor_names() if name.startswith("broker-")]
        states = _answers(names, "metrics_page", max(0.1, deadline - time.monotonic()))
        if time.monotonic() >= deadline or not any(state == "unknown" for state, _ in states):
            break
        time.sleep(POLL_S)
    served = sorted({place for state, place in states if state == "on"})
    taken = sorted({place for state, place in states if state == "taken"} - set(served))
    return served, taken


def _answers(names: list[str], method: str, timeout_s: float) -> list[Any]:
    """Call a method of actors; those that have ended, do not answer in time or do not have it are left out."""
    import ray

    from raylog.actors.processes.ray_support import find_actor

    handles = [find_actor(name) for name in names]
    calls: list[Any] = [getattr(handle, method).remote() for handle in handles if hasattr(handle, method)]
    answered, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
    found = []
    for answer in answered:
        try:
            found.append(ray.get(answer))
        except ray.exceptions.RayError as error:
            logger.info("an actor did not answer %s: %s", method, error)
    return found
