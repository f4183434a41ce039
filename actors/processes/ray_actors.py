"""The Ray actors of controller and brokers: thin classes that run the servers of this package inside Ray.

Made by ``raylog.launch.cluster``; brokers make replicas (``ray_replica.py``), the controller makes coordinators
(``ray_coordinator.py``). All are detached, named, without CPU claims, restarted without a limit, and never retried by
Ray: a failed call may have run.

The constructors import the servers. Ray loads an actor's class, and with it this module, in every process that gets the
actor's handle, and each replica gets the controller's handle. Imported here, the servers would be most of what a
replica loads.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raylog.actors.actor_specs import BrokerSpec, ControllerSpec
from raylog.actors.logs import name_log, set_up_logging
from raylog.actors.naming import CONTROLLER, RESOURCE, broker_name, node_broker_name
from raylog.actors.processes.ray_secrets import secret_here, values_of
from raylog.actors.processes.ray_support import (
    A_SHARE,
    CONTROL_TIMEOUT_S,
    FIND_TIMEOUT_S,
    LOOPBACK,
    MAKE_TIMEOUT_S,
    actor_options,
    answer,
    at_store,
    begin,
    end_process,
    find_controller,
    handle_of,
    keep_unused_out,
    listed_names,
    node_address,
    ray_logs,
)
from raylog.actors.titles import broker_title, wear
from raylog.base.errors import ConnectionFailed

TITLE_S: Final = 10.0

keep_unused_out()


async def find_voter(broker: int) -> tuple[str, int]:
    """Return the endpoint of the broker with this id. Raises :class:`ConnectionFailed` while it cannot be found."""
    try:
        try:
            handle = await handle_of(broker_name(broker))
        except ValueError:
            handle = await _on_a_node(broker)
        host, port = await answer(handle.endpoint.remote(), FIND_TIMEOUT_S)
    except (ValueError, TimeoutError, ray.exceptions.RayError) as error:
        raise ConnectionFailed(f"Broker {broker} cannot be found at the moment: {error}") from None
    return host, port


async def find_brokers() -> list[int]:
    """Return the ids of the running brokers that have one. Raises :class:`ConnectionFailed` if Ray does not answer."""
    try:
        names = await listed_names("broker-", MAKE_TIMEOUT_S)
    except (TimeoutError, ray.exceptions.RayError) as error:
        raise ConnectionFailed(f"Ray does not list its actors at the moment: {error}") from None
    brokers = await asyncio.gather(*(_id_of(name) for name in sorted(names)))
    return sorted(broker for broker in brokers if broker >= 0)


async def _id_of(name: str) -> int:
    """Return the broker id in a broker's directory; -1 if it has none or the broker does not answer."""
    try:
        handle = await handle_of(name)
        broker: int = await answer(handle.broker_id.remote(), FIND_TIMEOUT_S)
    except (ValueError, TimeoutError, ray.exceptions.RayError):
        return -1
    return broker


async def _on_a_node(broker: int) -> Any:
    """Return the actor of the node broker with this id in its directory. Raises ValueError if there is none."""
    names = sorted(await listed_names("broker-on-"))

    async def matching(name: str) -> Any:
        try:
            handle = await handle_of(name)
            return handle if await answer(handle.broker_id.remote(), FIND_TIMEOUT_S) == broker else None
        except (ValueError, TimeoutError, ray.exceptions.RayError):
            return None

    searches = [asyncio.create_task(matching(name)) for name in names]
    try:
        for done in asyncio.as_completed(searches):  # brokers on lost nodes answer last, or never
            handle = await done
            if handle is not None:
                return handle
    finally:
        for task in searches:
            task.cancel()
    raise ValueError(f"no node's directory belongs to broker {broker}")


async def nodes_alive() -> set[str]:
    """Return Ray's ids of the nodes that are alive. Raises Ray's errors, and TimeoutError."""
    nodes: list[dict[str, Any]] = await at_store(CONTROL_TIMEOUT_S, ray.nodes)
    return {str(node["NodeID"]) for node in nodes if node["Alive"]}


