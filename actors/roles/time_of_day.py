"""The time of day by which a role decides what is due: the time on which most brokers agree, without jumps.

May touch: the brokers' clocks, through the role's host.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from raylog.actors.roles.host import RoleHost
from raylog.base.errors import RaylogError
from raylog.core.scheduling.clock import STEP_MS, OwnerClock, agreed_ms

logger = logging.getLogger(__name__)

AGAIN_S: Final = 0.2
CLOCK_WAIT_MS: Final = 10_000
"""Time for which the brokers' clocks may disagree; after it, the earliest one counts."""
STEP_LOOK_S: Final = 1.0
"""Interval of checks whether the wall clock was set."""


class TimeOfDay:
    """The clock of one leadership."""

    def __init__(self, host: RoleHost) -> None:
        """The clock is this host's until :meth:`set` returns."""
        self._host = host
        self._clock = OwnerClock(monotonic_ms=host.now_ms(), wall_ms=host.wall_ms())
        self._is_agreed = True
        """False: it began without the agreement of most brokers, and looks for that."""

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970; it never goes back."""
        return self._clock.now_ms(monotonic_ms=self._host.now_ms(), wall_ms=self._host.wall_ms())

    @property
    def step_ms(self) -> int:
        """How far this host's clock was set away from this one; 0 = it was not set."""
        return self._clock.step_ms

    async def set(self, wait_ms: int = CLOCK_WAIT_MS) -> None:
        """Take over the time on which most brokers agree, since this host's clock may be wrong.

        Nothing may be decided before this returns. If they do not agree within ``wait_ms``, the earliest clock counts:
        a record that is late is better than one that is early. If the process has seen this host's clock jump, that
        clock counts as it goes on from before. :meth:`follow` takes over the time of most brokers once they agree.
        """
        host, until_ms = self._host, self._host.now_ms() + wait_ms
        while True:
            clocks, brokers = await self._clocks()
            first_ms = agreed_ms(clocks, brokers)
            if first_ms is None and host.now_ms() >= until_ms:
                trusted_ms = host.trusted_ms()
                has_jumped = abs(trusted_ms - host.wall_ms()) >= STEP_MS  # then the broker's clock beside it has, too
                first_ms = trusted_ms if has_jumped else min([trusted_ms, *clocks])
                self._is_agreed = False
                logger.warning("%s: the brokers' clocks do not agree; the earliest counts", host.partition)
            if first_ms is not None:
                break
            await asyncio.sleep(AGAIN_S)
        if abs(first_ms - host.wall_ms()) < STEP_MS:
            first_ms = host.wall_ms()
        self._clock = OwnerClock(monotonic_ms=host.now_ms(), wall_ms=first_ms)

    async def follow(self, on_step: Callable[[], None]) -> None:
        """Follow steps of this host's clock that most brokers confirm; runs until cancelled.

        ``on_step`` is called after each such step.
        """
        while True:
            await asyncio.sleep(STEP_LOOK_S)
            self.now_ms()
            if not self._is_agreed:
                self._take_over(agreed_ms(*await self._clocks()), on_step)
            elif self._clock.step_ms:
                found = agreed_ms(*await self._clocks())
                self.now_ms()  # updates the step: the wall clock may have been set back meanwhile
                step_ms = self._clock.step_ms
                if self._clock.confirm(found, wall_ms=self._host.wall_ms()):
                    logger.warning(
                        "%s: the clock was set by %+d ms, as most brokers' were", self._host.partition, step_ms
                    )
                    on_step()

    def _take_over(self, found_ms: int | None, on_step: Callable[[], None]) -> None:
        """Go on with the time on which most brokers agree by now, unless it would go back."""
        if found_ms is None:
            return
        self._is_agreed = True
        ahead_ms = found_ms - self.now_ms()
        logger.warning("%s: the brokers' clocks agree, and this one was %+d ms ahead", self._host.partition, -ahead_ms)
        if ahead_ms >= STEP_MS:
            self._clock = OwnerClock(monotonic_ms=self._host.now_ms(), wall_ms=found_ms)
            on_step()

    async def _clocks(self) -> tuple[list[int], int]:
        """Return the times of the brokers that answer, and the number of brokers."""
        try:
            return await self._host.clocks()
        except (RaylogError, OSError) as error:
            logger.debug("%s: the brokers' clocks are not known: %s", self._host.partition, error)
            return [], 1
