"""A Ray that loses calls, does them twice, and starts and ends processes late. The claims are those of all else."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.simulation.whole.parts.part import Part
from tests.simulation.whole.ray_rules import DrawnRules

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World


AWAY_S: Final = (0.5, 20.0)


class RayCalls(Part):
    """The Ray of one world."""

    def __init__(self, world: World) -> None:
        """From the first actor on."""
        super().__init__(world)
        self.rules = DrawnRules(random.Random(f"ray {world.seed}"))
        world.cluster.rules = self.rules

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Give work that is repeated after seconds the time to be done."""
        return replace(plan, work_s=plan.work_s + 6.0)

    @property
    def faults(self) -> Sequence[Callable[[], None]]:
        """Ray's control store does not answer for a while."""
        return (self.hang,)

    def hang(self) -> None:
        """Have it hang."""
        if not self.rules.is_away:
            self.rules.is_away = True
            self.world.log("ray", "the control store does not answer")
            self.world.scheduler.after(self.world.scheduler.between(*AWAY_S), self._answer)

    def _answer(self) -> None:
        self.rules.is_away = False
        self.world.log("ray", "the control store answers")

    def heal(self) -> None:
        """Do each call once."""
        self.rules.calm()
        self._answer()
        counts = ", ".join(f"{name} {count}" for name, count in self.rules.happened.items())
        self.world.log("ray", f"calls are done once from now on; until now: {counts}")
