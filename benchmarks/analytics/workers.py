"""A process that measures what it is given, a task each time, and stays for the next.

A worker is a module that ends in `serve(begin)`: it answers each task with its outcome, or with the reason for none.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from benchmarks.children import Child, answering
from benchmarks.clients.base import Unsupported
from benchmarks.job import Outcome
from benchmarks.loads import Meter
from benchmarks.optional import Missing
from benchmarks.peers.processes import cpu_seconds

TASK_TIMEOUT_S = 300.0
REASON_MAX = 400
PYTHON_ERROR = re.compile(r"(?!org\.|java\.|Caused)[A-Za-z_][\w.]*: ")
"""A line like the last of a traceback; not those of Java."""
Task = dict[str, Any]
Measures = Mapping[str, Callable[[Task], Outcome]]


class Worker(Child):
    """A measuring process."""

    def __init__(self, module: str, settings: Task | None = None) -> None:
        """Start `python -m module`; `settings` is its first line."""
        super().__init__(module)
        self.write(json.dumps(settings or {}))

    def run(self, task: Task) -> Outcome:
        """Have it do one task. Raises Unavailable with the reason when there is no outcome."""
        self.write(json.dumps(task))
        found: Outcome = self.answer(TASK_TIMEOUT_S)["outcome"]
        return found


def reason_of(error: BaseException) -> str:
    """An error in one line. Spark's have a whole traceback of Python in their text, whose last line is the reason."""
    lines = [line.strip() for line in str(error).splitlines() if PYTHON_ERROR.match(line)]
    text = lines[-1] if lines else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:REASON_MAX]


def serve(begin: Callable[[Task], Measures]) -> None:
    """The process's side: `begin` takes the settings and returns what can be done, by the task's `do`."""
    say = answering()
    measures: Measures | None = None
    settings = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        task: Task = json.loads(line)
        try:
            if measures is None:
                measures = begin(settings)
            answer: Task = {"outcome": measures[task["do"]](task)}
        except (Unsupported, Missing) as error:
            answer = {"left_out": str(error)}
        except Exception as error:  # a failed measurement must not end the process: others follow
            traceback.print_exc()
            answer = {"left_out": reason_of(error)}
        say(answer)


def own_tree() -> list[int]:
    """This process and its descendants: a JVM, and the Python processes of Spark or Ray."""
    here = psutil.Process()
    return [here.pid, *(child.pid for child in here.children(recursive=True))]


class Phase(Meter):
    """A measured phase whose work is in this process and in its children, which count from their own start."""

    def __init__(self, server_pids: Sequence[int] = ()) -> None:
        super().__init__(server_pids, lambda: cpu_seconds(own_tree()))
