"""`Admin` and `AsyncAdmin`: create, change and describe topics, groups and the cluster.

A change is sent to any broker, which forwards it to the controller. May touch: the network through `ClusterClient`,
one daemon thread.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

import msgspec

from raylog.base.errors import (
    InvalidConfig,
    InvalidPartitions,
    RaylogError,
    RequestTimedOut,
    StillStarting,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    did_you_mean,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.cluster import AsyncClusterAdmin
from raylog.client.admin.descriptions import (
    ConfigEntry,
    TopicDescription,
    describe_topic,
)
from raylog.client.admin.groups import AsyncGroups
from raylog.client.admin.queues import AsyncQueues
from raylog.client.admin.schedules import AsyncSchedules
from raylog.client.admin.tokens import DEFAULT_LIFETIME_S, check_grant, topic_names
from raylog.client.admin.transactions import AsyncTransactionAdmin
from raylog.client.checked import checks_arguments
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.connections import call
from raylog.client.cluster.deadline import Deadline
from raylog.client.cluster.metadata import BrokerInfo
from raylog.client.config import AdminConfig, load, show_keys
from raylog.client.guard import Home, NotPickled
from raylog.client.keywords import AdminKeywords
from raylog.client.progress import Progress, Say
from raylog.client.runtime import SynchronousClient, blocking
from raylog.client.tasks import Ending, outcomes, side_by_side
from raylog.protocol.admin import (
    ALTER_CLUSTER_CONFIG,
    ALTER_TOPIC_CONFIG,
    CREATE_PARTITIONS,
    CREATE_TOPIC,
    DELETE_TOPIC,
    DESCRIBE_CONFIGS,
    WAKE_PARTITIONS,
    AlterClusterConfigRequest,
    AlterTopicConfigRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    DescribeConfigsRequest,
    WakePartitionsRequest,
)
from raylog.protocol.broker import METADATA, MetadataRequest, MetadataTopic
from raylog.protocol.replica import DELETE_RECORDS, DeleteRecordsRequest
from raylog.rpc import Grant, Token, TopicGrant, mint
from raylog.rpc.auth.token_text import token_text
from raylog.rpc.auth.tokens import ALL_PARTITIONS, TokenError

CONTROLLER_DEFAULT = -1
"""In a request to create a topic: use the cluster's default."""
POLL_S = 0.02
_RESET = "name the key in `delete`, and the default counts again"
LAST_LOOK_S = 1.0
"""The least time for the final look at a topic whose last leader started just before the deadline."""


