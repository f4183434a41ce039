"""The Ray node that the command line starts on this machine, finds again, joins and ends.

When no Ray runs here, `raylog start` runs `ray start --head --block` as a process in a session of its own. Ending that
one process ends the node and nothing else. The file `ray.json` in the data directory has its process id and start time;
the latter, so that a reused id is not mistaken for it. Imports Ray only to join it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raylog.base.errors import NoClusterFound, StartFailed
from raylog.cli.error_sentences import NO_CLUSTER
from raylog.launch.private_files import keep_ray_token_private, open_private, write_private
from raylog.launch.ray_note import noted_address, process_began

if TYPE_CHECKING:
    from ray.job_config import JobConfig

DISK_FULL_BYTES: Final = 1 << 20
STATE_FILE: Final = "ray.json"
LOG_FILE: Final = "ray.out"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 3.0
POLL_S: Final = 0.05

logger = logging.getLogger(__name__)
_ADDRESS = re.compile(r"ray start --address='([^']+)'")
_children: list[subprocess.Popen[bytes]] = []
"""Processes of nodes that this process has started. Python would warn of each that is dropped while it runs, but they
are meant to outlive this process."""


@dataclass(frozen=True, slots=True)
class OwnRay:
    """The Ray node that `raylog start` has started: its process, and its address."""

    pid: int
    began: int
    """Start of the process in clock ticks since boot."""
    address: str

    def is_running(self) -> bool:
        """Whether the process runs, and is the one that was started."""
        return process_began(self.pid) == self.began


def recorded(data_dir: Path) -> OwnRay | None:
    """The running Ray node that was started for this data directory, if there is one."""
    try:
        own = OwnRay(**json.loads((data_dir / STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # missing, or written by another version: not to be ended here
    return own if own.is_running() else None


def start_node(data_dir: Path, *, dashboard: bool = False) -> OwnRay:
    """Start a Ray head that outlives this process, and record it. Raises StartFailed, and leaves nothing behind."""
    log_path = data_dir / LOG_FILE
    _ensure_token()
    command = [sys.executable, "-P", "-m", "raylog.fork_workers", "start", "--head", "--block", "--port=0"]
    command += [f"--include-dashboard={str(dashboard).lower()}", "--disable-usage-stats"]
    with open_private(log_path) as log:  # the node's address is read from it
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_node_environment(),
        )
    _children.append(process)
    try:
        address = _wait_for_address(process, log_path)
        own = OwnRay(process.pid, process_began(process.pid) or 0, address)
        write_private(data_dir / STATE_FILE, json.dumps(asdict(own)))
    except BaseException:  # including an interrupt: a node without a record must not stay
        end_started(process, STOP_TIMEOUT_S)
        raise
    return own


def end_started(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """End a node that was started in a session of its own: with SIGTERM, then with SIGKILL to its whole session.

    A node that does not end in time is only logged: the error that matters is why the start failed.
    """
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        logger.warning("Ray (process %d) did not end within %.0f s of the failed start: killed", process.pid, timeout_s)
    finally:  # also at a second interrupt
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for_address(process: subprocess.Popen[bytes], log_path: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        output = log_path.read_text(encoding="utf-8", errors="replace")
        found = _ADDRESS.search(output)
        if found is not None:
            return found[1]
        if process.poll() is not None:
            raise StartFailed(why_not_started(output, log_path))
        time.sleep(POLL_S)
    raise StartFailed(f"Ray did not start within {START_TIMEOUT_S:.0f} s; {log_path} says how far it came.")


def why_not_started(output: str, log_path: Path) -> str:
    """Return the sentence for a Ray that has ended during its start: the disk is full, or its last line of output."""
    free = shutil.disk_usage(log_path.parent).free
    if free < DISK_FULL_BYTES:
        return f"Ray did not start: the disk of {log_path.parent} is full ({free} bytes are free). Free some space."
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    return f"Ray did not start ({last.strip()}); {log_path} has the whole story."


def _node_environment() -> dict[str, str]:
    """The environment of the node.

    It has a `java` for Spark on its path, no variable that leads to another Ray, and a setting that keeps Ray's workers
    at normal priority, because Raylog's servers are workers.
    """
    from raylog.client.cluster.ray_session import NICENESS_VARIABLE, WORKER_NICENESS
    from raylog.spark.java import put_on_path_for_ray

    put_on_path_for_ray()
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {NICENESS_VARIABLE: str(WORKER_NICENESS), **inherited}


def _ensure_token() -> None:
    """Let Ray make the token that protects its ports: `ray.init()` makes one, `ray start` does not."""
    if not os.environ.get("RAY_AUTH_MODE") and not _has_token():
        command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "get-auth-token", "--generate"]
        # It prints the token: not shown.
        subprocess.run(command, check=True, capture_output=True, timeout=START_TIMEOUT_S)
    keep_ray_token_private()


def stop_node(own: OwnRay, data_dir: Path) -> None:
    """End the recorded node, and only it, and wait until it has ended. Raises StartFailed when it does not end."""
    if own.is_running():
        os.kill(own.pid, signal.SIGTERM)
        if not _wait_until(lambda: not own.is_running(), STOP_TIMEOUT_S):
            raise StartFailed(f"Ray (process {own.pid}) did not end within {STOP_TIMEOUT_S:.0f} s; see `ps {own.pid}`.")
    for child in _children:
        if child.pid == own.pid:
            child.wait(STOP_TIMEOUT_S)
    (data_dir / STATE_FILE).unlink(missing_ok=True)
    _forget_address(own.address)


def _forget_address(address: str) -> None:
    """Remove this node's address from Ray's note for "auto": Ray would wait minutes for a node that has ended."""
    note = _address_note()
    try:
        if note.read_text(encoding="utf-8").strip() == address:
            note.unlink()
    except OSError:
        pass  # there is no note, or it belongs to another user


def find(address: str | None, data_dir: Path) -> str | None:
    """Address of the Ray cluster to use: the given one, else that of this data directory, else one that runs here.

    None: there is none. Raises NoClusterFound for an address that cannot be parsed; it comes from the variable
    RAY_ADDRESS, because options were checked before.
    """
    from raylog.client.cluster.ray_session import ENV_ADDRESS, require_ray_address, running_ray_address

    if address is not None and address not in ("", "auto", "local"):
        return require_ray_address(address, ENV_ADDRESS)
    own = recorded(data_dir)
    if own is not None:
        return own.address
    if address == "local":
        return None
    noted = noted_address(data_dir)
    if noted is not None and _answers(noted):
        return noted
    return running_ray_address()


def join(address: str | None, data_dir: Path) -> str:
    """Connect this process to the Ray cluster that `find` finds; returns its address. Raises NoClusterFound."""
    found = find(address, data_dir)
    if found is None:
        raise NoClusterFound(NO_CLUSTER)
    if not _answers(found):
        raise NoClusterFound(f"No Ray cluster answers at {found}; check --address and RAY_ADDRESS, or `raylog start`.")
    _require_tls_there(found)
    # With an explicit address Ray does not look for the user's token; this makes it, if set before Ray is imported.
    if _is_of_this_machine(found, data_dir) and _has_token():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    if not ray.is_initialized():
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(
                address=found,
                namespace="raylog",
                job_config=_job_without_folders(),
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            if threading.current_thread() is threading.main_thread() and before is not None:
                # Ray's handler would write a trace of C++ frames, but a service manager's SIGTERM is no crash.
                signal.signal(signal.SIGTERM, before)
        except ConnectionError as error:
            raise NoClusterFound(
                f"Ray at {found} refused this process ({error}); if it requires a token, set RAY_AUTH_MODE=token."
            ) from error
    return found


class _NoFolders(list[str]):
    """A list that stays empty, whatever Ray adds to it."""

    def extend(self, folders: Iterable[str]) -> None:
        """Add nothing."""


def _job_without_folders() -> JobConfig:
    """A job whose workers import nothing from the folder where the command runs.

    Ray would put that folder first on their path, and a user's `grp.py` there would replace Python's.
    """
    from ray.job_config import JobConfig

    job = JobConfig()
    job._py_driver_sys_path = _NoFolders()
    return job


def _is_of_this_machine(address: str, data_dir: Path) -> bool:
    """Whether this Ray was started on this machine, by its notes: only such a Ray gets the user's token by default."""
    own = recorded(data_dir)
    if (own is not None and own.address == address) or noted_address(data_dir) == address:
        return True
    try:
        return _address_note().read_text(encoding="utf-8").strip() == address
    except OSError:
        return False


