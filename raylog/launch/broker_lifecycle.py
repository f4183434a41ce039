"""Stop and start one broker of a running cluster. Called by ``raylog.launch.cluster``.

Imports Ray when a function is called, not before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raylog.base.errors import InvalidRequest, StartFailed
from raylog.client.progress import Progress, Say
from raylog.launch.kept_directories import NODE_FOLDER
from raylog.launch.stopping import actor_names, stop_broker_actors
from raylog.rpc.auth.secret_files import SecretFiles

if TYPE_CHECKING:
    from raylog.client.admin.descriptions import StoppedBroker

POLL_S: Final = 0.05
CATCH_UP_S: Final = 15.0
"""How long the start of a broker waits for its replicas to be in sync again; replicas far behind take longer."""


def stop_broker(
    status: dict[str, Any], broker: int, *, force: bool, timeout_s: float, say: Say | None = None
) -> StoppedBroker:
    """Move a broker's leaders to other replicas, then end its actors for good; ``say`` gets lines about the progress.

    Raises :class:`StopRefused`, :class:`InvalidRequest`, and :class:`StartFailed` when actors do not end in time. May
    be called again after a failure: finished steps are not repeated.
    """
    from raylog.client.admin.admin import Admin

    with Admin() as admin:
        stopped = admin.stop_broker(broker, force=force, timeout_s=timeout_s)
    stop_broker_actors(broker, _row(status, broker)["node_id"], timeout_s, say)
    return stopped


def resume_brokers(brokers: list[int], timeout_s: float) -> None:
    """Let stopped brokers take part again. Their actors must exist already, because they may be needed as voters."""
    from raylog.client.admin.admin import Admin

    if brokers:
        with Admin() as admin:
            for broker in brokers:
                admin.resume_broker(broker, timeout_s=timeout_s)


def start_broker(
    status: Callable[[], dict[str, Any]], controller: Any, broker: int, *, timeout_s: float, say: Say | None = None
) -> None:
    """Bring a stopped broker back, and wait until it serves and, up to CATCH_UP_S longer, until it is in sync.

    Its processes start before it is resumed: a majority of voters commits that, and may need this broker for it.

    ``controller`` is the actor's handle; ``say`` gets lines about the progress. Raises :class:`InvalidRequest` for an
    unknown broker, :class:`StartFailed` when it does not serve in time.
    """
    import ray

    from raylog.actors.actor_specs import BrokerSpec
    from raylog.actors.naming import broker_folder
    from raylog.actors.processes import ray_actors

    deadline = time.monotonic() + timeout_s
    row = _row(status(), broker)
    on_nodes = any(name.startswith("broker-on-") for name in actor_names())
    folder, info = ray.get([controller.folder.remote(), controller.connection_info.remote()], timeout=timeout_s)
    spec = BrokerSpec(
        broker=None if on_nodes else broker,
        folder=Path(folder) / NODE_FOLDER if on_nodes else broker_folder(Path(folder), broker),
        secret=SecretFiles(Path(folder)),
        cluster_id=info["cluster_id"],
        node_id=row["node_id"],
        host=row["host"],
        allow_plaintext=info["allow_plaintext"],
    )
    try:
        ray.get(ray_actors.make_broker(spec).endpoint.remote(), timeout=max(0.1, deadline - time.monotonic()))
    except (ray.exceptions.RayError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise StartFailed(f"Broker {broker} could not start: {lines[-1]}") from None
    resume_brokers([broker], max(0.1, deadline - time.monotonic()))
    _wait_for(status, broker, deadline, timeout_s, Progress(say))


def _wait_for(
    status: Callable[[], dict[str, Any]], broker: int, deadline: float, timeout_s: float, progress: Progress
) -> None:
    in_sync_until = min(deadline, time.monotonic() + CATCH_UP_S)
    while True:
        found = status()
        online = _row(found, broker)["online"]
        partitions = [row for rows in found["topics"].values() for row in rows if broker in row["replicas"]]
        in_sync = sum(broker in partition["isr"] for partition in partitions)
        if online and in_sync == len(partitions):
            return
        progress.at(in_sync, len(partitions), "replicas in sync")
        if online and time.monotonic() >= in_sync_until:
            return
        if time.monotonic() >= deadline:
            raise StartFailed(f"Broker {broker} does not serve after {timeout_s:.0f} s; its actor's log says why.")
        time.sleep(POLL_S)


def _row(status: dict[str, Any], broker: int) -> dict[str, Any]:
    for row in status["brokers"]:
        if row["broker"] == broker:
            found: dict[str, Any] = row
            return found
    known = ", ".join(str(row["broker"]) for row in status["brokers"]) or "none"
    raise InvalidRequest(f"There is no broker {broker}; the brokers of this cluster are: {known}.")
