"""A plausible day of many partitions: when each is written to. Pure.

A few partitions are busy, some are written to every other hour, most are not written to each day. All follow the same
rhythm: a quiet night, a rush in the morning, an even afternoon.
"""

from __future__ import annotations

import bisect
import itertools
import random
from dataclasses import dataclass
from typing import Final

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
RHYTHM: Final = (
    0.15, 0.1, 0.1, 0.1, 0.15, 0.3, 0.6, 1.2, 2.6, 2.4, 1.6, 1.3,
    1.0, 1.2, 1.4, 1.4, 1.3, 1.2, 0.9, 0.7, 0.6, 0.5, 0.4, 0.25,
)  # fmt: skip
"""How much is written in each hour, in proportion."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How often partitions are written to."""

    name: str
    share: float
    """Of all partitions."""
    per_day: float
    """Records to each, on average."""


HABITS: Final = (Habit("busy", 0.02, 500.0), Habit("hourly", 0.08, 16.0), Habit("rare", 0.90, 0.7))


@dataclass(frozen=True, slots=True, order=True)
class Due:
    """One record: second of the day, and partition."""

    at_s: float
    partition: int


def habit_of(partition: int, partitions: int) -> Habit:
    """The habit of a partition: the first are busy, the last rare."""
    upper = 0.0
    for habit in HABITS:
        upper += habit.share * partitions
        if partition < round(upper):
            return habit
    return HABITS[-1]


def moment(part: float) -> float:
    """Second of the day before which this part of all records (0 to 1) is written."""
    sums = [0.0, *itertools.accumulate(RHYTHM)]
    wanted = part * sums[-1]
    hour = min(bisect.bisect_right(sums, wanted), len(RHYTHM)) - 1
    return min((hour + (wanted - sums[hour]) / RHYTHM[hour]) * HOUR_S, float(DAY_S))


def day(partitions: int, seed: int) -> list[Due]:
    """All records in order; the same for the same arguments. Those of a partition come by chance, at its mean rate."""
    chance = random.Random(seed)
    found = []
    for partition in range(partitions):
        per_day = habit_of(partition, partitions).per_day
        part = chance.expovariate(per_day)
        while part < 1.0:
            found.append(Due(moment(part), partition))
            part += chance.expovariate(per_day)
    return sorted(found)
