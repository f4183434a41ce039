"""The shell of the controller: opens its log, listens, and keeps the connections of all other actors as sessions.

Runs in the ``Controller`` actor (``ray_actors.py``). Decisions and their order are in
:mod:`raylog.actors.controller.runner`. A session is a connection: when it breaks, the machine gets an event at once,
so a killed leader is replaced within milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from raylog.actors.actor_specs import ControllerSpec
from raylog.actors.clock import monotonic_ms
from raylog.actors.controller.answers import cluster_answer, metadata_answer
from raylog.actors.controller.liveness_probe import LivenessProbe, NodesAlive
from raylog.actors.controller.runner import ControllerRunner
from raylog.actors.listening import KEPT_FILE, open_endpoint
from raylog.actors.metadata.quorum_log import FindBrokers, FindVoter, QuorumLog
from raylog.actors.metrics.process import usage_of
from raylog.actors.permissions import permissions
from raylog.actors.settings import controller_settings
from raylog.actors.transport import listen, secrets_for_clients
from raylog.base.errors import InconsistentClusterId, NotController
from raylog.core.configuration.config_keys import CLUSTER_KEYS
from raylog.core.controller import events as ctl
from raylog.core.controller.cluster_config import config_at_start
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.sessions import BrokerMember
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord
from raylog.core.metrics.changes import PartitionChanges
from raylog.core.metrics.families import controller_families
from raylog.protocol.broker import MetadataRequest
from raylog.protocol.controller import CONTROLLER, ControllerMetricsRequest, SessionHeartbeatRequest
from raylog.protocol.message import Message
from raylog.rpc import Connection, Request, RequestConnection

logger = logging.getLogger(__name__)

TICK_S: Final = 0.25
"""Longest time between two ticks; shorter where sessions time out sooner."""
TICKS_IN_SESSION: Final = 10
SNAPSHOT_KEY: Final = "metadata.log.max.record.bytes.between.snapshots"
REST_QUIET_S: Final = 1.5
"""How long a cluster that stops waits for the next partition to fall asleep."""
REST_LOOK_S: Final = 0.05
REST_AGAIN_S: Final = 5.0
"""Pause between two requests to sleep: a leader that was busy at the first may be idle at the next."""


class ControllerServer:
    """The controller, from replaying its log to shutdown."""

    def __init__(
        self,
        spec: ControllerSpec,
        *,
        start_coordinator: Callable[[str, int], None],
        end_coordinator: Callable[[str, int], None],
        on_fatal: Callable[[str], None],
        find_voter: FindVoter,
        find_brokers: FindBrokers,
        nodes_alive: NodesAlive | None = None,
    ) -> None:
        """``start_coordinator`` makes the actor for (kind, index) unless it runs, ``end_coordinator`` ends it.

        ``on_fatal`` ends the process. ``nodes_alive`` helps to give up lost replicas early.
        """
        self.spec = spec
        self._start_coordinator = start_coordinator
        self._end_coordinator = end_coordinator
        self._on_fatal = on_fatal
        self._find_voter = find_voter
        self._find_brokers = find_brokers
        self._metadata: QuorumLog | None = None
        self._runner: ControllerRunner[Request] | None = None
        self._connections: dict[int, Connection] = {}
        self._sessions: dict[RequestConnection, int] = {}
        self._last_session = 0
        self._committed = asyncio.Event()
        self._changes = PartitionChanges()
        self._tick_task: asyncio.Task[None] | None = None
        self._probe = LivenessProbe(self._awaited, self._on_dead, nodes_alive=nodes_alive)
        allowed = replace(permissions(CONTROLLER), members_only=True)  # clients reach it through brokers
        self._server = listen(self._on_request, spec, allowed, on_connect=self._on_connect)
        self.endpoint: tuple[str, int] = ("", 0)

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Replay the metadata log, begin a new controller epoch, open the endpoint.

        Raises :class:`InconsistentClusterId` when the log belongs to another cluster, :class:`DataDirectoryError` when
        another process writes to it or too many voters have lost it, :class:`NotController` when no majority of voters
        answers, and storage errors.
        """
        self._metadata = self._store()
        try:
            await self._begin(self._metadata)
        except BaseException:  # any error: the log must not stay locked by a controller that does not run
            await self.stop()
            raise

    def _store(self) -> QuorumLog:
        spec = self.spec
        return QuorumLog(
            spec.voters,
            find_voter=self._find_voter,
            find_brokers=self._find_brokers,
            secret=spec.secret,
            open_timeout_s=spec.quorum_timeout_s,
            snapshot_bytes=int(CLUSTER_KEYS[SNAPSHOT_KEY].default),  # until the metadata are there
        )

    async def _begin(self, metadata: QuorumLog) -> None:
        image, epoch = await metadata.open(self)
        if image.cluster_id not in ("", self.spec.cluster_id):
            raise InconsistentClusterId(
                f"The brokers hold the metadata of cluster {image.cluster_id}, not of {self.spec.cluster_id}; "
                "start with the data directory that belongs to this cluster."
            )
        machine = ControllerMachine(
            image,
            settings=controller_settings(
                config_at_start(self.spec.cluster_config, self.spec.cluster_start, image),  # what the machine will use
                cluster_id=self.spec.cluster_id,
                new_topic_id=lambda: uuid.uuid4().hex,
            ),
            now_ms=monotonic_ms(),
            cluster_config=self.spec.cluster_config,
            cluster_start=self.spec.cluster_start,
        )
        self._changes.begin(image)
        self._runner = ControllerRunner(
            machine, metadata.runner, self, on_records=self._on_records, on_defect=self._on_defect
        )
        self._runner.start(epoch, metadata.founding)
        # A commit in this epoch shows that the records of earlier controllers are committed, and no newer one leads.
        async with asyncio.timeout(self.spec.quorum_timeout_s):
            await self._committed.wait()
        self.endpoint = await open_endpoint(
            self._server,
            self.spec,
            name="the controller",
            config=machine.image.config,
            kept=self.spec.data_directory / KEPT_FILE,
        )
        self._tick_task = asyncio.create_task(self._keep_ticking(), name="controller ticks")
        self._probe.start()
        for (kind, index), coordinator in sorted(image.coordinators.items()):
            if coordinator.port:  # the others sleep until they are used
                self._start_coordinator(kind, index)
        logger.info("controller ready at version %d on port %d", image.version, self.endpoint[1])

    async def stop(self) -> None:
        """Close the endpoint first, so that no disconnecting process is fenced, then the log."""
        if self._runner is not None:
            self._runner.end()
            self._runner = None
        await self._probe.stop()
        if self._tick_task is not None:
            self._tick_task.cancel()
            await asyncio.gather(self._tick_task, return_exceptions=True)
        await self._server.close()
        if self._metadata is not None:
            metadata, self._metadata = self._metadata, None
            await metadata.close()

    @property
    def image(self) -> MetadataImage:
        """The metadata as decided so far. Raises :class:`NotController` before the start and after the stop."""
        return self._running().machine.image

    def connection_info(self) -> dict[str, object]:
        """Return what a client in this Ray cluster needs: cluster id, secret and the brokers' endpoints."""
        image = self.image
        online = image.online_brokers()
        present = [broker for broker in online if self._running().machine.is_present(BrokerMember(broker.broker))]
        brokers = [[item.broker, item.host, item.port] for item in present or online]
        stated = {"allow_plaintext": self.spec.allow_plaintext}
        return {"cluster_id": image.cluster_id, **secrets_for_clients(self.spec.secret), "brokers": brokers, **stated}

    def status(self) -> dict[str, object]:
        """Return brokers, topics, partitions and what is wrong with them, as plain values."""
        machine = self._running().machine
        soft = {
            "hanging_disks": machine.hanging_disks(),
            "replica_counts": machine.replica_counts(),
            "damaged_logs": machine.damaged_logs(),
        }
        return {**cluster_answer(machine.image, machine.is_present), **soft}

    async def put_to_sleep(self, timeout_s: float) -> list[int]:
        """Let partitions fall asleep that can, for a clean stop; returns how many sleep and how many do not.

        Waits at most ``timeout_s``, and until no further partition has fallen asleep for REST_QUIET_S.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        most, since_s, rested_s = -1, loop.time(), float("-inf")
        while True:
            if loop.time() - rested_s >= REST_AGAIN_S:
                rested_s = loop.time()
                self._running().rest()
            slept, awake = self.asleep_and_awake()
            if slept > most:  # only a new maximum is progress: partitions in use fall asleep and wake again
                most, since_s = slept, loop.time()
            now_s = loop.time()
            if not awake or now_s >= deadline_s or now_s - since_s >= REST_QUIET_S:
                return [slept, awake]
            await asyncio.sleep(REST_LOOK_S)

    def asleep_and_awake(self) -> list[int]:
        """Return how many partitions sleep and how many do not."""
        states = list(self.image.partitions())
        asleep = sum(state.asleep is not None for state in states)
        return [asleep, len(states) - asleep]

    # ------------------------------------------------------------ sessions

    def _on_connect(self, connection: Connection) -> None:
        self._last_session = session = self._last_session + 1
        self._connections[session] = connection
        self._sessions[connection] = session
        connection.on_close(self._on_disconnect)

    def _on_disconnect(self, connection: Connection) -> None:
        session = self._sessions.pop(connection, None)
        if session is None:
            return
        self._connections.pop(session, None)
        if self._runner is not None:
            self._runner.session_lost(session, "connection lost")

    # ------------------------------------------------------------ events in

    def _running(self) -> ControllerRunner[Request]:
        if self._runner is None:
            raise NotController("The controller is not running.")
        return self._runner

    def _on_records(self, records: Sequence[MetadataRecord]) -> None:
        self._changes.note(records)
        if self._metadata is not None:
            settings = self.image.settings
            self._metadata.runner.snapshot_bytes = settings.metadata_log_max_record_bytes_between_snapshots

    def _on_defect(self, what: str) -> None:
        self._on_fatal(f"the controller failed: {what}")

    def _on_request(self, request: Request) -> None:
        session = self._sessions.get(request.connection)
        if session is None:
            return
        runner = self._running()
        match args := CONTROLLER.read_request(request.method, request.args):
            case SessionHeartbeatRequest():
                request.reply(runner.heartbeat(args, session))
            case ControllerMetricsRequest():
                request.reply(self._metrics(runner.machine))
            case MetadataRequest():
                runner.inform(request, metadata_answer(runner.machine.image, args.topics, args.known_version))
            case _:
                runner.take(request, request.method, args, session)

    def _metrics(self, machine: ControllerMachine) -> list[object]:
        usage, changes = usage_of(self._server), self._changes
        families = controller_families(
            machine.image, changes, usage, lambda item: machine.is_present(BrokerMember(item))
        )
        return [family.to_wire() for family in families]

    async def _keep_ticking(self) -> None:
        session_s = self.image.settings.broker_session_timeout_ms / 1000
        while True:
            await asyncio.sleep(min(TICK_S, session_s / TICKS_IN_SESSION))
            if self._runner is not None:
                self._runner.tick()

    def _awaited(self) -> dict[tuple[str, int], str] | None:
        """Return the endpoints of replicas that may still come back, with their Ray node ids."""
        found = None if self._runner is None else self._runner.machine.awaited()
        if found is None:
            return None
        brokers = self.image.brokers
        return {place: brokers[broker].node_id if broker in brokers else "" for place, broker in found.items()}

    def _on_dead(self, endpoints: frozenset[tuple[str, int]]) -> None:
        self._running().feed(ctl.EndpointsDead(cause="endpoint dead", now_ms=monotonic_ms(), endpoints=endpoints))

    # ------------------------------------------------------------ called by the log

    def on_committed(self, end: int) -> None:
        """Carry out the effects of records below ``end``."""
        self._committed.set()
        if self._runner is not None:
            self._runner.release()

    def on_confirmed(self) -> None:
        """Send the answers that waited for a majority's confirmation."""
        if self._runner is not None:
            self._runner.release()

    def on_failed(self, reason: str) -> None:
        """End the process, because no further record can be committed."""
        self._on_fatal(reason)

    def on_voters(self, voters: Mapping[str, str]) -> None:
        """Append the new voter configuration to the log."""
        if self._runner is not None:
            self._runner.voters_shown(voters)

    # ------------------------------------------------------------ called by the runner

    def now_ms(self) -> int:
        """Return a monotonic time."""
        return monotonic_ms()

    def notify(self, session: int, method: str, args: Message) -> None:
        """Send a notification over a session that is open."""
        connection = self._connections.get(session)
        if connection is not None and not connection.is_closed:
            connection.notify(method, args)

    def close_session(self, session: int, reason: str) -> None:
        """Close a session's connection."""
        connection = self._connections.get(session)
        if connection is not None:
            connection.close(reason)

    def start_coordinator(self, kind: str, index: int) -> None:
        """Make a coordinator's actor if there is none."""
        self._start_coordinator(kind, index)

    def end_coordinator(self, kind: str, index: int) -> None:
        """End a coordinator's actor for good."""
        self._end_coordinator(kind, index)

    def warn(self, warning: str) -> None:
        """Log a warning."""
        logger.warning("%s", warning)
