"""One node of the network part: the real servers of a broker, or of the controller, in a namespace of their own.

Started by ``network.py`` as ``python -m tests.chaos.host FD SPEC``. Replaces Ray's control store for discovery: every
server writes its endpoint to a file in a folder that all nodes can read.
"""

import asyncio
import json
import logging
import os
import socket
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from raylog.actors.actor_specs import BrokerSpec, ControllerSpec, CoordinatorSpec, ReplicaSpec
from raylog.actors.broker.server import BrokerServer
from raylog.actors.controller.server import ControllerServer
from raylog.actors.coordinators.server import CoordinatorServer
from raylog.actors.metadata.voter_files import make_founder
from raylog.actors.naming import broker_folder, replica_name
from raylog.actors.processes.coordinator_kinds import coordinator_server
from raylog.actors.replica.server import ReplicaServer
from raylog.base.errors import ConnectionFailed, RaylogError
from tests.chaos.injuries.namespace import end_with_parent, enter

logger = logging.getLogger(__name__)

AGAIN_S: Final = 0.3
"""Delay before a failed server is restarted, as Ray does."""
FATAL_EXIT_CODE: Final = 70
MESSAGE_BYTES: Final = 1 << 20


class HostSpec(msgspec.Struct, frozen=True):
    """Configuration of a node."""

    name: str
    """``controller`` or ``broker-N``."""
    address: str
    root: str
    places: str
    secret: str
    cluster_id: str
    config: dict[str, str]
    voters: list[int]


def write_place(folder: Path, name: str, endpoint: tuple[str, int]) -> None:
    """Publish a server's endpoint to the other nodes."""
    fresh = folder / f".{name}.{os.getpid()}"
    fresh.write_text(f"{endpoint[0]} {endpoint[1]}")
    fresh.replace(folder / name)


def read_place(folder: Path, name: str) -> tuple[str, int]:
    """Return a server's last endpoint; raises :class:`ConnectionFailed` when it never had one."""
    try:
        host, port = (folder / name).read_text().split()
    except (OSError, ValueError):
        raise ConnectionFailed(f"{name} has no place") from None
    return host, int(port)


