"""Where the brokers of a cluster will run: one on each node that offers ``raylog``, or embedded ones on this machine.

Used by ``raylog.launch.cluster``. Imports Ray when a function is called, not before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.base.errors import DataDirectoryError, RaylogError, StartFailed
from raylog.launch.controller_calls import running_folder
from raylog.launch.kept_directories import NODE_FOLDER, check_room, embedded_folders
from raylog.launch.survey import check_metadata, restore_cluster_id

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class BrokerPlacement:
    """Where one broker will run. ``broker``: its id; None on a node of its own, where its directory has or gets one."""

    broker: int | None
    node_id: str
    host: str
    folder: Path


def broker_placements(root: Path, brokers: int | None) -> list[BrokerPlacement]:
    """Return where each broker runs. Raises :class:`StartFailed` when ``brokers`` does not fit nodes or directory."""
    import ray

    from raylog.actors.broker.node_watch import offering
    from raylog.actors.naming import broker_folder

    nodes = offering(ray.nodes())  # type: ignore[no-untyped-call]
    if nodes:
        if brokers is not None and brokers != len(nodes):
            raise StartFailed(
                f"brokers={brokers}, but {len(nodes)} nodes offer the resource 'raylog', and each gets one broker; "
                "leave the argument out."
            )
        return [
            BrokerPlacement(broker=None, node_id=node.node_id, host=node.host, folder=root / NODE_FOLDER)
            for node in nodes
        ]
    known = len(embedded_folders(root))
    count = brokers if brokers is not None else max(known, 1)
    if count < known:
        raise StartFailed(
            f"{root} holds the data of {known} brokers; start it with brokers={known}, or leave the argument out."
        )
    here = this_node()
    return [
        BrokerPlacement(broker=number, node_id=here, host=LOOPBACK, folder=broker_folder(root, number))
        for number in range(1, count + 1)
    ]


def check_directories(root: Path, placements: list[BrokerPlacement]) -> bool:
    """Check the data directories before anything is started; returns whether this directory's cluster runs already.

    Raises :class:`StartFailed` or :class:`DataDirectoryError` when a directory is in use, belongs to another cluster,
    has no room, or lacks its metadata log.
    """
    from raylog.storage.directory import META, DataDirectory

    running = running_folder()
    if running == str(root):
        return True
    if running is not None:
        raise StartFailed(
            f"A Raylog cluster with its data in {running} runs in this Ray cluster already; use raylog.connect(), or "
            "stop it first."
        )
    if placements[0].broker is not None:
        check_metadata(root)
    known = root / "cluster-id"
    if not known.exists():
        restore_cluster_id(root)
    cluster_id = known.read_text(encoding="ascii").strip()[:32] if known.exists() else None
    here = [placement.folder for placement in placements if placement.node_id == this_node()]
    for folder in (root, *here):
        check_room(folder)
    for placement in placements:
        # A folder without this file may be the mount point of an empty disk; its broker will initialise it.
        if placement.node_id == this_node() and (placement.folder / META).exists():
            try:
                DataDirectory.open(placement.folder, cluster_id=cluster_id, broker_id=placement.broker).close()
            except RaylogError as error:
                raise DataDirectoryError(str(error)) from None
    return False


def nodes_that_offer() -> set[str | int]:
    """Return the ids of the Ray nodes that offer the resource ``raylog``."""
    import ray

    from raylog.actors.broker.node_watch import offering

    return {node.node_id for node in offering(ray.nodes())}  # type: ignore[no-untyped-call]


def this_node() -> str:
    """Return Ray's id of this node."""
    import ray

    node_id: str = ray.get_runtime_context().get_node_id()
    return node_id
