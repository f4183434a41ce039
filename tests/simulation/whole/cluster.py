"""The cluster of a world: nodes with a broker each, the controller, coordinators and replicas, all shipped servers.

Replaces Ray: finds actors by name, creates them, and restarts those that died, after a delay and without a limit; what
becomes of each call its rules decide (``ray_rules.py``). Everything else is production code.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from raylog.actors.actor_specs import BrokerSpec, ControllerSpec, CoordinatorSpec, ReplicaSpec
from raylog.actors.broker.dozers import Dozers
from raylog.actors.broker.server import BrokerServer
from raylog.actors.controller.server import ControllerServer
from raylog.actors.coordinators.server import CoordinatorServer
from raylog.actors.metadata.voter_files import make_founder
from raylog.actors.naming import REPLICA_PREFIX, replica_name
from raylog.actors.processes.coordinator_kinds import coordinator_server
from raylog.actors.replica.server import ReplicaServer
from raylog.actors.resting import NEVER, Resting
from raylog.base.errors import ConnectionFailed
from raylog.rpc import Secret
from tests.simulation.whole.dozing.ports import Dozes, SimProcesses, SimRest
from tests.simulation.whole.loop.network import Network
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.loop.scheduler import Scheduler
from tests.simulation.whole.ray_rules import Fate, RayRules

logger = logging.getLogger(__name__)

SECRET: Final = b"a secret for simulations"
CLUSTER_ID: Final = "c" * 32
FIND_TIMEOUT_S: Final = 2.0
MAKE_TIMEOUT_S: Final = 60.0
RESTART_S: Final = (0.15, 1.2)
"""How long Ray takes to start a process again."""
POLL_S: Final = 0.02
ANSWERS_LATE_S: Final = 1.5
"""How long the answer of a replica that serves may take to reach its broker: longer than a replica is awake."""


def host_of(broker: int) -> str:
    """Return the host of a broker's node."""
    return f"127.0.0.{10 + broker}"


def folder_of(root: Path, broker: int) -> Path:
    """Return the data directory of a broker."""
    return root / f"broker-{broker}"


class _DozersBroker(BrokerServer):
    """A broker that stops its replicas' processes: starts and stops what the shipped actor has beside its server."""

    dozers: Dozers

    async def start(self) -> None:
        await super().start()
        await self.dozers.start()

    async def stop(self) -> None:
        await self.dozers.stop()
        await super().stop()


Server = Any
"""A shipped server: ``start``, ``stop`` and ``endpoint``."""


@dataclass
class Actor:
    """One named actor: its server's factory, its possible hosts, and the process of its current life."""

    name: str
    hosts: tuple[str, ...]
    """Hosts on which Ray may start it; several: any of those with power."""
    make: Callable[[SimProcess], Server]
    process: SimProcess | None = None
    server: Server = None
    serves: bool = False
    lives: int = 0
    ended: bool = False
    """Ended permanently: it is not restarted."""
    ending: tuple[str, int] | None = None
    """Kind and index of a coordinator that is about to be ended."""
    is_wanted: bool = False
    """Its next life was requested meanwhile."""
    failure: str = ""
    """Why the first life never served; Ray gives up on such an actor."""
    requester: SimProcess | None = None
    """The process that has requested it; None: the operator's."""


