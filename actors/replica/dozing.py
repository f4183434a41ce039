"""Checks whether a replica is idle, and then lets its process be stopped: a doze. Owned by the replica's shell."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_link import ControllerLink
from raylog.actors.flusher import Flusher
from raylog.actors.replica.beating import Beating
from raylog.actors.replica.follower_link import FollowerLink
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.replica.watermark_keeper import WatermarkKeeper
from raylog.core.dozing.rest import LONGEST_MS, SHORTEST_MS, doze_until_ms, next_look_ms
from raylog.core.vouching import NO_LIFE
from raylog.rpc import RpcServer

SHORTEST_LOOK_S: Final = 0.02
LONGEST_LOOK_S: Final = 0.25
SPARE_LOOK_S: Final = 2.0
"""Time for which a spare (a process without a replica) stays awake first: its start and a call may take as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doze:
    """One doze that a replica offers."""

    until_ms: int
    """End of the doze (monotonic): the replica has something to do then."""
    life: int
    """The incarnation whose session the broker's heartbeats renew meanwhile; NO_LIFE = the replica's own ones do."""
    report: Callable[[], Mapping[str, object]]
    """Returns the replica's replies to ``status`` and ``metrics`` for the time of the doze."""
    holds: Callable[[], bool]
    """Returns whether the broker still vouches for the replica; called every ``check_ms``. If not, the doze ends."""
    check_ms: int


class Rest(Protocol):
    """Stops the process for a doze: :class:`raylog.actors.dozing.resting.DozeLink`, or the simulator's."""

    async def rest(self, doze: Doze) -> int:
        """Stop the process until the end of the doze at the latest.

        Returns the milliseconds for which it was stopped; 0: it was not.
        """

    def close(self) -> None:
        """Allow no more dozes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a replica that have to be idle before it dozes."""

    runner: ReplicaRunner
    flusher: Flusher
    keeper: WatermarkKeeper
    server: RpcServer
    leader: FollowerLink
    controller: ControllerLink
    beating: Beating
    report: Callable[[], Mapping[str, object]]
    is_busy: Callable[[], bool]
    """Returns whether anything else is active."""


class Dozing:
    """Dozes whenever two checks in a row find the replica idle.

    The event loop turns a few times between them, so that callbacks that were only queued at the first check, and so
    could not be seen, have run by the second.
    """

    def __init__(self, rest: Rest, parts: Parts, check_ms: int) -> None:
        """``check_ms``: interval at which a dozing process checks whether its broker still vouches for it."""
        self._rest = rest
        self._parts = parts
        self._check_ms = check_ms

    async def run(self) -> None:
        """Doze again and again, until cancelled."""
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
        """Write this process's beat, and return whether its broker vouches for it."""
        parts = self._parts
        is_vouched_for = parts.beating.beat(monotonic_ms(), parts.runner.disk_hanging_ms)
        parts.controller.vouched_for(is_vouched_for)
        return is_vouched_for

    def _pause_s(self, now_ms: int, soon_s: float) -> float:
        """Return the pause after a check that allowed no doze, in seconds."""
        machine = self._parts.runner.machine
        if machine is None:
            return soon_s
        after_ms, quiet = machine.settings.doze_after_ms, machine.quiet(now_ms + LONGEST_MS)
        return next_look_ms(now_ms, quiet, doze_after_ms=after_ms, pause_ms=int(soon_s * 1000)) / 1000

    def _look(self, now_ms: int) -> Doze | None:
        """Return the doze that is possible now; None: something is active, or due soon."""
        parts, machine = self._parts, self._parts.runner.machine
        doze_after_ms = -1 if machine is None else machine.settings.doze_after_ms
        if machine is None or doze_after_ms < 0 or parts.is_busy():
            return None
        if not parts.runner.is_up_to_date:
            return None  # the state machine may count finished work as active, which would keep the partition awake
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
            return None  # the broker has just stopped vouching, so the replica has to send heartbeats itself first
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
        """Write the high watermark and sync the log before the doze; returns whether both are done.

        Otherwise the record that ends the doze would have to wait for these writes.
        """
        is_kept = self._parts.keeper.settle(watermark)
        return self._parts.flusher.settle() and is_kept


async def doze_until_called(rest: Rest, is_called: Callable[[], bool]) -> None:
    """Doze, in a process without a replica, until cancelled. ``is_called`` returns whether a call is being handled."""
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
                pause_s = LONGEST_LOOK_S  # long enough for the call that has woken it to begin
    finally:
        rest.close()
