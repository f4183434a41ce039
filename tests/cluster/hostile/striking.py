"""Strikes at the n-th step of a call: where CPython may run a signal handler, and where a coroutine waits."""

from __future__ import annotations

import asyncio
import dis
import os
import sys
import types
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self, TypeVar

from tests.unit.style.sources import ROOT

Result = TypeVar("Result")
POINTS = os.environ.get("RAYLOG_HOSTILE_POINTS", "4")
"""How many steps of a call are struck at, or `all`."""
MANY = 1_000_000
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


class Strike:
    """Within it, `act` is called at the `at`-th place of this thread, as a signal handler would be."""

    def __init__(self, at: int, act: Callable[[], object] = interrupt) -> None:
        self._at = self._left = at
        self._act = act
        self.place = ""
        """Where it has struck; empty: nowhere."""

    def __enter__(self) -> Self:
        sys.settrace(self._entered)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    @property
    def passed(self) -> int:
        """How many places were passed."""
        return self._at - self._left

    def _entered(self, frame: FrameType, *_: object) -> Callable[..., Any] | None:
        if not places(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._traced

    def _traced(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "opcode" and not self.place and frame.f_lasti in places(frame.f_code):
            self._left -= 1
            if self._left < 0:
                self.place = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                self._act()
        return self._traced


def spread(count: int) -> Iterator[int]:
    """The steps to strike at, of so many: all, or some that lie evenly between the first and the last."""
    most = count if POINTS == "all" else min(count, int(POINTS))
    yield from sorted({round(step * (count - 1) / max(1, most - 1)) for step in range(most)})


def strikes(count: int, act: Callable[[], object] = interrupt) -> Iterator[Strike]:
    """A strike for each of the steps."""
    return (Strike(at, act) for at in spread(count))


def places_of(call: Callable[[], object]) -> int:
    """How many places a call passes."""
    with Strike(MANY) as none:
        call()
    return none.passed


class Stepped:
    """Runs a coroutine in the current task, and acts on that task when it has suspended for the n-th time."""

    def __init__(self, at: int, act: Callable[[asyncio.Task[Any]], object]) -> None:
        self._left = at
        self._act = act
        self.steps = 0
        self.has_struck = False

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await the work."""
        return await self._driven(work)

    @types.coroutine
    def _driven(self, work: Coroutine[Any, Any, Result]) -> Generator[Any, Any, Result]:
        task = asyncio.current_task()
        assert task is not None
        try:
            waited = work.send(None)
            while True:
                self.steps += 1
                if self._left == self.steps - 1:
                    self.has_struck = True
                    self._act(task)
                try:
                    value = yield waited
                except BaseException as error:  # thrown on, as `yield from` does
                    waited = work.throw(error)
                else:
                    waited = work.send(value)
        except StopIteration as end:
            result: Result = end.value
            return result


def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel the call."""
    task.cancel()


def cancel_others(task: asyncio.Task[Any]) -> None:
    """Cancel everything else on the loop, as frameworks do that own it."""
    for other in asyncio.all_tasks() - {task}:
        if other.get_name() != TEST:
            other.cancel()
