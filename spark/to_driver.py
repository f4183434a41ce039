"""Brings warnings of the data source to the user's program.

Spark plans queries in Python processes that the driver's JVM starts. Their standard error is that of the JVM: the
terminal in a plain Spark, a file in a session of raylog.spark.session. Such a session listens at a socket and logs what
arrives; the processes inherit its path in their environment. May touch: a Unix socket, and the environment.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator

ENV = "RAYLOG_SPARK_WARNINGS"
BYTES_MAX = 16_384
"""Largest warning; a longer one is cut."""
logger = logging.getLogger(__name__)


def warnings_to_driver() -> None:
    """In a process of Spark: from now on send Raylog's warnings to the user's program, if it listens."""
    path = os.environ.get(ENV)
    ours = logging.getLogger("raylog")
    if path and not any(isinstance(handler, _ToDriver) for handler in ours.handlers):
        ours.addHandler(_ToDriver(path))


class _ToDriver(logging.Handler):
    """Sends warnings to the driver, and prints them as Python does where nothing is configured."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.WARNING)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record, and send it as a datagram. It is dropped if the driver has ended or its buffer is full."""
        text = self.format(record)
        sys.stderr.write(f"{text}\n")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
            sender.setblocking(False)
            sender.sendto(text.encode()[:BYTES_MAX], self._path)


@contextlib.contextmanager
def passed_to_children() -> Iterator[None]:
    """Let a JVM that the block starts inherit the socket's path, so that its warnings are logged in this process."""
    before = os.environ.get(ENV)
    os.environ[ENV] = listen()
    try:
        yield
    finally:
        if before is None:
            del os.environ[ENV]
        else:
            os.environ[ENV] = before


@functools.cache
def listen() -> str:
    """Log what arrives at a socket, until this process ends; returns its path, which only this user may open.

    Returns "" where no such socket can be made: then warnings are in the JVM's log only.
    """
    folder = tempfile.mkdtemp(prefix="raylog-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "warnings")
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        receiver.bind(path)
    except OSError as error:  # above all a path that is too long for a socket
        receiver.close()
        logger.warning("Warnings of Spark queries are in the log of the JVM only: no socket at %s: %s", path, error)
        return ""
    threading.Thread(target=_log_all, args=(receiver,), name="raylog-spark-warnings", daemon=True).start()
    return path


def _log_all(receiver: socket.socket) -> None:
    while True:
        logger.warning("%s", receiver.recv(BYTES_MAX).decode("utf-8", "replace"))
