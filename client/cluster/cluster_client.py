"""`ClusterClient`: one client's view of the cluster, and calls to the responsible broker, leader or coordinator.

Producer, Consumer and Admin each own one. The flags of an error (`retriable`, `refresh_metadata`) decide whether a call
is retried, after a backoff and within the caller's deadline, and whether its leader or coordinator is looked up again.
Everything here belongs to one event loop. May touch: the network, the clock, and Ray through `discovery`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from raylog.base.errors import (
    AuthenticationFailed,
    ClientClosed,
    ClusterAuthorizationFailed,
    ConnectionFailed,
    CoordinatorLoadInProgress,
    LeaderNotAvailable,
    RaylogError,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
    did_you_mean,
)
from raylog.client.cluster.backoff import Backoff, as_raylog_error
from raylog.client.cluster.connections import ConnectionPool, call
from raylog.client.cluster.credentials import CredentialFile
from raylog.client.cluster.deadline import Deadline
from raylog.client.cluster.discovery import ClusterAddress, Endpoint, find_cluster
from raylog.client.cluster.metadata import MetadataCache, PartitionInfo, TopicInfo
from raylog.client.cluster.reachable import ANSWER_TIMEOUT_S, ATTEMPT_TIMEOUT_S, require_an_answer
from raylog.client.config import ClientConfig
from raylog.client.guard import Home
from raylog.client.tasks import LastingTask, mark_seen
from raylog.protocol.admin import CREATE_TOPIC, CreateTopicRequest
from raylog.protocol.broker import FIND_COORDINATOR, METADATA, FindCoordinatorRequest, MetadataReply, MetadataRequest
from raylog.protocol.message import NAMES_MAX
from raylog.protocol.method import Method, ReplyT, RequestT
from raylog.protocol.replica import LIST_OFFSETS, READ_UNCOMMITTED, ListOffsetsReply, ListOffsetsRequest
from raylog.rpc import Connection, Grant, Token
from raylog.rpc.host import keep_freed_memory

BROKER_ATTEMPT_TIMEOUT_S = 5.0
"""Connect timeout for a broker before the next one is tried, while the caller's deadline lasts."""
METADATA_CONNECT_S = 2.0
"""Connect timeout for a metadata request."""
METADATA_ANSWER_S = 1.0
"""How long one broker may take to answer a metadata request."""
KEPT_BYTES = 16 << 20
"""Freed memory that malloc keeps for reuse; less than `buffer_memory`, and than what a consumer fetches ahead."""
_PATIENT = (BROKER_ATTEMPT_TIMEOUT_S, float("inf"))
"""Limits in seconds for connecting and answering, of requests other than metadata."""
NEW_TOPIC_GRACE_S = 1.0
"""How long a topic may be unknown to a broker after another broker has confirmed its creation."""
SUSPECT_S = 1.0
"""A leader that has not answered for so long may hang, or its machine be down, and another may have replaced it. Then
metadata is fetched, at most this often, long before the request's own deadline."""
SEARCH_S = 60.0
"""How long a client looks for a broker whose connection it has lost, while other brokers answer."""
SEARCH_PAUSES_MS = (20, 1_000)
"""First and longest backoff of that search."""
PROVED_S = 5.0
"""For so long after a broker accepted the secret, the secret is taken to be current."""
RENEW_S = 10.0
"""How long a call waits for Ray to return the new secret, at most; the old secret still works meanwhile."""
FIND_AGAIN_S = 1.0
"""The least time between two look-ups of the secret in Ray by a refused client."""
INTERNAL_PREFIX = "__"
GROUP = "group"
TRANSACTION = "transaction"
"""Kinds of coordinators."""
logger = logging.getLogger(__name__)
TopicsListener = Callable[[set[str]], None]
Finder = Callable[[float], Coroutine[Any, Any, ClusterAddress]]
"""Locates the cluster within so many seconds."""


