"""The Ray actor of a partition replica.

A module of its own, because there are many such processes and what each imports is most of the time that a topic takes
to be created: nothing here may need the controller's, a broker's or a group coordinator's modules.
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
from raylog.core.errors import InvalidRequest
from raylog.rpc.host.malloc import keep_freed_memory

keep_unused_out()
KEPT_BYTES = 4 << 20


class Replica:
    """Ray actor of one partition replica, or a spare that becomes one, once and for life."""

    async def __init__(  # type: ignore[misc]  # Ray awaits constructors
        self, spec: ReplicaSpec | None, spare: SpareSpec | None = None, controller: Place | None = None
    ) -> None:
        """Recover the log and begin to serve; a spare does so once its role is noted.

        ``controller``: where it was when this actor was made.
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
        """Become this replica unless it is it already; returns host and port when it serves.

        ``controller``: where it is now.
        Raises what keeps it from starting, and :class:`InvalidRequest` when it is another replica.
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
        """Return what Ray shows beside the class, in its lists and before lines of the log."""
        return f"Replica({SPEAKER.actor})"

    async def role(self) -> str:
        """Return the name of the replica that this is; "" for a spare."""
        return "" if self._server is None else name_of(self._server.spec)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port; raises :class:`InvalidRequest` for a process that was stopped and not ended."""
        server = self._serving()
        if server.is_stopped:
            raise InvalidRequest(f"{name_of(server.spec)} was stopped; end this process.")
        return server.endpoint

    async def status(self) -> dict[str, object]:
        """Return role, offsets and process id; of a spare the process id alone."""
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
    """Return the class of which Ray makes replicas.

    The same for all: each new one is taken apart, pickled and stored by Ray when its first actor is made, which takes
    the broker longer than everything else about a replica.
    """
    return ray.remote(Replica)
