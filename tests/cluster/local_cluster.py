"""A whole cluster in one process and one event loop: the real shells, sockets and files, without Ray.

For tests that need many clusters quickly. What needs Ray and separate processes (SIGKILL, restarts in place) is tested
in ``test_ray_cluster.py``.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from raylog.actors.actor_specs import BrokerSpec, ControllerSpec, CoordinatorSpec, ReplicaSpec
from raylog.actors.broker.server import BrokerServer
from raylog.actors.controller.server import ControllerServer
from raylog.actors.coordinators.server import CoordinatorServer
from raylog.actors.metadata.voter_files import make_founder
from raylog.actors.naming import replica_name
from raylog.actors.processes.coordinator_kinds import coordinator_server
from raylog.actors.replica.server import ReplicaServer
from raylog.base.errors import ConnectionFailed
from raylog.core.configuration.config import ClusterConfig
from raylog.launch.voters import voters_among
from raylog.rpc import Secret
from raylog.storage.directory import META, partition_folder
from tests.waiting import eventually

SECRET = b"a secret for tests"
CLUSTER_ID = "c" * 32
THREADS = 128


@dataclass
class LocalCluster:
    """Controller, brokers, replicas and coordinators as objects; each can be stopped and started alone."""

    root: Path
    brokers: int = 3
    config: Mapping[str, str] = field(default_factory=dict)
    secret: Secret = SECRET
    """What every process reads for each connection."""

    def __post_init__(self) -> None:
        # Tests that look into replicas need them awake; those about sleep say so.
        self.config = {"replica.sleep.after.ms": "-1", "replica.awake.max": "100000", **self.config}
        self.controller: ControllerServer | None = None
        self.broker_servers: dict[int, BrokerServer] = {}
        self.replicas: dict[str, ReplicaServer] = {}
        self.coordinators: dict[tuple[str, int], CoordinatorServer[Any]] = {}
        self.fatal: list[str] = []
        self.given_up: list[str] = []
        """Why replicas have ended to have their logs copied again."""
        self.starts = 0
        """How often the cluster was started; names the start that a controller belongs to."""
        self._threads: ThreadPoolExecutor | None = None
        self.cluster_id = CLUSTER_ID
        most = ClusterConfig.from_dict(self.config).metadata_voters_max
        self.voters = tuple(range(1, voters_among(self.brokers, most) + 1))
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start controller and brokers and wait until the brokers are registered."""
        # Each replica has a process in production. Here all wait for locks and disks in the threads of one loop: with
        # the default number of threads, lives that wait for a folder would block the close of the life that holds it.
        self.starts += 1
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "cluster")
            asyncio.get_running_loop().set_default_executor(self._threads)
        if not any(self.root.glob(f"broker-*/{META}")):
            for broker in self.voters:
                make_founder(self.root / f"broker-{broker}")
        for broker in range(1, self.brokers + 1):
            await self.start_broker(broker)
        await self.start_controller()
        for server in self.broker_servers.values():
            await server.wait_registered(10)

    async def start_controller(self) -> None:
        """Start the controller on its log."""
        self.controller = self.new_controller()
        await self.controller.start()

    def new_controller(self, *, quorum_timeout_s: float = 15.0) -> ControllerServer:
        """Return a controller that is not started yet; two of them may exist."""
        return ControllerServer(
            ControllerSpec(
                data_directory=self.root,
                secret=self.secret,
                cluster_id=self.cluster_id,
                cluster_config=self.config,
                cluster_start=str(self.starts),
                voters=self.voters,
                quorum_timeout_s=quorum_timeout_s,
            ),
            start_coordinator=self.start_coordinator,
            end_coordinator=self.end_coordinator,
            on_fatal=self.fatal.append,
            find_voter=self.find_voter,
            find_brokers=self.find_brokers,
        )

    def running(self) -> ControllerServer:
        """Return the running controller."""
        assert self.controller is not None
        return self.controller

    async def find_voter(self, broker: int) -> tuple[str, int]:
        """Return a broker's endpoint."""
        server = self.broker_servers.get(broker)
        if server is None or not server.endpoint[1]:
            raise ConnectionFailed(f"broker {broker} does not run")
        return server.endpoint

    async def find_brokers(self) -> list[int]:
        """Return the brokers that run."""
        return sorted(self.broker_servers)

    async def stop_controller(self) -> None:
        """Stop the controller; everything else keeps running."""
        assert self.controller is not None
        controller, self.controller = self.controller, None
        await controller.stop()

    async def start_broker(self, broker: int) -> None:
        """Start one broker on its directory."""
        spec = BrokerSpec(
            broker=broker,
            folder=self.root / f"broker-{broker}",
            secret=self.secret,
            cluster_id=CLUSTER_ID,
            node_id="here",
        )
        server = BrokerServer(spec, find_controller=self.find_controller, factory=self, on_fatal=self.fatal.append)
        self.broker_servers[broker] = server
        await server.start()

    async def stop_broker(self, broker: int) -> None:
        """Stop one broker; its replicas keep running."""
        await self.broker_servers.pop(broker).stop()

    async def find_controller(self) -> tuple[str, int]:
        """Return the controller's endpoint."""
        if self.controller is None or not self.controller.endpoint[1]:
            raise ConnectionFailed("no controller")
        return self.controller.endpoint

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Make a replica unless it runs (the supervisor's factory)."""
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        if name not in self.replicas:
            server = ReplicaServer(
                spec, find_controller=self.find_controller, on_fatal=lambda why: self._replica_ends(name, spec, why)
            )
            self.replicas[name] = server
            try:
                await server.start()
            except BaseException:
                del self.replicas[name]
                raise

    def _replica_ends(self, name: str, spec: ReplicaSpec, why: str) -> None:
        """A replica that gives its log up is started again, as Ray does; any other end is a defect."""
        if "to copy the log again" not in why:
            self.fatal.append(why)
            return
        self.given_up.append(why)
        self._spawn(self._start_again(name, spec))

    async def _start_again(self, name: str, spec: ReplicaSpec) -> None:
        await self.end(name)
        await self.ensure(spec)

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Notify a replica of changes (the supervisor's factory)."""
        self.replicas[replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)].reconfigure(spec)

    async def end(self, name: str) -> None:
        """End a replica (the supervisor's factory)."""
        server = self.replicas.pop(name, None)
        if server is not None:
            await server.stop()

    async def living(self, broker: int) -> list[str]:
        """Return the names of a broker's replicas (the supervisor's factory)."""
        return [name for name in self.replicas if f":broker-{broker}:" in name]

    async def all_home(self) -> None:
        """Wait until every place in the metadata is that of a running replica, and none of an earlier life."""

        def home() -> bool:
            assert self.controller is not None
            lives = {(*replica.endpoint, replica._incarnation) for replica in self.replicas.values()}
            places = [place for state in self.controller.image.partitions() for place in state.places]
            return all((place.host, place.port, place.incarnation) in lives for place in places)

        await eventually(home, what="every replica has registered in its new life")

    def replica(self, topic: str, partition: int, broker: int) -> ReplicaServer:
        """Return the running replica of a partition on a broker."""
        for server in self.replicas.values():
            if (server.spec.topic, server.spec.partition, server.spec.broker) == (topic, partition, broker):
                return server
        raise KeyError((topic, partition, broker))

    async def stop_replica(self, topic: str, partition: int, broker: int) -> ReplicaSpec:
        """Stop one replica; its supervisor restarts it after a while, or the test does with ``ensure``."""
        server = self.replica(topic, partition, broker)
        spec = server.spec
        await self.end(replica_name(topic, partition, broker, spec.topic_id))
        return spec

    async def crash_replica(self, topic: str, partition: int, broker: int) -> ReplicaSpec:
        """End one replica and leave its folder as a kill would: nothing is synced, nothing is marked as clean."""
        folder = partition_folder(self.replica(topic, partition, broker).spec.data_directory, topic, partition)
        copy = folder.with_name("crashed")
        shutil.copytree(folder, copy)
        spec = await self.stop_replica(topic, partition, broker)
        shutil.rmtree(folder)
        copy.rename(folder)
        return spec

    def pause_fetching(self, topic: str, partition: int, broker: int) -> Callable[[], None]:
        """Suspend a follower: it does not fetch until the returned function is called."""
        link = self.replica(topic, partition, broker)._leader
        link.disconnect()
        link.send = lambda *_: None  # type: ignore[method-assign]

        def resume() -> None:
            del link.send

        return resume

    async def pass_grace(self) -> None:
        """Wait for the end of the controller's grace period: it then gives up members that did not return."""
        controller = self.controller
        assert controller is not None
        await eventually(lambda: not controller._running().machine._liveness.in_grace, what="the grace period ends")

    def cut_off(self, coordinator: CoordinatorServer[Any]) -> None:
        """Cut a coordinator off from the controller; all other processes still reach it."""

        async def nowhere() -> tuple[str, int]:
            raise ConnectionFailed("cut off")

        link = coordinator._link
        link._find = nowhere
        if link._connection is not None:
            link._connection.close("cut off")

    async def restart_coordinator(self, kind: str, index: int) -> None:
        """End a coordinator and start its next life."""
        await self.coordinators.pop((kind, index)).stop()
        self.start_coordinator(kind, index)

    def bootstrap(self) -> str:
        """Return the brokers' endpoints in the clients' format."""
        return ",".join(f"{server.endpoint[0]}:{server.endpoint[1]}" for server in self.broker_servers.values())

    def clients(self) -> dict[str, Any]:
        """Return the arguments for a client."""
        return {"bootstrap": self.bootstrap(), "secret": SECRET}

    def start_coordinator(self, kind: str, index: int) -> None:
        """Start a coordinator unless it runs (a port of the controller)."""
        if (kind, index) in self.coordinators:
            return
        spec = CoordinatorSpec(kind=kind, index=index, secret=self.secret, cluster_config=self.config)
        server = coordinator_server(spec, find_controller=self.find_controller, on_fatal=self.fatal.append)
        self.coordinators[(kind, index)] = server
        self._spawn(server.start())

    def end_coordinator(self, kind: str, index: int) -> None:
        """End a coordinator (a port of the controller)."""
        coordinator = self.coordinators.pop((kind, index), None)
        if coordinator is not None:
            self._spawn(coordinator.stop())

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Stop everything in the order of ``raylog.stop``: controller, brokers, coordinators, replicas."""
        if self.controller is not None:
            await self.stop_controller()
        for server in self.broker_servers.values():
            await server.stop()
        await asyncio.gather(*self._tasks)  # coordinators that are just being started
        for coordinator in self.coordinators.values():
            await coordinator.stop()
        for replica in self.replicas.values():
            await replica.stop()
        self.broker_servers, self.coordinators, self.replicas = {}, {}, {}
