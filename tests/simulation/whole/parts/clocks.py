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
BEHIND_S: Final = (-3_000.0, 0.0)
"""A leader that is an hour behind refuses what is sent now, and rightly."""
AHEAD_S: Final = (3_600.0, 3 * DAY_S)
BACK_S: Final = (0.5, 15.0)


class Clocks(Part):
    """The clocks of one world. The claims are those of everything else: no guarantee rests on a wall clock."""

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have everything restarted often enough under a wrong clock."""
        return replace(plan, work_s=plan.work_s + 2.0)

    @property
    def faults(self) -> Sequence[Callable[[], None]]:
        """A clock is set wrong, and set right after a while."""
        return (self.jump, self.jump)

    @property
    def may_jump(self) -> bool:
        """Whether no other feature needs clocks that agree."""
        plan, parts = self.world.plan, self.world.parts
        if plan.forgets_producers_s or any(part.clocks_agree for part in parts):
            return False  # by a clock that is ahead everything may have expired
        # A late retry that is made under it is due days later, when the clock is right again.
        return not plan.workers and not any(part.goes_by_clocks for part in parts)

    def heal(self) -> None:
        """Leave one clock ahead by a day or more for good: everything goes on all the same."""
        plan = self.world.plan
        if self.may_jump and not (plan.delayers or plan.expirers):
            host, jump_s = self.host(), self.world.scheduler.between(DAY_S, AHEAD_S[1])
            self.world.log("nemesis", f"the clock of {host} stays {jump_s / DAY_S:.2f} days ahead")
            self.world.network.clock_jump_s[host] = jump_s

    def jump(self) -> None:
        """Set one node's clock for a while."""
        plan, network = self.world.plan, self.world.network
        if not self.may_jump:
            return
        host = self.host()
        if plan.delayers or plan.expirers:
            network.clock_jump_s.clear()  # most brokers' clocks decide when records are due
        jump_s = self.world.scheduler.between(*(BEHIND_S if self.world.scheduler.chance(0.3) else AHEAD_S))
        self.world.log("nemesis", f"the clock of {host} is wrong by {jump_s / DAY_S:.2f} days")
        network.clock_jump_s[host] = jump_s
        self.world.scheduler.after(self.world.scheduler.between(*BACK_S), network.clock_jump_s.pop, host, None)
