"""A process per Ray node that has imported Ray and what replicas need, and forks itself into Ray's workers.

Started by ``raylog/launch/forking.py``; called by ``fork_launcher.py``, which Ray starts in place of Python. A forked
worker shares the imported modules with all others, and takes milliseconds; importing Ray again takes half a second.

This process has no connections and no other threads, because these do not survive a fork. It ends with the raylet that
it makes workers for. Running workers do not need it; without it, Ray starts workers in the usual way.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

logger = logging.getLogger(__name__)

WORKER: Final = "/ray/_private/workers/default_worker.py"
SHARED: Final = (
    "ray",
    "ray._private.node",
    "ray._private.async_compat",
    "ray._common.usage.usage_lib",
    "raylog.actors.dozing.processes",
    "raylog.actors.dozing.resting",
    "raylog.actors.forwarding.expiry",
    "raylog.actors.logs",
    "raylog.actors.processes.ray_secrets",
    "raylog.actors.processes.ray_support",
    "raylog.actors.processes.spare_roles",
    "raylog.actors.queues.role",
    "raylog.actors.replica.server",
    "raylog.actors.roles.time_of_day",
    "raylog.actors.titles",
    "raylog.rpc.host",
    "uvloop",
)
"""Modules that are imported before the fork. The modules of the actors' classes are not among them, because their
import depends on the actor (``keep_unused_out``)."""
INTERPRETERS: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
"""Prefixes of variables that an interpreter reads at its start: a worker with other values cannot be forked here."""
IMPORTS: Final = (*INTERPRETERS, "RAY_", "RAYLOG_", "OMP_")
"""Prefixes of variables that the imported modules may have read."""
JOB: Final = "RAY_JOB_ID"
NO_JOB: Final = "ffffffff"
"""Ray's nil job, which Ray gives to workers that it starts ahead of any job; such a worker takes the job of its first
lease. Ray's C++ part reads the variable once per process, which is here, before the fork. With the first worker's job
in it, no worker on this node could serve another job."""
OF_EACH_WORKER: Final = frozenset({JOB, "RAY_RAYLET_PID"})
"""Ray's variables that differ between workers; they do not keep a worker from being forked."""
LIMITS: Final = (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC)
ANSWER_S: Final = 5.0
"""How long a launcher may take to send each of its two bytes."""
SEARCH_S: Final = 0.5
NO_RAYLET_S: Final = 60.0
"""If no raylet uses this server by then, Ray has not started."""
TOUCH_S: Final = 3600.0
"""Interval at which the files are touched, so that no cleaner of temporary folders removes them under a raylet."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """The process that Ray started as a worker: all attributes that the forked worker has to take over from it."""

    pid: int
    arguments: list[str]
    """The worker's script and its arguments."""
    environment: dict[str, str]
    folder: str
    cgroup: str
    group: int
    session: int
    umask: int
    niceness: int
    oom_score: str
    limits: dict[int, tuple[int, int]]
    blocked: set[int]
    ignored: set[int]

    @classmethod
    def read(cls, pid: int) -> Self:
        """Read the attributes from /proc. Raises OSError if it has ended, ValueError if it does not launch a worker."""
        proc = Path(f"/proc/{pid}")
        arguments = _strings(proc / "cmdline")[3:]  # after the interpreter, its flags, and the launcher's path
        if not arguments or not arguments[0].endswith(WORKER):
            raise ValueError(f"process {pid} launches no worker: {arguments[:1]}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return cls(
            pid=pid,
            arguments=arguments,
            environment=dict(string.split("=", 1) for string in _strings(proc / "environ") if "=" in string),
            folder=os.readlink(proc / "cwd"),
            cgroup=(proc / "cgroup").read_text(),
            group=os.getpgid(pid),
            session=os.getsid(pid),
            umask=int(status["Umask"], 8),
            niceness=os.getpriority(os.PRIO_PROCESS, pid),
            oom_score=(proc / "oom_score_adj").read_text(),
            limits={limit: resource.prlimit(pid, limit) for limit in LIMITS},
            blocked=_signals(status["SigBlk"]),
            ignored=_signals(status["SigIgn"]),
        )


