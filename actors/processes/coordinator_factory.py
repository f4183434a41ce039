"""Makes and ends the actors of coordinators, for the controller. Owned by the ``Controller`` actor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from raylog.actors.actor_specs import ControllerSpec, CoordinatorSpec
from raylog.actors.controller_link import Place
from raylog.actors.naming import RESOURCE, coordinator_name
from raylog.actors.processes.made_actors import ActorTrouble, MadeActors, Recipe
from raylog.actors.processes.ray_support import A_SHARE, LOOPBACK
from raylog.rpc.occasional import OccasionalWarning

logger = logging.getLogger(__name__)
_not_started: Final = OccasionalWarning(logger)  # every request for it tries again until Ray gives up its lost node


class RayCoordinators:
    """Starts and ends coordinators; for each of them in order, because a name is free once its actor has ended."""

    def __init__(
        self,
        spec: ControllerSpec,
        actors: MadeActors,
        config: Callable[[], Mapping[str, str]],
        place: Callable[[], Place],
    ) -> None:
        """``spec``: the controller's specification; ``config`` returns the cluster's present configuration.

        ``place`` returns where the controller listens.
        """
        self._spec = spec
        self._actors = actors
        self._config = config
        self._place = place
        self._last: dict[str, tuple[asyncio.Task[None], bool]] = {}
        """By name: the last unfinished work on a coordinator, and whether it is a start."""

    def start(self, kind: str, index: int) -> None:
        """Make a coordinator's actor unless it runs; returns at once."""
        name = coordinator_name(kind, index)
        if name in self._last and self._last[name][1]:
            return  # it is being started
        spec = CoordinatorSpec(
            kind=kind,
            index=index,
            secret=self._spec.secret,
            cluster_config=dict(self._config()),
            host=self._spec.host,
            allow_plaintext=self._spec.allow_plaintext,
            folder=self._spec.data_directory,
        )
        self._work(name, lambda: make_coordinator(self._actors, spec, self._place()), is_start=True)

    def end(self, kind: str, index: int) -> None:
        """End a coordinator's actor for good; returns at once."""
        name = coordinator_name(kind, index)
        self._work(name, lambda: end_coordinator(self._actors, name), is_start=False)

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
        await asyncio.wait({earlier})  # without a timeout: it has a deadline of its own
    await work()


async def make_coordinator(actors: MadeActors, spec: CoordinatorSpec, controller: Place) -> None:
    """Make the coordinator's actor unless it runs. A failure is logged; the next request for it tries again."""
    name = coordinator_name(spec.kind, spec.index)
    # On a cluster of several machines it has to run where a broker runs, because the secrets are there.
    resources = {RESOURCE: A_SHARE} if spec.host != LOOPBACK else {}
    try:
        await actors.start(name, Recipe(kind=spec.kind, arguments=(spec, controller), resources=resources))
    except ActorTrouble as error:
        _not_started.warn("%s was not started: %s", name, error)


async def end_coordinator(actors: MadeActors, name: str) -> None:
    """End a coordinator's actor for good, once it has stored everything and serves nothing. Failures are logged.

    Its server is not stopped first: if the controller died between the two steps, a stopped actor would keep the name.
    """
    try:
        await actors.end(name, is_stopped_first=False)
    except ActorTrouble as error:
        logger.warning("%s", error)