@dataclass
class Cluster:
    """All actors of a world, by name."""

    scheduler: Scheduler
    network: Network
    root: Path
    brokers: int = 3
    voters: tuple[int, ...] = (1,)
    config: dict[str, str] = field(default_factory=dict)
    dozes: Dozes | None = None
    """How replicas doze; None = they do not."""
    secret_on: Callable[[str], Secret] = lambda _: SECRET
    """Returns the source of the secrets on a host."""
    outside: dict[str, Any] = field(default_factory=lambda: {"secret": SECRET})
    """What clients outside of Ray are given to prove, as a client's configuration has it."""
    secrets_changed_s: float = -math.inf
    """When every node last had the same values of the clients' secret again; infinity: they differ."""

    def __post_init__(self) -> None:
        self.actors: dict[str, Actor] = {}
        self.fatal: list[str] = []
        """Why processes ended themselves."""
        self.restarts = 0
        self.lost: set[str] = set()
        """Hosts that Ray considers lost."""
        self.ended: dict[str, Server] = {}
        """The server of the last life of each actor that was ended permanently."""
        self.calls: dict[int, tuple[str, SimProcess | None]] = {}
        """Calls to replicas that wait for their answers: the replica's name, and the process of the broker."""
        self.called = 0
        self.rules = RayRules()
        self._zombies: list[SimProcess] = []
        self._lingering: dict[SimProcess, None] = {}

    def host(self, broker: int) -> str:
        """Return the host of a broker's node."""
        return host_of(broker)

    @property
    def hosts(self) -> list[str]:
        """Hosts of all nodes."""
        return [self.host(broker) for broker in range(1, self.brokers + 1)]

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Found the cluster: its voters' directories, the brokers, the controller."""
        for broker in self.voters:
            make_founder(folder_of(self.root, broker))
        for broker in range(1, self.brokers + 1):
            self.start_broker(broker)
        self._ensure("controller", tuple(self.hosts), self._new_controller)

    def start_broker(self, broker: int) -> None:
        """Start a broker for the first time, or after :meth:`stop_broker`."""
        host = self.host(broker)

        def make(process: SimProcess) -> BrokerServer:
            spec = BrokerSpec(
                broker=broker,
                folder=folder_of(self.root, broker),
                secret=self.secret_on(host),
                cluster_id=CLUSTER_ID,
                node_id=host,
                host=host,
            )
            dozers = None if self.dozes is None else Dozers(SimProcesses(self.dozes, process, spec.folder))
            server = (BrokerServer if dozers is None else _DozersBroker)(
                spec,
                find_controller=self.find_controller,
                factory=Workshop(self, broker, dozers or NEVER),
                on_fatal=self._end_process(process),
                resting=dozers or NEVER,
            )
            if dozers is not None and isinstance(server, _DozersBroker):
                server.dozers = dozers
            return server

        self._ensure(f"broker-{broker}", (host,), make).requester = None  # an operator would start it again

    def _new_controller(self, process: SimProcess) -> ControllerServer:
        spec = ControllerSpec(
            data_directory=self.root,
            secret=self.secret_on(process.host),
            cluster_id=CLUSTER_ID,
            cluster_config=self.config,
            host=process.host,
            voters=self.voters,
        )
        return ControllerServer(
            spec,
            start_coordinator=self.start_coordinator,
            end_coordinator=self.end_coordinator,
            on_fatal=self._end_process(process),
            find_voter=self._find_voter,
            find_brokers=self._find_brokers,
            nodes_alive=self._nodes_alive,
        )

    def start_coordinator(self, kind: str, index: int) -> None:
        """Create a coordinator unless there is one (the controller's port). A failure is logged there, and no more."""
        if self.rules.fate() is Fate.NEVER:
            return

        def make(process: SimProcess) -> CoordinatorServer[Any]:
            secret = self.secret_on(process.host)
            spec = CoordinatorSpec(kind=kind, index=index, secret=secret, cluster_config=self.config, host=process.host)
            return coordinator_server(spec, find_controller=self.find_controller, on_fatal=self._end_process(process))

        actor = self._ensure(f"coordinator-{kind}-{index}", tuple(self.hosts), make)
        actor.is_wanted = actor.ending is not None

    def end_coordinator(self, kind: str, index: int) -> None:
        """End a coordinator, a moment later (the controller's port). One that is started meanwhile comes after it."""
        actor = self.actors.get(f"coordinator-{kind}-{index}")
        if actor is not None and actor.ending is None and self.rules.fate() is not Fate.NEVER:
            actor.ending = (kind, index)
            self.scheduler.after(self.scheduler.between(0.0, 0.1), self._end_coordinator, actor)

    def _end_coordinator(self, actor: Actor) -> None:
        place, actor.ending = actor.ending, None
        if self.controller() is None:
            return  # it died before it ended the coordinator
        actor.ended = True
        self.actors.pop(actor.name, None)
        self._end_for_good(actor)
        if actor.is_wanted and place is not None:
            self.start_coordinator(*place)

    def ensure_replica(self, spec: ReplicaSpec) -> Actor:
        """Create a replica unless there is one (the supervisor's port)."""

        def make(process: SimProcess) -> ReplicaServer:
            dozes, on_fatal = self.dozes, self._end_process(process)
            rest = None if dozes is None else SimRest(dozes, process, f"broker-{spec.broker}", name)
            return ReplicaServer(spec, find_controller=self.find_controller, on_fatal=on_fatal, rest=rest)

        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        return self._ensure(name, (self.host(spec.broker),), make)

    def _end_process(self, process: SimProcess) -> Callable[[str], None]:
        def on_fatal(reason: str) -> None:
            self.fatal.append(f"{process.name}: {reason}")
            process.exit(reason)

        return on_fatal

    # ------------------------------------------------------------ actors

    def _ensure(self, name: str, hosts: tuple[str, ...], make: Callable[[SimProcess], Server]) -> Actor:
        actor = self.actors.get(name)
        if actor is None:
            actor = self.actors[name] = Actor(name, hosts, make, requester=self.scheduler.current)
            self._begin_later(actor)
        return actor

    def _begin_later(self, actor: Actor) -> None:
        self.scheduler.after(self.scheduler.between(*RESTART_S) + self.rules.start_s(), self._begin, actor)

    def _begin(self, actor: Actor) -> None:
        """Start a life of an actor on a host that has power, or try again."""
        if actor.ended or actor.process is not None:
            return  # started already, or ended permanently
        if self._goes_with_its_requester(actor):
            return
        hosts = [host for host in actor.hosts if host not in self.network.down and host not in self.lost]
        if not hosts or self.rules.is_away:
            self._begin_later(actor)
            return
        host = hosts[int(self.scheduler.random.random() * len(hosts))]
        process = SimProcess(self.scheduler, self.network, actor.name, host)
        actor.process, actor.serves = process, False
        actor.lives += 1
        self.scheduler.log(actor.name, f"life {actor.lives} begins on {host}")
        process.on_end = lambda ended: self._ended(actor, ended)
        process.call_soon(lambda: process.create_task(self._serve(actor, process)))

    def _goes_with_its_requester(self, actor: Actor) -> bool:
        """End an actor that was registered and not handed over when its requester ended; return whether it is one."""
        requester = actor.requester
        if actor.lives or requester is None or requester.is_alive or not self.rules.takes_along():
            return False
        self.scheduler.log(actor.name, f"never begins, as {requester.name} has ended")
        actor.failure, actor.ended = "its requester has ended", True
        if self.actors.get(actor.name) is actor:
            del self.actors[actor.name]
        return True

    async def _serve(self, actor: Actor, process: SimProcess) -> None:
        """The actor's constructor: start the server; a later life that fails ends its process."""
        try:
            actor.server = actor.make(process)
            await actor.server.start()
        except Exception as error:
            logger.info("%s did not start: %r", actor.name, error)
            if actor.lives == 1 and not actor.name.startswith("controller"):
                actor.failure, actor.ended = repr(error), True
            process.exit(f"the start failed: {error!r}")
        actor.serves = True

    def _ended(self, actor: Actor, process: SimProcess) -> None:
        if actor.process is process:
            actor.process, actor.serves = None, False
            if actor.ended:
                self.ended[actor.name] = actor.server
                if self.actors.get(actor.name) is actor:
                    del self.actors[actor.name]
            else:
                self.restarts += 1
                self._begin_later(actor)

    def _end_for_good(self, actor: Actor) -> None:
        """End the process of an actor that is not restarted; its name is free already, whenever the process ends."""
        process, actor.process, actor.serves = actor.process, None, False
        if actor.server is not None:
            self.ended[actor.name] = actor.server
        if process is None:
            return
        process.on_end = None
        lingers_s = self.rules.lingers_s()
        if not lingers_s:
            process.kill("ended for good")
            return
        self.scheduler.log(process.name, f"its name is free, and its process goes on for {lingers_s:.2f} s")
        self._lingering[process] = None
        self.scheduler.after(lingers_s, self._end_lingering, process)

    def _end_lingering(self, process: SimProcess) -> None:
        self._lingering.pop(process, None)
        process.kill("ended for good")

    def lose_power(self, host: str) -> None:
        """End the processes of a host that are no actor's any more."""
        for process in [*self._lingering, *self._zombies]:
            if process.host == host:
                process.kill("its node lost power")

    def lose_node(self, host: str) -> None:
        """Ray has no contact with a node for too long: actors that may run elsewhere are started elsewhere.

        The processes on the node continue until contact is restored, unaware of their successors.
        """
        self.lost.add(host)
        for actor in list(self.actors.values()):
            process = actor.process
            if process is not None and process.host == host and len(actor.hosts) > 1 and not actor.ended:
                self.scheduler.log(actor.name, f"is taken for lost with {host}")
                process.on_end = None
                self._zombies.append(process)
                actor.process, actor.serves = None, False
                self._begin_later(actor)

    def find_node(self, host: str) -> None:
        """Contact with a node is restored: Ray ends the processes that have successors, by its rules all of them."""
        returns_s = self.rules.returns_s() if host in self.lost else None
        if returns_s is None:
            self.lost.discard(host)
        else:
            self.scheduler.after(returns_s, self.lost.discard, host)
            self._end_all_of(host)
        zombies, self._zombies = self._zombies, []
        for zombie in zombies:
            if zombie.host != host:
                self._zombies.append(zombie)
            else:
                zombie.resume()
                self.scheduler.after(self.scheduler.between(0.1, 3.0), zombie.kill, "it has a successor")

    def _end_all_of(self, host: str) -> None:
        """End what runs on a node that was given up; its replicas' actors end for good, and its broker makes others."""
        self.scheduler.log("ray", f"the processes of {host} end, because it was given up")
        for actor in list(self.actors.values()):
            if actor.process is not None and actor.process.host == host:
                actor.ended |= actor.name.startswith(REPLICA_PREFIX)
                self.scheduler.after(self.scheduler.between(0.1, 3.0), actor.process.kill, "its node was given up")

    async def end(self, name: str, *, kills: bool = True) -> None:
        """Stop an actor cleanly and permanently; no error when there is none. Without ``kills`` it is stopped alone."""
        actor = self.actors.get(name)
        if actor is None:
            return
        actor.ended |= kills
        process = actor.process
        if process is not None and actor.serves and await self._answers(actor):
            stopping = process.create_task(actor.server.stop())
            for _ in range(250):
                if stopping.done() or not process.is_alive:
                    break
                await asyncio.sleep(POLL_S)
        if not kills:
            return
        self._end_for_good(actor)
        if self.actors.get(name) is actor:
            del self.actors[name]

    async def stop_broker(self, broker: int) -> None:
        """End a broker's processes cleanly and permanently, as an operator's command does: the supervisor first."""
        await self.end(f"broker-{broker}")
        while names := [name for name in self.actors if f":broker-{broker}:" in name]:
            for name in names:
                await self.end(name)

    async def _answers(self, actor: Actor) -> bool:
        """Whether an actor answers a call through Ray now, within ``FIND_TIMEOUT_S``."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + FIND_TIMEOUT_S
        await asyncio.sleep(self.scheduler.between(0.001, 0.004))
        while actor.process is None or not actor.serves or actor.process.is_paused:
            if loop.time() > deadline_s:
                return False
            if actor.process is not None and actor.process.is_blocked:
                actor.process.call_input(lambda: None)  # the call waits at one of its sockets
            await asyncio.sleep(POLL_S)
        if actor.process.is_blocked:
            actor.process.call_input(lambda: None)
        return True

    async def find(self, name: str) -> tuple[str, int]:
        """Return an actor's endpoint; raises :class:`ConnectionFailed` when it does not answer."""
        actor = self.actors.get(name)
        if actor is None or not self.rules.answers_at_once() or not await self._answers(actor):
            raise ConnectionFailed(f"{name} cannot be found at the moment")
        endpoint: tuple[str, int] = actor.server.endpoint
        return endpoint

    async def find_controller(self) -> tuple[str, int]:
        """Return the controller's endpoint (a port of every server)."""
        return await self.find("controller")

    async def _find_voter(self, broker: int) -> tuple[str, int]:
        return await self.find(f"broker-{broker}")

    async def _find_brokers(self) -> list[int]:
        await asyncio.sleep(self.scheduler.between(0.001, 0.01))
        serving = [broker for broker in range(1, self.brokers + 1) if self.is_serving(f"broker-{broker}")]
        return [broker for broker in serving if self.rules.answers_at_once()]

    async def _nodes_alive(self) -> set[str]:
        await asyncio.sleep(self.scheduler.between(0.001, 0.01))
        if self.rules.is_away:
            await asyncio.sleep(FIND_TIMEOUT_S)
            raise ConnectionFailed("Ray does not list its nodes")
        return self.rules.listed(
            {host for host in self.hosts if host not in self.network.down and host not in self.lost}
        )

    def is_serving(self, name: str) -> bool:
        """Whether an actor serves now."""
        actor = self.actors.get(name)
        return actor is not None and actor.serves and actor.process is not None and actor.process.may_run

    def controller(self) -> ControllerServer | None:
        """Return the controller's server, if it serves."""
        actor = self.actors.get("controller")
        return actor.server if actor is not None and actor.serves else None

    def controller_access(self, timeout_s: float) -> dict[str, Any]:
        """Return the clients' access to the cluster, like Ray's client port; called in a thread of the client."""
        del timeout_s
        server = self.controller()
        if server is None:
            for broker in range(1, self.brokers + 1):
                if self.is_serving(f"broker-{broker}"):
                    found: dict[str, Any] = self.actors[f"broker-{broker}"].server.connection_info()
                    return found
            raise ConnectionFailed("no actor of the cluster answers")
        return server.connection_info()

    def named(self, prefix: str) -> list[Actor]:
        """Return the actors with this name prefix."""
        return [actor for name, actor in self.actors.items() if name.startswith(prefix)]