def _strings(file: Path) -> list[str]:
    return [os.fsdecode(item) for item in file.read_bytes().split(b"\0")[:-1]]


def _signals(mask: str) -> set[int]:
    bits = int(mask, 16)
    return {int(number) for number in signal.valid_signals() if bits >> (number - 1) & 1}


def chosen(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that begin with one of the prefixes, except OF_EACH_WORKER."""
    return {
        name: value for name, value in environment.items() if name.startswith(prefixes) and name not in OF_EACH_WORKER
    }


def find_raylet(folder: Path) -> int | None:
    """Return the process id of the raylet that starts its workers from this folder; None = there is none yet."""
    wanted = os.fsencode(folder)
    for item in Path("/proc").iterdir():
        if item.name.isdecimal():
            with suppress(OSError):  # it has ended meanwhile, or is another user's
                command = (item / "cmdline").read_bytes()
                if command.partition(b"\0")[0].endswith(b"/raylet") and wanted in command:
                    return int(item.name)
    return None


class ForkServer:
    """Answers launchers one after the other until the raylet has ended."""

    def __init__(self, folder: Path) -> None:
        """Listen in this folder, which other users may not enter."""
        self._folder = folder
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(folder / "socket"))
        self._listener.listen(socket.SOMAXCONN)
        self._raylet = -1
        self._began = self._touched = time.monotonic()
        self._environment: dict[str, str] | None = None
        """The variables IMPORTS with which Ray was imported; None = not imported yet."""

    def run(self) -> Launcher | None:
        """Serve. Returns in each worker, with its launcher; and None in the server, when the raylet has ended."""
        while True:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            if self._raylet >= 0:
                poll.register(self._raylet, select.POLLIN)
            ready = {number for number, _ in poll.poll((SEARCH_S if self._raylet < 0 else TOUCH_S) * 1000)}
            if self._listener.fileno() in ready:
                worker = self._answer()
                if worker is not None:
                    return worker
            if self._raylet in ready or (self._raylet < 0 and not self._look_for_raylet()):
                self._end()
                return None
            self._touch()

    def _end(self) -> None:
        """Remove the folder if the raylet has ended. If no raylet came, leave the launcher in it.

        A launcher without a server becomes plain Python, so a raylet that comes late can start workers all the same.
        """
        self._listener.close()
        if self._raylet >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            logger.warning("no raylet within %.0f s: workers are not forked here", NO_RAYLET_S)
            (self._folder / "socket").unlink(missing_ok=True)

    def _look_for_raylet(self) -> bool:
        """Look for the raylet; returns whether it runs, or may still come."""
        found = find_raylet(self._folder)
        if found is None:
            return time.monotonic() - self._began < NO_RAYLET_S
        try:
            self._raylet = os.pidfd_open(found)
        except ProcessLookupError:
            return False
        return True

    def _touch(self) -> None:
        if time.monotonic() - self._touched >= TOUCH_S:
            self._touched = time.monotonic()
            for item in (self._folder, *self._folder.iterdir()):
                os.utime(item)

    def _answer(self) -> Launcher | None:
        """Serve one launcher; returns in the worker. A launcher without a reply continues on its own."""
        connection, _ = self._listener.accept()
        streams: list[int] = []
        try:
            connection.settimeout(ANSWER_S)
            pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():
                raise PermissionError(f"user {user} requested a process of user {os.getuid()}")
            _, streams, _, _ = socket.recv_fds(connection, 1, 3)
            if len(streams) != 3:
                raise ValueError(f"process {pid} passed {len(streams)} streams instead of three")
            launcher = Launcher.read(pid)
            self._prepare(launcher)
            if os.fork() == 0:
                self._take_over(connection, launcher, streams)
                return launcher
        except (OSError, ValueError) as error:
            logger.warning("no worker was made: %s", error)
        finally:
            connection.close()
            for stream in streams:
                with suppress(OSError):  # in the worker it is already closed
                    os.close(stream)
        return None

    def _prepare(self, launcher: Launcher) -> None:
        """For the first worker, import everything with its environment. Raises ValueError for one with another
        environment or control group."""
        if launcher.cgroup != Path("/proc/self/cgroup").read_text():
            raise ValueError(f"process {launcher.pid} is in another control group")
        if self._environment is None:
            if chosen(launcher.environment, INTERPRETERS) != chosen(os.environ, INTERPRETERS):
                raise ValueError(f"process {launcher.pid} has another environment than this interpreter")
            os.environ.clear()
            os.environ.update(launcher.environment)
            os.environ[JOB] = NO_JOB
            import_shared(launcher)
            self._environment = chosen(launcher.environment, IMPORTS)
        if chosen(launcher.environment, IMPORTS) != self._environment:
            raise ValueError(f"process {launcher.pid} has another environment than what was imported")

    def _take_over(self, connection: socket.socket, launcher: Launcher, streams: list[int]) -> None:
        """Take the launcher's place, in the process that was just forked; if that fails, this process ends."""
        try:
            self._listener.close()
            if self._raylet >= 0:
                os.close(self._raylet)
            take_place(launcher)
            connection.sendall(b"y")
            if connection.recv(1) != b"g":
                raise TimeoutError(f"process {launcher.pid} no longer wants a worker")
            connection.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2:
                    with suppress(OSError):  # the descriptor of the listing itself
                        os.close(int(name))
        except BaseException as error:  # any error: this process must not become a second server
            logger.warning("a worker was not made: %r", error)
            os._exit(1)


def import_shared(launcher: Launcher) -> None:
    """Import what all workers need, once; ends this process if that has started a thread."""
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path(launcher.arguments[0]).parent))  # as for any script; importing Ray adds more
    for name in SHARED:
        with suppress(ImportError):  # a worker that needs the module will report it
            importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise SystemExit(f"Importing Ray has started {threads - 1} threads, so this process cannot be forked.")
    gc.collect()
    gc.freeze()  # so that a collection in a worker does not touch, and thereby copy, shared memory


