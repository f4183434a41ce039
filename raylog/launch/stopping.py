"""Ends every actor of a Raylog cluster in an order that loses nothing. Called by ``raylog.launch.cluster``.

Imports Ray when a function is called, not before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from raylog.client.progress import Progress, Say
from raylog.launch.controller_calls import require_ray
from raylog.launch.paced import PacedEnd

logger = logging.getLogger(__name__)

SLEEP_PART: Final = 0.6
"""Share of the stop's timeout during which partitions may fall asleep, as long as more of them do."""
END_PART: Final = 0.3
"""Share of the timeout during which brokers may then end their replicas, as long as more of them end."""
LOOK_S: Final = 0.5
"""Pause between two checks of the progress."""
QUIET_S: Final = 3.0
"""How long a stop waits for the next replica of a sleeping partition to end."""
FEW: Final = 16
"""So many replicas may close their logs at once: they do not slow each other down too much."""


def stop_actors(timeout_s: float, say: Say | None = None) -> None:
    """End every Raylog actor of this Ray cluster in an order that loses nothing, and wait until they have ended.

    Meanwhile ``say`` gets a line about once a second, such as "40 of 150 processes ended". Raises StartFailed when
    actors do not end in time.
    """
    from raylog.actors.naming import CONTROLLER

    deadline = time.monotonic() + timeout_s
    progress = Progress(say)
    put_to_sleep(SLEEP_PART * timeout_s, progress)
    let_sleepers_end(time.monotonic() + END_PART * timeout_s, progress)
    ending = PacedEnd(RayActors(), deadline, progress)
    while names := actor_names():
        first = [name for name in names if name == CONTROLLER]
        brokers = [name for name in names if name.startswith("broker-")]
        others = [name for name in names if name not in first and name not in brokers]
        ending.run((first, brokers, others))
        # Once more: a controller or broker may have been making an actor when the stop request arrived.


def put_to_sleep(timeout_s: float, progress: Progress) -> None:
    """Let partitions fall asleep that can; the others stop awake.

    A partition that stops asleep needs no process at the next start. A controller that does not answer does not hold up
    the stop: all logs are closed cleanly anyway.
    """
    import ray

    from raylog.actors.naming import CONTROLLER, NAMESPACE

    deadline = time.monotonic() + timeout_s + 1.0
    with suppress(ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        controller: Any = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        rest = controller.put_to_sleep.remote(timeout_s)
        while time.monotonic() < deadline:
            if ray.wait([rest], timeout=LOOK_S)[0]:
                break
            asleep, awake = ray.get(controller.asleep_and_awake.remote(), timeout=max(0.1, deadline - time.monotonic()))
            progress.at(asleep, asleep + awake, "partitions asleep")
        asleep, awake = ray.get(rest, timeout=max(0.1, deadline - time.monotonic()))
        logger.info("%d partitions sleep, %d stop awake", asleep, awake)


def let_sleepers_end(deadline: float, progress: Progress) -> None:
    """Wait while the brokers end replicas whose partitions sleep, until few are left or no more end.

    The controller has to run until then: when its connections end, all dozing replicas wake at once, and of hundreds
    none would close in time.
    """
    from raylog.actors.naming import REPLICA_PREFIX, SPARE_PREFIX

    def count() -> int:
        return sum(name.startswith(REPLICA_PREFIX) and not name.startswith(SPARE_PREFIX) for name in actor_names())

    before = left = count()
    quiet_until = time.monotonic() + QUIET_S
    while left > FEW and time.monotonic() < min(deadline, quiet_until):
        progress.at(before - left, before, "replicas ended")
        time.sleep(LOOK_S)
        now = count()
        if now < left:
            left, quiet_until = now, time.monotonic() + QUIET_S


def stop_broker_actors(broker: int, node_id: str, timeout_s: float, say: Say | None = None) -> None:
    """End the actors of one broker, and wait for it. The broker itself is first: it would restart its replicas."""
    from raylog.actors.naming import broker_name, node_broker_name

    ending = PacedEnd(RayActors(), time.monotonic() + timeout_s, Progress(say))
    mine = (broker_name(broker), node_broker_name(node_id))
    while names := [name for name in actor_names() if name in mine or f":broker-{broker}:" in name]:
        ending.run(([name for name in names if name in mine], [name for name in names if name not in mine]))
        # Once more: the broker may have been making a replica when the stop request arrived.


def actor_names() -> list[str]:
    """Return the names of all Raylog actors of this Ray cluster, including those that are being restarted."""
    import ray

    from raylog.actors.naming import NAMESPACE

    require_ray()
    known = ray.util.list_named_actors(all_namespaces=True)
    return sorted(entry["name"] for entry in known if entry["namespace"] == NAMESPACE)


class RayActors:
    """The actors of the Raylog cluster in this Ray cluster."""

    def names(self) -> list[str]:
        """Return the names of all actors, in one request to Ray."""
        return actor_names()

    def find(self, name: str) -> Any:
        """Return the handle of an actor; None when it has ended."""
        from raylog.actors.processes.ray_support import find_actor

        return find_actor(name)

    def request_stop(self, handle: Any) -> Any:
        """Call the actor's method ``stop``."""
        return handle.stop.remote()

    def answered(self, requests: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait until all calls have ended, at most ``timeout_s``; returns those that have."""
        import ray

        ready, _ = ray.wait(list(requests), num_returns=len(requests), timeout=timeout_s)
        return ready

    def end(self, handle: Any) -> None:
        """End an actor for good."""
        import ray

        ray.kill(handle, no_restart=True)
