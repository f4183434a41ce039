"""A warning in a process that Spark starts is logged in the program of the user, and printed where it arises."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from raylog.spark import to_driver
from tests.waiting import wait_for

CHILD = """
import logging
from raylog.spark.to_driver import warnings_to_driver
warnings_to_driver()
warnings_to_driver()
log = logging.getLogger("raylog.spark.reading.options")
log.info("not shown")
log.warning("%s is ignored", "startingOffsets")
"""


def printed_by_child() -> str:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True, timeout=60)
    return done.stderr


def test_a_warning_of_a_child_is_logged_here_once(caplog: pytest.LogCaptureFixture) -> None:
    with to_driver.passed_to_children():
        assert printed_by_child() == "startingOffsets is ignored\n"
    wait_for(lambda: caplog.messages, "the warning arrives")
    assert caplog.messages == ["startingOffsets is ignored"]
    assert to_driver.ENV not in os.environ


@pytest.mark.parametrize("path", ["", "/nowhere/warnings"])
def test_without_a_listener_it_is_printed_only(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv(to_driver.ENV, path)
    assert printed_by_child() == "startingOffsets is ignored\n"


def test_a_place_that_no_socket_can_have_costs_the_warnings_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    assert to_driver.listen.__wrapped__() == ""
    assert "in the log of the JVM only" in caplog.text