class Controller:
    """Ray actor of the controller."""

    async def __init__(self, spec: ControllerSpec) -> None:  # type: ignore[misc]  # Ray awaits constructors
        """Replay the metadata log and begin to serve."""
        from raylog.actors.broker.node_watch import NodeWatch
        from raylog.actors.controller.server import ControllerServer
        from raylog.actors.processes.coordinator_factory import RayCoordinators
        from raylog.actors.processes.made_actors import OwnActors
        from raylog.actors.processes.makers import Makers, starts_per_maker
        from raylog.actors.processes.ray_maker import hire

        set_up_logging(CONTROLLER)
        if spec.host != LOOPBACK:
            spec = replace(spec, host=node_address())
        here = ray.get_runtime_context().get_node_id()
        self._makers = Makers(OwnActors(), lambda: hire(here, CONTROLLER), starts_per_maker())
        self._coordinators = RayCoordinators(
            spec, self._makers, lambda: self._server.image.config, lambda: self._server.endpoint
        )
        self._spec = spec

        async def start() -> None:
            self._server = ControllerServer(
                replace(spec, secret=await secret_here(spec.secret)),
                start_coordinator=self._coordinators.start,
                end_coordinator=self._coordinators.end,
                on_fatal=end_process,
                find_voter=find_voter,
                find_brokers=find_brokers,
                nodes_alive=nodes_alive,
            )
            await self._server.start()

        self._nodes = NodeWatch(spec, nodes=ray.nodes, make_broker=ensure_broker)
        if spec.node_folder is not None:
            self._nodes.start()  # before the server, which waits for the voters, and these are brokers
        await begin(start)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port."""
        return self._server.endpoint

    async def connection_info(self) -> dict[str, object]:
        """Return cluster id, the clients' secret and broker endpoints."""
        return self._server.connection_info()

    async def secrets(self) -> tuple[list[str], list[str]]:
        """Return the values of both secrets, for an actor on a node that has no copy."""
        return values_of(self._server.spec.secret)

    async def folder(self) -> str:
        """Return the cluster's data directory."""
        return str(self._spec.data_directory)

    async def status(self) -> dict[str, object]:
        """Return brokers, topics and leaders."""
        return self._server.status()

    async def pid(self) -> int:
        """Return the process id, for operators and chaos tests."""
        return os.getpid()

    async def node_id(self) -> str:
        """Return Ray's id of the node on which this actor runs now."""
        node_id: str = ray.get_runtime_context().get_node_id()
        return node_id

    async def put_to_sleep(self, timeout_s: float) -> list[int]:
        """Let partitions fall asleep before the cluster stops; returns how many sleep and how many do not."""
        return await self._server.put_to_sleep(timeout_s)

    async def asleep_and_awake(self) -> list[int]:
        """Return how many partitions sleep and how many do not."""
        return self._server.asleep_and_awake()

    async def stop(self) -> None:
        """Stop serving and close the log cleanly; the caller ends the actor afterwards."""
        await self._nodes.stop()
        await self._server.stop()
        await self._makers.stop()


