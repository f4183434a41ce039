"""The programs that a host needs and that a development machine may lack: sshd, rsync, the ssh client.

Installed programs are used. Missing ones are downloaded as Debian packages into a folder and unpacked there; nothing
is installed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

PACKAGES: Final = {
    "sshd": ("openssh-server", "openssh-sftp-server", "libwrap0"),
    "rsync": ("rsync", "libpopt0", "libxxhash0"),
    "ssh": ("openssh-client",),
}
SEARCH: Final = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
DOWNLOAD_TIMEOUT_S: Final = 90.0
UNPACKED: Final = "unpacked"


class LeftOut(Exception):
    """Hosts cannot be built on this machine; the sentence says what is missing."""


def tree_of_programs(cache: Path) -> Path | None:
    """Return a folder laid out like ``/`` with this machine's missing programs; None when nothing is missing.

    Raises :class:`LeftOut` when something is missing and cannot be downloaded.
    """
    missing = [name for name in PACKAGES if shutil.which(name, path=SEARCH) is None]
    if not missing:
        return None
    tree = cache / UNPACKED
    if all(list(tree.glob(f"usr/*bin/{name}")) for name in missing):
        return tree
    packages = [package for name in missing for package in PACKAGES[name]]
    wanted = f"{' and '.join(missing)}: install {', '.join(PACKAGES[name][0] for name in missing)}"
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise LeftOut(f"hosts for `ray up` need {wanted}, or make the test able to download them as Debian packages.")
    shutil.rmtree(cache, ignore_errors=True)
    fresh = cache / "fresh"
    fresh.mkdir(parents=True)
    try:
        for archive in _download(cache, packages):
            _run(["dpkg-deb", "-x", str(archive), str(fresh)], cache)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        output = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        raise LeftOut(
            f"hosts for `ray up` need {wanted}; the download failed ({output[-1] if output else error})."
        ) from None
    return fresh.rename(tree)


def _download(cache: Path, packages: list[str]) -> list[Path]:
    """Download with the machine's package lists; with fresh lists when there are none or they are too old."""
    try:
        _run(["apt-get", "download", *packages], cache)
    except subprocess.CalledProcessError:
        lists = cache / "lists"
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        own_lists = ["-o", f"Dir::State::lists={lists}"]
        _run(["apt-get", *own_lists, "update"], cache)
        _run(["apt-get", *own_lists, "download", *packages], cache)
    return sorted(cache.glob("*.deb"))


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=DOWNLOAD_TIMEOUT_S)