class ClusterClient:
    """Metadata, connections and calls. `start()` before use, `close()` at the end.

    Each `timeout_s` limits a whole call, retries included, in seconds; after it the last error is raised.
    """

    def __init__(self, config: ClientConfig, find: Finder | None = None) -> None:
        """`find` locates the cluster, at the start and later; None = by the configuration (`find_cluster`)."""
        self.config = config
        self._finder = find
        self.metadata = MetadataCache()
        self.address: ClusterAddress | None = None
        self._pool: ConnectionPool | None = None
        self._coordinators: dict[tuple[str, str], Endpoint] = {}
        self._wanted: set[str] = set()
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshing_topics: frozenset[str] | None = frozenset()
        self._listeners: list[TopicsListener] = []
        self._informant: Endpoint | None = None
        self._doubted: Endpoint | None = None
        self._periodic: LastingTask | None = None
        self._searching: LastingTask | None = None
        self._renewing: LastingTask | None = None
        self.home: Home | None = None
        """The loop of the asyncio client that owns this; None when a client with a thread of its own does."""
        self._is_closed = False
        self._found_again_s = float("-inf")
        self._random = random.Random()  # spreads load, no security purpose

    # Lifecycle

    async def start(self, timeout_s: float = 30.0) -> None:
        """Find the cluster and its brokers. Raises NoClusterFound, ConnectionFailed, AuthenticationFailed."""
        deadline = Deadline(timeout_s)
        keep_freed_memory(KEPT_BYTES)
        self.address = await self._find(timeout_s)
        self._pool = ConnectionPool(
            self.address.proved, self.config.client_id, self._lost, self._broker_endpoints, self._replaced
        )
        await self._find_first_broker(self.address, timeout_s, deadline)
        self._periodic = LastingTask(self._refresh_with_age, "raylog-metadata")

    async def close(self) -> None:
        """Close all connections. Pending calls end with ClientClosed or ConnectionFailed."""
        self._is_closed = True
        lasting = [each for each in (self._periodic, self._searching, self._renewing) if each is not None]
        for each in lasting:
            each.cancel()
        tasks = [each.task for each in lasting if not each.task.done()]
        if self._refreshing is not None and not self._refreshing.done():
            self._refreshing.cancel()
            tasks.append(self._refreshing)
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        if self._pool is not None:
            await self._pool.close()

    def on_topics_changed(self, listener: TopicsListener) -> None:
        """Register `listener`: called on the loop with the names of topics whose metadata has changed."""
        self._listeners.append(listener)

    # Metadata

    def watch(self, topics: Iterable[str]) -> None:
        """Add these topics to the watched ones, which every later refresh includes."""
        self._wanted.update(topics)

    def unwatch(self, topics: Iterable[str]) -> None:
        """Remove these topics from the watched ones."""
        self._wanted.difference_update(topics)

    async def refresh(self, topics: Iterable[str] | None = (), *, timeout_s: float | None = None) -> None:
        """Fetch metadata of the watched topics and of `topics` (None: all topics) from any broker.

        Only one fetch is in flight at a time. A caller joins one that covers its topics, and starts its own when that
        one timed out earlier than its own deadline. Raises ConnectionFailed or RequestTimedOut when no broker answers
        in time.
        """
        self.check_started()
        limit_s = self.config.request_timeout_ms / 1000 if timeout_s is None else timeout_s
        deadline = Deadline(limit_s)
        wanted = None if topics is None else frozenset(topics)
        while True:
            running = self._refreshing
            is_own = running is None or running.done()
            if running is None or running.done():
                running = self._begin_refresh(wanted, deadline)
            covered = self._refreshing_topics is None or (wanted is not None and wanted <= self._refreshing_topics)
            error = await self._ended(running, deadline)
            if not covered or running.cancelled():
                continue  # it was cancelled, or lacks our topics: start a fetch of our own
            if error is None:
                return
            if is_own or deadline.is_over or not (isinstance(error, RaylogError) and error.retriable):
                raise as_raylog_error(error) from error
            # The caller that started the fetch had less time than we have: try again.

    def _begin_refresh(self, topics: frozenset[str] | None, deadline: Deadline) -> asyncio.Task[None]:
        self._refreshing_topics = None if topics is None else topics | self._wanted
        task = asyncio.ensure_future(self._fetch_metadata(self._refreshing_topics, deadline))
        task.add_done_callback(mark_seen)
        self._refreshing = task
        return task

    async def refresh_since(self, topics: Iterable[str] | None, version: int, *, timeout_s: float) -> int:
        """Fetch metadata of these topics (None: all) if it is newer than `version`; return its version now.

        `version` is what the last call for the same topics returned, -1 before the first. While nothing changes, the
        call costs a broker next to nothing, so it may be made every few seconds. Raises as `refresh`.
        """
        wanted = None if topics is None else frozenset(topics)
        replies = [version]
        for reply in await self._request_metadata(wanted, Deadline(timeout_s), version):
            if not reply.is_unchanged:
                self._apply(reply, is_whole=wanted is None)
            replies.append(reply.version)
        return max(version, min(replies[1:]))

    async def topic_with(self, name: str, partition: int, *, timeout_s: float, may_create: bool = True) -> TopicInfo:
        """The topic's metadata; fetched again if it does not have this partition, which may be new.

        Brokers learn of a new partition at different moments, so requests are repeated for up to `NEW_TOPIC_GRACE_S`
        before UnknownTopicOrPartition is raised; otherwise as `topic`.
        """
        deadline = Deadline(timeout_s)
        info = await self.topic(name, timeout_s=deadline.left_s, may_create=may_create)
        unknown_s = self._now_s() + min(timeout_s / 2, NEW_TOPIC_GRACE_S)
        backoff = self._backoff()
        while not 0 <= partition < len(info.partitions):
            if partition >= 0:
                self._doubted = self._informant
                await self.refresh((name,), timeout_s=deadline.left_s)
                info = await self.topic(name, timeout_s=deadline.left_s, may_create=may_create)
                if partition < len(info.partitions):
                    break
            left_s = unknown_s - self._now_s()
            if partition < 0 or left_s <= 0:
                raise UnknownTopicOrPartition(
                    f"Topic {name!r} has partitions 0 to {len(info.partitions) - 1}, not {partition}.", topic=name
                )
            await asyncio.sleep(min(backoff.next_s(), left_s))
        return info

    async def topic(self, name: str, *, timeout_s: float, may_create: bool = True) -> TopicInfo:
        """The topic's metadata, fetched if not known.

        With `may_create`, a topic that does not exist is created if the cluster and this client's configuration allow
        it. Otherwise raises UnknownTopicOrPartition, which suggests the nearest name; first it repeats the request for
        up to `NEW_TOPIC_GRACE_S`, because some brokers may not know a new topic yet. Raises InvalidTopic for a name
        that cannot be created.
        """
        found = self.metadata.topic(name)
        deadline = Deadline(timeout_s)
        unknown_s = self._now_s() + min(timeout_s / 2, NEW_TOPIC_GRACE_S)  # the rest is for finding the nearest name
        backoff = self._backoff()
        while found is None:
            await self.refresh((name,), timeout_s=deadline.left_s)
            found = self.metadata.topic(name)
            if found is None and may_create and self._creates(name):
                may_create = False
                await self._create(name, deadline)
                unknown_s = self._now_s() + min(deadline.left_s / 2, NEW_TOPIC_GRACE_S)
            elif found is None and self._now_s() >= unknown_s:
                await self.refresh(None, timeout_s=deadline.left_s)
                found = self.metadata.topic(name)
                if found is None:
                    known = [topic.name for topic in self.metadata.topics.values() if not topic.internal]
                    raise UnknownTopicOrPartition(did_you_mean("topic", name, known), topic=name)
            elif found is None:
                await asyncio.sleep(min(backoff.next_s(), max(0.0, unknown_s - self._now_s())))
        if (grant := self._grant) is not None:
            _check_id(found, grant)
        return found

    def _creates(self, name: str) -> bool:
        """Whether using a topic that does not exist creates it. Not with a token: it covers only existing topics."""
        may_create = self.metadata.creates_topics and self.config.may_create_topics()
        return may_create and self._grant is None and not name.startswith(INTERNAL_PREFIX)

    async def _create(self, name: str, deadline: Deadline) -> None:
        request = CreateTopicRequest(name, -1, -1, None, {}, False, 0)
        try:
            await self.call_broker(CREATE_TOPIC, request, timeout_s=deadline.left_s)
        except TopicAlreadyExists:
            pass  # another client has just created it

    def learn_leader(self, topic: str, partition: int, error: RaylogError) -> bool:
        """Apply the new leader that an error names (KIP-951); True = it was news, and no metadata has to be fetched."""
        return self.metadata.update_leader(
            topic, partition, error.details.get("leader"), error.details.get("leader_topic_id")
        )

    # Connections

    async def connection(self, endpoint: Endpoint, timeout_s: float) -> Connection:
        """The connection with this endpoint, opened on demand. Raises ConnectionFailed, AuthenticationFailed.

        Once a client has had a connection, most refusals of its secret become ConnectionFailed, which is retriable:

        - A secret from a file or from Ray may just have been changed, and not be renewed here yet. The next attempt
          uses the new one.
        - A replica or coordinator that refuses a fixed secret counts as moved: another cluster may have its address by
          now. Only a refusal by a broker means that the secret is wrong.
        """
        self.check_started()
        pool = self._started_pool()
        try:
            return await pool.get(endpoint, timeout_s)
        except AuthenticationFailed as error:
            place = f"{endpoint[0]}:{endpoint[1]}"
            if pool.was_used and self.address is not None and self.address.is_renewable:
                if self.address.through_ray and self._now_s() >= self._found_again_s + FIND_AGAIN_S:
                    await self._find_again(Deadline(timeout_s))
                raise ConnectionFailed(f"{place} takes this client for a stranger: {error.message}") from error
            if not pool.was_used or endpoint in self._broker_endpoints():
                raise
            raise ConnectionFailed(f"{place} belongs to this cluster no more: {error.message}") from error

    async def renew_secret(self, *, timeout_s: float) -> None:
        """Make sure that the secret is the current one, before something is made with it, such as a token.

        Open connections survive a change of the secret, so they do not show whether it is current. This costs a
        connection with a broker, at most every `PROVED_S`; only for a secret from Ray, a fixed one costs nothing.
        Errors are left to the calls that follow.
        """
        endpoints = self._broker_endpoints()
        if not self._is_secret_of_ray or not endpoints or time.monotonic() < self._started_pool().proved_s + PROVED_S:
            return
        deadline = Deadline(min(timeout_s, RENEW_S))
        try:
            if not await self._started_pool().is_proof_replaced(endpoints[0], min(timeout_s, METADATA_CONNECT_S)):
                return
        except AuthenticationFailed:
            pass  # the secret has already ended
        except ConnectionFailed:
            return
        await self._find_again(deadline)

    @property
    def _is_secret_of_ray(self) -> bool:
        return self.address is not None and self.address.through_ray and isinstance(self.address.proof, bytes)

    def _replaced(self) -> None:
        """A broker has reported that our secret is about to end: fetch the new one from Ray."""
        is_at_work = self._renewing is not None and not self._renewing.done()
        if self._is_secret_of_ray and not is_at_work and self._now_s() >= self._found_again_s + FIND_AGAIN_S:
            self._renewing = LastingTask(self._renew, "raylog-secret")

    async def _renew(self) -> None:
        await self._find_again(Deadline(self.config.request_timeout_ms / 1000))

    async def look_for_leader(self, topic: str) -> None:
        """Fetch the topic's metadata because its leader is slow to answer; errors are left to the waiting requests.

        Prefers another broker than the last time: a broker that is cut off from the controller has stale metadata.
        """
        self._doubted = self._informant
        try:
            await self.refresh((topic,), timeout_s=self.config.request_timeout_ms / 1000)
        except RaylogError:
            pass  # the waiting request has a deadline of its own

    def live_connection(self, endpoint: Endpoint | None) -> Connection | None:
        """The connection with this endpoint if it is open now; never waits."""
        return None if endpoint is None or self._pool is None else self._pool.live(endpoint)

    async def leader(self, topic: str, partition: int, *, timeout_s: float) -> tuple[TopicInfo, PartitionInfo]:
        """The topic and the partition with its leader, as known now; metadata is fetched if no leader is known.

        Raises UnknownTopicOrPartition; LeaderNotAvailable, since it does not wait for an election.
        """
        deadline = Deadline(timeout_s)
        info = await self.topic_with(topic, partition, timeout_s=timeout_s)
        if info.partitions[partition].endpoint is None:
            await self.refresh((topic,), timeout_s=deadline.left_s)
            info = await self.topic_with(topic, partition, timeout_s=deadline.left_s)
        found = info.partitions[partition]
        if found.endpoint is None:
            raise LeaderNotAvailable(f"Partition {topic}-{partition} has no leader at the moment.")
        return info, found

    # Calls

    async def call_broker(
        self,
        method: Method[RequestT, ReplyT],
        request: RequestT,
        *,
        timeout_s: float,
        failures: list[RaylogError] | None = None,
    ) -> ReplyT:
        """Call any broker; try the next one when a broker cannot be reached, until `timeout_s` is over.

        Errors that caused a retry are added to `failures`. A caller needs them when an attempt whose answer was lost
        may still have had its effect.
        """
        self.check_started()
        deadline = Deadline(timeout_s)
        backoff = self._backoff()
        error: RaylogError = ConnectionFailed("No broker is known.")
        while True:
            refused: list[RaylogError] = []
            endpoints = self._broker_endpoints()
            for endpoint in endpoints:
                if deadline.is_over:
                    raise error
                # While one broker hangs, another may answer. A broker answers metadata requests from memory. One that
                # does not answer is down, perhaps with its machine, and then only this limit ends the wait.
                is_metadata = method.name == METADATA.name
                limits = (METADATA_CONNECT_S, METADATA_ANSWER_S) if is_metadata else _PATIENT
                connection: Connection | None = None
                try:
                    connection = await self.connection(endpoint, min(deadline.left_s, limits[0]))
                    reply, _ = await call(connection, method, request, timeout_s=min(deadline.left_s, limits[1]))
                    self._informant = endpoint if is_metadata else self._informant
                    return reply
                except AuthenticationFailed as failure:
                    if not self._started_pool().was_used:
                        raise
                    refused.append(failure)  # another cluster may have taken over the address of a dead broker
                except RaylogError as failure:
                    is_silent = isinstance(failure, RequestTimedOut) and not failure.is_remote
                    if is_metadata and is_silent and connection is not None:
                        connection.abort("a request for metadata was not answered in time")
                    error = failure
                    if not error.retriable or isinstance(error, UnknownTopicOrPartition):
                        raise
                    if failures is not None:
                        failures.append(error)
            if refused and len(refused) == len(endpoints):
                raise refused[-1]
            await self._pause(backoff, deadline, refused[-1] if refused else error)
            if self.address is not None and self.address.through_ray:
                await self._find_again(deadline)

    async def call_leader(
        self,
        topic: str,
        partition: int,
        method: Method[RequestT, ReplyT],
        request: Callable[[str, int, int], RequestT],
        *,
        timeout_s: float,
    ) -> tuple[ReplyT, memoryview]:
        """Call the leader of a partition, and retry retriable errors; returns the reply and its payload.

        `request(topic id, partition, leader epoch)` builds the request, with the values known at each attempt.
        """
        deadline = Deadline(timeout_s)
        backoff = self._backoff()
        while True:
            try:
                info, found = await self.leader(topic, partition, timeout_s=deadline.left_s)
                assert found.endpoint is not None  # `leader` raises without one
                connection = await self.connection(found.endpoint, deadline.left_s)
                message = request(info.topic_id, partition, found.leader_epoch)
                return await call(connection, method, message, timeout_s=deadline.left_s)
            except RaylogError as failure:
                error = failure
                # With "topic" in its details the error says that no broker knows the topic: a retry would not help. A
                # replica that does not know the partition only means that it has moved.
                if not error.retriable or "topic" in error.details:
                    raise
            if self.learn_leader(topic, partition, error):
                continue
            await self._pause(backoff, deadline, error)
            if error.refresh_metadata:
                await self._refresh_quietly(topic, deadline)

    async def list_offset(
        self,
        partition: tuple[str, int],
        timestamp_ms: int,
        *,
        timeout_s: float,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> ListOffsetsReply:
        """The first offset at or after a time (ms since 1970, or EARLIEST, LATEST, MAX_TIMESTAMP); below 0 = none."""

        def request(topic_id: str, number: int, epoch: int) -> ListOffsetsRequest:
            return ListOffsetsRequest(topic_id, number, epoch, timestamp_ms, isolation_level)

        return (await self.call_leader(*partition, LIST_OFFSETS, request, timeout_s=timeout_s))[0]

    async def coordinator(self, key: str, *, timeout_s: float, kind: str = GROUP) -> Endpoint:
        """The endpoint of the coordinator of a group or transactional id; waits while it is being started.

        It is cached only while the connection with it is open: after that, another process may have its address.
        """
        known = self._coordinators.get((kind, key))
        if known is None or self.live_connection(known) is None:
            found = await self.call_broker(FIND_COORDINATOR, FindCoordinatorRequest(kind, key), timeout_s=timeout_s)
            known = self._coordinators[kind, key] = (found.host, found.port)
        return known

    def forget_coordinator(self, key: str, kind: str = GROUP) -> None:
        """Look the coordinator up again at the next call."""
        self._coordinators.pop((kind, key), None)

    async def call_coordinator(
        self, key: str, method: Method[RequestT, ReplyT], request: RequestT, *, timeout_s: float, kind: str = GROUP
    ) -> ReplyT:
        """Call the coordinator of a group or transactional id.

        Retries while it moves, while it still reads its log, and while stable offsets were requested and a transaction
        is open. Errors for the caller to handle (a rebalance, a lost generation, a fenced producer) are raised at once.
        """
        deadline = Deadline(timeout_s)
        backoff = self._backoff()
        while True:
            try:
                endpoint = await self.coordinator(key, timeout_s=deadline.left_s, kind=kind)
                connection = await self.connection(endpoint, deadline.left_s)
                return (await call(connection, method, request, timeout_s=deadline.left_s))[0]
            except RaylogError as failure:
                error = failure
                if error.refresh_metadata:
                    self.forget_coordinator(key, kind)
                elif not isinstance(error, (CoordinatorLoadInProgress, UnstableOffsetCommit)):
                    raise
            await self._pause(backoff, deadline, error)

    # Internals

    async def _find(self, timeout_s: float) -> ClusterAddress:
        config = self.config
        if self._finder is not None:
            return await self._finder(timeout_s)
        return await find_cluster(
            config.bootstrap,
            config.secret,
            token=config.token,
            secret_file=config.secret_file,
            token_file=config.token_file,
            timeout_s=timeout_s,
        )

    @property
    def _grant(self) -> Grant | None:
        """What this client's token grants; None = it has the cluster's secret, which allows everything."""
        secret = None if self.address is None else self.address.secret
        return secret.grant if isinstance(secret, Token) else None

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _backoff(self) -> Backoff:
        return Backoff(self.config.retry_backoff_ms, self.config.retry_backoff_max_ms, self._random)

    async def _pause(self, backoff: Backoff, deadline: Deadline, error: RaylogError) -> None:
        """Wait before the next attempt; raise `error`, the last one, if the deadline would pass meanwhile."""
        if self._is_closed:
            raise ClientClosed("The client was closed during this call.") from error
        pause_s = backoff.next_s()
        if deadline.is_over or pause_s >= deadline.left_s:
            raise error
        await asyncio.sleep(pause_s)

    def check_started(self) -> None:
        """Raise ClientClosed if the asyncio client that owns this has not started, or belongs to another loop."""
        if self.home is not None:
            self.home.started()

    def _started_pool(self) -> ConnectionPool:
        if self._is_closed:
            raise ClientClosed("The client is closed; make a new one.")
        if self._pool is None:
            raise ClientClosed("The client is not started; call start() first.")
        return self._pool

    def _broker_endpoints(self) -> list[Endpoint]:
        """Brokers in the order to try: first with an open connection, then from metadata, then from the configuration.

        Last of all comes the broker whose metadata did not help (`_doubted`).
        """
        known = [(broker.host, broker.port) for broker in self.metadata.brokers.values()]
        given = list(self.address.endpoints) if self.address is not None else []
        self._random.shuffle(known)
        candidates = list(dict.fromkeys([*known, *given]))
        return sorted(
            candidates, key=lambda endpoint: (endpoint == self._doubted, self.live_connection(endpoint) is None)
        )

    async def _find_again(self, deadline: Deadline) -> None:
        """Get the brokers' addresses and the secret from Ray again, because no broker answers or one refuses us.

        A failure is ignored: the caller tries again.
        """
        if not deadline.is_over:
            self._found_again_s = self._now_s()
            try:
                found = await self._find(deadline.left_s)
            except RaylogError:
                return  # the controller may be restarting too; the caller's loop retries both
            known = None if self.address is None else self.address.proof
            if isinstance(known, CredentialFile):
                found = replace(found, proof=known)
            elif found.proof != known:
                logger.warning("Client %r has got the clients' new secret through Ray.", self.config.client_id)
            self.address, self._started_pool().secret = found, found.proved

    async def _fetch_metadata(self, topics: frozenset[str] | None, deadline: Deadline) -> None:
        for reply in await self._request_metadata(topics, deadline):
            self._apply(reply, is_whole=topics is None)

    async def _request_metadata(
        self, topics: frozenset[str] | None, deadline: Deadline, known_version: int = -1
    ) -> list[MetadataReply]:
        if topics is None and (grant := self._grant) is not None:
            names: list[str] | None = sorted(topic.topic for topic in grant.topics)  # all that it may see
        else:
            names = None if topics is None else sorted(topics)
        return [
            await self.call_broker(METADATA, MetadataRequest(part, known_version), timeout_s=deadline.left_s)
            for part in ([names] if names is None else _parts(names))
        ]

    def _apply(self, reply: MetadataReply, *, is_whole: bool) -> None:
        changed = self.metadata.update(reply, is_whole=is_whole)
        if changed:
            for listener in self._listeners:
                listener(changed)

    async def _ended(self, task: asyncio.Task[None], deadline: Deadline) -> BaseException | None:
        """Wait for a fetch of metadata; return its error, None = none. Raises RequestTimedOut, ClientClosed."""
        await asyncio.wait([task], timeout=deadline.left_s)
        if not task.done():
            trouble = "" if self._pool is None else self._pool.trouble
            why = f" ({trouble.rstrip('.')})" if trouble else ""
            raise RequestTimedOut(f"No broker answered a metadata request in time{why}; check that the cluster runs.")
        if task.cancelled() and self._is_closed:
            raise ClientClosed("The client was closed while it fetched metadata.")
        return None if task.cancelled() else task.exception()

    async def _find_first_broker(self, address: ClusterAddress, timeout_s: float, deadline: Deadline) -> None:
        """Fetch the first metadata. Reports a bootstrap address where no broker listens before the deadline is over."""
        if address.through_ray:
            await self.refresh((), timeout_s=deadline.left_s)
            return
        first_s = min(timeout_s, ANSWER_TIMEOUT_S)
        try:
            await self.refresh((), timeout_s=first_s)
            return
        except (ConnectionFailed, RequestTimedOut) as error:
            last_s = min(deadline.left_s, ATTEMPT_TIMEOUT_S)
            try:
                await require_an_answer(address.endpoints, timeout_s=last_s, waited_s=first_s)
            except ConnectionFailed as unheard:
                raise unheard from error
            if deadline.is_over or not self._started_pool().was_used:
                named = ", ".join(f"{host}:{port}" for host, port in address.endpoints)
                raise ConnectionFailed(
                    f"{named} takes connections, and no broker of Raylog answers there, for {first_s:.0f} seconds: "
                    "check the address (`raylog status` on a machine of the cluster shows it)."
                ) from error
        await self.refresh((), timeout_s=deadline.left_s)

    def _lost(self, endpoint: Endpoint) -> None:
        """A connection has ended. If it was a broker's, search for it now instead of at `metadata_max_age_ms`."""
        is_at_work = self._searching is not None and not self._searching.done()
        if not self._is_closed and not is_at_work and endpoint in self._broker_endpoints():
            self._searching = LastingTask(partial(self._search_for, endpoint), "raylog-search")

    async def _search_for(self, endpoint: Endpoint) -> None:
        """Fetch metadata until a lost broker has another address or answers again.

        Ends after `SEARCH_S` once any broker has answered; while none does, it goes on.
        """
        backoff, deadline = Backoff(*SEARCH_PAUSES_MS, self._random), Deadline(SEARCH_S)
        is_reached = False
        while not (is_reached and deadline.is_over):
            await asyncio.sleep(backoff.next_s())
            try:
                await self.refresh(())
                is_reached = True
                if endpoint not in [(broker.host, broker.port) for broker in self.metadata.brokers.values()]:
                    return
                await self.connection(endpoint, METADATA_CONNECT_S)
                return
            except RaylogError as error:
                if not error.retriable and not is_reached:
                    return  # the next call raises the same

    async def _refresh_quietly(self, topic: str, deadline: Deadline) -> None:
        try:
            await self.refresh((topic,), timeout_s=deadline.left_s)
        except RaylogError as error:
            if not error.retriable:
                raise
            # A retriable error is left to the caller's next attempt, which meets it again within its own deadline.

    async def _refresh_with_age(self) -> None:
        while True:
            await asyncio.sleep(self.config.metadata_max_age_ms / 1000)
            try:
                await self.refresh(())
            except RaylogError:
                pass  # no caller waits; the next call that needs metadata raises the error


def _check_id(info: TopicInfo, grant: Grant) -> None:
    ids = {topic.topic_id for topic in grant.topics if topic.topic == info.name}
    if ids and info.topic_id not in ids:
        raise ClusterAuthorizationFailed(
            f"Topic {info.name!r} was created again after this client's token was made: make a new token for it."
        )


def _parts(names: list[str]) -> list[list[str]]:
    """Split topic names by the limit of one request. No names are one part: that request fetches only the brokers."""
    return [names[first : first + NAMES_MAX] for first in range(0, max(1, len(names)), NAMES_MAX)]
