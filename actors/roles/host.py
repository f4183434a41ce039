"""What a leader's role may use: its own log as a client would, other partitions, the controller, the clocks.

``actors/replica/leader_roles.py`` makes one :class:`RoleHost` for each leadership. When the leadership ends, the host's
tasks are cancelled and its calls refused, so that a role does nothing in a leader epoch that is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

from raylog.actors.clock import monotonic_ms, wall_ms
from raylog.actors.roles.local import LocalRequest
from raylog.actors.roles.targets import Targets
from raylog.base.errors import NotLeaderOrFollower
from raylog.base.ids import TopicPartition
from raylog.protocol.admin import (
    DESCRIBE_CLUSTER,
    ENSURE_INTERNAL_TOPIC,
    DescribeClusterRequest,
    EnsureInternalTopicReply,
    EnsureInternalTopicRequest,
)
from raylog.protocol.broker import METADATA, MetadataReply, MetadataRequest
from raylog.protocol.controller import ALLOCATE_PRODUCER_IDS, AllocateProducerIdsRequest
from raylog.protocol.replica import (
    DELETE_RECORDS,
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    DeleteRecordsReply,
    DeleteRecordsRequest,
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    ProduceReply,
    ProduceRequest,
)
from raylog.rpc import Reply

APPEND_TIMEOUT_MS: Final = 5_000
CONTROLLER_TIMEOUT_S: Final = 5.0
ALL: Final = -1

ReplyT = TypeVar("ReplyT")


class OwnLog(Protocol):
    """What a role may read of its partition's log without a fetch."""

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets; records below it may not be committed yet."""

    @property
    def size_bytes(self) -> int:
        """Size of the log in bytes."""

    def read(self, offset: int, max_bytes: int, upper: int) -> Any:
        """Return whole batches from ``offset`` on that end at or below ``upper``; the role has fetched them before."""

    def read_part(self, offset: int, start: int, size: int) -> bytes:
        """Return up to ``size`` bytes of the batch that holds an offset, from its byte ``start`` on, unverified."""


class ControllerCalls(Protocol):
    """The replica's link to the controller."""

    async def call(self, method: str, args: object, *, timeout_s: float) -> Reply:
        """Call the controller; raises RaylogError."""


