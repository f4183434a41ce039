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
from raylog.launch.ending.paced import PacedEnd

logger = logging.getLogger(__name__)

SLEEP_PART: Final = 0.6
"""Part of the time of a stop in which partitions may fall asleep, as long as more of them do."""
END_PART: Final = 0.3
"""Part of it in which the brokers may end their replicas then, as long as more of them end."""
LOOK_S: Final = 0.5
"""Pause between two questions how many sleep."""
QUIET_S: Final = 3.0
"""A stop waits no longer for the next replica of a sleeping partition to end."""
FEW: Final = 16
"""So many replicas close their logs at once without harm."""


def stop_actors(timeout_s: float, say: Say | None = None) -> None:
    """End every Raylog actor of this Ray cluster in the order that loses nothing, and wait until they have ended.

    ``say`` gets a line about once a second while it goes on, such as "40 of 150 processes ended".
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
    """Have the partitions fall asleep that can.

    A cluster that stops asleep starts without a process for each. The others stop awake. A controller that does not
    answer holds nothing up: all logs are closed cleanly anyway.
    """
    import ray

    from raylog.actors.naming import CONTROLLER, NAMESPACE

    deadline = time.monotonic() + timeout_s + 1.0
    with suppress(ValueError, ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        controller: Any = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        counts_rest = hasattr(controller, "asleep_and_awake")  # not one of an earlier release
        rest = controller.put_to_sleep.remote(timeout_s)
        while counts_rest and time.monotonic() < deadline:
            if ray.wait([rest], timeout=LOOK_S)[0]:
                break
            asleep, awake = ray.get(controller.asleep_and_awake.remote(), timeout=max(0.1, deadline - time.monotonic()))
            progress.at(asleep, asleep + awake, "partitions asleep")
        asleep, awake = ray.get(rest, timeout=max(0.1, deadline - time.monotonic()))
        logger.info("%d partitions sleep, %d stop awake", asleep, awake)


def let_sleepers_end(deadline: float, progress: Progress) -> None:
    """Wait while the brokers end replicas whose partitions sleep, until few are left or no more end.

    The controller has to stay until then: when its connections end, all replicas that doze are continued at once, and
    none of hundreds is closed in time.
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
    """End the actors of one broker, the supervisor of its replicas first, and wait until they have ended."""
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
        """Return their names, in one request to Ray."""
        return actor_names()

    def find(self, name: str) -> Any:
        """Return the handle of an actor; None when it has ended."""
        from raylog.actors.processes.ray_support import find_actor

        return find_actor(name)

    def request_stop(self, handle: Any) -> Any:
        """Call its method ``stop``."""
        return handle.stop.remote()

    def answered(self, requests: Sequence[Any], timeout_s: float) -> list[Any]:
        """Wait until all calls have ended, at most so long; returns those that have."""
        import ray

        ready, _ = ray.wait(list(requests), num_returns=len(requests), timeout=timeout_s)
        return ready

    def end(self, handle: Any) -> None:
        """End an actor for good."""
        import ray

        ray.kill(handle, no_restart=True)
