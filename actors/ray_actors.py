"""The Ray actors: thin classes that run the servers of this package inside Ray.

Made by ``raylog.cluster`` (controller, brokers), by brokers (replicas) and by the controller (coordinators). All are
detached, named, without CPU claims, restarted for ever, and never retried by Ray: a failed call may have run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylog.actors.broker_server import BrokerServer
from raylog.actors.controller_server import ControllerServer
from raylog.actors.group_coordinator_server import GroupCoordinatorServer
from raylog.actors.naming import (
    CONTROLLER,
    NAMESPACE,
    broker_name,
    coordinator_name,
    node_broker_name,
    replica_name,
)
from raylog.actors.node_watch import NodeWatch
from raylog.actors.replica_server import ReplicaServer
from raylog.actors.specs import BrokerSpec, ControllerSpec, CoordinatorSpec, ReplicaSpec
from raylog.core.errors import ConnectionFailed

logger = logging.getLogger(__name__)

ACTOR_PREFIXES: Final = ("broker-", "replica:", "group-coordinator-")
FIND_TIMEOUT_S: Final = 1.0
MAKE_TIMEOUT_S: Final = 60.0
FATAL_EXIT_CODE: Final = 70
CONTROL_TIMEOUT_S: Final = 5.0
RESTART_PAUSE_S: Final = 1.0
LOOPBACK: Final = "127.0.0.1"


def end_process(reason: str) -> None:
    """End this actor's process at once; Ray starts a new life of it, which recovers from its log."""
    logger.error("%s", reason)
    sys.stderr.write(f"raylog: {reason}\n")
    sys.stderr.flush()
    os._exit(FATAL_EXIT_CODE)


async def answer(reference: Any, timeout_s: float) -> Any:
    """Await the answer to a Ray call; raises what the call raised, and TimeoutError."""
    async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 can swallow a cancellation
        return await asyncio.wrap_future(reference.future())


async def begin(start: Callable[[], Awaitable[None]]) -> None:
    """Start an actor's server in its constructor.

    The first time a failure is raised, so that whoever makes the actor learns of it. An actor that Ray restarts has
    nobody to tell, and Ray gives up for ever on one whose constructor raises: then the process ends instead, after a
    pause, and Ray tries again.
    """
    try:
        await start()
    except Exception as error:  # whatever it was, an actor that does not serve must not stay
        restarted: bool = ray.get_runtime_context().was_current_actor_reconstructed
        if not restarted:
            raise
        await asyncio.sleep(RESTART_PAUSE_S)
        end_process(f"the restart failed, trying again: {error!r}")


async def find_controller() -> tuple[str, int]:
    """Return the controller's endpoint; raises :class:`ConnectionFailed` while there is none."""
    try:
        handle: Any = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
        host, port = await answer(handle.endpoint.remote(), FIND_TIMEOUT_S)
    except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
        raise ConnectionFailed(f"The controller cannot be found at the moment: {error}") from None
    return host, port


async def find_voter(broker: int) -> tuple[str, int]:
    """Return the endpoint of the broker with this id; raises :class:`ConnectionFailed` while it cannot be found."""
    try:
        try:
            handle: Any = ray.get_actor(broker_name(broker), namespace=NAMESPACE)
        except ValueError:
            handle = await _on_a_node(broker)
        host, port = await answer(handle.endpoint.remote(), FIND_TIMEOUT_S)
    except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
        raise ConnectionFailed(f"Broker {broker} cannot be found at the moment: {error}") from None
    return host, port


async def _on_a_node(broker: int) -> Any:
    """Return the actor of a node's broker by the id in its directory; raises ValueError when none has it."""
    known = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
    names = [one["name"] for one in known if one["namespace"] == NAMESPACE and one["name"].startswith("broker-on-")]

    async def matching(name: str) -> Any:
        try:
            handle: Any = ray.get_actor(name, namespace=NAMESPACE)
            return handle if await answer(handle.broker_id.remote(), FIND_TIMEOUT_S) == broker else None
        except (ValueError, TimeoutError, ray.exceptions.RayError):
            return None

    for handle in await asyncio.gather(*map(matching, names)):
        if handle is not None:
            return handle
    raise ValueError(f"no node's directory belongs to broker {broker}")