@checks_arguments()
class AsyncAdmin(AsyncClusterAdmin, AsyncGroups, AsyncQueues, AsyncSchedules, AsyncTransactionAdmin, NotPickled):
    """Administration from an event loop. `await start()` and `stop()`, or `async with`.

    Configure it with keyword arguments, or with `config` and its dotted keys: both are those of `raylog.AdminConfig`.
    Every `timeout_s` limits a whole call with all its retries, in seconds; after it the last error is raised.
    """

    _is_inner = False
    """Whether an `Admin` wraps this object; then the `Admin` warns when neither was closed."""

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[AdminKeywords]) -> None:
        self.config = load(AdminConfig, config, keywords)
        self.cluster = ClusterClient(self.config)
        self._is_started = False
        self._home = self.cluster.home = Home("AsyncAdmin")
        self._ending = Ending()

    async def start(self) -> None:
        """Find the cluster. Raises NoClusterFound, ConnectionFailed, AuthenticationFailed."""
        if not self._is_started:
            self._home.enter()
            try:
                await self.cluster.start(self.config.request_timeout_ms / 1000)
            except BaseException:  # cancelled or refused: close the connections already opened
                await self.cluster.close()
                raise
            self._is_started = True

    async def stop(self) -> None:
        """Close the connections. Idempotent."""
        self._home.check()
        if self._home.loop is not None:
            await self._ending.run(self.cluster.close)

    def __del__(self) -> None:
        home = getattr(self, "_home", None)  # none, when its configuration was refused
        if home is None or not self._is_started or self._ending.has_begun or self._is_inner:
            return
        warnings.warn(
            "An AsyncAdmin was not stopped; use `async with`, or await stop().", ResourceWarning, stacklevel=2
        )
        if not home.has_ended and not home.is_of_another_process:
            home.loop.call_soon_threadsafe(_close, self.cluster)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # Topics

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, Any] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
        timeout_s: float = 30.0,
        progress: Say | None = None,
    ) -> TopicDescription:
        """Create a topic and wait until each partition has a leader that every broker knows of.

        `partitions` and `replication_factor` default to the cluster's settings; `assignment` lists the brokers of each
        partition instead. `progress` is called about once a second with a line such as "120 of 300 partitions have a
        leader", if it takes longer than that. Raises TopicAlreadyExists, InvalidTopic, InvalidPartitions,
        InvalidReplicationFactor, InvalidConfig; StillStarting when the topic was created but some of its leaders had
        not started by the deadline: these go on starting.
        """
        _check_values(config, "leave the key out, and the cluster's default counts")
        deadline = Deadline(timeout_s)
        request = CreateTopicRequest(
            name,
            CONTROLLER_DEFAULT if partitions is None else partitions,
            CONTROLLER_DEFAULT if replication_factor is None else replication_factor,
            assignment,
            config or {},
            validate_only=False,
            timeout_ms=int(timeout_s * 1000),
        )
        failures: list[RaylogError] = []
        try:
            await self.cluster.call_broker(CREATE_TOPIC, request, timeout_s=timeout_s, failures=failures)
        except TopicAlreadyExists:
            if not failures:
                raise
            # Our own first attempt may have created it before its answer was lost.
        count = 1 if partitions is None else partitions
        await self._until_everywhere(name, deadline, is_there=True, at_least=count, progress=Progress(progress))
        return await self.describe_topic(name, timeout_s=max(LAST_LOOK_S, deadline.left_s))

    async def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """Delete a topic and its records, and wait until every broker has dropped it.

        Raises UnknownTopicOrPartition; its message suggests the nearest name.
        """
        deadline = Deadline(timeout_s)
        failures: list[RaylogError] = []
        try:
            await self.cluster.call_broker(
                DELETE_TOPIC, DeleteTopicRequest(name), timeout_s=timeout_s, failures=failures
            )
        except UnknownTopicOrPartition as error:
            if not failures:
                known = await self.list_topics(timeout_s=deadline.left_s)
                raise UnknownTopicOrPartition(did_you_mean("topic", name, known), topic=name) from error
        await self._until_everywhere(name, deadline, is_there=False)
        self.cluster.metadata.forget_topics((name,))

    async def list_topics(self, *, internal: bool = False, timeout_s: float = 30.0) -> list[str]:
        """The names of all topics, sorted. `internal=True` includes Raylog's own topics."""
        await self.cluster.refresh(None, timeout_s=timeout_s)
        return sorted(topic.name for topic in self.cluster.metadata.topics.values() if internal or not topic.internal)

    async def describe_topic(self, name: str, *, timeout_s: float = 30.0) -> TopicDescription:
        """One topic as it is now. Raises UnknownTopicOrPartition; its message suggests the nearest name."""
        return (await self.describe_topics([name], timeout_s=timeout_s))[name]

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout_s: float = 30.0
    ) -> dict[str, TopicDescription]:
        """Topics as they are now, by name; `names=None` = all that are not internal. Raises UnknownTopicOrPartition."""
        deadline = Deadline(timeout_s)
        if names is None:
            names = await self.list_topics(timeout_s=deadline.left_s)
        wanted = list(names)
        await self.cluster.refresh(wanted, timeout_s=deadline.left_s)
        return {name: describe_topic(await self.cluster.topic(name, timeout_s=deadline.left_s)) for name in wanted}

    async def alter_topic_config(
        self,
        name: str,
        set: Mapping[str, Any] | None = None,
        delete: Iterable[str] = (),
        timeout_s: float = 30.0,
    ) -> None:
        """Set configuration keys of a topic, and reset those in `delete` to their defaults.

        Raises InvalidConfig, whose message suggests the nearest key; UnknownTopicOrPartition.
        """
        _check_values(set, _RESET)
        request = AlterTopicConfigRequest(name, set or {}, list(delete))
        await self.cluster.call_broker(ALTER_TOPIC_CONFIG, request, timeout_s=timeout_s)

    async def alter_cluster_config(
        self,
        set: Mapping[str, Any] | None = None,
        delete: Iterable[str] = (),
        *,
        validate_only: bool = False,
        timeout_s: float = 30.0,
    ) -> dict[str, ConfigEntry]:
        """Alter settings of the running cluster, all of them or none, and return the altered settings.

        An altered value takes precedence over one from `raylog start --config`, at later starts too. `delete` drops
        altered values: the value given at the start applies again, or else the default. `ConfigEntry.change` says
        whether a change takes effect at once; `ConfigEntry.next` is a value that waits for the cluster's next start.
        `validate_only` checks the changes, and alters nothing.

        Raises InvalidConfig; its message has the nearest key, the legal values, or how to set a key that cannot be
        altered.
        """
        _check_values(set, _RESET)
        request = AlterClusterConfigRequest(set or {}, list(delete), validate_only)
        rows = await self.cluster.call_broker(ALTER_CLUSTER_CONFIG, request, timeout_s=timeout_s)
        return {row.name: ConfigEntry(*msgspec.structs.astuple(row)) for row in rows}

    async def describe_configs(self, topic: str | None = None, *, timeout_s: float = 30.0) -> dict[str, ConfigEntry]:
        """Every setting of a topic by its key, with its effective value and origin; `topic=None` = of the cluster.

        The controller answers, so a change is included once `alter_topic_config` or `alter_cluster_config` has
        returned. Raises UnknownTopicOrPartition; its message suggests the nearest name.
        """
        rows = await self.cluster.call_broker(DESCRIBE_CONFIGS, DescribeConfigsRequest(topic), timeout_s=timeout_s)
        return {row.name: ConfigEntry(*msgspec.structs.astuple(row)) for row in rows}

    async def create_partitions(
        self,
        name: str,
        total: int,
        assignment: Sequence[Sequence[int]] | None = None,
        timeout_s: float = 30.0,
        progress: Say | None = None,
    ) -> TopicDescription:
        """Add partitions until a topic has `total`, and wait until each has a leader that every broker knows of.

        Existing records stay where they are; new records may go to another partition than older ones of their key.
        `assignment` lists the brokers of each new partition; `progress` as in `create_topic`. Raises InvalidPartitions
        unless `total` is more than the topic has now, UnknownTopicOrPartition, InvalidReplicationFactor,
        InvalidRequest; StillStarting as `create_topic` does.
        """
        deadline = Deadline(timeout_s)
        failures: list[RaylogError] = []
        request = CreatePartitionsRequest(name, total, assignment)
        try:
            await self.cluster.call_broker(CREATE_PARTITIONS, request, timeout_s=timeout_s, failures=failures)
        except InvalidPartitions:
            if not failures or len((await self.describe_topic(name, timeout_s=deadline.left_s)).partitions) != total:
                raise
            # Our own first attempt added them before its answer was lost.
        await self._until_everywhere(name, deadline, is_there=True, at_least=total, progress=Progress(progress))
        return await self.describe_topic(name, timeout_s=max(LAST_LOOK_S, deadline.left_s))

    async def wake_partitions(
        self, topic: str, partitions: Iterable[int] | None = None, *, timeout_s: float = 30.0
    ) -> int:
        """Start the replicas of sleeping partitions of a topic (None = of all); return how many were asleep.

        A record sent to a sleeping partition wakes it too. Raises UnknownTopicOrPartition.
        """
        numbers = None if partitions is None else list(partitions)
        request = WakePartitionsRequest(topic, numbers)
        return (await self.cluster.call_broker(WAKE_PARTITIONS, request, timeout_s=timeout_s)).slept

    async def delete_records(
        self, before: Mapping[tuple[str, int], int], timeout_s: float = 30.0
    ) -> dict[TopicPartition, int]:
        """Delete the records before the given offset of each (topic, partition); -1 = all committed records.

        Returns the new low watermarks: no running replica holds records below them, and no later leader will. A
        consumer positioned below the new start follows `auto_offset_reset`. Raises OffsetOutOfRange with the legal
        range, UnknownTopicOrPartition; RequestTimedOut when a replica was too slow, with the low watermark in its
        `details`: the deletion then continues. When several partitions fail, the first error is raised after all have
        ended.
        """
        wanted = {TopicPartition(*where): offset for where, offset in before.items()}
        answers = await outcomes(lambda where: self._delete_records(where, wanted[where], timeout_s), wanted)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return {where: answer for where, answer in zip(wanted, answers, strict=True) if isinstance(answer, int)}

    async def _delete_records(self, where: TopicPartition, before: int, timeout_s: float) -> int:
        # The leader gets a shorter deadline than we have, so that its error arrives: it names the slow replicas.
        leader_ms = max(1, int(timeout_s * 1000 - min(500.0, timeout_s * 100)))

        def request(topic_id: str, number: int, epoch: int) -> DeleteRecordsRequest:
            return DeleteRecordsRequest(topic_id, number, epoch, before, leader_ms)

        reply, _ = await self.cluster.call_leader(*where, DELETE_RECORDS, request, timeout_s=timeout_s)
        return reply.low_watermark

    # Tokens

    async def create_token(
        self,
        *,
        read: Iterable[str] = (),
        write: Iterable[str] = (),
        transactional_id_prefix: str | None = None,
        group: str | None = None,
        lifetime_s: float = DEFAULT_LIFETIME_S,
        timeout_s: float = 30.0,
    ) -> str:
        """Make a token that may read and write these topics for `lifetime_s`: one line of text, for `token=`.

        It covers all partitions of the topics, even those added later, but no topic that is created again under one of
        the names. `transactional_id_prefix`: it may also run transactions whose ids begin with it, and commit offsets
        of the group with exactly that name. `group`: it may also take part in this consumer group, consume the queues
        of that group, and prepare half messages of it. Records that it may write it may also delay.
        Raises UnknownTopicOrPartition, whose message suggests the nearest name; InvalidConfig when nothing is granted,
        when the grant is too long, and when this client itself has only a token.
        """
        reads, writes = topic_names("read", read), topic_names("write", write)
        check_grant(reads, writes, transactional_id_prefix, group, lifetime_s)
        self.cluster.check_started()
        deadline = Deadline(timeout_s)
        await self.cluster.renew_secret(timeout_s=deadline.left_s)  # a token of an old secret would end with it
        address = self.cluster.address
        assert address is not None  # since the start
        if isinstance(address.secret, Token):
            raise InvalidConfig(
                "A client with a token cannot make tokens: give it the cluster's secret, and unset RAYLOG_TOKEN."
            )
        topics = []
        for name in dict.fromkeys((*reads, *writes)):
            info = await self.cluster.topic(name, timeout_s=deadline.left_s)
            if info.internal:
                raise InvalidConfig(f"{name!r} is Raylog's own topic, for which there are no tokens; name another one.")
            topics.append(TopicGrant(info.topic_id, name, ALL_PARTITIONS if name in reads else (), name in writes))
        grant = Grant(int(time.time() + lifetime_s) + 1, tuple(topics), transactional_id_prefix, group)
        try:
            return token_text(mint(address.secret, grant))
        except TokenError as error:
            raise InvalidConfig(str(error)) from None

    # Internals

    async def _until_everywhere(
        self,
        name: str,
        deadline: Deadline,
        *,
        is_there: bool,
        at_least: int = 1,
        progress: Progress | None = None,
    ) -> None:
        """Wait until every live broker knows all leaders of a topic (`is_there`), or has dropped it.

        At the deadline raises StillStarting if `is_there`, otherwise RequestTimedOut.
        """
        late: RaylogError = RequestTimedOut(f"The brokers have not yet taken note of topic {name!r}.")
        if is_there:
            late = _still_starting(name, 0, at_least)
        while not deadline.is_over:
            try:
                await self.cluster.refresh((name,), timeout_s=deadline.left_s)
            except RequestTimedOut:
                break
            brokers = list(self.cluster.metadata.brokers.values())
            views = await side_by_side(lambda broker: self._view_of(broker, name, deadline), brokers)
            waiting, behind = 0, list[tuple[int, int]]()
            for broker, view in zip(brokers, views, strict=True):
                if isinstance(view, RaylogError):  # a broker that dies meanwhile is not waited for
                    if not is_there:
                        late = RequestTimedOut(f"Broker {broker.broker} did not describe {name!r}: {view}")
                    continue
                count, led = len(view.partitions), sum(bool(row.leader_port) for row in view.partitions)
                if not is_there:
                    waiting += not view.error_code
                elif view.error_code or count < at_least or led < count:
                    waiting += 1
                    behind.append((led, max(count, at_least)))
            if behind:
                late = _still_starting(name, *min(behind))
                if progress is not None:
                    progress.at(*min(behind), "partitions have a leader")
            if not waiting:
                await self.cluster.refresh((name,), timeout_s=max(LAST_LOOK_S, deadline.left_s))
                return
            await asyncio.sleep(POLL_S)
        raise late

    async def _view_of(self, broker: BrokerInfo, name: str, deadline: Deadline) -> MetadataTopic | RaylogError:
        """A topic's metadata as one broker has it; the error if the broker does not answer."""
        try:
            connection = await self.cluster.connection((broker.host, broker.port), min(deadline.left_s, 1.0))
            limit_s = min(deadline.left_s, 5.0)
            reply, _ = await call(connection, METADATA, MetadataRequest([name]), timeout_s=limit_s)
        except RaylogError as error:
            return error
        return reply.topics[0]


