"""A network of hosts that lives in namespaces of its own and ends with the process that built it.

The process must have mount, network and process namespaces of its own: see :func:`enter_command`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.hosts.environment import LIBRARIES, link_libraries, make_environment, site_packages
from tests.hosts.host import DISK, HOME, NAMESPACES, SSHD_CONFIG, Host, run
from tests.hosts.programs import SEARCH, LeftOut

BRIDGE: Final = "lab0"
NETWORK: Final = "10.77.0."
GATEWAY: Final = f"{NETWORK}1"
WORK: Final = Path("/mnt")
"""Mount point of the lab's memory file system, visible in its mount namespace only."""
PROBE: Final = f"""
mount -t tmpfs tmpfs {WORK} && cd {WORK} && mkdir upper work root &&
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root &&
ip link add {BRIDGE} type bridge && ip link add probe0 type veth peer name probe1
"""
SUDO: Final = '#!/bin/sh\nexec "$@"\n'


def enter_command(command: list[str]) -> list[str]:
    """The command that runs another one in namespaces of its own, and ends every process left there afterwards.

    The first process is a shell, because it has to reap orphans: otherwise a host with a killed command could not end.
    """
    return ["unshare", *NAMESPACES, "--mount-proc", "bash", "-c", '"$@"; exit $?', "lab", *command]


def require_namespaces() -> None:
    """Raise :class:`LeftOut` where hosts cannot be built."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise LeftOut("hosts for `ray up` are namespaces, which take root on Linux.")
    for program in ("unshare", "nsenter", "ip", "chroot", "mount"):
        if shutil.which(program) is None:
            raise LeftOut(f"hosts for `ray up` need the program {program}, which is not installed.")
    done = subprocess.run(enter_command(["sh", "-c", PROBE]), capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise LeftOut(f"hosts for `ray up` cannot be built: the kernel refuses ({done.stderr.strip()}).")


class Lab:
    """Builds hosts, boots them, and shuts them down. Not reusable."""

    def __init__(self, disks: Path, programs: Path | None) -> None:
        """``disks``: a folder on a real disk; ``programs``: what the hosts lack, laid out like ``/``."""
        self._disks = disks
        self._programs = programs
        self.hosts: dict[str, Host] = {}

    def __enter__(self) -> Self:
        """Make the network and the hosts' shared parts."""
        run(["mount", "--make-rprivate", "/"])
        run(["mount", "-t", "tmpfs", "tmpfs", str(WORK)])
        for command in (
            f"ip link add {BRIDGE} type bridge",
            f"ip addr add {GATEWAY}/24 dev {BRIDGE}",
            f"ip link set {BRIDGE} up",
            "ip link set lo up",
        ):
            run(command.split())
        link_libraries(WORK / "libraries")
        key, host_key = WORK / "id_ed25519", WORK / "lab_host_key"
        for path in (key, host_key):
            run([self._keygen(), "-q", "-t", "ed25519", "-N", "", "-f", str(path)])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every host."""
        for host in self.hosts.values():
            host.vanish()

    def _keygen(self) -> str:
        return shutil.which("ssh-keygen") or f"{self._programs}/usr/bin/ssh-keygen"

    def add(self, name: str, number: int) -> Host:
        """Build a host with an empty disk and boot it."""
        disk = self._disks / name
        disk.mkdir(parents=True)
        host = Host(name, f"{NETWORK}{number}", WORK / name, disk)
        self.hosts[name] = host
        self._mount(host)
        self._furnish(host)
        self.boot(host)
        return host

    def boot(self, host: Host) -> None:
        """Start a host, on its previous disk and home."""
        places = ("usr/sbin/sshd", "usr/local/sbin/sshd")
        sshd = next(f"/{place}" for place in places if (host.root / place).exists())
        host.boot(BRIDGE, GATEWAY, sshd, f"{SEARCH}:{Path(sys.base_prefix) / 'bin'}")

    def _mount(self, host: Host) -> None:
        upper, work = host.folder / "upper", host.folder / "work"
        for folder in (upper, work, host.root):
            folder.mkdir(parents=True)
        run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", str(host.root)])
        _empty(host.root / HOME.relative_to("/"), "tmpfs")
        for name in ("tmp", "run", f".{WORK}", "srv", "var/tmp"):
            _empty(host.root / name, "tmpfs")
        # Bind this environment and its interpreter where the host lacks them: below the home, or on another disk.
        for needed in (Path(sys.prefix), Path(sys.base_prefix), site_packages(), Path(sysconfig.get_path("platlib"))):
            seen = host.root / needed.relative_to("/")
            if not seen.is_dir() or not any(seen.iterdir()):
                _bind(needed, seen, read_only=True)
        _bind(WORK / "libraries", host.root / LIBRARIES.relative_to("/"), read_only=True)
        if host.disk is not None:
            _bind(host.disk, host.root / DISK.relative_to("/"), read_only=False)

    def _furnish(self, host: Host) -> None:
        """Programs, accounts, keys, and the environment of the user."""
        root, home = host.root, host.root / HOME.relative_to("/")
        if self._programs is not None:
            run(["cp", "-a", f"{self._programs}/usr/.", f"{root}/usr/"])
        if not (root / "usr/bin/sudo").exists():
            (root / "usr/bin/sudo").write_text(SUDO)
            (root / "usr/bin/sudo").chmod(0o755)
        passwd = (root / "etc/passwd").read_text()
        if "\nsshd:" not in passwd:
            (root / "etc/passwd").write_text(f"{passwd}sshd:x:22:65534::/run/sshd:/usr/sbin/nologin\n")
        for name, text in (("resolv.conf", ""), ("hosts", f"127.0.0.1 localhost\n{host.address} {host.name}\n")):
            (root / "etc" / name).unlink(missing_ok=True)
            (root / "etc" / name).write_text(text)
        (root / "etc/ssh").mkdir(exist_ok=True)
        shutil.copy(WORK / "lab_host_key", root / "etc/ssh/lab_host_key")
        (root / "etc/ssh/lab_sshd_config").write_text(SSHD_CONFIG)
        ssh = home / ".ssh"
        ssh.mkdir(mode=0o700)
        shutil.copy(WORK / "id_ed25519.pub", ssh / "authorized_keys")
        (home / ".bashrc").write_text("case $- in *i*) ;; *) return;; esac\n")  # as in distributions
        make_environment(home, HOME)

    def give_key(self, host: Host) -> None:
        """Let a host log in to the others."""
        shutil.copy(WORK / "id_ed25519", host.root / HOME.relative_to("/") / ".ssh" / "id_ed25519")


def _empty(folder: Path, kind: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    run(["mount", "-t", kind, kind, str(folder)])


def _bind(source: Path, place: Path, *, read_only: bool) -> None:
    place.mkdir(parents=True, exist_ok=True)
    run(["mount", "--bind", str(source), str(place)])
    if read_only:
        run(["mount", "-o", "remount,bind,ro", str(place)])
