"""The shell of the controller: its metadata log, its machine, its endpoint, the sessions of all other actors.

Runs in the ``Controller`` actor (``ray_actors.py``). A session is a connection: when it breaks, the machine is told at
once, which is how a killed leader is replaced within milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from raylog.actors import permissions
from raylog.actors.arguments import arguments, each, optional, text
from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_requests import event_for, heartbeat_event
from raylog.actors.grace_probe import GraceProbe, NodesAlive
from raylog.actors.metadata_answers import cluster_answer, metadata_answer
from raylog.actors.metrics.process import usage_of
from raylog.actors.quorum_log import FindBrokers, FindVoter, QuorumLog
from raylog.actors.settings import controller_settings
from raylog.actors.specs import ControllerSpec
from raylog.actors.transport import client_secret, listen
from raylog.core.config import ClusterConfig
from raylog.core.controller import events as ctl
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.image import MetadataImage
from raylog.core.controller.sessions import BrokerMember
from raylog.core.errors import InconsistentClusterId, NotController
from raylog.core.metrics.changes import PartitionChanges
from raylog.core.metrics.families import controller_families
from raylog.core.outbox import Outbox
from raylog.rpc import Connection, Request, RequestConnection

logger = logging.getLogger(__name__)

TICK_S: Final = 0.1


class ControllerServer:
    """The controller, from replaying its log to shutdown."""

    def __init__(
        self,
        spec: ControllerSpec,
        *,
        start_coordinator: Callable[[str, int], None],
        on_fatal: Callable[[str], None],
        find_voter: FindVoter,
        find_brokers: FindBrokers,
        nodes_alive: NodesAlive | None = None,
    ) -> None:
        """``start_coordinator`` makes the actor for (kind, index) if there is none; ``on_fatal`` ends the process.

        ``nodes_alive`` helps to give up replicas that were lost.
        """
        self.spec = spec
        self._start_coordinator = start_coordinator
        self._on_fatal = on_fatal
        self._find_voter = find_voter
        self._find_brokers = find_brokers
        self._metadata: QuorumLog | None = None
        self._machine: ControllerMachine | None = None
        self._connections: dict[int, Connection] = {}
        self._sessions: dict[RequestConnection, int] = {}
        self._requests: dict[int, Request] = {}
        self._next_number = 1
        self._after_sync: deque[tuple[int, list[ctl.Effect]]] = deque()
        self._committed = asyncio.Event()
        self._changes = PartitionChanges()
        self._tick_task: asyncio.Task[None] | None = None
        self._probe = GraceProbe(self._awaited, self._on_gone, nodes_alive=nodes_alive)
        self._server = listen(self._on_request, spec, permissions.CONTROLLER, on_connect=self._on_connect)
        self.endpoint: tuple[str, int] = ("", 0)

    # ------------------------------------------------------------ life

    async def start(self) -> None:
        """Replay the metadata log, begin a new controller epoch, open the endpoint.

        Raises :class:`InconsistentClusterId` when the log is another cluster's, :class:`DataDirectoryError` when
        another process writes to it or too many voters have lost it, :class:`NotController` when no majority of voters
        is there, and storage errors.
        """
        self._metadata = self._store()
        try:
            await self._begin(self._metadata)
        except BaseException:  # whatever it was, the log must not stay locked by a controller that does not run
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
            snapshot_bytes=ClusterConfig.from_dict(spec.cluster_config).metadata_log_max_record_bytes_between_snapshots,
        )

    async def _begin(self, metadata: QuorumLog) -> None:
        image, epoch = await metadata.open(self)
        if image.cluster_id not in ("", self.spec.cluster_id):
            raise InconsistentClusterId(
                f"The brokers hold the metadata of cluster {image.cluster_id}, not of {self.spec.cluster_id}; "
                "start with the data directory that belongs to this cluster."
            )
        self._machine = ControllerMachine(
            image,
            settings=controller_settings(
                self.spec.cluster_config,
                cluster_id=self.spec.cluster_id,
                new_topic_id=lambda: uuid.uuid4().hex,
            ),
            now_ms=monotonic_ms(),
            cluster_config=self.spec.cluster_config,
        )
        self._changes.begin(image)
        self._perform(self._machine.start(monotonic_ms(), epoch, metadata.founding))
        # Only now is it certain that what earlier controllers wrote stands, and that no newer one runs.
        async with asyncio.timeout(self.spec.quorum_timeout_s):
            await self._committed.wait()
        self.endpoint = await self._server.start()
        self._tick_task = asyncio.create_task(self._tick_forever(), name="controller ticks")
        self._probe.start()
        for kind, index in sorted(image.coordinators):
            self._start_coordinator(kind, index)
        logger.info("controller ready at version %d on port %d", image.version, self.endpoint[1])

    async def stop(self) -> None:
        """Close the endpoint first, so that nobody is fenced for leaving, then the log."""
        self._machine = None
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
        """The metadata as decided so far; raises :class:`NotController` before the start and after the stop."""
        return self._running().image

    def connection_info(self) -> dict[str, object]:
        """Return what a client in this Ray cluster needs: cluster id, secret and the brokers' endpoints."""
        image = self.image
        online = image.online_brokers()
        present = [one for one in online if self._running().is_present(BrokerMember(one.broker))]
        brokers = [[one.broker, one.host, one.port] for one in present or online]
        stated = {"allow_plaintext": self.spec.allow_plaintext}
        return {"cluster_id": image.cluster_id, "secret": client_secret(self.spec.secret), "brokers": brokers, **stated}

    def status(self) -> dict[str, object]:
        """Return brokers, topics and leaders as plain values."""
        machine = self._running()
        return {**cluster_answer(machine.image, machine.is_present), "hanging_disks": machine.hanging_disks()}

    # ------------------------------------------------------------ sessions

    def _on_connect(self, connection: Connection) -> None:
        session = self._next_number
        self._next_number += 1
        self._connections[session] = connection
        self._sessions[connection] = session
        connection.on_close(self._on_disconnect)

    def _on_disconnect(self, connection: Connection) -> None:
        session = self._sessions.pop(connection, None)
        if session is None:
            return
        self._connections.pop(session, None)
        if self._machine is not None:
            self._feed(ctl.SessionLost(cause="connection lost", now_ms=monotonic_ms(), session=session))

    # ------------------------------------------------------------ events in

    def _running(self) -> ControllerMachine:
        if self._machine is None:
            raise NotController("The controller is not running.")
        return self._machine

    def _feed(self, event: ctl.Event) -> None:
        machine = self._running()
        try:
            outbox = machine.step(event)
        except Exception as defect:  # half a step may have been taken: only the log can tell what holds
            self._on_fatal(f"the controller failed at {event!r:.500}: {defect!r}")
            raise
        self._perform(outbox)

    def _on_request(self, request: Request) -> None:
        session = self._sessions.get(request.connection)
        if session is None:
            return
        machine = self._running()
        if request.method == "heartbeat":
            self._feed(heartbeat_event(request, session, monotonic_ms()))
            request.reply()
            return
        if request.method == "controller_metrics":
            request.reply(self._metrics(machine))
            return
        if request.method == "metadata":
            request.reply(metadata_answer(machine.image, arguments(request, optional(each(text)))[0]))
            return
        number = self._next_number
        self._next_number += 1
        event = event_for(request, session, number, monotonic_ms())
        self._requests[number] = request
        self._feed(event)

    def _metrics(self, machine: ControllerMachine) -> list[object]:
        usage, changes = usage_of(self._server), self._changes
        families = controller_families(machine.image, changes, usage, lambda one: machine.is_present(BrokerMember(one)))
        return [one.to_wire() for one in families]

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._machine is not None:
                self._feed(ctl.Tick(cause="tick", now_ms=monotonic_ms()))

    def _awaited(self) -> dict[tuple[str, int], str] | None:
        """Return the endpoints of replicas that may still come back, with their nodes' ids."""
        found = None if self._machine is None else self._machine.awaited()
        if found is None:
            return None
        brokers = self.image.brokers
        return {place: brokers[broker].node_id if broker in brokers else "" for place, broker in found.items()}

    def _on_gone(self, endpoints: frozenset[tuple[str, int]]) -> None:
        self._feed(ctl.PlacesGone(cause="nobody is there", now_ms=monotonic_ms(), endpoints=endpoints))

    # ------------------------------------------------------------ effects out

    def _perform(self, outbox: Outbox[ctl.Effect]) -> None:
        try:
            for effect in outbox.now:
                self._carry_out(effect)
            if outbox.after_sync:
                self._wait_for_disk(outbox.after_sync)
            self._log().offer(self._running().image)
        except Exception as defect:  # a defect or a failing disk: the controller ends and is restarted from its log
            self._on_fatal(f"the controller could not carry out a decision: {defect!r}")
            raise

    def _log(self) -> QuorumLog:
        if self._metadata is None:
            raise NotController("The controller's log is closed.")
        return self._metadata

    def _wait_for_disk(self, effects: list[ctl.Effect]) -> None:
        log = self._log()
        if log.committed_offset >= log.log_end_offset and not self._after_sync:
            for effect in effects:
                self._carry_out(effect)
        else:
            self._after_sync.append((log.log_end_offset, effects))

    # ------------------------------------------------------------ what the log says

    def on_committed(self, end: int) -> None:
        """Carry out what waited for this: everything below ``end`` can no longer be lost."""
        self._committed.set()
        while self._after_sync and self._after_sync[0][0] <= end:
            for effect in self._after_sync.popleft()[1]:
                self._carry_out(effect)

    def on_failed(self, reason: str) -> None:
        """End: nothing more can be promised."""
        self._on_fatal(reason)

    def on_voters(self, voters: Mapping[str, str]) -> None:
        """Have the log say which copies of it count from now on."""
        if self._machine is not None:
            self._feed(ctl.VotersShown(cause="voters shown", now_ms=monotonic_ms(), voters=voters))

    def _carry_out(self, effect: ctl.Effect) -> None:
        match effect:
            case ctl.WriteRecords():
                self._changes.note(effect.records)
                self._log().append(effect.records, self._running().image.controller_epoch)
            case ctl.Reply():
                request = self._requests.pop(effect.request, None)
                if effect.warning:
                    logger.warning("%s", effect.warning)
                if request is not None:
                    request.reply(effect.result)
            case ctl.Warn():
                logger.warning("%s", effect.warning)
            case ctl.Refuse():
                request = self._requests.pop(effect.request, None)
                if request is not None:
                    request.fail(effect.error)
            case ctl.PublishMetadata():
                wire = [effect.from_version, [record.to_wire() for record in effect.records]]
                for session in effect.sessions:
                    self._notify(session, "metadata_update", wire)
            case ctl.SendPartitionState():
                self._notify(effect.session, "partition_state", [effect.incarnation, effect.state.to_wire()])
            case ctl.StopReplica():
                self._notify(effect.session, "stop_replica", [effect.reason])
            case ctl.CloseSession():
                connection = self._connections.get(effect.session)
                if connection is not None:
                    connection.close(effect.reason)
            case ctl.StartCoordinator():
                self._start_coordinator(effect.kind, effect.index)
            case ctl.WantVoters():
                self._log().want_voters(effect.voters)

    def _notify(self, session: int, method: str, args: list[object]) -> None:
        connection = self._connections.get(session)
        if connection is not None and not connection.is_closed:
            connection.notify(method, args)
