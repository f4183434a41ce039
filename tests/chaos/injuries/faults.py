"""Injects faults and waits until the cluster is whole; and the schedule of the next faults. Used by the run.

The arena defines the faults and picks their targets. Faults still in effect at the end are undone.
"""

import random
import time
from collections.abc import Sequence
from typing import Final

from tests.chaos.arena import Arena, Injected, NoTarget
from tests.chaos.evidence.history import Fault, History
from tests.chaos.sight import wait_until

WHOLE_WITHIN_S: Final = 90.0
ALONE: Final = frozenset({"restart-all", "restart-nodes"})
"""Faults that leave no target for a concurrent fault."""


class Nemesis:
    """Injects faults one after the other, in one thread."""

    def __init__(self, history: History, arena: Arena, *, whole_within_s: float = WHOLE_WITHIN_S) -> None:
        """No fault yet."""
        self._history = history
        self._whole_within_s = whole_within_s
        self._arena = arena
        self._struck: list[tuple[str, float, Injected, float]] = []

    def close(self) -> None:
        """Undo every fault that is still in effect."""
        self._arena.release()

    def strike(self, kinds: Sequence[str], rng: random.Random, *, storm: bool = False) -> list[Fault]:
        """Inject these faults at nearly the same time, heal them, and wait until the cluster is whole.

        A fault without a target is left out. In a ``storm`` there is no wait, and :meth:`settle` ends it.
        """
        self._struck += self._inflict(kinds, rng)
        return [] if storm else self.settle()

    def settle(self) -> list[Fault]:
        """Wait until the cluster is whole; returns the faults since it last was, and adds them to the history."""
        struck, self._struck = self._struck, []
        waiting = [injected for _, _, injected, _ in struck]

        def replaced() -> bool:
            waiting[:] = [waiter for waiter in waiting if not waiter.back()]
            return not waiting

        began_s = time.monotonic()
        back = wait_until(replaced, self._whole_within_s)
        whole = back and self.wait_whole(max(1.0, self._whole_within_s - (time.monotonic() - began_s)))
        whole_s = self._history.now_s() if whole else None
        note = "" if whole else (self._arena.missing() if back else "what was killed was not replaced")
        faults = [
            Fault(kind, injected.target, at_s, healed_s, whole_s, note or injected.note)
            for kind, at_s, injected, healed_s in struck
        ]
        for fault in faults:
            self._history.add(fault)
        return faults

    def _inflict(self, kinds: Sequence[str], rng: random.Random) -> list[tuple[str, float, Injected, float]]:
        """Inject these faults and heal them; returns each with its kind, its time, and the time of the heal."""
        struck: list[tuple[str, float, Injected]] = []
        for kind in sorted(kinds, key=lambda kind: "controller" in kind):  # the other faults query it for their targets
            try:
                injected = self._arena.faults[kind](rng)
            except NoTarget:
                continue
            struck.append((kind, self._history.now_s(), injected))
        struck.sort(key=lambda item: item[1] + item[2].hold_s)
        healed = []
        for kind, at_s, injected in struck:
            time.sleep(max(0.0, at_s + injected.hold_s - self._history.now_s()))
            injected.heal()
            healed.append((kind, at_s, injected, self._history.now_s()))
        return healed

    def wait_whole(self, timeout_s: float | None = None) -> bool:
        """Whether every process answers and every replica is in sync within the time."""
        return wait_until(lambda: not self._arena.missing(), self._whole_within_s if timeout_s is None else timeout_s)


class Schedule:
    """Draws the next faults from a seed: every kind once before any repeats, now and then two at a time."""

    def __init__(self, kinds: Sequence[str], rng: random.Random, *, pair_chance: float = 0.2) -> None:
        self._kinds = list(kinds)
        self._rng = rng
        self._pair_chance = pair_chance
        self._bag: list[str] = []

    def next(self) -> list[str]:
        """One kind, or two."""
        kinds = [self._draw()]
        if len(self._kinds) > 1 and self._rng.random() < self._pair_chance:
            second = self._draw()
            if ALONE.isdisjoint((second, *kinds)):
                kinds.append(second)
            else:
                self._bag.append(second)
        return kinds

    def _draw(self) -> str:
        if not self._bag:
            self._bag = list(self._kinds)
            self._rng.shuffle(self._bag)
        return self._bag.pop()
