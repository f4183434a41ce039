"""A process that measures what it is given, a line of JSON each time, and stays for the next. The parent's side.

A worker is a module with `serve(measures)` in its `main`: standard input has one task a line, standard output one
answer a line, `{"outcome": ...}` or `{"left_out": reason}`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.clients.base import Unsupported
from benchmarks.job import Outcome
from benchmarks.optional import Missing
from benchmarks.peers.processes import Unavailable, die_with_parent

ROOT = Path(__file__).resolve().parents[2]
TASK_TIMEOUT_S = 300.0
END_TIMEOUT_S = 30.0
KEPT_LINES = 40
"""Lines of a worker's errors that are kept for its last words."""
REASON_MAX = 400
PYTHON_ERROR = re.compile(r"(?!org\.|java\.|Caused)[A-Za-z_][\w.]*: ")
"""A line like the last of a traceback; not those of Java."""
Task = dict[str, Any]


class Worker:
    """A measuring process. Use `with`, so that it and its children are ended on every exit."""

    def __init__(
        self,
        module: str,
        settings: Task | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = TASK_TIMEOUT_S,
    ) -> None:
        """Start `python -m module`; `settings` is its first line. Every task may take `timeout_s` seconds."""
        self._module = module
        self._timeout_s = timeout_s
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, **(environment or {})},
            preexec_fn=die_with_parent,
        )
        self._errors: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._write(settings or {})

    def _listen(self) -> None:
        for line in self._process.stderr or ():
            self._errors.append(line.rstrip())
            del self._errors[:-KEPT_LINES]

    def _write(self, task: Task) -> None:
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Unavailable(f"{self._module} has ended: {self.last_words()}") from None

    def last_words(self) -> str:
        """The last lines of its errors, in one line."""
        return " / ".join(self._errors[-6:]) or "no output"

    def run(self, task: Task) -> Outcome:
        """Have it do one task. Raises Unavailable with the reason when there is no outcome."""
        guard = threading.Timer(self._timeout_s, self._process.kill)
        guard.daemon = True
        guard.start()
        try:
            self._write(task)
            line = self._process.stdout.readline() if self._process.stdout is not None else ""
        finally:
            guard.cancel()
        if not line:
            self._listener.join(2)
            ended = f"ended or took longer than {self._timeout_s:.0f} s"
            raise Unavailable(f"{self._module} {ended}: {self.last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "left_out" in answer:
            raise Unavailable(answer["left_out"])
        found: Outcome = answer["outcome"]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(END_TIMEOUT_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait(END_TIMEOUT_S)
        self._listener.join(2)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def reason_of(error: BaseException) -> str:
    """An error in one line. Spark's have a whole traceback of Python in their text, whose last line is the reason."""
    lines = [line.strip() for line in str(error).splitlines() if PYTHON_ERROR.match(line)]
    text = lines[-1] if lines else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:REASON_MAX]


def serve(begin: Callable[[Task], Mapping[str, Callable[[Task], Outcome]]]) -> None:
    """The process's side: `begin` takes the settings and returns what can be done, by the task's `do`."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # output of libraries goes to standard error: standard output is for answers
    measures: Mapping[str, Callable[[Task], Outcome]] | None = None
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
        answers.write(json.dumps(answer) + "\n")
