"""A small disk for one broker, so that a full disk can be tried: a tmpfs in a mount namespace of this process alone.

Made before Ray starts, because its processes have to inherit the namespace. The mount ends with the last of them, even
after a SIGKILL. Needs root on Linux; elsewhere the fault is left out.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

SIZE_BYTES: Final = 96 * 1024 * 1024
FILLER: Final = "filler.chaos"
_CLONE_NEWNS: Final = 0x00020000
_BLOCK: Final = 1024 * 1024


def mount(folder: Path) -> str:
    """Mount a small tmpfs on the folder, in a namespace of our own; returns why it was not possible, or ""."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "a full disk was not tried: mounting a small one takes root on Linux."
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return f"a full disk was not tried: no mount namespace ({os.strerror(ctypes.get_errno())})."
    folder.mkdir(parents=True, exist_ok=True)
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "raylog-chaos", str(folder)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
        if done.returncode != 0:
            return f"a full disk was not tried: {' '.join(command)}: {done.stderr.strip()}"
    return ""


def unmount(folder: Path) -> None:
    """Remove the disk, so that the folder can be deleted."""
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False, timeout=20)


def fill(folder: Path) -> int:
    """Fill the disk; returns the number of bytes used for that."""
    taken = 0
    with (folder / FILLER).open("ab", buffering=0) as file:
        for size in (_BLOCK, 4096, 1):
            try:
                while True:
                    taken += file.write(b"\0" * size)
            except OSError:
                continue  # full at this size: fill up with smaller pieces
    return taken


def free(folder: Path) -> None:
    """Free the space."""
    (folder / FILLER).unlink(missing_ok=True)
