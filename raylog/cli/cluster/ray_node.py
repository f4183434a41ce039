"""A Ray node of this machine's own: started, found again, joined and ended by the command line.

`raylog start` runs `ray start --head --block` as a process of its own session when no Ray is here. That one process
holds the node together: ending it ends the node and nothing else. Its id, with its start time (so that a reused id is
never mistaken for it), is in `ray.json` in the data directory. Imports Ray only to join it.
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

from raylog.cli.complaints import NO_CLUSTER
from raylog.core.errors import NoClusterFound, StartFailed
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
"""Nodes started by this process, kept so that none is reported as forgotten; they are meant to outlive it."""


@dataclass(frozen=True, slots=True)
class OwnRay:
    """The Ray node that `raylog start` made: the process that holds it, and where it answers."""

    pid: int
    began: int
    """Start of the process in clock ticks since boot."""
    address: str

    def is_running(self) -> bool:
        """Whether the process lives, and is the one that was started."""
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
    """End a node that was started in a session of its own: by request, then by force with all that it has started.

    Raises nothing for one that takes its time: why the start failed is the error that counts.
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
    """Return the sentence for a Ray that has ended: its last line, or that it had no room for one."""
    free = shutil.disk_usage(log_path.parent).free
    if free < DISK_FULL_BYTES:
        return f"Ray did not start: the disk of {log_path.parent} is full ({free} bytes are free). Free some space."
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "it printed nothing")
    return f"Ray did not start ({last.strip()}); {log_path} has the whole story."


def _node_environment() -> dict[str, str]:
    """The environment of the node.

    A `java` for Spark is on its path; no variable leads to another Ray; servers do not run at lower priority.
    """
    from raylog.client.cluster.ray_session import NICENESS_VARIABLE, WORKER_NICENESS
    from raylog.spark.java import put_on_path_for_ray

    put_on_path_for_ray()
    inherited = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {NICENESS_VARIABLE: str(WORKER_NICENESS), **inherited}


def _ensure_token() -> None:
    """Have Ray make the token that protects its ports, as `ray.init()` does; `ray start` does not."""
    if not os.environ.get("RAY_AUTH_MODE") and not _has_token():
        command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "get-auth-token", "--generate"]
        # It prints the token: not shown.
        subprocess.run(command, check=True, capture_output=True, timeout=START_TIMEOUT_S)
    keep_ray_token_private()


def stop_node(own: OwnRay, data_dir: Path) -> None:
    """End the recorded node, and only it, and wait until it has stopped. Raises StartFailed when it does not end."""
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
    """Remove this node's address from Ray's note for "auto": Ray waits for minutes for a lost node."""
    note = _address_note()
    try:
        if note.read_text(encoding="utf-8").strip() == address:
            note.unlink()
    except OSError:
        pass  # there is no note, or it belongs to another user


def find(address: str | None, data_dir: Path) -> str | None:
    """Address of the Ray cluster that is meant: the given one, that of this data directory, one that runs here.

    Raises NoClusterFound for one that cannot be read: it comes from the variable, as options are checked before.
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
    """Connect this process to the Ray cluster that is meant; returns its address. Raises NoClusterFound."""
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
                # Ray has its own handler write a trace of C++ frames: a service manager's SIGTERM is no crash.
                signal.signal(signal.SIGTERM, before)
        except ConnectionError as error:
            raise NoClusterFound(
                f"Ray at {found} refused this process ({error}); if it requires a token, set RAY_AUTH_MODE=token."
            ) from error
    return found


class _NoFolders(list[str]):
    """Stays empty, whatever Ray adds."""

    def extend(self, folders: Iterable[str]) -> None:
        """Add nothing."""


def _job_without_folders() -> JobConfig:
    """A job whose workers import nothing from the folder where the command runs: they are Raylog's own.

    Ray would put that folder first on their path, where a user's `grp.py` stands in for Python's.
    """
    from ray.job_config import JobConfig

    job = JobConfig()
    job._py_driver_sys_path = _NoFolders()
    return job


def _is_of_this_machine(address: str, data_dir: Path) -> bool:
    """Whether this Ray was started here, or is noted on this machine: only these get the user's token by default."""
    own = recorded(data_dir)
    if (own is not None and own.address == address) or noted_address(data_dir) == address:
        return True
    try:
        return _address_note().read_text(encoding="utf-8").strip() == address
    except OSError:
        return False


def _address_note() -> Path:
    """Where Ray notes the address of the last cluster that was started here."""
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
    """Raise NoClusterFound where this shell has TLS and that Ray has not: Ray would try for minutes, line by line."""
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
        pass  # Ray says what it is


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
