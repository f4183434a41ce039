"""Brokers on which few replicas may be awake at once: what sleeps waits for room, in turns with the others."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from raylog.core.configuration.config import SLEEP_KEY
from raylog.core.metadata.entries import AWAKE_KEY
from tests.simulation.whole.parts.part import Part

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan


class AwakeLimit(Part):
    """The limit of one world; ``checks.py`` has its claims, as for every world with a limit."""

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Leave room for most of what is used at a time."""
        limit = {AWAKE_KEY: str(chance.choice([12, 16, 24])), SLEEP_KEY: str(chance.choice([1_000, 2_500]))}
        return replace(plan, config={**plan.config, **limit})
