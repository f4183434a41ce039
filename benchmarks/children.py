"""A Python process that takes lines and answers each with a line of JSON: the parent's side, and the child's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from benchmarks.options import ROOT
from benchmarks.peers.processes import Unavailable, die_with_parent, line_within

KEPT_LINES = 40
"""Lines of a child's errors that are kept for its last words."""


class Child:
    """A process of `python -m module`. Use `with`, so that it and its children are ended on every exit."""

    def __init__(
        self, module: str, name: str = "", environment: Mapping[str, str] | None = None, *, end_s: float = 30.0
    ) -> None:
        """`name`: in errors, default the module; `end_s`: time to end once its input is closed."""
        self._name = name or module
        self._end_s = end_s
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

    def _listen(self) -> None:
        for line in self._process.stderr or ():
            self._errors.append(line.rstrip())
            del self._errors[:-KEPT_LINES]

    def write(self, line: str) -> None:
        """Write a line to its input. Raises Unavailable when it has ended."""
        if self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Unavailable(f"{self._name} has ended: {self._last_words()}") from None

    def _last_words(self) -> str:
        self._listener.join(2)
        return " / ".join(self._errors[-6:]) or "no output"

    def answer(self, timeout_s: float) -> dict[str, Any]:
        """Its next answer. Raises Unavailable with the reason when it has none, or when that is why it was left out."""
        line = line_within(self._process, timeout_s)
        if not line:
            ended = f"ended or took longer than {timeout_s:.0f} s"
            raise Unavailable(f"{self._name} {ended}: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "left_out" in answer:
            raise Unavailable(answer["left_out"])
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(self._end_s)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait(30)
        self._listener.join(2)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def answering() -> Callable[[Mapping[str, Any]], None]:
    """The child's side: what writes an answer. Output of libraries goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)

    def say(message: Mapping[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")

    return say
