"""Makes and ends the actors of coordinators, for the controller. Owned by the ``Controller`` actor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import ray

from raylog.actors.actor_specs import ControllerSpec, CoordinatorSpec
from raylog.actors.naming import RESOURCE, coordinator_name
from raylog.actors.processes.ray_coordinator import ACTORS
from raylog.actors.processes.ray_support import (
    A_SHARE,
    LOOPBACK,
    MAKE_TIMEOUT_S,
    actor_options,
    answer,
    find_actor,
    wait_until_ended,
)
from raylog.rpc.host.occasional import OccasionalWarning

logger = logging.getLogger(__name__)
_not_started: Final = OccasionalWarning(logger)  # each request for it tries again while its node is being given up


class RayCoordinators:
    """Starts and ends coordinators, one after the other for each of them: an actor's name is free once it has ended."""

    def __init__(self, spec: ControllerSpec, config: Callable[[], Mapping[str, str]]) -> None:
        """``spec``: the controller's, which has the secret; ``config`` returns the cluster's configuration."""
        self._spec = spec
        self._config = config
        self._last: dict[str, tuple[asyncio.Task[None], bool]] = {}
        """The latest work on each coordinator that is not done, and whether it is a start."""

    def start(self, kind: str, index: int) -> None:
        """Make a coordinator's actor unless it runs; returns at once."""
        name = coordinator_name(kind, index)
        if name in self._last and self._last[name][1]:
            return  # is being started
        spec = CoordinatorSpec(
            kind=kind,
            index=index,
            secret=self._spec.secret,
            cluster_config=dict(self._config()),
            host=self._spec.host,
            allow_plaintext=self._spec.allow_plaintext,
            folder=self._spec.data_directory,
        )
        self._work(name, lambda: make_coordinator(spec), is_start=True)

    def end(self, kind: str, index: int) -> None:
        """End a coordinator's actor for good; returns at once."""
        name = coordinator_name(kind, index)
        self._work(name, lambda: end_coordinator(name), is_start=False)

    def _work(self, name: str, work: Callable[[], Awaitable[None]], *, is_start: bool) -> None:
        earlier = self._last.get(name)
        task = asyncio.create_task(_after(None if earlier is None else earlier[0], work), name=name)
        self._last[name] = task, is_start
        task.add_done_callback(lambda done: self._done(name, done))

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._last.get(name, (None, False))[0] is task:
            del self._last[name]
        if not task.cancelled() and (defect := task.exception()) is not None:
            logger.error("the work on %s failed", name, exc_info=defect)


async def _after(earlier: asyncio.Task[None] | None, work: Callable[[], Awaitable[None]]) -> None:
    if earlier is not None:
        await asyncio.wait({earlier})  # it has a deadline of its own
    await work()


async def make_coordinator(spec: CoordinatorSpec) -> None:
    """Make the coordinator's actor unless it runs; failures are logged and repeated by the next request for it."""
    try:
        options = actor_options(coordinator_name(spec.kind, spec.index))
        if spec.host != LOOPBACK:
            options["resources"] = {RESOURCE: A_SHARE}  # where a broker is, and with it the secrets
        actor = ray.remote(ACTORS[spec.kind]).options(**options)
        handle: Any = actor.remote(spec)
        await answer(handle.endpoint.remote(), MAKE_TIMEOUT_S)
    except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
        _not_started.warn("%s was not started: %s", coordinator_name(spec.kind, spec.index), error)


async def end_coordinator(name: str) -> None:
    """End a coordinator's actor for good: it has stored everything and serves nothing. Failures are logged.

    It is not stopped first: one that had stopped, and whose controller died before it ended it, would keep its name.
    """
    handle = find_actor(name)
    if handle is None:
        return
    try:
        ray.kill(handle, no_restart=True)
        await wait_until_ended(name)
    except (ray.exceptions.RayError, TimeoutError) as error:
        logger.warning("%s has not ended: %s", name, error)
