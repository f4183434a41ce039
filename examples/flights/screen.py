"""The demo's output: its own lines on the terminal, the output of Ray and Spark in a file, and progress.

Ray's workers, Spark's Java processes and Python's loggers write to the standard output and error that they inherit, so
these are redirected to the file before the first of them starts.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

SIGN_OF_LIFE_S: Final = 10.0
"""Interval of progress lines of a long step without a terminal."""
STREAMS: Final = (1, 2)


@contextmanager
def own_lines_only(log: Path) -> Iterator[Console]:
    """Redirect standard output and error to ``log``; the console that is yielded writes to the original output."""
    with ExitStack() as stack:
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(stream) for stream in STREAMS]
        for stream, copy in zip(STREAMS, kept, strict=True):
            stack.callback(os.close, copy)
            stack.callback(os.dup2, copy, stream)
        # Before the streams are restored, Python's buffers are flushed into the file.
        stack.callback(sys.stderr.flush)
        stack.callback(sys.stdout.flush)
        terminal = stack.enter_context(os.fdopen(os.dup(1), "w", encoding="utf-8"))
        file = stack.enter_context(log.open("ab"))
        for stream in STREAMS:
            os.dup2(file.fileno(), stream)
        yield Console(file=terminal)


@contextmanager
def step(console: Console, what: str) -> Iterator[None]:
    """Show progress, and the duration at the end."""
    began = time.monotonic()
    if console.is_terminal:
        columns = SpinnerColumn(), TextColumn("{task.description} ..."), TimeElapsedColumn()
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(what)
            yield
    else:
        with _signs_of_life(console, what):
            yield
    console.print(f"[bold]{what}[/bold]: {time.monotonic() - began:.1f} s")


@contextmanager
def _signs_of_life(console: Console, what: str) -> Iterator[None]:
    """Print a progress line periodically, for logs and pipes."""
    done = threading.Event()

    def report() -> None:
        seconds = 0.0
        while not done.wait(SIGN_OF_LIFE_S):
            seconds += SIGN_OF_LIFE_S
            console.print(f"  {what}: {seconds:.0f} s so far ...")

    reporter = threading.Thread(target=report, name="signs of life", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
