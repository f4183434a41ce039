"""Puts the cluster's secrets into its data directory, on this node and on the others. Used by `raylog.launch.cluster`.

Imports Ray when a function is called, not before.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from raylog.base.errors import DataDirectoryError, StartFailed
from raylog.rpc import Credentials
from raylog.rpc.auth.secret_files import SecretFileError, SecretFiles, copy_secrets, make_secrets

PROVIDE_TIMEOUT_S: Final = 30.0
KNOWN_WITHIN_S: Final = 5.0
"""How long this node's raylet may take to learn of the other nodes."""
PAUSE_S: Final = 0.2

logger = logging.getLogger(__name__)


def own_secrets(root: Path) -> SecretFiles:
    """Return the files of the secrets; makes them in a new directory. Raises :class:`DataDirectoryError`."""
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
    """Copy the secrets from another node if this node has none, because its disk was lost and the cluster was not.

    Raises :class:`StartFailed` when a node does not answer, :class:`DataDirectoryError` when they cannot be kept here.
    """
    import ray

    others = [node_id for node_id in node_ids if node_id != this_node]
    if SecretFiles(root).exists or not others:
        return
    try:
        found, silent = _on_nodes(_read, others, str(root))
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise StartFailed(f"Not every node reported whether it has the secrets: {_last_line(error)}") from None
    values = next((each for each in found if each is not None), None)
    if values is not None:
        adopt_secrets(root, values)
    elif silent:
        raise StartFailed(
            f"Ray still lists nodes that take no task, and one of them may have the secrets: {', '.join(silent)}. "
            "Try again when Ray has noticed which of them are lost."
        )


def provide(files: SecretFiles, node_ids: Sequence[str], this_node: str) -> None:
    """Bring the secrets in the data directories of other nodes up to date.

    A task on each node writes them: Ray does not keep the arguments of tasks, unlike those of actors. A lost node that
    Ray still lists is left out: a broker that comes back there requests the secrets. Raises :class:`StartFailed` when a
    node cannot keep them.
    """
    import ray

    others = [node_id for node_id in node_ids if node_id != this_node]
    if not others:
        return
    credentials = files()
    values = ([item.hex() for item in credentials.cluster], [item.hex() for item in credentials.client])
    try:
        _, silent = _on_nodes(_keep, others, str(files.folder), *values)
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise StartFailed(f"The secrets could not be put on every node: {_last_line(error)}") from None
    if silent:
        logger.warning("Ray lists nodes that take no task; they were left out: %s", ", ".join(silent))


def _on_nodes(work: Callable[..., Any], node_ids: Sequence[str], *args: object) -> tuple[list[Any], list[str]]:
    """Run a function on each of these nodes; return the answers, and the nodes that took no task. Raises Ray's errors.

    Two kinds of nodes take no task: a new node that this node's raylet does not know yet, although Ray's control store
    does, and a lost node that the control store still lists. The first kind is tried again for KNOWN_WITHIN_S.
    """
    import ray

    from raylog.actors.processes.ray_support import pinned

    task: Any = ray.remote(work)
    deadline = time.monotonic() + PROVIDE_TIMEOUT_S
    known_by = time.monotonic() + KNOWN_WITHIN_S
    waiting, found = list(node_ids), []
    while waiting:
        calls = {
            node_id: task.options(num_cpus=0, max_retries=0, scheduling_strategy=pinned(node_id)).remote(*args)
            for node_id in waiting
        }
        waiting = []
        for node_id, answer in calls.items():
            try:
                found.append(ray.get(answer, timeout=max(0.1, deadline - time.monotonic())))
            except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
                waiting.append(node_id)
        if waiting and time.monotonic() >= known_by:
            break
        time.sleep(PAUSE_S if waiting else 0)
    return found, waiting


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _credentials(cluster: Sequence[str], client: Sequence[str]) -> Credentials:
    return Credentials.of_cluster([*map(bytes.fromhex, cluster)], [*map(bytes.fromhex, client)])


def _home(folder: str) -> Path:
    return Path(os.environ.get("RAYLOG_DATA_DIR") or folder)


def _keep(folder: str, cluster: list[str], client: list[str]) -> None:
    """Write the secrets into the data directory; runs on the other node."""
    copy_secrets(_home(folder), _credentials(cluster, client))


def _read(folder: str) -> tuple[list[str], list[str]] | None:
    """The secrets in the data directory, in hexadecimal; None without. Runs on the other node."""
    files = SecretFiles(_home(folder))
    if not files.exists:
        return None
    credentials = files()
    return [item.hex() for item in credentials.cluster], [item.hex() for item in credentials.client]
