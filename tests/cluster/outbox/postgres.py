"""A PostgreSQL of its own in a temporary folder, on a Unix socket, under a user that is not root.

Tests that use it are skipped where PostgreSQL is not installed (Debian: `apt-get install postgresql`); `.ci/run`
installs it where it may.
"""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.waiting import wait_for

START_S = 60.0
_USERS = ("postgres", "nobody")


def programs() -> Path | None:
    """The folder with `initdb` and `postgres`; None where PostgreSQL is not installed."""
    for folder in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True):
        if os.access(f"{folder}/initdb", os.X_OK):
            return Path(folder)
    found = shutil.which("initdb")
    return None if found is None or shutil.which("postgres") is None else Path(found).resolve().parent


def reason_to_skip() -> str:
    """Why PostgreSQL cannot be tested here; empty when it can."""
    if programs() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if os.geteuid() == 0 and (_user() is None or shutil.which("setpriv") is None):
        return "PostgreSQL does not run as root, and there is no other user here, or no setpriv"
    return ""


def _user() -> pwd.struct_passwd | None:
    for name in _USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


class Postgres:
    """One server: `start()`, `kill()` as by SIGKILL of the postmaster, `start()` again, `stop()`."""

    def __init__(self) -> None:
        folder = programs()
        assert folder is not None
        self._programs = folder
        # Short: the path of a Unix socket has 107 bytes at most.
        self.folder = Path(tempfile.mkdtemp(prefix="raylog-pg-"))
        self._as: list[str] = []
        if os.geteuid() == 0:
            user = _user()
            assert user is not None
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        self._server: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", str(self.data), "-U", "raylog", "--auth=trust", "-E", "UTF8", "--no-sync")

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    @property
    def url(self) -> str:
        """The database, for SQLAlchemy with psycopg."""
        return f"postgresql+psycopg://raylog@/postgres?host={self.folder}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as, str(self._programs / program), *arguments]
        subprocess.run(command, check=True, timeout=START_S, capture_output=True, cwd=self.folder)

    def start(self) -> None:
        """Start, and wait until it answers; again while processes of a postmaster that was killed are still there."""
        wait_for(self._has_started, "PostgreSQL answers", START_S, pause_s=0.1)

    def _has_started(self) -> bool:
        if self._server is None or self._server.poll() is not None:
            options = {"listen_addresses": "", "unix_socket_directories": str(self.folder), "max_connections": "50"}
            settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
            command = [*self._as, str(self._programs / "postgres"), "-D", str(self.data), *settings]
            with (self.folder / "log").open("ab") as log:
                self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        command = [str(self._programs / "psql"), "-h", str(self.folder), "-U", "raylog", "-c", "select 1", "postgres"]
        return subprocess.run(command, timeout=START_S, capture_output=True).returncode == 0

    def kill(self) -> None:
        """SIGKILL of the postmaster; its other processes notice, and end."""
        assert self._server is not None
        self._server.send_signal(signal.SIGKILL)
        self._server.wait(START_S)
        self._server = None
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)  # "fast": without waiting for clients
            try:
                self._server.wait(START_S)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait(START_S)
        shutil.rmtree(self.folder, ignore_errors=True)
