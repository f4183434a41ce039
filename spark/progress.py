"""How far the start of a session has come: one line on a terminal, and the seconds of every phase.

Used by raylog.spark.session. Writes to standard error if that is a terminal; in logs and notebooks it writes nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from rich.status import Status


class Progress:
    """Shows the phase that runs; `phases` holds (name, seconds) of those that have ended, in order.

    A context manager: at its end, by success or error, the line is removed.
    """

    def __init__(self, title: str) -> None:
        self.phases: list[tuple[str, float]] = []
        self._title = title
        self._began = self._phase_began = time.monotonic()
        self._phase = ""
        self._status: Status | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(f"{self._title} ...")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.phase("")
        if self._status is not None:
            self._status.stop()
            self._status = None

    @property
    def seconds(self) -> float:
        """Seconds since the start began."""
        return time.monotonic() - self._began

    def phase(self, name: str) -> None:
        """End the running phase, and begin a new one; "" = begin none."""
        with self._lock:
            now = time.monotonic()
            if self._phase:
                self.phases.append((self._phase, now - self._phase_began))
            self._phase, self._phase_began = name, now
        self.say(name)

    def beside(self, name: str, seconds: float) -> None:
        """Add the seconds of work that ran at the same time as the phases, such as the start of the driver's JVM."""
        with self._lock:
            self.phases.append((f"(beside) {name}", seconds))

    def say(self, text: str) -> None:
        """Change the line on the terminal."""
        if self._status is not None and text:
            self._status.update(f"{self._title}: {text} ({self.seconds:.0f} s) ...")

    def done(self, text: str) -> None:
        """Leave one line on the terminal once everything runs."""
        if self._status is not None:
            self._status.console.print(f"{text} in {self.seconds:.1f} s", highlight=False, soft_wrap=True)
