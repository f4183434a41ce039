"""A small Raylog in memory, for the clients' tests: real sockets, real batches, honest answers, faults on demand.

It speaks what brokers and replicas speak: every replica has an endpoint of its own, leaders have epochs, producers are
checked by the storage engine's own `ProducerState`. Only disks, elections and replication are missing: all replicas of
a partition share one log, a test sets the leader, and which appends were replicated before the leader was lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from raylog.actors.permissions import permissions
from raylog.base import errors
from raylog.client.runtime import Runtime
from raylog.core.configuration.altering import ClusterValues
from raylog.core.configuration.config_origins import describe_cluster, describe_topic
from raylog.protocol.admin import (
    ALTER_CLUSTER_CONFIG,
    ALTER_TOPIC_CONFIG,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_CONFIGS,
    ELECT_LEADERS,
    RESUME_BROKER,
    STOP_BROKER,
    CreateTopicReply,
    DescribeClusterReply,
    DescribedBroker,
    ElectedPartition,
    ElectionResult,
    StopBrokerReply,
)
from raylog.protocol.broker import (
    BROKER,
    METADATA,
    FindCoordinatorReply,
    InitProducerIdReply,
    MetadataBroker,
    MetadataPartition,
    MetadataReplica,
    MetadataReply,
    MetadataTopic,
)
from raylog.protocol.groups import GROUP_COORDINATOR
from raylog.protocol.message import Empty
from raylog.protocol.method import Endpoint
from raylog.protocol.replica import REPLICA
from raylog.protocol.transactions import TRANSACTION_COORDINATOR
from raylog.rpc import Permissions, Request, RequestConnection, RpcServer, Secret
from raylog.storage.batch.header import claims_of
from tests.unit.client.toy_partition import Fault, ToyPartition
from tests.unit.client.toy_replica import ToyReplica

GIVEN = ClusterValues({"num.partitions": "4"}, {"num.partitions": "4"}, {})
"""The cluster's settings, as its start gave them."""
SECRET = b"toy secret of the tests"
AT_REPLICAS = permissions(REPLICA, claims_of=claims_of)
AT_BROKERS = permissions(
    Endpoint.of(
        "broker",
        [method for page in (BROKER, GROUP_COORDINATOR, TRANSACTION_COORDINATOR) for method in page.methods.values()],
    ),
    claims_of=claims_of,
)
"""Tokens are guarded as in a real cluster; the endpoints of brokers serve the coordinators' methods, too."""
Result = TypeVar("Result")


@dataclass
class ToyEndpoint:
    """One actor's server, and where it listens."""

    server: RpcServer
    host: str
    port: int


