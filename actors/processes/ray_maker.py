"""The Ray actor of a maker, and the owner's side of it (``makers.py``).

Unlike all other actors of Raylog, it belongs to a broker or the controller, and ends with its owner. The actors that it
has made stay.
"""

from __future__ import annotations

import logging
import os
import secrets
from functools import cache
from typing import Any, Final

import ray

from raylog.actors.logs import set_up_logging
from raylog.actors.naming import MAKER_PREFIX, MAKERS_NAMESPACE
from raylog.actors.processes.made_actors import (
    ActorRaised,
    ActorTrouble,
    MadeActors,
    NoSuchActor,
    OwnActors,
    Recipe,
)
from raylog.actors.processes.makers import MakerLost
from raylog.actors.processes.ray_support import (
    CONTROL_TIMEOUT_S,
    MAKE_TIMEOUT_S,
    answer,
    at_store,
    keep_unused_out,
    pinned,
    stand_up,
)
from raylog.actors.titles import wear

logger = logging.getLogger(__name__)

keep_unused_out()

PROMPT_S: Final = 5.0
"""How much longer an answer through a maker may take than from the actor itself, before the maker counts as hanging."""
END_TIMEOUT_S: Final = CONTROL_TIMEOUT_S + 10.0
DONE: Final = "done"
TROUBLES: Final[dict[str, type[ActorTrouble]]] = {
    kind.__name__: kind for kind in (ActorTrouble, NoSuchActor, ActorRaised)
}
"""The errors that a maker answers with, by name."""


class Maker:
    """Ray actor of a maker."""

    async def __init__(self, owner: str) -> None:  # type: ignore[misc]  # Ray awaits constructors
        """Begin to serve calls; ``owner``: the name of the actor that it works for."""
        set_up_logging(f"maker of {owner}")
        wear(f"ray::Maker {owner}", f"maker {owner}")
        self._actors = OwnActors()
        stand_up()

    async def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def do(self, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[str, Any]:
        """Carry out an operation on an actor; returns ("done", result), or an error's name and text."""
        return await outcome_of(self._actors, operation, arguments, options)


async def outcome_of(
    actors: MadeActors, operation: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[str, Any]:
    """Return how an operation ended as plain values, because Ray changes the class of an exception that it passes."""
    try:
        result = await getattr(actors, operation)(*arguments, **options)
    except ActorTrouble as trouble:
        return type(trouble).__name__, str(trouble)
    return DONE, None if operation == "make" else result  # the handle stays here: Ray would keep it in the owner, too


class RayMaker:
    """A maker's actor, as :class:`raylog.actors.processes.makers.Maker`."""

    def __init__(self, handle: Any) -> None:
        """``handle``: the maker's actor handle."""
        self._handle = handle

    async def start(self, name: str, recipe: Recipe) -> None:
        """Make the actor unless it runs; returns when it serves.

        It takes two calls: the first normally takes milliseconds, so that a hanging maker delays a replica only by
        seconds.
        """
        await self._do("make", (name, recipe), {}, 0.0)
        await self.call(name, recipe.first_call, timeout_s=MAKE_TIMEOUT_S)

    async def exists(self, name: str) -> bool:
        """Return whether there is such an actor."""
        found: bool = await self._do("exists", (name,), {}, 0.0)
        return found

    async def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method; returns its result."""
        return await self._do("call", (name, method, *arguments), {"timeout_s": timeout_s}, timeout_s)

    async def end(self, name: str, *, is_stopped_first: bool) -> None:
        """End the actor for good."""
        await self._do("end", (name,), {"is_stopped_first": is_stopped_first}, END_TIMEOUT_S)

    async def dismiss(self) -> None:
        """End the process."""
        try:
            await at_store(CONTROL_TIMEOUT_S, ray.kill, self._handle, no_restart=True)
        except (ray.exceptions.RayError, ValueError, TimeoutError) as error:
            logger.info("the maker that is not needed any more was not ended: %s", error)

    async def _do(self, operation: str, arguments: tuple[Any, ...], options: dict[str, Any], within_s: float) -> Any:
        try:
            outcome, value = await answer(self._handle.do.remote(operation, arguments, options), within_s + PROMPT_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise MakerLost(f"{operation} {arguments[0]}: {error!r}") from error
        if outcome != DONE:
            raise TROUBLES[outcome](value)
        return value


@cache
def maker_class() -> Any:
    """Return the Ray class of makers; always the same object, because Ray stores each new one."""
    return ray.remote(Maker)


async def hire(node_id: str, owner: str) -> RayMaker:
    """Start a maker on this node for the actor named ``owner``. Raises Ray's errors and TimeoutError."""
    options = {
        "name": f"{MAKER_PREFIX}{owner}-{secrets.token_hex(4)}",
        "namespace": MAKERS_NAMESPACE,
        "num_cpus": 0,
        "max_restarts": 0,
        "max_task_retries": 0,
        "scheduling_strategy": pinned(node_id),
    }
    handle: Any = await at_store(MAKE_TIMEOUT_S, maker_class().options(**options).remote, owner)
    await answer(handle.pid.remote(), MAKE_TIMEOUT_S)
    return RayMaker(handle)
