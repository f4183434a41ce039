"""The line that a terminal shows while a session starts, and its absence where there is no terminal."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from raylog.spark.progress import Progress


def shown(on_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a start with two phases writes to standard error."""
    reading, writing = pty.openpty() if on_terminal else os.pipe()
    try:
        with os.fdopen(writing, "w", encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            monkeypatch.setenv("TERM", "xterm")
            with Progress("Starting Spark on Ray") as progress:
                progress.phase("Java")
                progress.phase("executors")
                progress.say("executors, 1 of 2")
                progress.done("Spark on Ray: 2 executors;")
            stream.flush()
            os.set_blocking(reading, False)
            text = b""
            while chunk := _read(reading):
                text += chunk
        assert [name for name, _ in progress.phases] == ["Java", "executors"]
        assert all(seconds >= 0 for _, seconds in progress.phases)
        return text.decode()
    finally:
        os.close(reading)


def _read(reading: int) -> bytes:
    try:
        return os.read(reading, 65_536)
    except BlockingIOError:
        return b""


def test_a_terminal_shows_a_line_that_changes_and_one_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(True, monkeypatch)
    assert "Starting Spark on Ray: executors, 1 of 2 (0 s) ..." in text
    assert "Spark on Ray: 2 executors; in " in text
    assert text.endswith("\x1b[2K"), "the line that changes is erased at the end"


def test_a_log_or_a_notebook_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(False, monkeypatch) == ""
