"""One host: a file system, a network address and processes of its own, and an sshd that accepts the lab's key.

A host is booted in new namespaces and can vanish like a machine without power: its cable first, then all of its
processes. Its home and its disk persist until the next boot; ``/tmp``, ``/run`` and ``/dev/shm`` are fresh.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HOME: Final = Path(pwd.getpwuid(0).pw_dir)
"""Home of root, on each host a folder of its own."""
DISK: Final = Path("/var/lib/raylog")
COMMAND_TIMEOUT_S: Final = 120.0
BOOT_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 60.0
"""A loaded machine needs a while to end a hundred processes and to free their memory."""
POLL_S: Final = 0.05
OUTPUT_MAX: Final = 4 * 2**20
SETTINGS: Final = (
    "PIP_NO_INDEX=1 RAY_health_check_period_ms=1000 RAY_health_check_timeout_ms=3000"
    " RAY_health_check_failure_threshold=5"
)
"""Of every shell on a host: no package index is reachable; and Ray detects a lost host in 20 s instead of 65."""
SSHD_CONFIG: Final = f"""\
HostKey /etc/ssh/lab_host_key
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
UseDNS no
MaxStartups 100
SetEnv {SETTINGS}
"""
NAMESPACES: Final = ("--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
BOOT: Final = r"""
set -eu
mount --bind "$FRESH/tmp" "$ROOT/tmp"
mount --bind "$FRESH/run" "$ROOT/run"
mount -t proc proc "$ROOT/proc"
mount -t sysfs sysfs "$ROOT/sys"
mount -t tmpfs dev "$ROOT/dev"
mkdir "$ROOT/dev/shm" "$ROOT/dev/pts" "$ROOT/run/sshd"
mount -t tmpfs shm "$ROOT/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$ROOT/dev/pts"
ln -s pts/ptmx "$ROOT/dev/ptmx"
ln -s /proc/self/fd "$ROOT/dev/fd"
for device in null zero full random urandom tty; do
    touch "$ROOT/dev/$device"
    mount --bind "/dev/$device" "$ROOT/dev/$device"
done
hostname "$NAME"
ip link set lo up
exec chroot "$ROOT" /usr/bin/env -i PATH="$PATH" "$SSHD" -D -e -f /etc/ssh/lab_sshd_config
"""


class CommandFailed(AssertionError):
    """A command on a host failed or timed out; the message has its output."""


@dataclass
class Host:
    """A host of the lab; built by :class:`tests.hosts.lab.Lab`."""

    name: str
    address: str
    folder: Path
    """Of the lab: ``root`` (the host's ``/``), and a folder for each boot."""
    disk: Path | None
    """Of the test, on a real disk: the host's :data:`DISK`."""
    boots: int = 0
    _namespace: subprocess.Popen[bytes] | None = None
    _init: int = 0
    logs: list[Path] = field(default_factory=list)
    """Ray's temporary folder of each boot, which stays readable after the host was removed."""

    @property
    def root(self) -> Path:
        """Root of the host's file system, as the lab sees it."""
        return self.folder / "root"

    @property
    def cable(self) -> str:
        """Name of the lab's end of the host's network cable."""
        return f"lab-{self.name}"

    @property
    def runs(self) -> bool:
        """Whether the host is up."""
        return self._namespace is not None

    def boot(self, bridge: str, gateway: str, sshd: str, path: str) -> None:
        """Start the host and wait until its sshd answers. Raises :class:`CommandFailed`."""
        self.boots += 1
        fresh = self.folder / f"boot-{self.boots}"
        for name in ("tmp", "run"):
            (fresh / name).mkdir(parents=True)
        (fresh / "tmp").chmod(0o1777)
        self.logs.append(fresh / "tmp" / "ray")
        with (fresh / "sshd.log").open("wb") as log:
            self._namespace = subprocess.Popen(
                ["unshare", *NAMESPACES, "bash", "-c", BOOT],
                env={"FRESH": str(fresh), "ROOT": str(self.root), "NAME": self.name, "SSHD": sshd, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        children = Path(f"/proc/{self._namespace.pid}/task/{self._namespace.pid}/children")
        wait_until(lambda: bool(children.read_text().split()), BOOT_TIMEOUT_S, f"{self.name} has a first process")
        self._init = int(children.read_text().split()[0])
        wait_until(self._has_its_own_network, BOOT_TIMEOUT_S, f"{self.name} has a network of its own")
        self._plug_in(bridge, gateway)
        wait_until(self._answers, BOOT_TIMEOUT_S, f"sshd of {self.name} answers; see {fresh}/sshd.log")

    def _plug_in(self, bridge: str, gateway: str) -> None:
        run(["ip", "link", "add", self.cable, "type", "veth", "peer", "name", "eth0", "netns", str(self._init)])
        run(["ip", "link", "set", self.cable, "master", bridge, "up"])
        inside = ["nsenter", "--target", str(self._init), "--net", "ip"]
        run([*inside, "addr", "add", f"{self.address}/24", "dev", "eth0"])
        run([*inside, "link", "set", "eth0", "up"])
        run([*inside, "route", "add", "default", "via", gateway])

    def _has_its_own_network(self) -> bool:
        return os.readlink(f"/proc/{self._init}/ns/net") != os.readlink("/proc/self/ns/net")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.address, 22), timeout=1.0) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def vanish(self) -> None:
        """Lose the power: peers see neither a closed connection nor a refused one."""
        if self._namespace is None:
            return
        run(["ip", "link", "del", self.cable])
        os.kill(self._init, signal.SIGKILL)
        self._namespace.wait(END_TIMEOUT_S)
        self._namespace = None

    def lose_disk(self) -> None:
        """Replace the disk of a host that is down by an empty one."""
        if self.runs or self.disk is None:
            raise CommandFailed(f"{self.name} runs, or has no disk")
        for entry in self.disk.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def processes(self) -> str:
        """The host's processes, as readable text."""
        return run(
            ["nsenter", "--target", str(self._init), "--all", "--root", "--wd", "ps", "-A", "f", "-o", "pid,args"]
        )

    def enter_command(self) -> list[str]:
        """The command that runs another one on the host, by its first words, with the variables of a user."""
        enter = ["nsenter", "--target", str(self._init), "--all", "--root", "--wd"]
        return [*enter, "env", "-i", "TERM=dumb", f"HOME={HOME}", "USER=root", "SHELL=/bin/bash", "PIP_NO_INDEX=1"]

    def run(self, command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        """Run a shell command as a logged-in user; returns its output. Raises :class:`CommandFailed`."""
        shell = f"cd; source ~/.bashrc; {command}"
        return run(
            [*self.enter_command(), "bash", "--login", "-i", "-c", shell],
            timeout_s,
            f"{self.name}: {command}",
        )


def run(command: list[str], timeout_s: float = COMMAND_TIMEOUT_S, what: str = "") -> str:
    """Run a command; returns its standard output. Raises :class:`CommandFailed`.

    Processes that it leaves running do not delay the return: output goes to files, which need not be closed.
    """
    what = what or " ".join(command)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
        try:
            code: int | str = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = f"SIGKILL after {timeout_s:.0f} s"
        printed, complaints = (os.pread(file.fileno(), OUTPUT_MAX, 0).decode(errors="replace") for file in (out, err))
    if code != 0:
        raise CommandFailed(f"{what}\nended with {code}:\n{printed}\n{complaints}")
    return printed


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until the condition holds; raises :class:`CommandFailed` after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise CommandFailed(f"did not happen within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)