class RoleHost:
    """What the roles of one leadership may use."""

    def __init__(
        self,
        *,
        partition: TopicPartition,
        topic_id: str,
        broker: int,
        leader_epoch: int,
        log: OwnLog,
        config: Callable[[], Mapping[str, str]],
        trusted_ms: Callable[[], int],
        receive: Callable[[LocalRequest], None],
        controller: ControllerCalls,
        targets: Targets,
        on_failed: Callable[[str], None],
    ) -> None:
        """``receive`` takes a request as if it had come over the network. ``on_failed`` must end the process.

        ``config`` returns the topic's present settings, ``trusted_ms`` the time of day that the process trusts.
        """
        self.partition = partition
        self.topic_id = topic_id
        self.broker = broker
        self.leader_epoch = leader_epoch
        self.log = log
        """The replica's log, for reading only; to append, call :meth:`produce`."""
        self.targets = targets
        self._config = config
        self.trusted_ms: Final = trusted_ms
        """Returns the time of day as it goes on from before a jump of the wall clock."""
        self._receive = receive
        self._controller = controller
        self._on_failed = on_failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    @property
    def config(self) -> Mapping[str, str]:
        """The topic's present settings."""
        return self._config()

    @property
    def is_over(self) -> bool:
        """Whether the leadership has ended."""
        return self._is_over

    def now_ms(self) -> int:
        """Return the time of a monotonic clock, in milliseconds."""
        return monotonic_ms()

    def wall_ms(self) -> int:
        """Return the time of day, in milliseconds since 1970; it may jump."""
        return wall_ms()

    # ------------------------------------------------------------ the own log

    async def produce(self, batch: bytes, *, timeout_ms: int = APPEND_TIMEOUT_MS) -> ProduceReply:
        """Append a batch to the own log; returns when every in-sync replica has it.

        Raises NotLeaderOrFollower when the leadership is over, RequestTimedOut when the outcome is not known.
        """
        args = ProduceRequest(self.topic_id, self.partition.partition, self.leader_epoch, ALL, timeout_ms)
        reply, _ = await self._call(LocalRequest(PRODUCE.name, args, batch))
        return _of(ProduceReply, reply)

    async def fetch(
        self, offset: int, *, max_bytes: int, max_wait_ms: int, isolation_level: int = 0
    ) -> tuple[FetchReply, bytes]:
        """Return batches of the own log below the high watermark; waits for the first one up to ``max_wait_ms``.

        Raises OffsetOutOfRange, NotLeaderOrFollower and errors of the log.
        """
        args = FetchRequest(
            self.topic_id,
            self.partition.partition,
            self.leader_epoch,
            offset,
            max_bytes,
            1,
            max_wait_ms,
            isolation_level,
        )
        reply, records = await self._call(LocalRequest(FETCH.name, args))
        return _of(FetchReply, reply), records

    async def list_offsets(self, timestamp: int) -> ListOffsetsReply:
        """Return the first offset at or after a time, or of a special position such as EARLIEST (``base.ids``)."""
        args = ListOffsetsRequest(self.topic_id, self.partition.partition, self.leader_epoch, timestamp)
        reply, _ = await self._call(LocalRequest(LIST_OFFSETS.name, args))
        return _of(ListOffsetsReply, reply)

    async def delete_records(self, before_offset: int, *, timeout_ms: int = APPEND_TIMEOUT_MS) -> int:
        """Delete the records below an offset; returns the lowest log start offset of the replicas."""
        args = DeleteRecordsRequest(
            self.topic_id, self.partition.partition, self.leader_epoch, before_offset, timeout_ms
        )
        reply, _ = await self._call(LocalRequest(DELETE_RECORDS.name, args))
        return _of(DeleteRecordsReply, reply).low_watermark

    async def _call(self, request: LocalRequest) -> tuple[Any, bytes]:
        if self._is_over:
            raise NotLeaderOrFollower(f"{self.partition} on broker {self.broker} leads no longer.")
        self._receive(request)
        return await request.answer

    # ------------------------------------------------------------ the cluster

    async def call_controller(self, method: str, args: object) -> Reply:
        """Call the controller. Raises its refusals with ``is_remote`` set, and other RaylogError without an answer."""
        return await self._controller.call(method, args, timeout_s=CONTROLLER_TIMEOUT_S)

    async def metadata(self, topics: list[str]) -> MetadataReply:
        """Return the controller's metadata of topics. Raises as :meth:`call_controller`."""
        return METADATA.read_reply((await self.call_controller(METADATA.name, MetadataRequest(topics))).args)

    async def clocks(self) -> tuple[list[int], int]:
        """Return the times of day of the brokers that answer (ms since 1970), and the number of registered brokers."""
        reply = await self.call_controller(DESCRIBE_CLUSTER.name, DescribeClusterRequest())
        brokers = DESCRIBE_CLUSTER.read_reply(reply.args).brokers
        online = [(broker.host, broker.port) for broker in brokers if broker.online and broker.port]
        return await self.targets.clocks(online), len(brokers)

    async def producer_id(self) -> int:
        """Return a producer id that no other process has."""
        reply = await self.call_controller(ALLOCATE_PRODUCER_IDS.name, AllocateProducerIdsRequest(1))
        return ALLOCATE_PRODUCER_IDS.read_reply(reply.args).first

    async def ensure_topic(self, topic: str) -> EnsureInternalTopicReply:
        """Return an internal topic; it is created on first use."""
        reply = await self.call_controller(ENSURE_INTERNAL_TOPIC.name, EnsureInternalTopicRequest(topic))
        return ENSURE_INTERNAL_TOPIC.read_reply(reply.args)

    # ------------------------------------------------------------ tasks

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task until the leadership ends. An error that it raises ends the process.

        A task that answers a request therefore runs in :func:`raylog.actors.answering.answering`, so that one sender's
        request cannot end the process that serves all others.
        """
        task = asyncio.create_task(work, name=f"{self.partition} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._is_over or task.cancelled():
            return
        error = task.exception()
        if isinstance(error, NotLeaderOrFollower):
            return  # the leadership ends, and the replica learns that soon
        if error is not None:
            self._on_failed(f"{self.partition}: {task.get_name()} failed: {error!r}")

    def close(self) -> None:
        """Refuse all calls from now on: the leadership is over."""
        self._is_over = True

    async def end(self) -> None:
        """Cancel all tasks, wait for them, and close the connections."""
        self._is_over = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.targets.close()


def _of(kind: type[ReplyT], reply: object) -> ReplyT:
    if not isinstance(reply, kind):
        raise TypeError(f"The replica answered {reply!r} where {kind.__name__} was due.")
    return reply
