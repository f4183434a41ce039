"""The shell of a broker: the lock of a data directory, a copy of the metadata, and answers for clients.

Runs in a ``Broker`` actor. It also keeps the replica actors of its directory in line with the metadata
(``supervisor.py``). Its death disturbs no replica: Ray restarts it, it takes the lock again and goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from raylog.actors import permissions
from raylog.actors.arguments import Check, arguments, each, optional, text
from raylog.actors.controller_link import ControllerLink, FindController
from raylog.actors.controller_requests import (
    ALTER_REASSIGNMENTS,
    ALTER_TOPIC_CONFIG,
    CREATE_PARTITIONS,
    CREATE_TOPIC,
    DELETE_TOPIC,
    ELECT_LEADERS,
    RAISE_FEATURE_LEVEL,
    RESUME_BROKER,
    STOP_BROKER,
)
from raylog.actors.metadata_answers import coordinator_index, metadata_answer
from raylog.actors.metrics.broker import BrokerLooks, BrokerMetrics
from raylog.actors.settings import session_heartbeat_s
from raylog.actors.specs import BrokerSpec
from raylog.actors.supervisor import ReplicaSupervisor, ReplicaWorkshop
from raylog.actors.transport import client_secret, listen
from raylog.actors.voter import VOTER_METHODS
from raylog.actors.voter_files import make_founder
from raylog.actors.voter_host import VoterHost
from raylog.actors.voters_note import VotersNote
from raylog.core.config import ClusterConfig
from raylog.core.controller.coordinators import topic_behind
from raylog.core.controller.image import MetadataImage
from raylog.core.controller.records import record_from_wire
from raylog.core.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotController,
    RaylogError,
    RequestTimedOut,
    UnsupportedVersion,
)
from raylog.core.features import SUPPORTED
from raylog.core.ids import NO_INCARNATION, NO_LEADER, BrokerId
from raylog.rpc import Connection, Request, TooManyPendingCalls
from raylog.storage.directory import DataDirectory

logger = logging.getLogger(__name__)

FORWARD_TIMEOUT_S: Final = 10.0
REGISTER_TIMEOUT_S: Final = 5.0
REFUSED_PAUSE_S: Final = 5.0
"""How long a broker whose release is too old waits before it asks again."""
PRODUCER_ID_BLOCK: Final = 1000


class BrokerServer:
    """One broker, from taking its directory to shutdown."""

    def __init__(
        self,
        spec: BrokerSpec,
        *,
        find_controller: FindController,
        workshop: ReplicaWorkshop,
        on_fatal: Callable[[str], None],
    ) -> None:
        """``workshop`` makes and ends replica actors; ``on_fatal`` ends the process."""
        self.spec = spec
        self.image = MetadataImage()
        self._incarnation = int(NO_INCARNATION)
        self._directory: DataDirectory | None = None
        self._registered = asyncio.Event()
        self._refusal = ""
        """Why the cluster cannot have this broker, whatever it does; empty = it can."""
        self._settled = asyncio.Event()
        """It is registered, or refused for good."""
        self._updated = asyncio.Event()
        self._producer_ids: list[int] = []
        self._producer_id_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = listen(self._on_request, spec, permissions.BROKER)
        self.endpoint: tuple[str, int] = ("", 0)
        self._workshop = workshop
        self._supervisor: ReplicaSupervisor | None = None
        self._voter = VoterHost(spec.folder)
        self.metrics = BrokerMetrics(
            BrokerLooks(
                folder=spec.folder,
                secret=spec.secret,
                server=self._server,
                broker=lambda: self.broker,
                image=lambda: self.image,
                is_registered=lambda: self._link.is_connected,
            )
        )
        self._note = VotersNote(spec.folder)
        self._link = ControllerLink(
            find_controller,
            name=f"broker on {spec.folder}",
            secret=spec.secret,
            register=self._register,
            handler=self._on_controller_message,
            heartbeat_s=session_heartbeat_s({}),
            on_superseded=on_fatal,
        )

    async def start(self) -> None:
        """Lock the directory, open the endpoint, look for the controller."""
        self._directory = DataDirectory.open(
            self.spec.folder, cluster_id=self.spec.cluster_id, broker_id=self.spec.broker
        )
        self.endpoint = await self._server.start()
        self._link.start()

    async def stop(self) -> None:
        """Stop answering and let the directory go; the replicas stay."""
        await self._link.stop()
        if self._supervisor is not None:
            await self._supervisor.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()
        self.metrics.close()
        await self._voter.close()
        await self._note.close()
        if self._directory is not None:
            self._directory.close()
            self._directory = None

    @property
    def broker(self) -> int:
        """The broker's id; -1 before a new directory has been given one."""
        known = None if self._directory is None else self._directory.broker_id
        return int(NO_LEADER) if known is None else known

    @property
    def is_locked(self) -> bool:
        """Whether this process holds the lock of its data directory."""
        return self._directory is not None

    @property
    def link(self) -> ControllerLink:
        """The connection to the controller."""
        return self._link

    @property
    def spares_wanted(self) -> int:
        """How many spare replicas to keep; none before the cluster is known, or on a broker stopped on purpose."""
        if not self._registered.is_set() or self.image.is_stopped(BrokerId(self.broker)):
            return 0
        return ClusterConfig.from_dict(self.image.config).replica_spares

    def found(self, broker: int) -> int:
        """Make a directory a founder's, with this id if it has none; returns its id. Only before there is a cluster."""
        if self._directory is not None:
            make_founder(self.spec.folder)
            if self._directory.broker_id is None:
                self._directory.assign_broker(broker)
        return self.broker

    async def wait_registered(self, timeout_s: float) -> None:
        """Wait until the controller knows this broker; raises TimeoutError.

        Raises UnsupportedVersion when this release does not know what the cluster uses.
        """
        async with asyncio.timeout(timeout_s):
            await self._settled.wait()
        if self._refusal:
            raise UnsupportedVersion(self._refusal)

    def connection_info(self) -> dict[str, object]:
        """Return what a client in this Ray cluster needs; serves when the controller is being restarted."""
        brokers = [[one.broker, one.host, one.port] for one in self.image.online_brokers()]
        host, port = self.endpoint
        return {
            "cluster_id": self.image.cluster_id,
            "secret": client_secret(self.spec.secret),
            "brokers": brokers or [[self.broker, host, port]],
        }

    # ------------------------------------------------------------ controller

    async def _register(self, connection: Connection) -> None:
        directory = self._directory
        if directory is None:
            raise ConnectionResetError("the broker is stopping")
        try:
            await self._enter(directory, connection)
        except UnsupportedVersion as refusal:
            if refusal.message != self._refusal:
                logger.error("%s", refusal.message)
            self._refusal = refusal.message
            self._settled.set()
            # The replicas here stay down, too. An upgrade of this machine ends the process.
            await asyncio.sleep(REFUSED_PAUSE_S)
            raise

    async def _enter(self, directory: DataDirectory, connection: Connection) -> None:
        host, port = self.endpoint
        reply = await connection.call(
            "register_broker",
            [
                NO_LEADER if directory.broker_id is None else directory.broker_id,
                self._incarnation,
                self.spec.node_id,
                host,
                port,
                directory.directory_id,
                directory.cluster_id,
                *SUPPORTED,
            ],
            timeout_s=REGISTER_TIMEOUT_S,
        )
        incarnation, _, _, version, snapshot, broker = reply.args[:6]
        self._refusal = ""
        directory.assign_broker(broker)
        self._incarnation = incarnation
        image = MetadataImage.restore(version, [record_from_wire(row) for row in snapshot])
        self.image = image
        self.metrics.begin(image)
        self._updated.set()
        self._note.update(image.voters)
        # A broker learns the cluster's configuration here; sessions may be shorter than the default heartbeat.
        self._link.heartbeat_s = session_heartbeat_s(image.config)
        self._registered.set()
        self._settled.set()
        if self._supervisor is None:
            self._supervisor = ReplicaSupervisor(self.spec, broker, self._workshop, self._newest_image)
            self._supervisor.start()
        self._supervisor.reconcile(image)

    def _on_controller_message(self, request: Request) -> None:
        if request.method != "metadata_update":
            request.fail(InvalidRequest(f"A broker knows no message {request.method!r} from the controller."))
            return
        from_version, rows = request.args[:2]
        if from_version + len(rows) <= self.image.version:
            return
        if from_version != self.image.version:
            logger.warning("metadata at %d, update from %d; reading it anew", self.image.version, from_version)
            request.connection.close(f"metadata has a gap: at {self.image.version}, update from {from_version}")
            return
        for row in rows:
            record = record_from_wire(row)
            self.metrics.note(record)
            self.image.apply(record)
        self._updated.set()
        self._note.update(self.image.voters)
        if self._supervisor is not None:
            self._supervisor.reconcile(self.image)

    async def _newest_image(self) -> MetadataImage:
        """Return metadata as new as the controller's now, or newer; raises RaylogError, TimeoutError."""
        async with asyncio.timeout(FORWARD_TIMEOUT_S):
            reply = await self._link.call("describe_cluster", [], timeout_s=FORWARD_TIMEOUT_S)
            version = int(reply.args["version"])
            while self.image.version < version:
                self._updated.clear()
                await self._updated.wait()
        return self.image

    # ------------------------------------------------------------ clients

    def _on_request(self, request: Request) -> None:
        if request.method in VOTER_METHODS:
            self._voter.on_request(request)
            return
        checks = _ARGUMENTS.get(request.method)
        if checks is None:
            raise InvalidRequest(f"A broker knows no method {request.method!r}.")
        args = arguments(request, *checks)
        if request.method == "metadata":
            self._answer_metadata(request, *args)
        elif request.method == "init_producer_id":
            self._spawn(self._init_producer_id(request), request)
        elif request.method == "find_coordinator":
            self._find_coordinator(request, *args)
        elif request.method == "broker_metrics":
            self._spawn(self._answer_metrics(request), request)
        else:
            self._spawn(self._forward(request), request)

    def _answer_metadata(self, request: Request, names: list[str] | None) -> None:
        if not self._registered.is_set():
            request.fail(NotController("This broker is still waiting for the controller; try again."))
            return
        request.reply(metadata_answer(self.image, names))

    async def _answer_metrics(self, request: Request) -> None:
        request.reply((await self.metrics.report()).to_wire())

    async def _init_producer_id(self, request: Request) -> None:
        async with asyncio.timeout(FORWARD_TIMEOUT_S), self._producer_id_lock:
            if not self._producer_ids:
                reply = await self._link.call("allocate_producer_ids", [PRODUCER_ID_BLOCK], timeout_s=FORWARD_TIMEOUT_S)
                first, count = reply.args[:2]
                self._producer_ids = list(range(first + count - 1, first - 1, -1))
            request.reply([self._producer_ids.pop(), 0])

    def _find_coordinator(self, request: Request, kind: str, key: str) -> None:
        topic_behind(kind)  # before the look into the metadata: an earlier release may have entered other kinds
        index = coordinator_index(self.image, key)
        found = self.image.coordinators.get((kind, index))
        if found is not None and found.port:
            request.reply([index, found.host, found.port])
        else:
            self._spawn(self._ensure_coordinator(request, kind, index), request)

    async def _ensure_coordinator(self, request: Request, kind: str, index: int) -> None:
        await self._link.call("ensure_coordinator", [kind, index], timeout_s=FORWARD_TIMEOUT_S)
        request.fail(CoordinatorNotAvailable(f"The {kind} coordinator {index} is being started; try again."))

    async def _forward(self, request: Request) -> None:
        reply = await self._link.call(request.method, request.args, timeout_s=FORWARD_TIMEOUT_S)
        request.reply(reply.args, reply.payload)

    def _spawn(self, work: Coroutine[Any, Any, None], request: Request) -> None:
        task = asyncio.create_task(_answering(work, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _answering(work: Coroutine[Any, Any, None], request: Request) -> None:
    try:
        await work
    except (RaylogError, OSError) as error:
        if isinstance(error, RaylogError) and (error.is_remote or not isinstance(error, _UNANSWERED)):
            request.fail(error)
            return
        reason = str(error) or type(error).__name__
        request.fail(NotController(f"The controller did not answer ({reason}); it is being restarted, try again."))


_UNANSWERED: Final = (ConnectionFailed, RequestTimedOut, AuthenticationFailed, TooManyPendingCalls)
"""What this broker raises itself where the controller cannot be asked."""


_ARGUMENTS: Final[Mapping[str, tuple[Check, ...]]] = {
    "metadata": (optional(each(text)),),
    "init_producer_id": (),
    "find_coordinator": (text, text),
    "broker_metrics": (),
    "create_topic": CREATE_TOPIC,
    "delete_topic": DELETE_TOPIC,
    "alter_topic_config": ALTER_TOPIC_CONFIG,
    "create_partitions": CREATE_PARTITIONS,
    "alter_partition_reassignments": ALTER_REASSIGNMENTS,
    "list_partition_reassignments": (),
    "elect_leaders": ELECT_LEADERS,
    "stop_broker": STOP_BROKER,
    "resume_broker": RESUME_BROKER,
    "describe_cluster": (),
    "raise_feature_level": RAISE_FEATURE_LEVEL,
}
"""What each method takes; those from ``create_topic`` on go on to the controller."""