def _still_starting(name: str, led: int, count: int) -> StillStarting:
    return StillStarting(
        f"Topic {name!r} was created, and {led} of its {count} partitions have a leader that every broker knows; the "
        "others are still starting. `raylog status` shows when they have one.",
        topic=name,
        led=led,
        partitions=count,
    )


class Admin(SynchronousClient):
    """Administration from any thread: the methods of `AsyncAdmin`, blocking. Close it, or use `with`."""

    _asynchronous: AsyncAdmin

    def __init__(self, config: Mapping[str, Any] | None = None, **keywords: Unpack[AdminKeywords]) -> None:
        self._is_closed = True  # until it has started, so that a failed constructor does not warn
        super().__init__(AsyncAdmin(config, **keywords))
        self._asynchronous._is_inner = True
        self.config = self._asynchronous.config
        try:
            self._runtime.run(self._asynchronous.start())
            self._is_closed = False
        except BaseException:  # an interrupt may arrive after the start
            self._runtime.call_soon(_close, self._asynchronous.cluster)
            raise

    create_topic = blocking(AsyncAdmin.create_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    describe_topics = blocking(AsyncAdmin.describe_topics)
    alter_topic_config = blocking(AsyncAdmin.alter_topic_config)
    alter_cluster_config = blocking(AsyncAdmin.alter_cluster_config)
    describe_configs = blocking(AsyncAdmin.describe_configs)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    wake_partitions = blocking(AsyncAdmin.wake_partitions)
    delete_records = blocking(AsyncAdmin.delete_records)
    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    stop_broker = blocking(AsyncAdmin.stop_broker)
    resume_broker = blocking(AsyncAdmin.resume_broker)
    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    alter_partition_reassignments = blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = blocking(AsyncAdmin.list_partition_reassignments)
    wait_for_reassignments = blocking(AsyncAdmin.wait_for_reassignments)
    plan_balance = blocking(AsyncAdmin.plan_balance)
    describe_features = blocking(AsyncAdmin.describe_features)
    raise_feature_level = blocking(AsyncAdmin.raise_feature_level)
    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    delete_offsets = blocking(AsyncAdmin.delete_offsets)
    alter_group_offsets = blocking(AsyncAdmin.alter_group_offsets)
    reset_offsets = blocking(AsyncAdmin.reset_offsets)
    remove_members = blocking(AsyncAdmin.remove_members)
    group_lag = blocking(AsyncAdmin.group_lag)
    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transactions = blocking(AsyncAdmin.describe_transactions)
    describe_producers = blocking(AsyncAdmin.describe_producers)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)
    fence_producers = blocking(AsyncAdmin.fence_producers)
    find_hanging_transactions = blocking(AsyncAdmin.find_hanging_transactions)
    create_token = blocking(AsyncAdmin.create_token)
    dead_letter_topics = blocking(AsyncAdmin.dead_letter_topics)
    redrive = blocking(AsyncAdmin.redrive)
    list_redrives = blocking(AsyncAdmin.list_redrives)
    describe_redrive = blocking(AsyncAdmin.describe_redrive)
    cancel_redrive = blocking(AsyncAdmin.cancel_redrive)
    cancel_scheduled = blocking(AsyncAdmin.cancel_scheduled)
    reschedule = blocking(AsyncAdmin.reschedule)
    find_scheduled = blocking(AsyncAdmin.find_scheduled)
    deliver_now = blocking(AsyncAdmin.deliver_now)
    list_scheduled = blocking(AsyncAdmin.list_scheduled)
    describe_scheduled = blocking(AsyncAdmin.describe_scheduled)
    list_half_messages = blocking(AsyncAdmin.list_half_messages)
    commit_half_message = blocking(AsyncAdmin.commit_half_message)
    rollback_half_message = blocking(AsyncAdmin.rollback_half_message)
    list_queues = blocking(AsyncAdmin.list_queues)
    describe_queue = blocking(AsyncAdmin.describe_queue)
    peek_queue = blocking(AsyncAdmin.peek_queue)
    reset_queue = blocking(AsyncAdmin.reset_queue)
    delete_queue = blocking(AsyncAdmin.delete_queue)

    def close(self) -> None:
        """Close the connections. Closing again does nothing."""
        if not self._is_closed:
            try:
                if self._runtime.thread.is_alive():  # not in a forked child
                    self._runtime.run(self._asynchronous.stop(), 10.0)
            finally:
                # stop() has not begun if it was called in a signal handler and refused: the client stays open.
                self._is_closed = not self._runtime.thread.is_alive() or self._asynchronous._ending.has_begun

    def __del__(self) -> None:
        if not self._is_closed and self._runtime.thread.is_alive():
            self._is_closed = True
            warnings.warn(f"{self!r} was not closed.", ResourceWarning, stacklevel=2, source=self)
            self._runtime.call_soon(_close, self._asynchronous.cluster)

    def __repr__(self) -> str:
        return f"<Admin {self.config.client_id!r}{', closed' if self._is_closed else ''}>"

    def _why_closed(self) -> str | None:
        return "This Admin was closed; make a new one." if self._is_closed else None


def _check_values(settings: Mapping[str, Any] | None, instead: str) -> None:
    for key, value in (settings or {}).items():
        if value is None:
            raise InvalidConfig(f"The value of {key!r} is None: {instead}.")


_closing: set[asyncio.Task[None]] = set()


def _close(cluster: ClusterClient) -> None:
    """Close the connections of a client that was garbage collected. Call it on the loop."""
    _closing.add(task := asyncio.get_running_loop().create_task(cluster.close(), name="raylog-closes"))
    task.add_done_callback(_closing.discard)


show_keys(AdminConfig, Admin, AsyncAdmin)
