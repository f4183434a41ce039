"""Looks whether a replica is at rest, and then offers its process to be stopped. Owned by the replica's shell."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_link import ControllerLink
from raylog.actors.flusher import Flusher
from raylog.actors.replica.follower_link import FollowerLink
from raylog.actors.replica.reporting.beating import Beating
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.replica.watermark_keeper import WatermarkKeeper
from raylog.core.dozing.rest import LONGEST_MS, SHORTEST_MS, doze_until_ms, next_look_ms
from raylog.core.vouching import NO_LIFE
from raylog.rpc import RpcServer

SHORTEST_LOOK_S: Final = 0.02
LONGEST_LOOK_S: Final = 0.25
SPARE_LOOK_S: Final = 2.0
"""How long a process without a replica is awake before it rests: as long as its start and a call to it may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doze:
    """One rest, as a replica offers it."""

    until_ms: int
    """When something is to be done."""
    life: int
    """The incarnation whose session lives by its broker's heartbeats; NO_LIFE = the rest ends before the next own."""
    report: Callable[[], Mapping[str, object]]
    """Returns what the replica would answer meanwhile: ``status`` and ``metrics``."""
    holds: Callable[[], bool]
    """Returns whether it may go on: the broker still vouches for it. To be called every ``check_ms`` while it runs."""
    check_ms: int


class Rest(Protocol):
    """What a process rests by: :class:`raylog.actors.dozing.resting.DozeLink`, or the simulator's."""

    async def rest(self, doze: Doze) -> int:
        """Rest until the end of the doze at the longest, while no other task of the process runs.

        Returns for how many milliseconds, 0 = it was not possible.
        """

    def close(self) -> None:
        """Rest no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a replica that have to be at rest."""

    runner: ReplicaRunner
    flusher: Flusher
    keeper: WatermarkKeeper
    server: RpcServer
    leader: FollowerLink
    controller: ControllerLink
    beating: Beating
    report: Callable[[], Mapping[str, object]]
    is_busy: Callable[[], bool]
    """Returns whether anything else is under way."""


class Dozing:
    """Rests whenever two looks in a row find that nothing is under way.

    Two, with turns of the loop between them: what the first look could not see, because it was only queued there, has
    run by the second.
    """

    def __init__(self, rest: Rest, parts: Parts, check_ms: int) -> None:
        """``check_ms``: how often a resting process looks whether its broker vouches for it."""
        self._rest = rest
        self._parts = parts
        self._check_ms = check_ms

    async def run(self) -> None:
        """Rest again and again, until cancelled."""
        pause_s = soon_s = LONGEST_LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = soon_s = min(LONGEST_LOOK_S, soon_s * 2)
            if self._look(monotonic_ms()) is None:
                pause_s = self._pause_s(monotonic_ms(), soon_s)
                continue
            for _ in range(3):
                await asyncio.sleep(0)
            doze = self._look(monotonic_ms())
            rested_ms = 0 if doze is None else await self._rest.rest(doze)
            if rested_ms >= SHORTEST_MS:
                pause_s = soon_s = SHORTEST_LOOK_S
            if rested_ms:
                self._parts.controller.rested(rested_ms / 1000)
                self._beat()

    def _beat(self) -> bool:
        """Note that this process runs; returns whether its broker vouches for it."""
        parts = self._parts
        is_vouched_for = parts.beating.beat(monotonic_ms(), parts.runner.disk_hanging_ms)
        parts.controller.vouched_for(is_vouched_for)
        return is_vouched_for

    def _pause_s(self, now_ms: int, soon_s: float) -> float:
        """Return how long to wait after a look that found no doze."""
        machine = self._parts.runner.machine
        if machine is None:
            return soon_s
        after_ms, quiet = machine.settings.doze_after_ms, machine.quiet(now_ms + LONGEST_MS)
        return next_look_ms(now_ms, quiet, doze_after_ms=after_ms, pause_ms=int(soon_s * 1000)) / 1000

    def _look(self, now_ms: int) -> Doze | None:
        """Return the doze that is possible now; None = something is under way, or comes soon."""
        parts, machine = self._parts, self._parts.runner.machine
        doze_after_ms = -1 if machine is None else machine.settings.doze_after_ms
        if machine is None or doze_after_ms < 0 or parts.is_busy():
            return None
        if not parts.runner.is_up_to_date:
            return None  # else what the machine takes for work that goes on would keep its partition from sleeping
        if not (parts.server.is_quiet and parts.leader.is_quiet and parts.flusher.is_idle):
            return None
        life = machine.incarnation if self._beat() else NO_LIFE
        beat_s = parts.controller.beat_due_s
        if beat_s is None:
            return None
        beat_ms = now_ms + LONGEST_MS
        if beat_s != math.inf:
            beat_ms = now_ms + int(1000 * (beat_s - asyncio.get_running_loop().time()))
        elif life == NO_LIFE:
            return None  # it was vouched for until this moment
        due_ms = parts.runner.flush_due_ms(min(beat_ms, now_ms + LONGEST_MS))
        until_ms = doze_until_ms(
            now_ms, machine.quiet(due_ms), doze_after_ms=doze_after_ms, open_requests=len(parts.runner.requests)
        )
        if until_ms is None or not self._is_settled(machine.high_watermark):
            return None
        return Doze(
            until_ms=until_ms,
            life=life,
            report=parts.report,
            holds=self._beat if life != NO_LIFE else lambda: True,
            check_ms=self._check_ms,
        )

    def _is_settled(self, watermark: int) -> bool:
        """Have written now what is otherwise due when the doze ends, beside the record that ends it."""
        is_kept = self._parts.keeper.settle(watermark)
        return self._parts.flusher.settle() and is_kept


async def doze_until_called(rest: Rest, is_called: Callable[[], bool]) -> None:
    """Rest, in a process without a replica, until cancelled; ``is_called``: whether a call is under way."""
    pause_s = SPARE_LOOK_S
    try:
        while True:
            await asyncio.sleep(pause_s)
            pause_s = SPARE_LOOK_S
            if is_called():
                continue
            until_ms = monotonic_ms() + LONGEST_MS
            doze = Doze(until_ms=until_ms, life=NO_LIFE, report=dict, holds=lambda: True, check_ms=LONGEST_MS)
            if await rest.rest(doze):
                pause_s = LONGEST_LOOK_S  # long enough for what has woken it to begin
    finally:
        rest.close()