class Broker:
    """Ray actor of a broker."""

    async def __init__(self, spec: BrokerSpec) -> None:  # type: ignore[misc]  # Ray awaits constructors
        """Lock the data directory and begin to serve. ``RAYLOG_DATA_DIR`` on a node replaces the directory there."""
        from raylog.actors.broker.dozers import Dozers
        from raylog.actors.broker.node_page import NodePage
        from raylog.actors.broker.server import BrokerServer
        from raylog.actors.broker.worker_logs import WorkerLogs, limits_here
        from raylog.actors.dozing.processes import SystemProcesses
        from raylog.actors.processes.made_actors import OwnActors
        from raylog.actors.processes.makers import Makers, starts_per_maker
        from raylog.actors.processes.ray_maker import hire
        from raylog.actors.processes.replica_factory import RayReplicaFactory
        from raylog.actors.processes.spares import SpareReplicas

        name = node_broker_name(spec.node_id) if spec.broker is None else broker_name(spec.broker)
        set_up_logging(name)
        wear(f"ray::Broker {name}", name)
        if spec.broker is None and os.environ.get("RAYLOG_DATA_DIR"):
            spec = replace(spec, folder=Path(os.environ["RAYLOG_DATA_DIR"]) / spec.folder.name)

        async def start() -> None:
            here = replace(spec, secret=await secret_here(spec.secret, keep=True))
            self._makers = Makers(OwnActors(), lambda: hire(here.node_id, name), starts_per_maker())
            self._spares = SpareReplicas(here.folder, actors=self._makers, node_id=here.node_id, secret=here.secret)
            self._dozers = Dozers(SystemProcesses(here.folder))
            self._server = BrokerServer(
                here,
                find_controller=find_controller,
                factory=RayReplicaFactory(
                    self._makers,
                    self._spares,
                    self._dozers,
                    node_id=here.node_id,
                    sharing=lambda: self._server.brokers_here,
                    controller=lambda: self._server.link.place,
                ),
                on_fatal=end_process,
                resting=self._dozers,
            )
            self._page = NodePage(self._server)
            await self._server.start()
            await self._dozers.start()  # the directory is locked by now, so no other broker stops its replicas

        await begin(start)
        name_log(broker_name(self._server.broker))  # the id of a node's broker is known only now, from its directory
        self._page.start()
        self._logs = WorkerLogs(ray_logs(), limits_here())
        self._logs.start()
        self._titling = asyncio.create_task(self._keep_title(name), name="title")
        self._spares.start(lambda: self._server.broker, lambda: self._server.spares_wanted)

    async def _keep_title(self, name: str) -> None:
        """Show in ``ps`` how many replicas are awake, dozing and asleep; updated every TITLE_S."""
        shown = None
        while True:
            state = self._server.image.version, self._server.resting.dozing_count()
            if state != shown:
                shown = state
                wear(broker_title(name, *self._server.replicas()), name)
            await asyncio.sleep(TITLE_S)

    async def endpoint(self) -> tuple[str, int]:
        """Return host and port."""
        return self._server.endpoint

    async def broker_id(self) -> int:
        """Return the broker id in the data directory; -1 for a new directory."""
        return self._server.broker

    async def found(self, broker: int) -> int:
        """Mark a new data directory as a founder's, with this id unless it has one; returns its id."""
        return self._server.found(broker)

    async def wait_registered(self, timeout_s: float) -> bool:
        """Return whether the controller has registered this broker within ``timeout_s``."""
        try:
            await self._server.wait_registered(timeout_s)
        except TimeoutError:
            return False
        return True

    async def connection_info(self) -> dict[str, object]:
        """Return cluster id, the clients' secret and broker endpoints."""
        return self._server.connection_info()

    async def secrets(self) -> tuple[list[str], list[str]]:
        """Return the values of both secrets, for an actor on a node that has no copy."""
        return values_of(self._server.spec.secret)

    async def pid(self) -> int:
        """Return the process id, for operators and chaos tests."""
        return os.getpid()

    async def metrics_page(self) -> tuple[str, str]:
        """Return whether this broker serves the page of its node ("on", "taken", "off", "unknown"), and where."""
        return self._page.state()

    async def dozing(self) -> dict[str, dict[str, object]]:
        """Return the status of each dozing replica by its actor's name, so that its process need not wake for it."""
        found = self._dozers.dozing()
        return {await self._spares.actor_of(name): dict(replica.status) for name, replica in found.items()}

    async def stop(self) -> None:
        """Stop serving and release the directory; the caller ends the actor afterwards."""
        self._titling.cancel()
        await asyncio.gather(self._titling, return_exceptions=True)
        await self._logs.stop()
        await self._page.stop()
        await self._spares.stop()
        await self._dozers.stop()
        await self._server.stop()
        await self._makers.stop()  # last: until then replicas may be started and ended


def make_controller(spec: ControllerSpec, *, node_id: str) -> Any:
    """Make the controller's actor, or return the one that runs.

    If every node has its broker, the controller can run on any of them: it begins on this node, and Ray moves it to
    another one if this node is lost. With embedded brokers it stays on their machine, where alone they can be reached.
    """
    options = actor_options(CONTROLLER, node_id=node_id)
    if spec.node_folder is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=node_id, soft=True)
        options["resources"] = {RESOURCE: A_SHARE}
    return ray.remote(Controller).options(**options).remote(spec)


async def ensure_broker(spec: BrokerSpec) -> None:
    """Make a broker's actor unless it runs, and wait until it serves. Raises TimeoutError and RuntimeError."""
    try:
        broker = await at_store(MAKE_TIMEOUT_S, make_broker, spec)
        await answer(broker.endpoint.remote(), MAKE_TIMEOUT_S)
    except (ray.exceptions.RayError, ValueError) as error:
        raise RuntimeError(str(error)) from error


def make_broker(spec: BrokerSpec) -> Any:
    """Make a broker's actor, or return the one that runs."""
    name = node_broker_name(spec.node_id) if spec.broker is None else broker_name(spec.broker)
    return ray.remote(Broker).options(**actor_options(name, node_id=spec.node_id)).remote(spec)
