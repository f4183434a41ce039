"""What Ray does beyond what it promises: calls that end in an error and are done, or are never done, or are done twice.

Each rule was seen at a real Ray; the table of `tests/simulation/README.md` names where. The base class is a Ray that
does what is wanted of it. The drawn one has a source of its own: a seed draws the same with these rules and without.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from enum import Enum
from typing import Final

SLOW_START_S: Final = (2.0, 25.0)
"""How much longer the start of a process takes on a machine that is busy."""
LINGERS_S: Final = (0.0, 5.0)
"""How long a process that was ended runs on after Ray has given its name away; longer, it is stopped."""
ANSWER_S: Final = (0.0, 5.0)
"""When a caller learns that its call has failed."""
LATE_S: Final = (0.0, 15.0)
"""How long a call may be under way to a process that stands still, and be overtaken by later ones."""
RETURNS_S: Final = (1.0, 10.0)
"""How long a node that was given up takes to have Ray again."""


class Fate(Enum):
    """What becomes of a call."""

    DONE = "done"
    NEVER = "never"
    """It fails, and was not done: the process was being restarted, or the request did not reach Ray."""
    UNANSWERED = "unanswered"
    """It fails, and was done: the process ended before it had answered, or the answer came too late."""
    TWICE = "twice"
    """It is done twice: the process that makes actors was lost amid it, and its owner has done it again."""


class RayRules:
    """A Ray that does each call once, and answers it."""

    is_away = False
    """Whether Ray's control store does not answer: no actor is found, requested or started again until it does."""

    def fate(self, *, lasts: bool = False) -> Fate:
        """Return what becomes of the next call. ``lasts``: calls of its kind fail also when all is healed."""
        return Fate.DONE

    def answers_at_once(self) -> bool:
        """Return whether an actor answers the next look-up at once."""
        return True

    def start_s(self) -> float:
        """Return how much longer the next process takes to begin."""
        return 0.0

    def answer_s(self) -> float:
        """Return when the failure of a call is known."""
        return 0.0

    def late_s(self) -> float:
        """Return when a call is done that nothing waits for any more, or for the second time."""
        return 0.0

    def lingers_s(self) -> float:
        """Return how long a process goes on whose name is free."""
        return 0.0

    def returns_s(self) -> float | None:
        """Return when a node that was given up, and all of whose processes end, has Ray again; None: they go on."""
        return None

    def takes_along(self) -> bool:
        """Return whether an actor that has not begun ends with the process that requested it."""
        return False

    def listed(self, alive: Collection[str]) -> set[str]:
        """Return the nodes that Ray lists as alive, of those that are."""
        return set(alive)


class DrawnRules(RayRules):
    """Calls fail now and then, until :meth:`calm`."""

    def __init__(self, chance: random.Random) -> None:
        """``chance`` belongs to these rules alone."""
        self._chance = chance
        self._share = chance.choice([0.05, 0.15, 0.3])
        self._is_calm = False
        self._listed: set[str] | None = None
        self.happened = dict.fromkeys(("never", "unanswered", "twice", "lingered", "taken along", "left"), 0)
        """How often each rule was in effect."""

    def calm(self) -> None:
        """From now on do each call once; processes still linger, and begin late."""
        self._is_calm = True

    def _draws(self, share: float) -> bool:
        return not self._is_calm and self._chance.random() < share

    def _between(self, bounds: tuple[float, float]) -> float:
        return self._chance.uniform(*bounds)

    def fate(self, *, lasts: bool = False) -> Fate:
        """Draw one."""
        if self.is_away:
            return Fate.NEVER
        if not (self._chance.random() < self._share if lasts else self._draws(self._share)):
            return Fate.DONE
        found = self._chance.choice([Fate.NEVER, Fate.UNANSWERED, Fate.TWICE])
        self.happened[found.value] += 1
        return found

    def answers_at_once(self) -> bool:
        """Draw whether it does."""
        return not (self.is_away or self._draws(self._share))

    def start_s(self) -> float:
        """Draw it; most processes begin at once."""
        return self._between(SLOW_START_S) if self._draws(self._share / 3) else 0.0

    def answer_s(self) -> float:
        """Draw it."""
        return self._between(ANSWER_S)

    def late_s(self) -> float:
        """Draw it."""
        return self._between(LATE_S)

    def lingers_s(self) -> float:
        """Draw it."""
        found = self._between(LINGERS_S) if self._chance.random() < 0.5 else 0.0
        self.happened["lingered"] += found > 0
        return found

    def returns_s(self) -> float | None:
        """Draw it: Ray ends all processes of a node that it has given up, once that node learns of it."""
        self.happened["left"] += 1
        return self._between(RETURNS_S)

    def takes_along(self) -> bool:
        """Draw it: the request is registered first, and handed over in a second step."""
        found = self._chance.random() < 0.5
        self.happened["taken along"] += found
        return found

    def listed(self, alive: Collection[str]) -> set[str]:
        """Return them as of the look before, now and then."""
        if self._listed is None or not self._draws(0.3):
            self._listed = set(alive)
        return set(self._listed)
