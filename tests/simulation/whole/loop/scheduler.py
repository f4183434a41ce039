"""The clock, agenda and randomness of the whole world, and the order in which its processes run.

Every simulated process is an event loop of its own (``processes.py``); this decides which of them runs next and the
current time. The seed alone decides both.
"""

from __future__ import annotations

import asyncio
import random
from asyncio.events import _set_running_loop
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.simulation.whole.loop.processes import SimProcess
    from tests.simulation.whole.loop.threads import SimThread

STORY_LENGTH: Final = 2000
DETAILED_LENGTH: Final = 200_000
MASK: Final = (1 << 61) - 1
WALL_S: Final = 1_700_000_000.0
"""The time of day when the world begins."""
TURN_S: Final = 0.000_004
"""Processor time of one callback."""
READING_S: Final = 0.000_000_5
"""Time from one reading of the clock to the next one within a callback."""
READINGS: Final = 100
"""Mean number of readings between two before which the system runs something else for a while."""
PREEMPTED_S: Final = 0.004
"""Longest such while."""
PAGE_S: Final = 0.000_005
"""Time of a read that the page cache serves."""
DISK_S: Final = 0.015
"""Longest time of a read that the disk serves."""


class ProcessEnded(BaseException):
    """Unwinds the callback in which a process ended itself; nothing of that process runs afterwards."""


class Scheduler:
    """Runs simulated processes one turn at a time. All times are virtual seconds."""

    def __init__(self, seed: int, story_length: int = STORY_LENGTH) -> None:
        """The seed decides every draw and with it the order of everything."""
        self.random = random.Random(seed)
        self.now_s = 100.0
        self.events = 0
        """Number of callbacks run."""
        self.turns = 0
        """Number of rounds of event loops."""
        self.trace = seed
        self.current: SimProcess | None = None
        self.thread: SimThread | None = None
        """The running virtual thread; None: a loop's own thread."""
        self.failures: list[str] = []
        """Exceptions that reached an event loop, which shipped code must never allow."""
        self._agenda: list[tuple[float, int, Any, Any, Any]] = []
        self._number = 0
        self._readings_left = READINGS
        self._runnable: list[SimProcess] = []
        self._story: deque[tuple[float, str, str]] = deque(maxlen=story_length)
        self.story_length = story_length
        self._over = False

    # ------------------------------------------------------------ agenda

    def at(self, when_s: float, call: Callable[..., object], *args: object) -> None:
        """Call a function of the world itself at a time; equal times keep their order."""
        self._number += 1
        heappush(self._agenda, (when_s, self._number, None, call, args))

    def after(self, delay_s: float, call: Callable[..., object], *args: object) -> None:
        """Call a function of the world itself after a delay."""
        self.at(self.now_s + delay_s, call, *args)

    def timer(self, process: SimProcess, handle: asyncio.TimerHandle) -> None:
        """Have a timer of a process fire at its time."""
        self._number += 1
        heappush(self._agenda, (handle.when(), self._number, process, handle, ()))

    def timers(self) -> dict[SimProcess, Counter[str]]:
        """Return how many timers each process has, by what they call."""
        found: dict[SimProcess, Counter[str]] = {}
        for _, _, owner, call, _ in self._agenda:
            if owner is not None and not call.cancelled():
                found.setdefault(owner, Counter())[call._callback.__qualname__] += 1
        return found

    def runnable(self, process: SimProcess) -> None:
        """Let a process with ready callbacks run."""
        if not process.is_queued and process.may_run:
            process.is_queued = True
            self._runnable.append(process)

    # ------------------------------------------------------------ running

    def run(self, until_s: float) -> None:
        """Run until a time, or until :meth:`stop`."""
        agenda, runnable, draw = self._agenda, self._runnable, self.random.random
        self._over = False
        while not self._over:
            if runnable:
                at = int(draw() * len(runnable))
                process = runnable[at]
                last = runnable.pop()
                if last is not process:
                    runnable[at] = last
                process.is_queued = False
                if process.may_run:  # it was not paused while it waited for its turn
                    self._turn(process)
            elif agenda and agenda[0][0] <= until_s:
                self.now_s = max(self.now_s, agenda[0][0])
            else:
                self.now_s = max(self.now_s, until_s)
                break
            while agenda and agenda[0][0] <= self.now_s:
                _, _, owner, call, args = heappop(agenda)
                if owner is None:
                    call(*args)
                elif not call.cancelled():
                    owner.take(call)

    def read_clock(self) -> float:
        """Return the time, as code of a process reads it: it never stands still, and rarely moves by milliseconds.

        So a wait may end between any two looks at the clock within one callback, as it does in production.
        """
        if self.current is not None:
            self.now_s += READING_S
            self._readings_left -= 1
            if self._readings_left < 0:
                self._readings_left = int(2 * READINGS * self.random.random())
                self.now_s += PREEMPTED_S * self.random.random()
        return self.now_s

    def spend_reading(self) -> None:
        """Let the time of one read of a file pass, within the turn of the process that reads."""
        if self.current is not None:
            drawn = self.random.random()
            self.now_s += PAGE_S if drawn < 0.98 else DISK_S * (drawn - 0.98) / 0.02

    def stop(self) -> None:
        """End :meth:`run` after the current turn."""
        self._over = True

    def _turn(self, process: SimProcess) -> None:
        """One round of a process's event loop: the callbacks that were ready at its start."""
        ready = process.ready
        count = len(ready)
        self.turns += 1
        self.trace = hash((self.trace, process.number, count, int(self.now_s * 1e9))) & MASK
        self.current = process
        _set_running_loop(process)
        try:
            for _ in range(count):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                self.events += 1
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except ProcessEnded:
                    break
                except BaseException as error:
                    if process.is_alive:
                        self.fail(process, f"{handle!r}: {error!r}", error)
                if not process.may_run:
                    break
        finally:
            _set_running_loop(None)
            self.current = None
        self.now_s += TURN_S * (count + draw_pause(self.random))
        if ready:
            self.runnable(process)

    def fail(self, process: SimProcess, text: str, error: BaseException | None = None) -> None:
        """Note an exception that the process did not handle."""
        import traceback

        where = "".join(traceback.format_exception(error)[-6:]) if error is not None else ""
        self.log(process.name, f"UNHANDLED {text} {where}")
        self.failures.append(f"{process.name}: {text}\n{where}")

    # ------------------------------------------------------------ story

    def log(self, source: str, what: str) -> None:
        """Add a line to the story."""
        self._story.append((self.now_s, source, what))

    def story(self, last: int = 400) -> list[str]:
        """Return the last lines of the story."""
        return [f"{when:11.6f}  {source:<34} {what}" for when, source, what in list(self._story)[-last:]]

    def between(self, low: float, high: float) -> float:
        """Draw a number."""
        return low + (high - low) * self.random.random()

    def chance(self, probability: float) -> bool:
        """Draw once."""
        return self.random.random() < probability


def draw_pause(source: random.Random) -> float:
    """Return the extra time of a turn, in callbacks: mostly none, rarely many."""
    drawn = source.random()
    return drawn * 4 if drawn < 0.98 else drawn * 500
