"""Calls to the controller of the cluster that runs in this Ray cluster. Used by the modules that start and stop it.

Imports Ray when a function is called, not before.
"""

from __future__ import annotations

import time
from typing import Any, Final

from raylog.base.errors import NoClusterFound

POLL_S: Final = 0.05
CALL_TIMEOUT_S: Final = 15.0


def require_ray() -> None:
    """Raise :class:`NoClusterFound` when this process has not joined a Ray: Ray's calls would start a new one."""
    import ray

    if not ray.is_initialized():
        raise NoClusterFound(
            "This process has left the Ray of its Raylog cluster, or has never joined one: raylog.connect() joins the "
            "cluster that runs, raylog.start() starts it."
        )


def controller() -> Any:
    """Return the controller's handle; raises :class:`NoClusterFound` when there is none."""
    import ray

    from raylog.actors.naming import CONTROLLER, NAMESPACE

    require_ray()
    try:
        return ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except ValueError:
        raise NoClusterFound from None


def cluster_status(timeout_s: float) -> dict[str, Any]:
    """Return the controller's status as plain values. Raises :class:`NoClusterFound` after ``timeout_s`` seconds."""
    import ray

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found: dict[str, Any] = ray.get(controller().status.remote(), timeout=max(0.1, deadline - time.monotonic()))
            return found
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            if time.monotonic() >= deadline:
                raise NoClusterFound(
                    f"The controller did not answer within {timeout_s:.0f} s ({type(error).__name__}); it is being "
                    "restarted, or the cluster has stopped: see `raylog status`."
                ) from None
            time.sleep(POLL_S)


def running_folder() -> str | None:
    """Return the data directory of the cluster that runs in this Ray cluster, None when none runs."""
    import ray

    deadline = time.monotonic() + CALL_TIMEOUT_S
    while True:
        try:
            folder: str = ray.get(controller().folder.remote(), timeout=max(0.1, deadline - time.monotonic()))
            return folder
        except ray.exceptions.ActorUnavailableError:  # it is being restarted
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_S)
        except (NoClusterFound, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return None
