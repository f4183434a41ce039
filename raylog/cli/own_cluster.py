"""Checks that a command changes the cluster that its user means, and errors that say what to do if it does not.

Used by commands that cannot be undone, and when no broker answers at an address. Imports Ray when a function is called.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

import click

from raylog.base.errors import ConnectionFailed

ENV_BOOTSTRAP: Final = "RAYLOG_BOOTSTRAP"
CONNECT_TIMEOUT_S: Final = 3.0


def require_own(address: str | None, data_dir: Path) -> None:
    """Raise UsageError unless the user named the cluster that was joined, by `--address` or by its data directory.

    Without either, a command may show whatever cluster runs on this machine, but may not stop or delete anything of it.
    """
    from raylog.launch.controller_calls import running_folder

    running = running_folder()
    if address or running is None or Path(running).resolve() == data_dir.absolute().resolve():
        return
    raise click.UsageError(
        f"the cluster that runs here has its data in {running}, not in {data_dir.absolute()}; give "
        f"--data-dir {running} if you mean that one"
    )


def require_an_answer(bootstrap: str, data_dir: Path) -> None:
    """Raise ConnectionFailed at once when no broker listens there; a client would retry for half a minute."""
    from raylog.client.cluster.discovery import parse_bootstrap

    if any(_answers(host, port) for host, port in parse_bootstrap(bootstrap)):
        return
    here = ",".join(f"{host}:{port}" for host, port in _brokers_in(data_dir) if _answers(host, port))
    if bootstrap != os.environ.get(ENV_BOOTSTRAP):
        shown = f"the cluster in {data_dir.absolute()} answers at {here}"
        advice = shown if here else "`raylog status` on a machine of the cluster shows its brokers'"
        raise ConnectionFailed(f"No broker answers at {bootstrap}; check the address: {advice}.")
    if here:
        raise ConnectionFailed(
            f"No broker answers at {bootstrap}, which {ENV_BOOTSTRAP} names. The cluster in {data_dir.absolute()} "
            f"answers at {here}: `export {ENV_BOOTSTRAP}={here}`, or `unset {ENV_BOOTSTRAP}` on this machine."
        )
    raise ConnectionFailed(
        f"No broker answers at {bootstrap}, which {ENV_BOOTSTRAP} names. Start that cluster, or "
        f"`unset {ENV_BOOTSTRAP}` to use the one that runs on this machine."
    )


def _brokers_in(data_dir: Path) -> list[tuple[str, int]]:
    """The (host, port) at which the embedded brokers of a data directory listened when they last started."""
    from raylog.actors.listening import KEPT_FILE, PORT_KEY, kept_values, listeners_in
    from raylog.base.errors import RaylogError
    from raylog.core.configuration.listeners import native_binding
    from raylog.launch.kept_directories import embedded_folders

    found = []
    for folder in embedded_folders(data_dir):
        values = kept_values(folder / KEPT_FILE)
        try:
            binding = native_binding(listeners_in(values), "127.0.0.1", is_broker=True)
        except RaylogError:
            continue
        if port := values.get(PORT_KEY, ""):
            found.append((binding.advertised_host, binding.advertised_port or int(port)))
    return found


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True
