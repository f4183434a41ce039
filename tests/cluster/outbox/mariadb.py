"""A MariaDB of its own in a temporary folder, on a port of 127.0.0.1.

Tests that use it are skipped where MariaDB is not installed (Debian: `apt-get install mariadb-server-core`).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from tests.waiting import wait_for

START_S = 60.0


PROGRAMS = ("mariadbd", "mariadb-install-db", "my_print_defaults", "resolveip")
"""The server, and what makes its tables with the programs that it calls."""


def reason_to_skip() -> str:
    """Why MariaDB cannot be tested here; empty when it can."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing:
        where = "Debian: apt-get install mariadb-server-core mariadb-client-core"
        return f"MariaDB is not installed, or not whole: {', '.join(missing)} is missing ({where})"
    return ""


class MariaDB:
    """One server: `start()`, `end()` as an ordinary stop, `start()` again, `stop()`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="raylog-my-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self._data = self.folder / "data"
        self._server: subprocess.Popen[bytes] | None = None
        self._as = ["--user=root"] if os.geteuid() == 0 else []
        install = ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", *self._as]
        command = [*install, f"--datadir={self._data}", "--skip-test-db"]
        subprocess.run(command, check=True, timeout=START_S, capture_output=True, cwd=self.folder)

    @property
    def url(self) -> str:
        """The database, for SQLAlchemy with pymysql."""
        return self._url("bank")

    def _url(self, name: str) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self._port}/{name}?charset=utf8mb4"

    def start(self) -> None:
        """Start, and wait until it answers."""
        options = {"datadir": self._data, "socket": self.folder / "s", "port": self._port}
        settings = [f"--{name}={value}" for name, value in options.items()]
        command = ["mariadbd", "--no-defaults", *self._as, "--bind-address=127.0.0.1", *settings]
        with (self.folder / "log").open("ab") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        wait_for(self._answers, "MariaDB answers", START_S, pause_s=0.1)

    def _answers(self) -> bool:
        engine = create_engine(self._url("mysql"))
        try:
            with engine.begin() as db:
                db.execute(text("CREATE DATABASE IF NOT EXISTS bank CHARACTER SET utf8mb4"))
            return True
        except SQLAlchemyError:
            return False
        finally:
            engine.dispose()

    def end(self) -> None:
        """End it as an administrator does: by SIGTERM."""
        assert self._server is not None
        self._server.terminate()
        self._server.wait(START_S)
        self._server = None

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self._server is not None:
            self._server.kill()
            self._server.wait(START_S)
        shutil.rmtree(self.folder, ignore_errors=True)
