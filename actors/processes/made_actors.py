"""What brokers and the controller do with the actors that they make: start, call and end them.

The class here does it in its own process, which is the broker's, the controller's, or a maker's (``ray_maker.py``);
``makers.py`` chooses. An actor is known by its name, so it does not matter which process has made it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import ray

from raylog.actors.processes.ray_support import (
    CONTROL_TIMEOUT_S,
    MAKE_TIMEOUT_S,
    actor_options,
    answer,
    at_store,
    find_beside,
    wait_until_ended,
)

logger = logging.getLogger(__name__)

REPLICA: Final = "replica"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What Ray needs to make an actor."""

    kind: str
    """REPLICA, or the kind of a coordinator."""
    arguments: tuple[Any, ...]
    """Arguments of its constructor."""
    node_id: str | None = None
    """Ray's id of the node that it must run on; None = any."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom resources of Ray that it claims."""
    first_call: str = "endpoint"
    """The method that answers once it serves."""


class ActorTrouble(Exception):
    """An actor did not do what it should, or not in time; it may still do it."""


class NoSuchActor(ActorTrouble):
    """There is no actor of that name."""


class ActorRaised(ActorTrouble):
    """The method that was called raised an error."""


class MadeActors(Protocol):
    """Actors by their names. All methods raise :class:`ActorTrouble`."""

    async def start(self, name: str, recipe: Recipe) -> None:
        """Make the actor unless it runs; returns when it serves."""

    async def exists(self, name: str) -> bool:
        """Return whether there is such an actor, even if its process is being restarted."""

    async def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method; returns its result. Raises :class:`NoSuchActor`, and :class:`ActorRaised` for its error."""

    async def end(self, name: str, *, is_stopped_first: bool) -> None:
        """End the actor for good, and wait until its name is free; no error when there is none."""


class OwnActors:
    """Makes actors in this process, where Ray keeps some kB of each actor until the process ends (ADR 0128)."""

    async def start(self, name: str, recipe: Recipe) -> None:
        """Make the actor unless it runs; returns when it serves."""
        handle = await self.make(name, recipe)
        await _answer(handle, name, recipe.first_call, (), MAKE_TIMEOUT_S)

    async def make(self, name: str, recipe: Recipe) -> Any:
        """Make the actor unless it runs; returns its handle when Ray has registered it."""
        options = actor_options(name, node_id=recipe.node_id)
        if recipe.resources:
            options["resources"] = dict(recipe.resources)
        request = class_of(recipe.kind).options(**options).remote
        try:
            return await at_store(MAKE_TIMEOUT_S, request, *recipe.arguments)
        except (ray.exceptions.RayError, ValueError, TimeoutError) as error:
            raise ActorTrouble(f"{name} was not made: {error!r}") from error

    async def exists(self, name: str) -> bool:
        """Return whether there is such an actor."""
        return await _found(name) is not None

    async def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method; returns its result."""
        handle = await _found(name)
        if handle is None:
            raise NoSuchActor(f"There is no actor {name}.")
        return await _answer(handle, name, method, arguments, timeout_s)

    async def end(self, name: str, *, is_stopped_first: bool) -> None:
        """End the actor for good, and wait until its name is free."""
        handle = await _found(name)
        if handle is None:
            return
        try:
            if is_stopped_first:
                await _answer(handle, name, "stop", (), CONTROL_TIMEOUT_S)
        except ActorTrouble as error:
            logger.info("%s did not stop cleanly: %s", name, error)
        try:
            await at_store(CONTROL_TIMEOUT_S, ray.kill, handle, no_restart=True)
            await wait_until_ended(name)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise ActorTrouble(f"{name} has not ended: {error!r}") from error


def class_of(kind: str) -> Any:
    """Return the Ray class for actors of this kind."""
    if kind == REPLICA:
        from raylog.actors.processes.ray_replica import replica_class

        return replica_class()
    from raylog.actors.processes.ray_coordinator import coordinator_class

    return coordinator_class(kind)


async def _found(name: str) -> Any:
    """Return the actor's handle, or None. Raises ActorTrouble if Ray does not answer."""
    try:
        return await find_beside(name)
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise ActorTrouble(f"Ray does not say whether there is an actor {name}: {error!r}") from error


async def _answer(handle: Any, name: str, method: str, arguments: tuple[object, ...], timeout_s: float) -> Any:
    try:
        return await answer(getattr(handle, method).remote(*arguments), timeout_s)
    except ray.exceptions.RayTaskError as error:
        raise ActorRaised(f"{name}, {method}: {error.cause!r}") from error
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise ActorTrouble(f"{name} did not answer to {method}: {error!r}") from error
