"""The Ray actor of a partition replica, and the hands of a broker that makes them.

A module of its own, because there are many such processes and what each imports is most of the time that a topic takes
to be created: nothing here may need the controller's, a broker's or a group coordinator's modules.
"""

from __future__ import annotations

import logging
from typing import Any

import ray

from raylog.actors.naming import NAMESPACE, replica_name
from raylog.actors.ray_support import (
    CONTROL_TIMEOUT_S,
    MAKE_TIMEOUT_S,
    actor_options,
    answer,
    begin,
    end_process,
    find_controller,
    keep_arrow_out,
    log_to_stderr,
    wait_until_gone,
)
from raylog.actors.replica_server import ReplicaServer
from raylog.actors.specs import ReplicaSpec

logger = logging.getLogger(__name__)

keep_arrow_out()


class Replica:
    """Ray actor of one partition replica."""

    async def __init__(self, spec: ReplicaSpec) -> None:  # type: ignore[misc]  # Ray awaits constructors
        """Recover the log and begin to serve."""
        log_to_stderr()
        self._server = ReplicaServer(spec, find_controller=find_controller, on_fatal=end_process)
        await begin(self._server.start)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port."""
        return self._server.endpoint

    async def status(self) -> dict[str, object]:
        """Return role, offsets and process id."""
        return self._server.status()

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Go by what has changed in the specification from now on."""
        self._server.reconfigure(spec)

    async def stop(self) -> None:
        """Stop serving and close the log cleanly; the caller ends the actor afterwards."""
        await self._server.stop()


class RayWorkshop:
    """Makes replicas as Ray actors pinned to this broker's node; the supervisor's hands."""

    def __init__(self, node_id: str) -> None:
        """``node_id`` is Ray's id of the node that holds the data directory."""
        self._node_id = node_id

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Make the replica's actor unless it runs; returns when it serves. Raises Ray's errors and TimeoutError."""
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        handle: Any = ray.remote(Replica).options(**actor_options(name, node_id=self._node_id)).remote(spec)
        await answer(handle.endpoint.remote(), MAKE_TIMEOUT_S)

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Tell the replica's actor what has changed; raises Ray's errors, ValueError and TimeoutError."""
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        handle: Any = ray.get_actor(name, namespace=NAMESPACE)
        await answer(handle.reconfigure.remote(spec), CONTROL_TIMEOUT_S)

    async def end(self, name: str) -> None:
        """Stop the replica's actor and end it for good; no error when there is none."""
        try:
            handle = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return
        try:
            await answer(handle.stop.remote(), CONTROL_TIMEOUT_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            logger.info("%s did not stop cleanly: %s", name, error)
        ray.kill(handle, no_restart=True)
        await wait_until_gone(name)
