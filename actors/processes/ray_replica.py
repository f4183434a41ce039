"""The Ray actor of a partition replica.

It is a module of its own, because there are many such processes, and their imports are most of the time that creating a
topic takes: nothing here may need modules of the controller, of brokers or of coordinators.
"""

from __future__ import annotations

import asyncio
import os
from functools import cache
from typing import Any

import ray

from raylog.actors.actor_specs import ReplicaSpec, SpareSpec
from raylog.actors.controller_link import Place, known_first
from raylog.actors.dozing.processes import CAN_STOP
from raylog.actors.dozing.resting import DozeLink
from raylog.actors.logs import SPEAKER, name_log, set_up_logging
from raylog.actors.naming import SPARE
from raylog.actors.processes.ray_support import begin, end_replica, find_controller, keep_unused_out
from raylog.actors.processes.spare_roles import name_of, read_role
from raylog.actors.replica.dozing import doze_until_called
from raylog.actors.replica.server import ReplicaServer
from raylog.actors.titles import replica_titles, wear
from raylog.base.errors import InvalidRequest
from raylog.rpc.host import keep_freed_memory

keep_unused_out()
KEPT_BYTES = 4 << 20


class Replica:
    """Ray actor of one partition replica, or of a spare, which may become a replica once."""

    async def __init__(  # type: ignore[misc]  # Ray awaits constructors
        self, spec: ReplicaSpec | None, spare: SpareSpec | None = None, controller: Place | None = None
    ) -> None:
        """Recover the log and begin to serve; a spare does so only if its role was noted.

        ``controller``: the controller's address when this actor was made.
        """
        set_up_logging(SPARE if spec is None else name_of(spec))
        if spec is None:
            wear("ray::Replica spare", SPARE)
        keep_freed_memory(KEPT_BYTES)
        self._server: ReplicaServer | None = None
        self._adopting = asyncio.Lock()
        self._dozing: asyncio.Task[None] | None = None
        await begin(lambda: self._begin(spec, spare, controller), paced=True)

    async def _begin(self, spec: ReplicaSpec | None, spare: SpareSpec | None, controller: Place | None) -> None:
        if spec is None and spare is not None:
            spec = await asyncio.to_thread(read_role, spare)
        if spec is not None:
            await self.adopt(spec, controller)
            return
        if spare is not None and CAN_STOP:
            rest = DozeLink(spare.data_directory, SPARE)
            self._dozing = asyncio.create_task(doze_until_called(rest, self._adopting.locked), name="dozing")

    async def adopt(self, spec: ReplicaSpec, controller: Place | None = None) -> tuple[str, int]:
        """Become this replica, unless it already is; returns host and port when it serves.

        ``controller``: the controller's present address. Raises the error that keeps it from starting, and
        :class:`InvalidRequest` if this process is another replica.
        """
        async with self._adopting:
            if self._dozing is not None:
                self._dozing.cancel()
                await asyncio.gather(self._dozing, return_exceptions=True)
                self._dozing = None
            if self._server is None:
                rest = DozeLink(spec.data_directory, name_of(spec)) if CAN_STOP else None
                find = known_first(controller, find_controller)
                server = ReplicaServer(spec, find_controller=find, on_fatal=end_replica, rest=rest)
                SPEAKER.actor, SPEAKER.topic, SPEAKER.partition = name_of(spec), spec.topic, spec.partition
                SPEAKER.epoch = lambda: server.leader_epoch
                name_log(SPEAKER.actor)
                wear(*replica_titles(spec.topic, spec.partition, spec.broker))
                await server.start()
                self._server = server
            elif name_of(self._server.spec) != name_of(spec):
                raise InvalidRequest(f"This process is {name_of(self._server.spec)}; it cannot be {name_of(spec)} too.")
            return self._server.endpoint

    def __repr__(self) -> str:
        """Return the text that Ray shows for this actor in lists and before log lines."""
        return f"Replica({SPEAKER.actor})"

    async def role(self) -> str:
        """Return the name of this replica; "" for a spare."""
        return "" if self._server is None else name_of(self._server.spec)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port. Raises :class:`InvalidRequest` if it was stopped but its process has not ended."""
        server = self._serving()
        if server.is_stopped:
            raise InvalidRequest(f"{name_of(server.spec)} was stopped; end this process.")
        return server.endpoint

    async def status(self) -> dict[str, object]:
        """Return role, offsets and process id; for a spare only the process id."""
        if self._server is None:
            return {"topic": "", "partition": -1, "broker": -1, "role": SPARE, "pid": os.getpid()}
        return self._server.status()

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Apply the changes in the specification from now on."""
        self._serving().reconfigure(spec)

    async def stop(self) -> None:
        """Stop serving and close the log cleanly; the caller ends the actor afterwards."""
        async with self._adopting:
            if self._server is not None:
                await self._server.stop()

    def _serving(self) -> ReplicaServer:
        if self._server is None:
            raise InvalidRequest("This process is a spare: it serves no partition yet.")
        return self._server


@cache
def replica_class() -> Any:
    """Return the Ray class of replicas; always the same object.

    Ray inspects, pickles and stores each new class when its first actor is made, which takes the broker longer than
    everything else about a replica.
    """
    return ray.remote(Replica)
