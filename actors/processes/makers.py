"""Lets makers, processes that are replaced now and then, make actors, because Ray leaks memory per actor.

A process that makes a Ray actor, or only looks it up, keeps some kB of it until the process ends. Brokers and the
controller live for years, and partitions and coordinators wake thousands of times a day. So each of these processes
makes its first actors itself. After :data:`STARTS` actors it starts a maker, a process that does nothing else, and
after as many again the next maker; the earlier one ends with its last call. A maker without a call for :data:`IDLE_S`
ends as well, and the next start of an actor starts another one.

A maker that dies or hangs is given up: its owner does the remaining work itself, and starts a new maker later. Actors
are known by name, and every operation is idempotent. Decision: ADR 0128.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from raylog.actors.processes.made_actors import MadeActors, Recipe

logger = logging.getLogger(__name__)

STARTS_VARIABLE: Final = "RAYLOG_STARTS_PER_MAKER"
"""Environment variable, set where Ray is started, that replaces STARTS. 0: brokers and controller make all actors."""
STARTS: Final = 1_000
"""Actors that one process makes; they leave some 6 MB in it."""

IDLE_S: Final = 21_600.0
"""Time without a call after which a maker ends: its process takes 25 MB and almost a hundredth of a core. Starting it
again leaves some 20 kB in its owner, so at most 0.1 MB a day."""


class MakerLost(Exception):
    """A maker has died, or did not answer in time; it may have done what it was to do."""


class Maker(MadeActors, Protocol):
    """A process that makes actors. Its methods also raise :class:`MakerLost`."""

    async def dismiss(self) -> None:
        """End the process; no error when it has ended."""


class _Hired:
    """A maker, and how many calls it has under way."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self.calls = 0
        self.is_dismissed = False
        self.ending: asyncio.TimerHandle | None = None
        """The timer that ends it, while it has no call."""


def starts_per_maker() -> int:
    """Return how many actors one process makes; 0 = no limit."""
    given = os.environ.get(STARTS_VARIABLE, "")
    return int(given) if given.isdecimal() and len(given) < 10 else STARTS


class Makers:
    """Makes actors in this process at first, and then in one maker after the other."""

    def __init__(
        self, own: MadeActors, hire: Callable[[], Awaitable[Maker]], starts: int, idle_s: float = IDLE_S
    ) -> None:
        """``own`` works in this process. ``hire`` starts a maker, or raises any error. ``starts``: 0 = no makers."""
        self._idle_s = idle_s
        self._own = own
        self._hire = hire
        self._most = starts
        self._starts = 0
        self._hired: _Hired | None = None
        self._hiring: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_over = False

    async def stop(self) -> None:
        """End the maker; later calls are done in this process."""
        self._is_over = True
        if self._hiring is not None:
            self._hiring.cancel()
            await asyncio.gather(self._hiring, return_exceptions=True)
        hired, self._hired = self._hired, None
        if hired is not None:
            self._leave(hired)
        await asyncio.gather(*self._leaving)

    async def start(self, name: str, recipe: Recipe) -> None:
        """Make the actor unless it runs; returns when it serves."""
        self._count()
        await self._do(lambda actors: actors.start(name, recipe))

    async def exists(self, name: str) -> bool:
        """Return whether there is such an actor."""
        found: bool = await self._do(lambda actors: actors.exists(name))
        return found

    async def call(self, name: str, method: str, *arguments: object, timeout_s: float) -> Any:
        """Call a method; returns its result."""
        return await self._do(lambda actors: actors.call(name, method, *arguments, timeout_s=timeout_s))

    async def end(self, name: str, *, is_stopped_first: bool) -> None:
        """End the actor for good."""
        await self._do(lambda actors: actors.end(name, is_stopped_first=is_stopped_first))

    async def _do(self, work: Callable[[MadeActors], Awaitable[Any]]) -> Any:
        """Let the maker do the work, if there is one; do it here if there is none, or if it is lost meanwhile."""
        hired = self._hired
        if hired is not None:
            try:
                async with self._busy(hired):
                    return await work(hired.maker)
            except MakerLost as error:
                self._give_up(hired, error)
        return await work(self._own)

    @asynccontextmanager
    async def _busy(self, hired: _Hired) -> AsyncIterator[None]:
        hired.calls += 1
        if hired.ending is not None:
            hired.ending.cancel()
        try:
            yield
        finally:
            hired.calls -= 1
            if hired.calls == 0:
                self._rest(hired)

    def _rest(self, hired: _Hired) -> None:
        """End a maker that has no call: at once if it was replaced, otherwise after the idle time."""
        if hired is not self._hired:
            self._leave(hired)
        else:
            hired.ending = asyncio.get_running_loop().call_later(self._idle_s, self._end_idle, hired)

    def _end_idle(self, hired: _Hired) -> None:
        if hired is self._hired and hired.calls == 0:
            self._hired = None
            self._starts = self._most  # so that the next start hires another maker
            self._leave(hired)

    def _count(self) -> None:
        self._starts += 1
        if 0 < self._most < self._starts and self._hiring is None and not self._is_over:
            self._hiring = asyncio.create_task(self._renew(), name="hiring a maker")

    async def _renew(self) -> None:
        """Replace the maker by a new one. If that fails, it is tried again after as many starts."""
        try:
            maker = await self._hire()
            before, self._hired = self._hired, _Hired(maker)
            logger.info("a new process makes the actors, after %d of them", self._starts)
            self._rest(self._hired)
            if before is not None and before.calls == 0:
                self._rest(before)
        except Exception as error:  # any error (Ray, no room for a process): actors are made as before
            logger.warning("no process could be started to make actors: %r", error)
        finally:
            self._starts = 0
            self._hiring = None

    def _give_up(self, hired: _Hired, error: MakerLost) -> None:
        if hired is self._hired:
            logger.warning("the process that makes actors is lost: %s", error)
            self._hired = None
            self._starts = self._most // 2  # a new maker comes later, because it could be lost just as soon
            self._leave(hired)

    def _leave(self, hired: _Hired) -> None:
        if hired.is_dismissed:
            return
        if hired.ending is not None:
            hired.ending.cancel()
        hired.is_dismissed = True
        task = asyncio.create_task(hired.maker.dismiss(), name="dismissing a maker")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