def node_address() -> str:
    """Return the address by which other nodes of the Ray cluster reach this one."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def pinned(node_id: str) -> NodeAffinitySchedulingStrategy:
    """Return the strategy that keeps an actor on one node: its files are there."""
    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def actor_options(name: str, *, node_id: str | None = None) -> dict[str, Any]:
    """Return the options that every Raylog actor has; ``node_id`` pins it to a node."""
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "get_if_exists": True,
    }
    if node_id is not None:
        options["scheduling_strategy"] = pinned(node_id)
    return options


def _log_to_stderr() -> None:
    level = os.environ.get("RAYLOG_LOG_LEVEL", "INFO").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def _keep_arrow_out() -> None:
    """Spare this process the import of pyarrow and numpy, which nothing here uses: 11 MB and a quarter of a CPU second.

    Ray imports pyarrow into each worker before it reads the first argument, to be able to pass Arrow data; no call
    between our actors has any. Runs when Ray loads an actor's class, which comes earlier; elsewhere it does nothing.
    """
    if not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.get_actor_id() is None:
        return
    name = context.get_actor_name() or ""
    if name == CONTROLLER or name.startswith(ACTOR_PREFIXES):
        sys.modules.setdefault("pyarrow", None)  # type: ignore[arg-type]  # Python's way to say: not to be imported


_keep_arrow_out()


class Controller:
    """Ray actor of the controller."""

    async def __init__(self, spec: ControllerSpec) -> None:  # type: ignore[misc]  # Ray awaits constructors
        """Replay the metadata log and begin to serve."""
        _log_to_stderr()
        self._making: set[asyncio.Task[None]] = set()
        self._spec = spec
        self._server = ControllerServer(
            spec, start_coordinator=self._start_coordinator, on_fatal=end_process, find_voter=find_voter
        )
        self._nodes = NodeWatch(spec, nodes=ray.nodes, make_broker=ensure_broker)
        if spec.node_folder is not None:
            self._nodes.start()  # first, because the server waits for the voters, which are brokers
        await begin(self._server.start)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port."""
        return self._server.endpoint

    async def connection_info(self) -> dict[str, object]:
        """Return cluster id, secret and broker endpoints."""
        return self._server.connection_info()

    async def folder(self) -> str:
        """Return the cluster's data directory."""
        return str(self._spec.folder.parent)

    async def status(self) -> dict[str, object]:
        """Return brokers, topics and leaders."""
        return self._server.status()

    async def pid(self) -> int:
        """Return the process id, for operators and chaos tests."""
        return os.getpid()

    async def stop(self) -> None:
        """Stop serving and close the log cleanly; the caller ends the actor afterwards."""
        await self._nodes.stop()
        await self._server.stop()

    def _start_coordinator(self, kind: str, index: int) -> None:
        spec = CoordinatorSpec(
            kind=kind,
            index=index,
            secret=self._spec.secret,
            cluster_config=dict(self._spec.cluster_config),
            host=self._spec.host,
        )
        task = asyncio.create_task(make_coordinator(spec), name=coordinator_name(kind, index))
        self._making.add(task)
        task.add_done_callback(self._making.discard)


