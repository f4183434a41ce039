"""The shell of a broker: the lock of a data directory, a copy of the metadata, and answers for clients.

Runs in a ``Broker`` actor. It also keeps the replica actors of its directory in line with the metadata
(``supervisor.py``). If it dies, replicas keep running: Ray restarts it, and it takes the lock again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from raylog.actors.actor_specs import BrokerSpec
from raylog.actors.answering import spoiled
from raylog.actors.beats.beat_memory import pages_name
from raylog.actors.broker.capacity import capacity
from raylog.actors.broker.sleepers import Sleepers
from raylog.actors.broker.supervisor import ReplicaFactory, ReplicaSupervisor
from raylog.actors.broker.voters_note import VotersNote
from raylog.actors.broker.vouching import Vouching
from raylog.actors.clock import wall_ms
from raylog.actors.controller.answers import coordinator_index, metadata_answer
from raylog.actors.controller_link import ControllerLink, FindController
from raylog.actors.listening import KEPT_FILE, keep_settings, kept_values, open_endpoint
from raylog.actors.metadata.voter_files import make_founder
from raylog.actors.metadata.voter_host import VoterHost
from raylog.actors.metrics.broker import BrokerLooks, BrokerMetrics
from raylog.actors.permissions import NO_TOPIC, NamedTopic, permissions
from raylog.actors.resting import NEVER, Resting
from raylog.actors.settings import session_heartbeat_s, vouching_pace
from raylog.actors.transport import listen, secrets_for_clients
from raylog.base.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    CoordinatorNotAvailable,
    NotController,
    RaylogError,
    RequestTimedOut,
    UnsupportedVersion,
)
from raylog.base.features import SUPPORTED
from raylog.base.ids import NO_INCARNATION, NO_LEADER, BrokerId
from raylog.core.configuration.config import ClusterConfig, TopicConfig
from raylog.core.controller.coordinators import topic_behind
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import record_from_wire
from raylog.core.metadata.touched import Touched
from raylog.core.queues.origins import OF as RETRY_OF
from raylog.protocol.admin import DESCRIBE_CLUSTER, DescribeClusterRequest
from raylog.protocol.broker import (
    BROKER,
    BrokerMetricsRequest,
    ClockReply,
    ClockRequest,
    FindCoordinatorReply,
    FindCoordinatorRequest,
    InitProducerIdReply,
    InitProducerIdRequest,
    MetadataRequest,
)
from raylog.protocol.controller import (
    ALLOCATE_PRODUCER_IDS,
    ENSURE_COORDINATOR,
    REGISTER_BROKER,
    AllocateProducerIdsRequest,
    EnsureCoordinatorRequest,
    RegisterBrokerRequest,
)
from raylog.protocol.notifications import BROKER_SESSION, MetadataUpdate
from raylog.protocol.replica import LEADER_METHODS
from raylog.rpc import Connection, Grant, Request, TooManyPendingCalls
from raylog.storage.batch.header import LASTING_PRODUCERS, claims_of
from raylog.storage.directory import DataDirectory

logger = logging.getLogger(__name__)

FORWARD_TIMEOUT_S: Final = 10.0
COORDINATOR_START_S: Final = 4.0
"""How long a request for a coordinator waits here until the coordinator has started; then the client tries again."""
REGISTER_TIMEOUT_S: Final = 5.0
REFUSED_PAUSE_S: Final = 5.0
"""How long a broker whose release is too old waits before it retries the registration."""
PRODUCER_ID_BLOCK: Final = 1000
LEADER_NAMES: Final = frozenset(method.name for method in LEADER_METHODS)


class BrokerServer:
    """One broker, from taking its directory to shutdown."""

    def __init__(
        self,
        spec: BrokerSpec,
        *,
        find_controller: FindController,
        factory: ReplicaFactory,
        on_fatal: Callable[[str], None],
        resting: Resting = NEVER,
    ) -> None:
        """``factory`` makes and ends replica actors; ``on_fatal`` ends the process; ``resting``: replicas to stop."""
        self.spec = spec
        self.image = MetadataImage()
        self._incarnation = int(NO_INCARNATION)
        self._directory: DataDirectory | None = None
        self._registered = asyncio.Event()
        self._refusal = ""
        """Why the cluster refuses this broker for good; empty = it does not."""
        self._settled = asyncio.Event()
        """Set once the broker is registered or refused for good."""
        self._updated = asyncio.Event()
        self._producer_ids: list[int] = []
        self._producer_id_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        allowed = replace(
            permissions(BROKER, named=self._named, claims_of=claims_of),
            message_bytes=self._message_bytes,
        )
        self._server = listen(self._on_request, spec, allowed)
        self.endpoint: tuple[str, int] = ("", 0)
        self._factory = factory
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
                dozing=resting.dozing,
            )
        )
        self._note = VotersNote(spec.folder)
        self._listeners = spec.folder / KEPT_FILE
        self._sleepers = Sleepers(lambda: self.image, lambda: self.broker, lambda: self._link)
        self.resting = resting
        self._vouching = Vouching(resting=resting)
        self._link = ControllerLink(
            find_controller,
            name=f"broker on {spec.folder}",
            secret=spec.secret,
            register=self._register,
            handler=self._on_controller_message,
            heartbeat_s=session_heartbeat_s({}),
            on_superseded=on_fatal,
            on_change=self._sleepers.link_changed,
            report=self._vouching.report,
            on_answered=self._vouching.confirmed,
        )

    async def start(self) -> None:
        """Lock the directory, open the endpoint, look for the controller."""
        self._directory = DataDirectory.open(
            self.spec.folder, cluster_id=self.spec.cluster_id, broker_id=self.spec.broker
        )
        self._vouching.open(pages_name(self._directory.directory_id, self.spec.folder))
        self.endpoint = await open_endpoint(
            self._server,
            self.spec,
            name="this broker" if self.broker < 0 else f"broker {self.broker}",
            config={**kept_values(self._listeners), **self.spec.listeners},
            kept=self._listeners,
            is_broker=True,
        )
        self._sleepers.start()
        self._link.start()

    async def stop(self) -> None:
        """Stop serving and release the directory; the replicas stay."""
        await self._link.stop()
        await self._sleepers.stop()
        self._vouching.close()
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
        """The broker's id; -1 before a new directory gets one."""
        known = None if self._directory is None else self._directory.broker_id
        return int(NO_LEADER) if known is None else known

    def replicas(self) -> tuple[int, int, int]:
        """Return how many of this broker's replicas are awake, how many doze, and how many are asleep."""
        me, dozing = BrokerId(self.broker), self.resting.dozing_count()
        asleep = sum(state.asleep is not None and me in state.replicas for state in self.image.partitions())
        return max(0, self.image.awake[me] - dozing), dozing, asleep

    @property
    def brokers_here(self) -> int:
        """How many running brokers share this machine, this one included."""
        return self.image.sharing(BrokerId(self.broker))

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
        """How many spare replicas to keep; 0 before the registration, and on a broker that was stopped on purpose."""
        if not self._registered.is_set() or self.image.is_stopped(BrokerId(self.broker)):
            return 0
        return ClusterConfig.from_dict(self.image.config).replica_spares

    def found(self, broker: int) -> int:
        """Mark the directory as a founder's, with this id if it has none; returns its id. Only for a new cluster."""
        if self._directory is not None:
            make_founder(self.spec.folder)
            if self._directory.broker_id is None:
                self._directory.assign_broker(broker)
        return self.broker

    async def wait_registered(self, timeout_s: float) -> None:
        """Wait until the controller has registered this broker. Raises TimeoutError.

        Raises UnsupportedVersion when this release does not support the cluster's feature level.
        """
        async with asyncio.timeout(timeout_s):
            await self._settled.wait()
        if self._refusal:
            raise UnsupportedVersion(self._refusal)

    def connection_info(self) -> dict[str, object]:
        """Return what a client in this Ray cluster needs to connect; works while the controller restarts."""
        brokers = [[broker.broker, broker.host, broker.port] for broker in self.image.online_brokers()]
        host, port = self.endpoint
        return {
            "cluster_id": self.image.cluster_id,
            **secrets_for_clients(self.spec.secret),
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
            # The replicas of this broker stay down as well. Upgrading this machine ends the process.
            await asyncio.sleep(REFUSED_PAUSE_S)
            raise

    async def _enter(self, directory: DataDirectory, connection: Connection) -> None:
        host, port = self.endpoint
        reply = await connection.call(
            REGISTER_BROKER.name,
            RegisterBrokerRequest(
                broker=NO_LEADER if directory.broker_id is None else directory.broker_id,
                incarnation=self._incarnation,
                node_id=self.spec.node_id,
                host=host,
                port=port,
                directory_id=directory.directory_id,
                cluster_id=directory.cluster_id,
                lowest_level=SUPPORTED.lowest,
                highest_level=SUPPORTED.highest,
                capacity=capacity().to_row(),
            ),
            timeout_s=REGISTER_TIMEOUT_S,
        )
        registered = REGISTER_BROKER.read_reply(reply.args)
        self._refusal = ""
        directory.assign_broker(registered.broker)
        self._incarnation = registered.incarnation
        image = MetadataImage.restore(registered.version, [record_from_wire(row) for row in registered.snapshot])
        self.image = image
        self.metrics.begin(image)
        self._updated.set()
        self._note.update(image.voters)
        keep_settings(self._listeners, image.config)
        # Only now is the cluster's configuration known; its sessions may be shorter than the default heartbeat.
        self._link.heartbeat_s = session_heartbeat_s(image.config)
        pace = vouching_pace(image.config)
        self._vouching.begin(registered.controller_epoch, pace)
        self._registered.set()
        self._settled.set()
        if self._supervisor is None:
            self._supervisor = ReplicaSupervisor(self.spec, registered.broker, self._factory, self._newest_image)
            self._supervisor.start()
        self._supervisor.reconcile(image)
        self._sleepers.metadata_changed(None)

    def _on_controller_message(self, request: Request) -> None:
        update: MetadataUpdate = BROKER_SESSION.read_request(request.method, request.args)
        from_version, rows = update.from_version, update.records
        if from_version + len(rows) <= self.image.version:
            return
        if from_version != self.image.version:
            logger.warning("metadata at %d, update from %d; reading it again", self.image.version, from_version)
            request.connection.close(f"metadata has a gap: at {self.image.version}, update from {from_version}")
            return
        touched = Touched()
        for row in rows:
            record = record_from_wire(row)
            self.metrics.note(record)
            self.image.apply(record)
            touched.note((record,))
        self._updated.set()
        self._note.update(self.image.voters)
        if self._supervisor is not None:
            self._supervisor.reconcile(self.image, touched)
        self._sleepers.metadata_changed(touched.among(self.image))

    async def _newest_image(self) -> MetadataImage:
        """Return metadata as new as the controller's now, or newer. Raises RaylogError, TimeoutError."""
        async with asyncio.timeout(FORWARD_TIMEOUT_S):
            reply = await self._link.call(DESCRIBE_CLUSTER.name, DescribeClusterRequest(), timeout_s=FORWARD_TIMEOUT_S)
            version = DESCRIBE_CLUSTER.read_reply(reply.args).version
            while self.image.version < version:
                self._updated.clear()
                await self._updated.wait()
        return self.image

    # ------------------------------------------------------------ clients

    def _named(self, name: str) -> NamedTopic:
        topic = self.image.topics.get(name)
        return NO_TOPIC if topic is None else NamedTopic(topic.topic_id, topic.config.get(RETRY_OF, ""))

    def _message_bytes(self, grant: Grant) -> int:
        """Largest batch of the topics that a token may write to: batches come here while a partition sleeps."""
        topics = [self.image.topics.get(topic.topic) for topic in grant.topics if topic.writes]
        return max((TopicConfig.from_dict(topic.config).max_message_bytes for topic in topics if topic), default=0)

    def _on_request(self, request: Request) -> None:
        match args := BROKER.read_request(request.method, request.args):
            case MetadataRequest():
                self._answer_metadata(request, args)
            case InitProducerIdRequest():
                self._spawn(self._init_producer_id(request, lasting=args.lasting), request)
            case FindCoordinatorRequest():
                self._find_coordinator(request, args.key_type, args.key)
            case ClockRequest():
                request.reply(ClockReply(wall_ms()))
            case BrokerMetricsRequest():
                self._spawn(self._answer_metrics(request), request)
            case _ if request.method in LEADER_NAMES:
                self._sleepers.take(request, args)
            case _ if BROKER.methods[request.method].forwarded:
                self._spawn(self._forward(request), request)
            case _:
                self._voter.on_request(request, args)

    def _answer_metadata(self, request: Request, args: MetadataRequest) -> None:
        if not self._registered.is_set():
            request.fail(_without_controller())
            return
        request.reply(metadata_answer(self.image, args.topics, args.known_version))

    async def _answer_metrics(self, request: Request) -> None:
        request.reply((await self.metrics.report()).to_wire())

    async def _init_producer_id(self, request: Request, *, lasting: bool) -> None:
        async with asyncio.timeout(FORWARD_TIMEOUT_S), self._producer_id_lock:
            if not self._producer_ids:
                reply = await self._link.call(
                    ALLOCATE_PRODUCER_IDS.name,
                    AllocateProducerIdsRequest(PRODUCER_ID_BLOCK),
                    timeout_s=FORWARD_TIMEOUT_S,
                )
                block = ALLOCATE_PRODUCER_IDS.read_reply(reply.args)
                self._producer_ids = list(range(block.first + block.count - 1, block.first - 1, -1))
            producer_id = self._producer_ids.pop()
            request.reply(InitProducerIdReply(producer_id + LASTING_PRODUCERS * lasting, 0))

    def _find_coordinator(self, request: Request, kind: str, key: str) -> None:
        if not self._registered.is_set():  # the number of coordinators is not known
            request.fail(_without_controller())
            return
        topic_behind(kind)  # refuses an unknown kind
        index = coordinator_index(self.image, kind, key)
        found = self.image.coordinators.get((kind, index))
        if found is not None and found.port:
            request.reply(FindCoordinatorReply(index, found.host, found.port))
        else:
            self._spawn(self._ensure_coordinator(request, kind, key, index), request)

    async def _ensure_coordinator(self, request: Request, kind: str, key: str, index: int) -> None:
        await self._link.call(
            ENSURE_COORDINATOR.name, EnsureCoordinatorRequest(kind, index), timeout_s=FORWARD_TIMEOUT_S
        )
        try:
            async with asyncio.timeout(COORDINATOR_START_S):
                while (found := self.image.coordinators.get((kind, index))) is None or not found.port:
                    self._updated.clear()
                    await self._updated.wait()
        except TimeoutError:
            request.fail(CoordinatorNotAvailable(f"The {kind} coordinator {index} is being started; try again."))
        else:
            if coordinator_index(self.image, kind, key) != index:  # the topic was created with other settings
                request.fail(CoordinatorNotAvailable(f"The {kind} coordinator of {key!r} is another one; try again."))
            else:
                request.reply(FindCoordinatorReply(index, found.host, found.port))

    async def _forward(self, request: Request) -> None:
        reply = await self._link.call(request.method, request.args, timeout_s=FORWARD_TIMEOUT_S)
        request.reply(reply.args, reply.payload)

    def _spawn(self, work: Coroutine[Any, Any, None], request: Request) -> None:
        task = asyncio.create_task(_answering(work, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _without_controller() -> NotController:
    return NotController("This broker is still waiting for the controller; try again.")


async def _answering(work: Coroutine[Any, Any, None], request: Request) -> None:
    try:
        await work
    except (RaylogError, OSError) as error:
        if isinstance(error, RaylogError) and (error.is_remote or not isinstance(error, _UNANSWERED)):
            request.fail(error)
            return
        reason = str(error) or type(error).__name__
        request.fail(NotController(f"The controller did not answer ({reason}); it is being restarted, try again."))
    except Exception as defect:  # as in `answering`: it concerns this request alone
        spoiled(request, defect)


_UNANSWERED: Final = (ConnectionFailed, RequestTimedOut, AuthenticationFailed, TooManyPendingCalls)
"""Errors that this broker raises itself when the controller is unreachable."""