class ToyCluster:
    """The cluster, on a thread and loop of its own. A context manager; tests call its methods from their thread."""

    def __init__(self, brokers: int = 1, secret: Secret = SECRET) -> None:
        self.runtime = Runtime()
        self.secret = secret
        self.broker_ids = list(range(brokers))
        self.brokers: dict[int, ToyEndpoint] = {}
        self.silent_brokers: set[int] = set()
        """Brokers that accept requests and never answer, like one whose machine has lost its power."""
        self.unanswered: list[Request] = []
        self.informants: list[RequestConnection] = []
        """The connections with metadata requests."""
        self.replicas: dict[tuple[str, int, int], ToyEndpoint] = {}
        self.handlers: dict[tuple[str, int, int], ToyReplica] = {}
        """What serves at the endpoints in `replicas`."""
        self.partitions: dict[tuple[str, int], ToyPartition] = {}
        self.topics: dict[str, tuple[str, dict[str, Any]]] = {}
        self.asleep: set[tuple[str, int]] = set()
        """Partitions that sleep: their leaders' brokers serve them, by `extra_methods`."""
        self.leaderless: set[tuple[str, int]] = set()
        """Partitions that have no leader at the moment."""
        self.first_port = 0
        """The first broker's; 0 = any."""
        self.version = 0
        self.settings = GIVEN
        self.producer_ids = 0
        self.stopped: set[int] = set()
        self.extra_methods: dict[str, Callable[[Request], None]] = {}
        """Further methods that every broker endpoint serves, for instance those of a group coordinator."""
        self.requests_seen: list[str] = []
        self.creates_topics = False
        """`auto.create.topics.enable`."""
        self.compares_epochs = True
        """Whether leaders know `offset_for_leader_epoch`; those of the first release do not."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self.runtime.run(self._start(), 10)
        return self

    def __exit__(self, *_: object) -> None:
        self.runtime.run(self._close(), 10)
        self.runtime.stop()

    # Called by tests

    @property
    def bootstrap(self) -> str:
        """For `bootstrap=`."""
        return ",".join(f"{broker.host}:{broker.port}" for broker in self.brokers.values())

    @property
    def options(self) -> dict[str, Any]:
        """For a client's constructor."""
        return {"bootstrap": self.bootstrap, "secret": self.secret}

    def create_topic(
        self, name: str, partitions: int = 1, replication_factor: int | None = None, config: Any = None
    ) -> str:
        """Create a topic; its id."""
        return self.runtime.run(self._create_topic(name, partitions, replication_factor, config), 10)

    def create_partitions(self, name: str, count: int) -> None:
        """Add partitions to a topic, up to `count`."""
        self.runtime.run(self._create_partitions(name, count), 10)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its replicas."""
        self.runtime.run(self._delete_topic(name), 10)

    def do(self, function: Callable[[], Result]) -> Result:
        """Run something on the cluster's loop, so that it happens between two requests."""

        async def call() -> Result:
            return function()

        return self.runtime.run(call(), 10)

    def move_leader(self, topic: str, partition: int, to: int | None = None, *, silently: bool = False) -> int:
        """Elect another replica; what was not replicated is lost. The old leader's connections break unless silent."""
        return self.do(lambda: self._move_leader(self.partitions[topic, partition], to, silently))

    def set_faults(self, topic: str, partition: int, faults: Iterable[Fault]) -> None:
        """What happens to the next produce requests of this partition, one by one."""
        self.do(lambda: self.partitions[topic, partition].faults.extend(faults))

    def release(self, topic: str, partition: int) -> None:
        """Wait until a produce request is held, then answer all that are."""
        self.wait_held(topic, partition)
        self.do(lambda: self._release(self.partitions[topic, partition]))

    def wait_held(self, topic: str, partition: int, timeout_s: float = 10.0) -> None:
        """Wait until a produce request is held."""
        deadline_s = time.monotonic() + timeout_s
        while not self.do(lambda: self.partitions[topic, partition].held):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"No produce request for {topic}-{partition} came within {timeout_s} seconds.")

    def cut_connections(self) -> None:
        """Break every connection there is, of brokers and replicas."""

        def cut() -> None:
            for endpoint in [*self.brokers.values(), *self.replicas.values()]:
                _abort_all(endpoint)

        self.do(cut)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """No process runs. Afterwards brokers are back at their ports, and replicas at others."""
        self.runtime.run(self._stop_all(), 10)
        yield
        self.runtime.run(self._start_all(), 10)

    def move_broker(self, broker: int, successor: Callable[[str, int], object] | None = None) -> None:
        """Stop a broker, and start it at another port; `successor` gets the address that has become free."""
        self.runtime.run(self._move_broker(broker, successor), 10)

    def move_replica(self, place: tuple[str, int, int], successor: Callable[[str, int], object]) -> None:
        """Stop a replica, and start it at another port; `successor` gets the address that has become free."""
        self.runtime.run(self._move_replica(place, successor), 10)

    def stop_broker(self, broker: int) -> None:
        """Stop a broker's metadata endpoint; its replicas go on, as in the real cluster."""
        self.runtime.run(self.brokers.pop(broker).server.close(), 10)

    def records(self, topic: str, partition: int) -> list[tuple[int, bytes | None, bytes | None]]:
        """All stored records as (offset, key, value)."""

        def read() -> list[tuple[int, bytes | None, bytes | None]]:
            rows: list[tuple[int, bytes | None, bytes | None]] = []
            for _, found in self.partitions[topic, partition].columns():
                count = len(found.offsets)
                rows += zip(found.offsets, found.keys or [None] * count, found.values or [None] * count, strict=True)
            return rows

        return self.do(read)

    # Life

    async def _start(self) -> None:
        for broker in self.broker_ids:
            port, self.first_port = self.first_port, 0
            self.brokers[broker] = await self._listen(self._serve_broker, port=port)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        endpoints = [*self.brokers.values(), *self.replicas.values()]
        await asyncio.gather(*(endpoint.server.close() for endpoint in endpoints))

    async def _stop_all(self) -> None:
        await asyncio.gather(*(each.server.close() for each in (*self.brokers.values(), *self.replicas.values())))

    async def _start_all(self) -> None:
        for broker, endpoint in self.brokers.items():
            self.brokers[broker] = await self._listen(self._serve_broker, port=endpoint.port)
        for place, replica in self.handlers.items():
            self.replicas[place] = await self._listen(replica.handle, AT_REPLICAS)

    async def _move_broker(self, broker: int, successor: Callable[[str, int], object] | None) -> None:
        old = self.brokers[broker]
        await old.server.close()
        if successor is not None:
            successor(old.host, old.port)
        self.brokers[broker] = await self._listen(self._serve_broker)
        self.version += 1

    async def _move_replica(self, place: tuple[str, int, int], successor: Callable[[str, int], object]) -> None:
        old = self.replicas[place]
        await old.server.close()
        successor(old.host, old.port)
        self.replicas[place] = await self._listen(self.handlers[place].handle, AT_REPLICAS)
        self.version += 1

    async def _listen(
        self, handler: Callable[[Request], None], allowed: Permissions = AT_BROKERS, port: int = 0
    ) -> ToyEndpoint:
        server = RpcServer(handler, secret=self.secret, permissions=allowed, port=port)
        host, port = await server.start()
        return ToyEndpoint(server, host, port)

    async def _create_topic(self, name: str, partitions: int, factor: int | None, config: Any) -> str:
        if name in self.topics:
            raise errors.TopicAlreadyExists(f"Topic {name!r} exists.")
        topic_id = f"{len(self.topics) + self.version * 1000 + 1:032x}"
        for number in range(partitions):
            await self._create_partition(topic_id, name, number, factor)
        self.topics[name] = (topic_id, dict(config or {}))
        self.version += 1
        return topic_id

    async def _create_partition(self, topic_id: str, name: str, number: int, factor: int | None) -> None:
        count = len(self.broker_ids) if factor is None else factor
        brokers = [self.broker_ids[(number + step) % len(self.broker_ids)] for step in range(count)]
        one = ToyPartition(topic_id, name, number, brokers, leader=brokers[0])
        for broker in brokers:
            replica = ToyReplica(one, broker, own=self._own, compared=self._compared)
            self.handlers[name, number, broker] = replica
            self.replicas[name, number, broker] = await self._listen(replica.handle, AT_REPLICAS)
        self.partitions[name, number] = one

    async def _create_partitions(self, name: str, count: int) -> None:
        topic_id = self.topics[name][0]
        known = [number for topic, number in self.partitions if topic == name]
        factor = len(self.partitions[name, 0].replicas)
        for number in range(len(known), count):
            await self._create_partition(topic_id, name, number, factor)
        self.version += 1

    async def _delete_topic(self, name: str) -> None:
        if self.topics.pop(name, None) is None:
            raise errors.UnknownTopicOrPartition(f"There is no topic {name!r}.")
        self.version += 1
        for place in [place for place in self.replicas if place[0] == name]:
            await self.replicas.pop(place).server.close()
        for found in [found for found in self.partitions if found[0] == name]:
            del self.partitions[found]

    def _move_leader(self, one: ToyPartition, to: int | None, silently: bool) -> int:
        old = one.leader
        others = [broker for broker in one.replicas if broker != old] or one.replicas
        one.leader = others[0] if to is None else to
        one.leader_epoch += 1
        one.forget_unreplicated()
        one.held.clear()
        self.version += 1
        if not silently:
            _abort_all(self.replicas[one.topic, one.partition, old])
        return one.leader

    def _release(self, one: ToyPartition) -> None:
        held, one.held = one.held, []
        one.advance()
        for request, answer in held:
            request.reply(answer)

    # The broker's methods

    def _serve_broker(self, request: Request) -> None:
        self.requests_seen.append(request.method)
        silent = [link for broker in self.silent_brokers for link in self.brokers[broker].server.connections]
        if any(request.connection is link for link in silent):
            self.unanswered.append(request)
            return
        method: Callable[[Request], None] | None = getattr(self, f"_on_{request.method}", None)
        method = method or self.extra_methods.get(request.method)
        if method is None:
            raise errors.InvalidRequest(f"There is no method {request.method!r}.")
        try:
            method(request)
        except errors.RaylogError as error:
            request.fail(error)

    def _on_metadata(self, request: Request) -> None:
        self.informants.append(request.connection)
        wanted_now = METADATA.read_request(request.args)
        if wanted_now.known_version == self.version:
            request.reply(MetadataReply("toy", self.version, (), (), self.creates_topics, is_unchanged=True))
            return
        wanted = wanted_now.topics
        names = list(self.topics) if wanted is None else wanted
        brokers = [
            MetadataBroker(broker, item.host, item.port, f"node-{broker}") for broker, item in self.brokers.items()
        ]
        topics = [self._describe(name) for name in names]
        request.reply(MetadataReply("toy", self.version, brokers, topics, self.creates_topics))

    def _describe(self, name: str) -> MetadataTopic:
        if name not in self.topics:
            code = errors.UnknownTopicOrPartition.code
            return MetadataTopic(code, "", name, is_internal=False, partitions=[], config={})
        topic_id, config = self.topics[name]
        rows = []
        for partition in [partition for partition in self.partitions.values() if partition.topic == name]:
            places = [(broker, self.replicas[name, partition.partition, broker]) for broker in partition.replicas]
            is_asleep = (name, partition.partition) in self.asleep
            leader = self.replicas.get((name, partition.partition, partition.leader))
            leader = self.brokers.get(partition.leader) if is_asleep else leader
            leader = None if (name, partition.partition) in self.leaderless else leader
            host, port = (leader.host, leader.port) if leader is not None else ("", 0)
            reached = [MetadataReplica(broker, place.host, place.port) for broker, place in places]
            row = MetadataPartition(
                partition.partition,
                partition.leader,
                partition.leader_epoch,
                host,
                port,
                partition.replicas,
                partition.replicas,
                reached,
                is_asleep=is_asleep,
            )
            rows.append(row)
        return MetadataTopic(0, topic_id, name, is_internal=False, partitions=rows, config=config)

    def _on_init_producer_id(self, request: Request) -> None:
        self.producer_ids += 1
        request.reply(InitProducerIdReply(self.producer_ids, 0))

    def _on_create_topic(self, request: Request) -> None:
        wanted = CREATE_TOPIC.read_request(request.args)
        if wanted.validate_only or wanted.assignments:
            raise errors.InvalidRequest("The toy creates topics only the simple way.")
        factor = None if wanted.replication_factor < 1 else wanted.replication_factor
        made = self._create_topic(wanted.topic, max(1, wanted.num_partitions), factor, dict(wanted.configs))
        self._reply_with(request, made, CreateTopicReply)

    def _on_delete_topic(self, request: Request) -> None:
        self._reply_with(request, self._delete_topic(DELETE_TOPIC.read_request(request.args).topic), lambda _: Empty())

    def _on_alter_topic_config(self, request: Request) -> None:
        wanted = ALTER_TOPIC_CONFIG.read_request(request.args)
        if wanted.topic not in self.topics:
            raise errors.UnknownTopicOrPartition(f"There is no topic {wanted.topic!r}.")
        config = self.topics[wanted.topic][1]
        config.update(wanted.set)
        for key in wanted.delete:
            config.pop(key, None)
        self.version += 1
        request.reply(Empty())

    def _on_alter_cluster_config(self, request: Request) -> None:
        wanted = ALTER_CLUSTER_CONFIG.read_request(request.args)
        after = self.settings.alter(wanted.set, wanted.delete, self.topics)
        if not wanted.validate_only:
            self.settings = after
        named = {*wanted.set, *wanted.delete}
        request.reply([list(row) for row in describe_cluster(after, self.topics) if row.name in named])

    def _on_describe_configs(self, request: Request) -> None:
        wanted = DESCRIBE_CONFIGS.read_request(request.args).topic
        if wanted is None:
            request.reply([list(row) for row in describe_cluster(self.settings, self.topics)])
            return
        if wanted not in self.topics:
            raise errors.UnknownTopicOrPartition(errors.did_you_mean("topic", wanted, self.topics))
        own = {key: str(value) for key, value in self.topics[wanted][1].items()}
        request.reply([list(row) for row in describe_topic(own, {"replica.sleep.after.ms": "9000"}, 3)])

    def _on_elect_leaders(self, request: Request) -> None:
        wanted = ELECT_LEADERS.read_request(request.args)
        if wanted.partitions is None and wanted.unclean:
            raise errors.InvalidRequest("Name the partition.")
        rows = []
        for partition in self.partitions.values():
            strayed = partition.topic == "strayed"
            code = 0 if strayed else errors.ElectionNotNeeded.code
            message = "" if strayed else f"{partition.topic}-{partition.partition} is led as it should be."
            if (
                strayed
                if wanted.partitions is None
                else ElectedPartition(partition.topic, partition.partition) in wanted.partitions
            ):
                rows.append(
                    ElectionResult(
                        partition.topic, partition.partition, code, message, partition.leader, partition.leader_epoch
                    )
                )
        request.reply(rows)

    def _on_stop_broker(self, request: Request) -> None:
        wanted = STOP_BROKER.read_request(request.args)
        if not wanted.force:
            raise errors.StopRefused(f"Broker {wanted.broker} was not stopped: --force", leaderless=["flights-0"])
        self.stopped.add(wanted.broker)
        request.reply(StopBrokerReply(1, ["flights-0"], []))

    def _on_resume_broker(self, request: Request) -> None:
        self.stopped.discard(RESUME_BROKER.read_request(request.args).broker)
        request.reply(Empty())

    def _on_describe_cluster(self, request: Request) -> None:
        brokers = [
            DescribedBroker(
                broker=broker, host=item.host, port=item.port, node_id=f"node-{broker}", stopped=broker in self.stopped
            )
            for broker, item in self.brokers.items()
        ]
        request.reply(
            DescribeClusterReply(cluster_id="toy", version=self.version, config={}, controller_epoch=1, brokers=brokers)
        )

    def _on_find_coordinator(self, request: Request) -> None:
        one = next(iter(self.brokers.values()))
        request.reply(FindCoordinatorReply(0, one.host, one.port))

    def _reply_with(self, request: Request, work: Any, shape: Callable[[Any], Any]) -> None:
        async def answer() -> None:
            try:
                request.reply(shape(await work))
            except errors.RaylogError as error:
                request.fail(error)

        self._own(answer())

    def _own(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _compared(self, method: str) -> bool:
        """A client compares epochs; whether leaders know this request."""
        if self.compares_epochs:
            self.requests_seen.append(method)
        return self.compares_epochs


def _abort_all(endpoint: ToyEndpoint) -> None:
    for connection in list(endpoint.server.connections):
        connection.abort("cut by the test")


def serve(topics: dict[str, int], announce: Callable[[str], None], wait: Callable[[], object]) -> None:
    """Serve in this process until `wait` returns; `announce` gets the bootstrap address. For benchmarks."""
    with ToyCluster() as cluster:
        for name, partitions in topics.items():
            cluster.create_topic(name, partitions)
        announce(cluster.bootstrap)
        wait()