def _address_note() -> Path:
    """The file in which Ray notes the address of the last cluster that was started here."""
    from raylog.client.cluster.ray_session import ADDRESS_FILE

    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / ADDRESS_FILE


def _has_token() -> bool:
    """Whether this user has a token for Ray."""
    given = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    return any(os.environ.get(name) for name in given) or (Path.home() / ".ray" / "auth_token").exists()


def _answers(address: str) -> bool:
    """Whether the address accepts connections; unchecked, `ray.init` would wait for minutes for a lost node."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdecimal():
        return True  # Ray supports more kinds of addresses, and has its own errors for those it cannot use
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _require_tls_there(address: str) -> None:
    """Raise NoClusterFound where this shell uses TLS and that Ray does not: `ray.init` would retry for minutes."""
    from raylog.rpc.auth.tls import tls_is_on
    from raylog.rpc.client import NOT_TLS

    host, _, port = address.rpartition(":")
    if not tls_is_on() or "://" in address or not port.isdecimal():
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent over it
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S) as plain:
            context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        if error.reason == NOT_TLS:
            raise NoClusterFound(
                f"Ray at {address} does not speak TLS, and this shell does: `unset RAY_USE_TLS`, or start Ray with it."
            ) from error
    except OSError:
        pass  # `ray.init` will report it


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
