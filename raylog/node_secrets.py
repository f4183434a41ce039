"""Puts the cluster's secrets into its data directory, on this node and on the others. Called by `raylog.cluster`.

Imports Ray when a function is called, not before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from raylog.core.errors import DataDirectoryError, StartFailed
from raylog.rpc import Credentials
from raylog.rpc.secret_files import SecretFileError, SecretFiles, copy_secrets, make_secrets

PROVIDE_TIMEOUT_S: Final = 30.0
PAUSE_S: Final = 0.2


def own_secrets(root: Path) -> SecretFiles:
    """Return where the secrets are, made now if this is a new directory. Raises :class:`DataDirectoryError`."""
    try:
        make_secrets(root)
        files = SecretFiles(root)
        files()
    except SecretFileError as error:
        raise DataDirectoryError(str(error)) from None
    except OSError as error:
        raise DataDirectoryError(f"{root} cannot be used as a data directory: {error}") from None
    return files


def adopt_secrets(root: Path, values: tuple[list[str], list[str]]) -> None:
    """Put the secrets of a running cluster into a data directory that has none. Raises :class:`DataDirectoryError`."""
    if SecretFiles(root).exists:
        return
    try:
        copy_secrets(root, _credentials(*values))
    except (OSError, SecretFileError) as error:
        raise DataDirectoryError(f"{root} cannot be used as a data directory: {error}") from None


def gather(root: Path, node_ids: Sequence[str], this_node: str) -> None:
    """Take the secrets over from another node where this one has none: its disk was lost, the cluster was not.

    Raises :class:`StartFailed` when a node does not answer, :class:`DataDirectoryError` when they cannot be kept here.
    """
    import ray

    others = [node_id for node_id in node_ids if node_id != this_node]
    if SecretFiles(root).exists or not others:
        return
    try:
        found = _on_nodes(_read, others, str(root))
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise StartFailed(f"Not every node said whether it has the secrets: {_last_line(error)}") from None
    for values in found:
        if values is not None:
            adopt_secrets(root, values)
            return


def provide(files: SecretFiles, node_ids: Sequence[str], this_node: str) -> None:
    """Bring the secrets on other nodes up to date, where their brokers will look for them.

    By a task on each node: what a task is given is kept nowhere, unlike what an actor is made with. Raises
    :class:`StartFailed` when a node cannot keep them.
    """
    import ray

    others = [node_id for node_id in node_ids if node_id != this_node]
    if not others:
        return
    credentials = files()
    values = ([one.hex() for one in credentials.cluster], [one.hex() for one in credentials.client])
    try:
        _on_nodes(_keep, others, str(files.folder), *values)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise StartFailed(f"The secrets could not be put on every node: {_last_line(error)}") from None


def _on_nodes(work: Callable[..., Any], node_ids: Sequence[str], *args: object) -> list[Any]:
    """Run a function on each of these nodes and return the answers; raises Ray's errors.

    A raylet learns of the other nodes a little later than Ray's control store: until then it knows no such node.
    """
    import ray

    from raylog.actors.ray_support import pinned

    task: Any = ray.remote(work)
    deadline = time.monotonic() + PROVIDE_TIMEOUT_S
    while True:
        asked = [
            task.options(num_cpus=0, max_retries=0, scheduling_strategy=pinned(node_id)).remote(*args)
            for node_id in node_ids
        ]
        try:
            return list(ray.get(asked, timeout=max(0.1, deadline - time.monotonic())))
        except ray.exceptions.TaskUnschedulableError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(PAUSE_S)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _credentials(cluster: Sequence[str], client: Sequence[str]) -> Credentials:
    return Credentials.of_cluster([*map(bytes.fromhex, cluster)], [*map(bytes.fromhex, client)])


def _home(folder: str) -> Path:
    return Path(os.environ.get("RAYLOG_DATA_DIR") or folder)


def _keep(folder: str, cluster: list[str], client: list[str]) -> None:
    """Runs on the other node."""
    copy_secrets(_home(folder), _credentials(cluster, client))


def _read(folder: str) -> tuple[list[str], list[str]] | None:
    """Runs on the other node."""
    files = SecretFiles(_home(folder))
    if not files.exists:
        return None
    credentials = files()
    return [one.hex() for one in credentials.cluster], [one.hex() for one in credentials.client]
