"""Clocks of nodes that are wrong by hours and days, ahead and behind: by more than any difference that is allowed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.simulation.whole.parts.part import Part

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan

DAY_S: Final = 86_400.0
FAR_S: Final = (-3 * DAY_S, 3 * DAY_S)
ALLOWED_MS: Final = 10 * 86_400_000
"""How far ahead of a leader's clock a record may be: one that is days behind still takes what is sent now."""
BACK_S: Final = (0.5, 15.0)


class Clocks(Part):
    """The clocks of one world. The claims are those of everything else: no guarantee rests on a wall clock."""

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have leaders take records from the future."""
        return replace(plan, config={**plan.config, "log.message.timestamp.after.max.ms": str(ALLOWED_MS)})

    @property
    def faults(self) -> Sequence[Callable[[], None]]:
        """A clock is set wrong, and set right after a while."""
        return (self.jump, self.jump)

    def jump(self) -> None:
        """Set one node's clock; where clocks decide when something is due, only one that is behind or right goes on."""
        plan, network = self.world.plan, self.world.network
        if plan.forgets_producers_s or any(part.clocks_agree for part in self.world.parts):
            return  # by a clock that is ahead everything may have expired
        if plan.workers or any(part.goes_by_clocks for part in self.world.parts):
            return  # a copy that is made under it is due days later, when the clock is right again
        host = self.host()
        if plan.delayers or plan.expirers:
            network.clock_jump_s.clear()  # most brokers' clocks decide when records are due
        jump_s = self.world.scheduler.between(*FAR_S)
        self.world.log("nemesis", f"the clock of {host} is wrong by {jump_s / DAY_S:.2f} days")
        network.clock_jump_s[host] = jump_s
        self.world.scheduler.after(self.world.scheduler.between(*BACK_S), network.clock_jump_s.pop, host, None)