def take_place(launcher: Launcher) -> None:
    """Give this process the attributes that the launcher got from Ray. Raises OSError."""
    # When a worker has ended, Ray kills the rest of its process group, so that must not be the server's group.
    if launcher.group == launcher.pid or launcher.session != os.getsid(0):
        # A session of its own: when the server ends, a group in the server's session would become orphaned, and the
        # kernel would send SIGHUP to its stopped processes (setpgid(2)), which are the dozing replicas.
        os.setsid()
    else:
        os.setpgid(0, launcher.group)
    for limit, values in launcher.limits.items():
        resource.setrlimit(limit, values)
    os.nice(max(0, launcher.niceness - os.getpriority(os.PRIO_PROCESS, 0)))
    Path("/proc/self/oom_score_adj").write_text(launcher.oom_score)
    os.umask(launcher.umask)
    os.chdir(launcher.folder)
    os.environ.clear()
    os.environ.update(launcher.environment)
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in launcher.ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, launcher.blocked)


def run_worker(launcher: Launcher) -> None:
    """Run the worker's script as if this interpreter had been started with it. Returns when the worker ends."""
    logging.getLogger().handlers.clear()
    sys.argv = list(launcher.arguments)
    sys.orig_argv = [sys.executable, *launcher.arguments]
    if "numpy.random" in sys.modules:  # Python reseeds its own generator after a fork, numpy does not
        sys.modules["numpy.random"].seed()
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    """Serve in the folder that is the first argument; in a forked worker, run that."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s fork server: %(message)s")
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):  # no zombies, and no signals of a terminal
        signal.signal(number, signal.SIG_IGN)
    worker = ForkServer(Path(sys.argv[1])).run()
    if worker is not None:
        run_worker(worker)


if __name__ == "__main__":
    main()
