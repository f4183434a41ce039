"""Finds Raylog's data on the nodes of a Ray cluster before `start` creates anything, so that no second cluster is made.

Used by ``raylog.launch.cluster`` for a data directory without a cluster id. Imports Ray when a function is called.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from raylog.base.errors import DataDirectoryError, StartFailed
from raylog.launch.kept_directories import NODE_FOLDER, embedded_folders
from raylog.launch.voters import keep_voters

logger = logging.getLogger(__name__)

LOOK_TIMEOUT_S: Final = 60.0
PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Holding:
    """What a node's broker directory holds."""

    host: str
    cluster_id: str
    """Empty = the directory is new."""
    has_metadata: bool
    """Whether a copy of the metadata log is there."""
    voters: tuple[int, ...]
    """Ids of the voters of the metadata log, as this broker last noted them."""


def look(folder: str) -> tuple[str, bool, tuple[int, ...]]:
    """Return a broker directory's cluster id, whether it has metadata, and the noted voters. Runs on the node."""
    from raylog.actors.broker.voters_note import noted_voters
    from raylog.storage.directory import META
    from raylog.storage.files import read_text

    path = Path(folder)
    if os.environ.get("RAYLOG_DATA_DIR"):
        path = Path(os.environ["RAYLOG_DATA_DIR"]) / path.name
    lines = (read_text(path / META) or "").splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    known = values.get("cluster.id", "") if "broker.id" in values else ""
    held = any(path.glob("metadata/snapshot")) or any(file.stat().st_size for file in path.glob("metadata/*/*.log"))
    return known, held, noted_voters(path)


def survey(places: Sequence[tuple[str, str, Path]]) -> list[Holding]:
    """Inspect each (Ray node id, host, folder). Raises :class:`StartFailed` when a node does not reply."""
    import ray

    from raylog.actors.processes.ray_support import pinned

    task = ray.remote(look)
    calls: list[Any] = [
        task.options(num_cpus=0, scheduling_strategy=pinned(node)).remote(str(folder)) for node, _, folder in places
    ]
    try:
        found = ray.get(calls, timeout=LOOK_TIMEOUT_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise StartFailed(
            "Not every node reported what its broker's directory holds, so no cluster was created: "
            f"{error}. Is the same Raylog installed on all nodes?"
        ) from None
    return [Holding(host, *row) for (_, host, _), row in zip(places, found, strict=True)]


def known_cluster(holdings: Sequence[Holding]) -> tuple[str, tuple[int, ...]] | None:
    """Return id and voters of the cluster that these directories belong to, None when all are new. Pure.

    Raises :class:`DataDirectoryError` for directories of several clusters, and when none has the metadata.
    """
    by_cluster: dict[str, list[Holding]] = {}
    for holding in holdings:
        if holding.cluster_id:
            by_cluster.setdefault(holding.cluster_id, []).append(holding)
    if not by_cluster:
        return None
    if len(by_cluster) > 1:
        raise DataDirectoryError(_several(by_cluster))
    ((cluster_id, members),) = by_cluster.items()
    if not any(member.has_metadata for member in members):
        hosts = ", ".join(member.host for member in members)
        raise DataDirectoryError(
            f"The brokers' directories on {hosts} belong to cluster {cluster_id}, but none of them holds a copy of the "
            "metadata log. Start the nodes that do (the file metadata-voters in a broker's directory names their "
            "brokers), then start again."
        )
    return cluster_id, tuple(sorted({number for member in members for number in member.voters}))


def _several(by_cluster: Mapping[str, Sequence[Holding]]) -> str:
    named = "; ".join(
        f"{cluster_id} on {', '.join(member.host for member in members)}" for cluster_id, members in by_cluster.items()
    )
    return (
        f"The nodes hold directories of {len(by_cluster)} clusters: {named}. Take away those that do not belong here, "
        "or set RAYLOG_DATA_DIR on their nodes, then start again."
    )


def adopt(root: Path, **values: str) -> None:
    """Write values of an existing cluster (``cluster_id``) into a data directory, unless it has them.

    Raises :class:`DataDirectoryError` when the directory belongs to another cluster.
    """
    root.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        path = root / name.replace("_", "-")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            kept = path.read_text(encoding="ascii").strip()
            if name == "cluster_id" and kept[:32] != value[:32]:
                raise DataDirectoryError(
                    f"{root} belongs to cluster {kept[:32]}, and the brokers of this Ray cluster to {value[:32]}. "
                    "Start with an empty data directory to join them, or with the Ray nodes that belong to this one."
                ) from None
            continue
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())


def restore_cluster_id(root: Path) -> None:
    """Write the missing file `cluster-id` of a data directory again, from the directories of its brokers.

    With a new id every broker would refuse to start. Raises :class:`DataDirectoryError` when the brokers disagree.
    """
    from raylog.storage.directory import META
    from raylog.storage.files import read_text
    from raylog.storage.folder_lock import parse_properties

    found: dict[str, list[str]] = {}
    for folder in (*embedded_folders(root), root / NODE_FOLDER):
        known = parse_properties(read_text(folder / META) or "").get("cluster.id", "")
        if known:
            found.setdefault(known, []).append(folder.name)
    if len(found) > 1:
        named = "; ".join(f"{', '.join(names)} to {cluster_id}" for cluster_id, names in sorted(found.items()))
        raise DataDirectoryError(
            f"{root / 'cluster-id'} is missing, and the brokers' directories belong to several clusters: {named}. Take "
            "those away that do not belong here."
        )
    for cluster_id in found:
        adopt(root, cluster_id=cluster_id)
        logger.warning("%s was missing; it was written again, as the brokers' directories have it", root / "cluster-id")


def join_nodes(root: Path, places: Callable[[], Sequence[tuple[str, str, Path]]], deadline: float | None) -> bool:
    """Give a data directory the identity of the cluster on the nodes; False: there is none, and one may be created.

    ``places`` returns (Ray node id, host, folder) of each node. With a ``deadline`` this waits for such nodes until
    then. Raises :class:`StartFailed` at the deadline, :class:`DataDirectoryError` when the directories do not fit
    together.
    """
    while True:
        is_late = deadline is not None and time.monotonic() >= deadline
        try:
            found = known_cluster(survey(places()))
        except DataDirectoryError:
            if deadline is None or is_late:
                raise
            found = None  # the nodes with the metadata may still be on their way
        if found is not None:
            break
        if deadline is None:
            return False
        if is_late:
            raise StartFailed(
                "No node of this Ray cluster holds a broker's directory of a Raylog cluster to join. Start the other "
                "nodes first, with their disks; or leave --join out, to create a new cluster."
            )
        time.sleep(PAUSE_S)
    cluster_id, voters = found
    adopt(root, cluster_id=cluster_id)
    keep_voters(root, voters)
    logger.warning("%s joins cluster %s, which the nodes' directories belong to", root, cluster_id)
    return True


def check_metadata(root: Path) -> None:
    """Raise DataDirectoryError when there are partitions but no metadata log: with a new log every topic would count as
    deleted."""
    folders = [*embedded_folders(root), root / NODE_FOLDER]
    partitions = [found for folder in folders for found in folder.glob("*/partition.metadata")]
    copies = [found for folder in folders for found in folder.glob("metadata/*/*.log")]
    if partitions and not copies:
        raise DataDirectoryError(
            f"{root} holds {len(partitions)} partition replicas, but no copy of the metadata log (folder metadata of a "
            "broker); bring it back from where the directory was copied or restored from."
        )
