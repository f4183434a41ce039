"""The virtual world of one simulation run: clock, agenda, randomness, trace hash and story.

Everything in a run happens through :meth:`World.at`, one callback after another, in an order that the seed alone
decides. Nothing here, or in what uses it, may look at real time or iterate over a set of strings.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

_STORY_LENGTH = 400
_MASK = (1 << 61) - 1


class Violation(BaseException):
    """A checker's claim does not hold, or a machine broke its own invariant.

    No Exception: what ships turns any of these into the answer of the request that met it.
    """

    def __init__(self, rule: str, claim: str) -> None:
        """Keep the invariant's number (I1, L2, ...) and the observation."""
        self.rule = rule
        self.claim = claim
        super().__init__(f"{rule}: {claim}")


class World:
    """Clock in microseconds, agenda, and the seed's random source."""

    __slots__ = ("_agenda", "_sequence", "events", "now_ms", "now_us", "random", "story_lines", "trace")

    def __init__(self, seed: int) -> None:
        """Start at one virtual second, so that no time of interest is zero."""
        self.random = random.Random(seed)
        self.now_us = 1_000_000
        self.now_ms = 1_000
        """Virtual milliseconds, the machines' time."""
        self.events = 0
        self.trace = seed
        self.story_lines: deque[tuple[int, str, tuple[object, ...]]] = deque(maxlen=_STORY_LENGTH)
        self._agenda: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0

    def after(self, delay_us: int, call: Callable[..., None], *args: object) -> None:
        """Put a call on the agenda, ``delay_us`` from now; equal times keep their order."""
        self._sequence += 1
        heappush(self._agenda, (self.now_us + delay_us, self._sequence, call, args))

    def at(self, time_us: int, call: Callable[..., None], *args: object) -> None:
        """Put a call on the agenda at a time that is not past."""
        self._sequence += 1
        heappush(self._agenda, (time_us, self._sequence, call, args))

    def run_until(self, time_us: int) -> None:
        """Carry out the agenda up to a time."""
        agenda = self._agenda
        while agenda and agenda[0][0] <= time_us:
            when, _, call, args = heappop(agenda)
            self.now_us, self.now_ms = when, when // 1000
            self.events += 1
            call(*args)
        self.now_us, self.now_ms = time_us, time_us // 1000

    def note(self, *numbers: int) -> None:
        """Mix numbers into the trace hash; only integers, whose hash does not depend on the process."""
        self.trace = hash((self.trace, self.now_us, *numbers)) & _MASK

    def log(self, text: str, *args: object) -> None:
        """Add a line to the story; formatted only when read."""
        self.story_lines.append((self.now_us, text, args))

    def story(self, last: int = 80) -> list[str]:
        """Return the last lines of the story."""
        lines = list(self.story_lines)[-last:]
        return [f"{when / 1e6:10.6f}  {text.format(*args)}" for when, text, args in lines]

    def chance(self, probability: float) -> bool:
        """Draw once; certain outcomes cost no draw, which keeps fault-free runs quick."""
        return probability > 0 and self.random.random() < probability

    def between_us(self, low_ms: float, high_ms: float) -> int:
        """Draw a duration, given in milliseconds, as microseconds."""
        return int(self.random.uniform(low_ms, high_ms) * 1000)
