"""The Ray actors of coordinators: thin classes that run their server inside Ray.

Made by ``coordinator_factory.py``. The constructor imports the server, as in ``ray_actors.py``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from typing import Any, Final

import ray

from raylog.actors.actor_specs import CoordinatorSpec
from raylog.actors.controller_link import Place, known_first
from raylog.actors.logs import set_up_logging
from raylog.actors.naming import coordinator_name
from raylog.actors.processes.ray_secrets import secret_here
from raylog.actors.processes.ray_support import (
    LOOPBACK,
    begin,
    end_process,
    find_controller,
    keep_unused_out,
    node_address,
)
from raylog.actors.titles import wear

keep_unused_out()

SHORT_NAMES: Final = {"group": "coordinator", "transaction": "transactions"}
"""Name of the process of each kind of coordinator in ``top``."""


class GroupCoordinator:
    """Ray actor of a group coordinator."""

    async def __init__(  # type: ignore[misc]  # Ray awaits constructors
        self, spec: CoordinatorSpec, controller: Place | None = None
    ) -> None:
        """Begin to load its log. Ray has chosen the node; on a cluster of several nodes, listen on its address.

        ``controller``: the controller's address when this actor was made.
        """
        from raylog.actors.processes.coordinator_kinds import coordinator_server

        name = coordinator_name(spec.kind, spec.index)
        set_up_logging(name)
        wear(f"ray::{type(self).__name__} {name}", f"{SHORT_NAMES[spec.kind]}-{spec.index}")
        if spec.host != LOOPBACK:
            spec = replace(spec, host=node_address())

        async def start() -> None:
            here = replace(spec, secret=await secret_here(spec.secret))
            find = known_first(controller, find_controller)
            self._server = coordinator_server(here, find_controller=find, on_fatal=end_process)
            await self._server.start()

        await begin(start)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port."""
        return self._server.endpoint

    async def pid(self) -> int:
        """Return the process id, for operators and chaos tests."""
        return os.getpid()

    async def stop(self) -> None:
        """Stop serving; the caller ends the actor afterwards."""
        await self._server.stop()


class TransactionCoordinator(GroupCoordinator):
    """Ray actor of a transaction coordinator; a class of its own because Ray shows the class's name."""


ACTORS: Final[dict[str, type[Any]]] = {"group": GroupCoordinator, "transaction": TransactionCoordinator}
"""The actor's class by the kind of coordinator."""


@cache
def coordinator_class(kind: str) -> Any:
    """Return the Ray class for coordinators of a kind; always the same object, because Ray stores each new one."""
    return ray.remote(ACTORS[kind])
