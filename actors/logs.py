"""How each process of a cluster writes its log: as text, or as JSON with a fixed set of fields.

``RAYLOG_LOG_LEVEL`` (default INFO) and ``RAYLOG_LOG_FORMAT`` (``text``, the default, or ``json``) are read where Ray
is started. A JSON line has ``ts`` (UTC, microseconds), ``level``, ``actor``, ``topic``, ``partition``, ``epoch`` (the
leader epoch), ``event`` (the message) and ``logger``; ``error`` holds a traceback. Fields without a value are null.
Imported by every actor's process, so it imports next to nothing.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.base.errors import InvalidConfig

FORMAT_VARIABLE: Final = "RAYLOG_LOG_FORMAT"
LEVEL_VARIABLE: Final = "RAYLOG_LOG_LEVEL"
FORMATS: Final = ("text", "json")
NAMED: Final = "raylog"
"""Folder in Ray's log folder: it has a link to the log of each process, named after the actor and the process id."""
STDERR: Final = Path("/proc/self/fd/2")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@dataclass(slots=True)
class Speaker:
    """Which actor this process is; None: not known yet, or not applicable."""

    actor: str = ""
    topic: str | None = None
    partition: int | None = None
    epoch: Callable[[], int | None] | None = None
    """Returns the current leader epoch."""


SPEAKER: Final = Speaker()
"""The actor of this process: each process is one actor. A spare gets its role later."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line. ``extra={"topic": ..., "partition": ..., "epoch": ...}`` overrides the actor's own."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__()
        self._speaker = speaker

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        speaker = self._speaker
        epoch = getattr(record, "epoch", None)
        if epoch is None and speaker.epoch is not None:
            epoch = speaker.epoch()
        seconds, micros = divmod(int(record.created * 1_000_000), 1_000_000)
        line: dict[str, object] = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{micros:06d}Z",
            "level": record.levelname,
            "actor": speaker.actor,
            "topic": getattr(record, "topic", speaker.topic),
            "partition": getattr(record, "partition", speaker.partition),
            "epoch": epoch,
            "event": record.getMessage(),
            "logger": record.name,
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def log_format() -> str:
    """Return the log format set in the environment. Raises :class:`InvalidConfig` for an unknown one."""
    wanted = os.environ.get(FORMAT_VARIABLE, "").strip().lower() or FORMATS[0]
    if wanted not in FORMATS:
        raise InvalidConfig(f"{FORMAT_VARIABLE}={wanted}: the log format is one of {', '.join(FORMATS)}.")
    return wanted


def name_log(actor: str, stderr: Path = STDERR) -> None:
    """Link the log of this process under its actor's name: Ray's own file is named after a worker.

    A process without such a file, or on a system without `/proc`, gets no link.
    """
    with suppress(OSError):  # a log without a name is written all the same
        log = stderr.readlink()
        if log.suffix == ".err" and log.name.startswith("worker-"):
            folder = log.parent / NAMED
            folder.mkdir(exist_ok=True)
            (folder / f"{actor}.{os.getpid()}").symlink_to(Path("..") / log.name)


def set_up_logging(actor: str) -> None:
    """Let this process, which is ``actor``, log to stderr in the format set in the environment.

    ``raylog.start`` refuses an unknown format. If the environment of a node has one, its processes log as text and
    complain: a server must not stay down because of its log format.
    """
    SPEAKER.actor = actor
    name_log(actor)
    complaint: InvalidConfig | None = None
    try:
        wanted = log_format()
    except InvalidConfig as error:
        wanted, complaint = FORMATS[0], error
    level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    logging.basicConfig(level=level, format=TEXT)
    if wanted == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter(SPEAKER))
    if complaint is not None:
        logging.getLogger(__name__).error("%s Logging as text.", complaint)
