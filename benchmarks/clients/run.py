"""Runs one job in its own process and returns its outcome. Used by the scenarios."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any, Self

from benchmarks.clients import java
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import Unavailable

TIMEOUT_S = 180.0


class Running:
    """A client process. Use `with`, so that it is ended on every exit."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.clients"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._errors: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._guard = threading.Timer(TIMEOUT_S, self._process.kill)
        self._guard.daemon = True
        self._guard.start()
        self._write(job.line())

    def _listen(self) -> None:
        for line in self._process.stderr or ():
            self._errors.append(line.rstrip())
            del self._errors[:-20]

    def _write(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            self._listener.join(2)
            errors = " / ".join(self._errors[-4:]) or f"it was ended after {TIMEOUT_S:.0f} s"
            raise Unavailable(f"the client {self._job.client} ended without an outcome: {errors}")
        answer: dict[str, Any] = json.loads(line)
        if "left_out" in answer:
            raise Unavailable(answer["left_out"])
        return answer

    def wait_ready(self) -> None:
        """Wait until the client is connected and warm."""
        self._answer()

    def begin(self) -> None:
        """Start a client that waits for the signal."""
        self._write("")

    def outcome(self) -> Outcome:
        """Wait for the outcome."""
        answer = self._answer()
        found: Outcome = answer["outcome"]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guard.cancel()
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(5)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait(10)
        self._listener.join(2)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def run(job: Job) -> Outcome:
    """Run a job from beginning to end. Raises Unavailable with the reason when there is no outcome."""
    if job.client == "java":
        return java.produce(job) if job.load == "produce" else java.consume(job)
    with Running(job) as running:
        running.wait_ready()
        return running.outcome()