class Broker:
    """Ray actor of a broker."""

    async def __init__(self, spec: BrokerSpec) -> None:  # type: ignore[misc]  # Ray awaits constructors
        """Lock the data directory and begin to serve. ``RAYLOG_DATA_DIR`` on a node names another directory there."""
        _log_to_stderr()
        if spec.broker is None and os.environ.get("RAYLOG_DATA_DIR"):
            spec = replace(spec, folder=Path(os.environ["RAYLOG_DATA_DIR"]) / spec.folder.name)
        self._server = BrokerServer(
            spec, find_controller=find_controller, workshop=RayWorkshop(spec.node_id), on_fatal=end_process
        )
        await begin(self._server.start)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port."""
        return self._server.endpoint

    async def broker_id(self) -> int:
        """Return the id that the data directory has; -1 for a new one."""
        return self._server.broker

    async def take_id(self, broker: int) -> int:
        """Give a new data directory this id, and return the one it has."""
        return self._server.take_id(broker)

    async def wait_registered(self, timeout_s: float) -> bool:
        """Return whether the controller knew this broker within ``timeout_s``."""
        try:
            await self._server.wait_registered(timeout_s)
        except TimeoutError:
            return False
        return True

    async def connection_info(self) -> dict[str, object]:
        """Return cluster id, secret and broker endpoints."""
        return self._server.connection_info()

    async def pid(self) -> int:
        """Return the process id, for operators and chaos tests."""
        return os.getpid()

    async def stop(self) -> None:
        """Stop serving and release the directory; the caller ends the actor afterwards."""
        await self._server.stop()


class Replica:
    """Ray actor of one partition replica."""

    async def __init__(self, spec: ReplicaSpec) -> None:  # type: ignore[misc]  # Ray awaits constructors
        """Recover the log and begin to serve."""
        _log_to_stderr()
        self._server = ReplicaServer(spec, find_controller=find_controller, on_fatal=end_process)
        await begin(self._server.start)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port."""
        return self._server.endpoint

    async def status(self) -> dict[str, object]:
        """Return role, offsets and process id."""
        return self._server.status()

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Go by what has changed in the specification from now on."""
        self._server.reconfigure(spec)

    async def stop(self) -> None:
        """Stop serving and close the log cleanly; the caller ends the actor afterwards."""
        await self._server.stop()


class GroupCoordinator:
    """Ray actor of a group coordinator."""

    async def __init__(self, spec: CoordinatorSpec) -> None:  # type: ignore[misc]  # Ray awaits constructors
        """Begin to load the groups. Ray chose the node: on a cluster of several, listen on that node's address."""
        _log_to_stderr()
        if spec.host != LOOPBACK:
            spec = replace(spec, host=node_address())
        self._server = GroupCoordinatorServer(spec, find_controller=find_controller, on_fatal=end_process)
        await begin(self._server.start)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port."""
        return self._server.endpoint

    async def pid(self) -> int:
        """Return the process id, for operators and chaos tests."""
        return os.getpid()

    async def stop(self) -> None:
        """Stop serving; the caller ends the actor afterwards."""
        await self._server.stop()


async def make_coordinator(spec: CoordinatorSpec) -> None:
    """Make the coordinator's actor unless it runs; failures are logged and repeated by the next request for it."""
    try:
        actor = ray.remote(GroupCoordinator).options(**actor_options(coordinator_name(spec.kind, spec.index)))
        handle: Any = actor.remote(spec)
        await answer(handle.endpoint.remote(), MAKE_TIMEOUT_S)
    except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
        logger.warning("%s was not started: %s", coordinator_name(spec.kind, spec.index), error)


class RayWorkshop:
    """Makes replicas as Ray actors pinned to this broker's node; the supervisor's hands."""

    def __init__(self, node_id: str) -> None:
        """``node_id`` is Ray's id of the node that holds the data directory."""
        self._node_id = node_id

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Make the replica's actor unless it runs; returns when it serves. Raises Ray's errors and TimeoutError."""
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        handle: Any = ray.remote(Replica).options(**actor_options(name, node_id=self._node_id)).remote(spec)
        await answer(handle.endpoint.remote(), MAKE_TIMEOUT_S)

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Tell the replica's actor what has changed; raises Ray's errors, ValueError and TimeoutError."""
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        handle: Any = ray.get_actor(name, namespace=NAMESPACE)
        await answer(handle.reconfigure.remote(spec), CONTROL_TIMEOUT_S)

    async def end(self, name: str) -> None:
        """Stop the replica's actor and end it for good; no error when there is none."""
        try:
            handle = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return
        try:
            await answer(handle.stop.remote(), CONTROL_TIMEOUT_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            logger.info("%s did not stop cleanly: %s", name, error)
        ray.kill(handle, no_restart=True)
        await wait_until_gone(name)


async def wait_until_gone(name: str, timeout_s: float = 10.0) -> None:
    """Wait until Ray no longer knows an actor of this name; raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                ray.get_actor(name, namespace=NAMESPACE)
            except ValueError:
                return
            await asyncio.sleep(0.02)


def make_controller(spec: ControllerSpec, *, node_id: str) -> Any:
    """Make the controller's actor, or return the one that runs."""
    return ray.remote(Controller).options(**actor_options(CONTROLLER, node_id=node_id)).remote(spec)


async def ensure_broker(spec: BrokerSpec) -> None:
    """Make a broker's actor unless it runs, and wait until it serves; raises TimeoutError and RuntimeError."""
    try:
        await answer(make_broker(spec).endpoint.remote(), MAKE_TIMEOUT_S)
    except (ray.exceptions.RayError, ValueError) as error:
        raise RuntimeError(str(error)) from error


def make_broker(spec: BrokerSpec) -> Any:
    """Make a broker's actor, or return the one that runs."""
    name = node_broker_name(spec.node_id) if spec.broker is None else broker_name(spec.broker)
    return ray.remote(Broker).options(**actor_options(name, node_id=spec.node_id)).remote(spec)
