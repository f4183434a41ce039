"""The note in a data directory with the address of its cluster's Ray: written by `start`, read by the command line.

Ray itself notes its address for other processes only after `ray start`, not after ``ray.init()``. So a cluster that a
notebook started could not be found without this note. May touch: that file and ``/proc``. Reading it imports no Ray.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from raylog.launch.private_files import write_private

logger = logging.getLogger(__name__)

NOTE: Final = "ray-address.json"
_STORE: Final = "gcs_server"
"""Ray's control store, a child of the process that started Ray by ``ray.init()``."""


@dataclass(frozen=True, slots=True)
class RayNote:
    """Where Ray answers, and the process with which that Ray ends."""

    address: str
    pid: int | None = None
    """None: Ray was started by `ray start`, and outlives the process that wrote the note."""
    began: int | None = None
    """Start of that process in clock ticks since boot, so that a reused id is not mistaken for it."""


def process_began(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when it has ended (a zombie has ended)."""
    try:
        # The command's name, in parentheses, may contain spaces; the fields that are needed come after it.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def leave_note(data_dir: Path) -> None:
    """Note the Ray that this process uses. If the file cannot be written, only a warning is logged."""
    import ray

    try:
        write_note(data_dir, ray.get_runtime_context().gcs_address, os.getpid() if _holds_ray() else None)
    except OSError as error:
        logger.warning("commands on %s will need --address: %s", data_dir, error)


def write_note(data_dir: Path, address: str, holder: int | None) -> None:
    """Note an address, and the process `holder` with which the Ray there ends. Raises OSError."""
    note = RayNote(address, holder, None if holder is None else process_began(holder))
    write_private(data_dir / NOTE, json.dumps(asdict(note)))


def noted_address(data_dir: Path) -> str | None:
    """Address of the Ray that was noted; None without a note, or when the process that holds that Ray has ended.

    That Ray may have been shut down since. A note that belongs to another user, or that others may change, is ignored,
    because this user's token is sent to the noted address.
    """
    path = data_dir / NOTE
    try:
        found = path.stat()
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            return None
        note = RayNote(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # missing, or of another version
    ended = note.pid is not None and process_began(note.pid) != note.began
    return None if ended else note.address


def _holds_ray() -> bool:
    """Whether Ray's control store is a child of this process, so that it ends with this process."""
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue  # a thread that has ended, or a kernel without this file
        for child in children:
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[0]
            except OSError:
                continue
            if Path(os.fsdecode(command)).name == _STORE:
                return True
    return False