class Workshop:
    """Creates and ends the replicas of one broker (the supervisor's port)."""

    def __init__(self, cluster: Cluster, broker: int, resting: Resting) -> None:
        """For one life of a broker. ``resting``: those that it may stop."""
        self._cluster = cluster
        self._broker = broker
        self._resting = resting

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Create a replica unless there is one, and wait until it serves."""
        fate = await self._fate("it was not made")
        actor = self._cluster.ensure_replica(spec)
        with self._called(actor.name):
            if fate is Fate.UNANSWERED:
                await self._unanswered(actor.name)
            if actor.serves and actor.server.is_stopped:  # its broker died between stopping it and ending it
                await self.end(actor.name)
                raise RuntimeError(f"{actor.name} was stopped")
            await self._within(lambda: actor.serves, actor)
            if self._cluster.dozes is not None:  # the answer of a replica that serves comes late on a busy machine
                await asyncio.sleep(self._cluster.scheduler.between(0.0, ANSWERS_LATE_S))

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Notify a replica of changes."""
        name = replica_name(spec.topic, spec.partition, spec.broker, spec.topic_id)
        actor = self._cluster.actors.get(name)
        with self._called(name):
            fate = await self._fate(f"{name} is being restarted", lasts=True)
            if actor is None or actor.process is None or not await self._cluster._answers(actor):
                raise TimeoutError(f"{name} does not answer")
            delays_s = [self._cluster.rules.late_s() if fate is Fate.UNANSWERED else 0.0]
            for delay_s in [*delays_s, self._cluster.rules.late_s()] if fate is Fate.TWICE else delays_s:
                self._call(actor.process, delay_s, actor.server.reconfigure, spec)
            if fate is Fate.UNANSWERED:
                await self._unanswered(name)

    async def end(self, name: str) -> None:
        """End a replica permanently."""
        with self._called(name):
            fate = await self._fate(f"{name} has not ended")
            if fate is Fate.UNANSWERED:
                await self._cluster.end(name, kills=self._cluster.rules.answers_at_once())
                await self._unanswered(name)
            await self._cluster.end(name)

    def _call(self, process: SimProcess, delay_s: float, method: Callable[..., object], *args: object) -> None:
        """Have a method run in a process: calls may be under way for long, and overtake each other."""
        if delay_s:
            self._cluster.scheduler.after(delay_s, process.call_input, method, *args)
        else:
            process.call_input(method, *args)

    async def _fate(self, failure: str, *, lasts: bool = False) -> Fate:
        """Return what becomes of a call to Ray; raises RuntimeError where it is never done."""
        rules = self._cluster.rules
        fate = rules.fate(lasts=lasts)
        if fate is Fate.NEVER:
            await asyncio.sleep(rules.answer_s())
            raise RuntimeError(failure)
        return fate

    async def _unanswered(self, name: str) -> None:
        await asyncio.sleep(self._cluster.rules.answer_s())
        raise TimeoutError(f"{name} has not answered")

    @contextmanager
    def _called(self, name: str) -> Iterator[None]:
        """Note a call to a replica, which runs meanwhile."""
        calls = self._cluster.calls
        with self._resting.held_awake(name):
            self._cluster.called += 1
            number = self._cluster.called
            calls[number] = (name, self._cluster.scheduler.current)
            try:
                yield
            finally:
                del calls[number]

    async def living(self, broker: int) -> list[str]:
        """Return the names of a broker's replicas that have an actor."""
        if not self._cluster.rules.answers_at_once():
            raise RuntimeError("Ray does not list its actors")
        await asyncio.sleep(self._cluster.scheduler.between(0.001, 0.01))
        return [name for name in self._cluster.actors if f":broker-{broker}:" in name]

    async def _within(self, holds: Callable[[], bool], actor: Actor) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + MAKE_TIMEOUT_S
        while not holds():
            if actor.failure:
                raise RuntimeError(actor.failure)
            if loop.time() > deadline_s:
                raise TimeoutError(f"{actor.name} does not serve")
            await asyncio.sleep(POLL_S)
