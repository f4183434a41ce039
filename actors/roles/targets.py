"""Sends record batches of roles to the leaders of other partitions, with the producer ids and sequences that they have.

A role repeats a batch until it is acknowledged; since the batch is the same, the target stores it once. Each call is
one try, and a second one if the reply names the leader. The role decides what a failure means, and when to try again.
May touch: the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from raylog.actors.clock import monotonic_ms
from raylog.actors.routes import Route, Routes, TopicPlace
from raylog.base.errors import NotLeaderOrFollower, RaylogError, UnknownTopicOrPartition
from raylog.protocol.broker import CLOCK, ClockRequest
from raylog.protocol.groups import OFFSET_FETCH, OffsetFetchPartition, OffsetFetchRequest
from raylog.protocol.method import Method, ReplyT, RequestT
from raylog.protocol.replica import FETCH, PRODUCE, FetchReply, FetchRequest, ProduceReply, ProduceRequest
from raylog.protocol.scheduling import SCHEDULE, ScheduleReply, ScheduleRequest
from raylog.rpc import Reply

logger = logging.getLogger(__name__)

TIMEOUT_MS: Final = 5_000
ANSWERED_WITHIN_S: Final = 1.0
"""Time that a leader may take for its reply after its own deadline."""
FETCHED_WITHIN_S: Final = 5.0
CLOCK_TIMEOUT_S: Final = 1.0
ALL: Final = -1
LEADER: Final = "leader"
"""The detail of a refusal that names the leader (KIP-951); if present, the partition is awake."""


class Targets:
    """The leaders of other partitions. Each is looked up once, and again after it has proved wrong."""

    def __init__(self, routes: Routes) -> None:
        """:meth:`close` also closes ``routes``."""
        self._routes = routes

    async def send(self, to: TopicPlace, batch: bytes, *, timeout_ms: int = TIMEOUT_MS) -> ProduceReply:
        """Append a batch on all in-sync replicas of a partition.

        Raises UnknownTopicOrPartition if the topic was deleted or created again, the leader's refusals with
        ``is_remote`` set, and other errors (:class:`RaylogError`, OSError) if the outcome is not known.
        """

        def request(leader_epoch: int) -> ProduceRequest:
            return ProduceRequest(to.topic_id, to.partition, leader_epoch, ALL, timeout_ms)

        timeout_s = timeout_ms / 1000 + ANSWERED_WITHIN_S
        return PRODUCE.read_reply((await self._called(to, PRODUCE.name, request, timeout_s, batch)).args)

    async def schedule(self, to: TopicPlace, batch: bytes, *, timeout_ms: int = TIMEOUT_MS) -> ScheduleReply:
        """Append a batch to a partition of ``__scheduled``, which delivers its records when due. Raises as `send`."""

        def request(leader_epoch: int) -> ScheduleRequest:
            return ScheduleRequest(to.topic_id, to.partition, leader_epoch, ALL, timeout_ms)

        timeout_s = timeout_ms / 1000 + ANSWERED_WITHIN_S
        return SCHEDULE.read_reply((await self._called(to, SCHEDULE.name, request, timeout_s, batch)).args)

    async def call(
        self,
        to: TopicPlace,
        method: Method[RequestT, ReplyT],
        request: Callable[[int], RequestT],
        *,
        timeout_s: float,
    ) -> ReplyT:
        """Call the leader of a partition; ``request`` gets its leader epoch. Raises as :meth:`send`."""
        return method.read_reply((await self._called(to, method.name, request, timeout_s)).args)

    async def fetch(
        self, to: TopicPlace, offset: int, *, max_bytes: int, max_wait_ms: int, isolation_level: int = 0
    ) -> tuple[FetchReply, bytes]:
        """Return batches of another partition from an offset on, as its consumers get them. Raises as :meth:`send`."""

        def request(leader_epoch: int) -> FetchRequest:
            return FetchRequest(
                to.topic_id, to.partition, leader_epoch, offset, max_bytes, 1, max_wait_ms, isolation_level
            )

        reply = await self._called(to, FETCH.name, request, max_wait_ms / 1000 + FETCHED_WITHIN_S)
        return FETCH.read_reply(reply.args), bytes(reply.payload)

    async def committed(self, group: str, of: TopicPlace) -> int:
        """Return the offset that a group has committed for a partition; -1 = none. Raises RaylogError or OSError."""
        route = await self._routes.group_coordinator(group)
        request = OffsetFetchRequest(group, [OffsetFetchPartition(of.topic_id, of.topic, of.partition)])
        try:
            reply = await route.connection.call(OFFSET_FETCH.name, request, timeout_s=FETCHED_WITHIN_S)
        except BaseException:  # also a cancellation: the connection may be dead
            route.forget()
            raise
        return max((row.committed_offset for row in OFFSET_FETCH.read_reply(reply.args)), default=-1)

    async def _called(
        self, to: TopicPlace, method: str, request: Callable[[int], object], timeout_s: float, payload: bytes = b""
    ) -> Reply:
        """Call the leader; immediately a second time if the call has woken the partition, or another replica leads.

        Without a pause, because a role's pauses are longer than an unused partition may stay awake.
        """
        try:
            return await self._called_once(to, method, request, timeout_s, payload)
        except NotLeaderOrFollower as refusal:
            if not refusal.is_remote or LEADER not in refusal.details:
                raise
            logger.debug("%s of %s-%d goes to its new leader: %s", method, to.topic, to.partition, refusal)
        return await self._called_once(to, method, request, timeout_s, payload)

    async def _called_once(
        self, to: TopicPlace, method: str, request: Callable[[int], object], timeout_s: float, payload: bytes
    ) -> Reply:
        route = await self._leader(to)
        try:
            return await route.connection.call(method, request(route.leader_epoch), payload, timeout_s=timeout_s)
        except BaseException as error:  # also a cancellation: the connection may be dead
            if not isinstance(error, RaylogError) or not error.is_remote or error.refresh_metadata:
                route.forget()
            raise

    async def _leader(self, to: TopicPlace) -> Route:
        route = await self._routes.leader(to)
        if route is None:
            raise UnknownTopicOrPartition(f"The topic {to.topic} with id {to.topic_id} does not exist any more.")
        return route

    async def clocks(self, brokers: Sequence[tuple[str, int]]) -> list[int]:
        """Return the times of day of the brokers at these addresses that answer within a second.

        In milliseconds since 1970, and as of the return of this method.
        """
        found = await asyncio.gather(*(self._clock_ahead(place) for place in brokers))
        now_ms = monotonic_ms()
        return [now_ms + ahead_ms for ahead_ms in found if ahead_ms is not None]

    async def _clock_ahead(self, place: tuple[str, int]) -> int | None:
        """Return how far a broker's time of day is ahead of this process's monotonic clock; None: it did not answer.

        The broker is assumed to have read its clock at half of the round trip.
        """
        try:
            async with asyncio.timeout(CLOCK_TIMEOUT_S):
                connection = await self._routes.connect(place)
                began_ms = monotonic_ms()
                reply = await connection.call(CLOCK.name, ClockRequest(), timeout_s=CLOCK_TIMEOUT_S)
                return CLOCK.read_reply(reply.args).wall_ms - (began_ms + monotonic_ms()) // 2
        except (RaylogError, OSError, TimeoutError) as error:
            logger.debug("the broker at %s:%d does not state its time: %s", *place, error)
            return None

    def close(self) -> None:
        """Close all connections."""
        self._routes.close()
