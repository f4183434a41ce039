"""Strikes at the n-th step of a call: where CPython may run a signal handler, and where a coroutine waits.

A first call is measured: which steps it takes, and from where. A step that comes again and again with the same callers,
as in a loop, is one to strike at twice.
"""

from __future__ import annotations

import asyncio
import dis
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self, TypeVar

from tests.unit.style.sources import ROOT

Result = TypeVar("Result")
POINTS = os.environ.get("RAYLOG_HOSTILE_POINTS", "4")
"""How many steps of a call are struck at, or `all`."""
TIMES_MAX = 2
"""So many times a step is struck at that comes again with the same callers."""
TEST = "the test"
"""The name of the task that no framework cancels."""
STRUCK = tuple(str(ROOT / folder) for folder in ("client", "outbox"))


class Interrupt(BaseException):
    """As KeyboardInterrupt: no handler of ordinary errors sees it."""


def interrupt() -> None:
    """What a signal handler does that raises."""
    raise Interrupt


def passes_on(*functions: Callable[..., object]) -> None:
    """Register functions that only return what a Python function of theirs has returned: nothing strikes in them.

    CPython 3.11 enters such a function in the same evaluation loop, and looks for signals behind calls of C alone; the
    instructions do not show which of both a call is.
    """
    _passing_on.update(function.__code__ for function in functions)
    places.cache_clear()


_passing_on: set[CodeType] = set()


@cache
def places(code: CodeType) -> frozenset[int]:
    """The offsets at which a signal handler may run: behind a call, a resumption, or a jump back."""
    found: set[int] = set()
    if code in _passing_on or not str(Path(code.co_filename).resolve()).startswith(STRUCK):
        return frozenset()
    is_behind = False
    for each in dis.get_instructions(code):
        if is_behind:
            found.add(each.offset)
        is_behind = each.opname.startswith(("CALL", "RESUME")) and not each.opname.startswith("CALL_INTRINSIC")
        if each.opname == "JUMP_BACKWARD":
            found.add(each.argval)
    return frozenset(found)


class Measured:
    """Within it, nothing is struck, and it is noted at which places a strike would be one of its own."""

    def __init__(self) -> None:
        self.passed = 0
        """How many places this thread has passed."""
        self.steps: list[int] = []
        """Those to strike at."""
        self._seen: Counter[tuple[object, ...]] = Counter()

    def __enter__(self) -> Self:
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _entered(self, frame: FrameType, *_: object) -> Callable[..., Any] | None:
        if not places(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._traced

    def _traced(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "opcode" and frame.f_lasti in places(frame.f_code):
            self._pass(frame)
            self.passed += 1
        return self._traced

    def _pass(self, frame: FrameType) -> None:
        way = _way(frame)
        self._seen[way] += 1
        if self._seen[way] <= TIMES_MAX:
            self.steps.append(self.passed)


def _way(frame: FrameType | None) -> tuple[object, ...]:
    """Where a frame is, and each of its callers: equal for two rounds of a loop."""
    found: list[object] = []
    while frame is not None:
        found += (frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return tuple(found)


class Strike(Measured):
    """Within it, `act` is called at the `at`-th place of this thread, as a signal handler would be."""

    def __init__(self, at: int, act: Callable[[], object] = interrupt) -> None:
        super().__init__()
        self._at = at
        self._act = act
        self.place = ""
        """Where it has struck; empty: nowhere."""

    def _pass(self, frame: FrameType) -> None:
        if self.passed == self._at and not self.place:
            self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
            self._act()


def spread(steps: Sequence[int]) -> Iterator[int]:
    """The steps to strike at, of these: all, or some that lie evenly between the first and the last."""
    most = len(steps) if POINTS == "all" else min(len(steps), int(POINTS))
    yield from (
        steps[number] for number in sorted({round(n * (len(steps) - 1) / max(1, most - 1)) for n in range(most)})
    )


def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel the call."""
    task.cancel()


def cancel_others(task: asyncio.Task[Any]) -> None:
    """Cancel everything else on the loop, as frameworks do that own it."""
    for other in asyncio.all_tasks() - {task}:
        if other.get_name() != TEST:
            other.cancel()


def _driven(work: Coroutine[Any, Any, Result], on_wait: Callable[[int], object]) -> Generator[Any, Any, Result]:
    """As `yield from`, with a call at each wait."""
    number = 0
    try:
        waited = work.send(None)
        while True:
            on_wait(number)
            number += 1
            try:
                value = yield waited
            except BaseException as error:  # thrown on, as `yield from` does
                waited = work.throw(error)
            else:
                waited = work.send(value)
    except StopIteration as end:
        result: Result = end.value
        return result


class Stepped:
    """Runs a coroutine in the current task, and acts on that task when it has suspended for the n-th time."""

    def __init__(self, at: int = -1, act: Callable[[asyncio.Task[Any]], object] = cancel) -> None:
        """`at` -1: never."""
        self._at = at
        self._act = act
        self.steps = 0

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await the work."""
        return await self._driven(work)

    @types.coroutine
    def _driven(self, work: Coroutine[Any, Any, Result]) -> Generator[Any, Any, Result]:
        return (yield from _driven(work, self._step))

    def _step(self, number: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.steps = number + 1
        if number == self._at:
            self._act(task)


class StruckTasks:
    """Within it, the tasks of the running loop take steps, from their birth on, and one is cancelled at the n-th.

    As a framework, or another part of the program, does that has got hold of a task. Not those that were there before.
    """

    def __init__(self, at: int = -1) -> None:
        """`at` -1: none is."""
        self._at = at
        self.steps = 0
        self.place = ""
        """Which task was cancelled, and at which of its own steps; empty: none."""

    def __enter__(self) -> Self:
        asyncio.get_running_loop().set_task_factory(self._make)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().set_task_factory(None)

    def _make(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        name = getattr(work, "__qualname__", "")
        task: asyncio.Task[Any] = asyncio.Task(self._run(work, name), loop=loop, **options)
        self._step(task, f"{name}, before it begins")
        return task

    async def _run(self, work: Coroutine[Any, Any, Result], name: str) -> Result:
        return await self._driven(work, name)

    @types.coroutine
    def _driven(self, work: Coroutine[Any, Any, Result], name: str) -> Generator[Any, Any, Result]:
        task = asyncio.current_task()
        assert task is not None
        return (yield from _driven(work, lambda number: self._step(task, f"{name}, wait {number}")))

    def _step(self, task: asyncio.Task[Any], place: str) -> None:
        if self.steps == self._at:
            self.place = place
            task.cancel()
        self.steps += 1