class Host:
    """The servers of one node, on one event loop; also the factory of its broker."""

    def __init__(self, spec: HostSpec) -> None:
        """Nothing is started yet."""
        self._spec = spec
        self._places = Path(spec.places)
        self._secret = bytes.fromhex(spec.secret)
        self._broker: BrokerServer | None = None
        self._controller: ControllerServer | None = None
        self._replicas: dict[str, ReplicaServer] = {}
        self._coordinators: dict[tuple[str, int], CoordinatorServer[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start the broker or the controller."""
        spec = self._spec
        root = Path(spec.root)
        if spec.name == "controller":
            self._controller = ControllerServer(
                ControllerSpec(
                    data_directory=root,
                    secret=self._secret,
                    cluster_id=spec.cluster_id,
                    cluster_config=spec.config,
                    voters=tuple(spec.voters),
                    host=spec.address,
                    allow_plaintext=True,
                ),
                start_coordinator=self._start_coordinator,
                end_coordinator=self._end_coordinator,
                on_fatal=end_process,
                find_voter=self._find_voter,
                find_brokers=self._find_brokers,
            )
            await self._controller.start()
            write_place(self._places, spec.name, self._controller.endpoint)
            return
        number = int(spec.name.removeprefix("broker-"))
        if number in spec.voters and not broker_folder(root, number).exists():
            make_founder(broker_folder(root, number))
        self._broker = BrokerServer(
            BrokerSpec(
                broker=number,
                folder=broker_folder(root, number),
                secret=self._secret,
                cluster_id=spec.cluster_id,
                node_id=spec.name,
                host=spec.address,
                allow_plaintext=True,
            ),
            find_controller=self._find_controller,
            factory=self,
            on_fatal=end_process,
        )
        await self._broker.start()
        write_place(self._places, spec.name, self._broker.endpoint)

    async def stop(self) -> None:
        """Stop everything cleanly."""
        for server in (self._controller, self._broker):
            if server is not None:
                await server.stop()
        for task in list(self._tasks):
            task.cancel()
        for coordinator in self._coordinators.values():
            await coordinator.stop()
        for replica in self._replicas.values():
            await replica.stop()

    def status(self) -> dict[str, Any]:
        """Return the status of the controller and the replicas; None for a controller that is not ready."""
        controller: Mapping[str, object] | None = None
        if self._controller is not None and self._controller.endpoint[1]:
            try:
                controller = self._controller.status()
            except RaylogError:
                controller = None
        replicas = []
        for replica in self._replicas.values():
            try:
                replicas.append(replica.status())
            except RaylogError:
                continue  # it is still recovering its log
        return {"controller": controller, "replicas": replicas, "coordinators": len(self._coordinators)}

    # Discovery

    async def _find_brokers(self) -> list[int]:
        return sorted(int(path.name.removeprefix("broker-")) for path in self._places.glob("broker-*"))

    async def _find_controller(self) -> tuple[str, int]:
        return read_place(self._places, "controller")

    async def _find_voter(self, broker: int) -> tuple[str, int]:
        return read_place(self._places, f"broker-{broker}")

    # The factory: Ray's role for a broker

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Make a replica unless it runs."""
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        if name in self._replicas:
            return

        def failed(reason: str) -> None:
            logger.error("%s: %s", name, reason)
            self._spawn(self._again(name, spec))

        server = ReplicaServer(spec, find_controller=self._find_controller, on_fatal=failed)
        self._replicas[name] = server
        try:
            await server.start()
        except BaseException:
            del self._replicas[name]
            raise

    async def _again(self, name: str, spec: ReplicaSpec) -> None:
        await self.end(name)
        await asyncio.sleep(AGAIN_S)
        await self.ensure(spec)

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Notify a replica of changes."""
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        if name not in self._replicas:
            raise ValueError(f"{name} does not run")
        self._replicas[name].reconfigure(spec)

    async def end(self, name: str) -> None:
        """End a replica."""
        server = self._replicas.pop(name, None)
        if server is not None:
            await server.stop()

    async def living(self, broker: int) -> list[str]:
        """Return the names of the broker's replicas: all run in this process."""
        return [name for name in self._replicas if f":broker-{broker}:" in name]

    # Port of the controller

    def _start_coordinator(self, kind: str, index: int) -> None:
        if (kind, index) in self._coordinators:
            return
        spec = self._spec
        place = (kind, index)

        def failed(reason: str) -> None:
            logger.error("%s coordinator %d: %s", kind, index, reason)
            self._spawn(self._coordinator_again(kind, index))

        server = coordinator_server(
            CoordinatorSpec(
                kind=kind,
                index=index,
                secret=self._secret,
                cluster_config=spec.config,
                host=spec.address,
                allow_plaintext=True,
            ),
            find_controller=self._find_controller,
            on_fatal=failed,
        )
        self._coordinators[place] = server
        self._spawn(server.start())

    def _end_coordinator(self, kind: str, index: int) -> None:
        server = self._coordinators.pop((kind, index), None)
        if server is not None:
            self._spawn(server.stop())

    async def _coordinator_again(self, kind: str, index: int) -> None:
        server = self._coordinators.pop((kind, index), None)
        if server is not None:
            await server.stop()
        await asyncio.sleep(AGAIN_S)
        self._start_coordinator(kind, index)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            end_process(f"a server could not be started again: {task.exception()!r}")


def end_process(reason: str) -> None:
    """End at once; the parent starts the next life."""
    logger.error("%s", reason)
    os._exit(FATAL_EXIT_CODE)


async def serve(spec: HostSpec, control: socket.socket) -> None:
    """Run the node and answer the parent, until it sends stop or ends."""
    host = Host(spec)
    commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def on_message() -> None:
        message = control.recv(MESSAGE_BYTES)
        if not message:
            os._exit(0)
        commands.put_nowait(json.loads(message))

    asyncio.get_running_loop().add_reader(control.fileno(), on_message)
    starting = asyncio.create_task(host.start())

    def started(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            end_process(f"the start failed: {task.exception()!r}")

    starting.add_done_callback(started)
    while True:
        question = await commands.get()
        if question["do"] == "stop":
            starting.cancel()
            await host.stop()
        answer = {"id": question["id"], **host.status()} if question["do"] == "status" else {"id": question["id"]}
        control.send(json.dumps(answer).encode())
        if question["do"] == "stop":
            return


def main() -> None:
    """Enter the namespace, pass the device to the parent, serve."""
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    spec = msgspec.json.decode(sys.argv[2], type=HostSpec)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        device = enter(spec.address)
        socket.send_fds(control, [b"device"], [device])
        os.close(device)
        asyncio.run(serve(spec, control))


if __name__ == "__main__":
    main()
