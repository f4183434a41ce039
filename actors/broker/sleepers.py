"""Answers requests to sleeping partitions in place of their leaders, and has the controller wake them if needed.

Owned by the broker's server. ``core/sleeping`` decides the answers. May touch: the clock, and the controller through
the broker's link.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from raylog.actors.careful_clock import CarefulClock
from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_link import ControllerLink
from raylog.actors.request_table import RequestTable
from raylog.actors.timer import TickTimer
from raylog.base.errors import RaylogError
from raylog.base.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from raylog.core.configuration.config import ClusterConfig
from raylog.core.metadata.image import MetadataImage
from raylog.core.sleeping import events as ev
from raylog.core.sleeping.machine import SleepersMachine
from raylog.protocol.admin import WAKE_PARTITIONS, WakePartitionsRequest
from raylog.protocol.message import NONE, WAIT_MS_MAX
from raylog.protocol.replica import (
    FetchNearReply,
    FetchNearRequest,
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    OffsetForLeaderEpochReply,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
)
from raylog.rpc import Request

logger = logging.getLogger(__name__)

WAKE_TIMEOUT_MS: Final = 5_000
DESERTED_CHECK_MS: Final = 5_000


class Sleepers:
    """Answers for the sleeping partitions whose leader is on this broker."""

    def __init__(
        self, image: Callable[[], MetadataImage], broker: Callable[[], int], link: Callable[[], ControllerLink]
    ) -> None:
        """``image``, ``broker`` and ``link`` return the broker's present metadata, id and connection."""
        self._link = link
        self._machine = SleepersMachine(
            image,
            lambda: BrokerId(broker()),
            stale_after_ms=lambda: ClusterConfig.from_dict(image().config).broker_session_timeout_ms,
            retention_check_ms=lambda: ClusterConfig.from_dict(image().config).log_retention_check_interval_ms,
        )
        self._requests: RequestTable[Request] = RequestTable()
        self._near: set[int] = set()
        """Numbers of requests that are answered in the form of ``fetch_near``."""
        self._clock = CarefulClock("sleeping partitions")
        self._ticks = TickTimer(self._tick)
        self._deserted_due_ms = 0
        self._ticking: asyncio.Task[None] | None = None
        self._waking: set[asyncio.Task[None]] = set()
        self._effects: Mapping[type[Any], Callable[[Any], None]] = {
            ev.AnswerFetch: self._answer_fetch,
            ev.AnswerOffset: self._answer_offset,
            ev.AnswerEpochEnd: self._answer_epoch_end,
            ev.RefuseRequest: self._refuse,
            ev.WakePartition: self._wake,
        }

    def start(self) -> None:
        """Begin to tick; returns at once."""
        self._ticking = asyncio.create_task(self._ticks.run(), name="ticks of the sleepers")

    async def stop(self) -> None:
        """End every task; requests that wait are not answered: their connections close."""
        tasks = [*self._waking, *([] if self._ticking is None else [self._ticking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------------------ events in

    def take(self, request: Request, args: Any) -> None:
        """Take a request to a partition's leader; ``args`` is one of ``protocol.replica.LEADER_METHODS``."""
        now_ms = monotonic_ms()
        number = self._requests.remember(request)
        wait_ms: int = getattr(args, "max_wait_ms", None) or getattr(args, "timeout_ms", 0) or WAKE_TIMEOUT_MS
        common: dict[str, Any] = {
            "now_ms": now_ms,
            "request": number,
            "topic_id": args.topic_id,
            "partition": args.partition,
            "leader_epoch": LeaderEpoch(args.current_leader_epoch),
            "deadline_ms": now_ms + min(wait_ms, WAIT_MS_MAX),
        }
        if isinstance(args, FetchNearRequest):
            self._near.add(number)
        self._ticks.hasten(wait_ms)
        self._feed(_event_of(args, common))
        if isinstance(args, ProduceRequest) and args.acks == 0:
            self._requests.pop(number, None)  # its sender does not wait for an answer

    def metadata_changed(self, partitions: Collection[TopicPartition] | None) -> None:
        """The broker's metadata of these partitions has changed; None: of any."""
        self._feed(ev.MetadataChanged(now_ms=monotonic_ms(), partitions=partitions))

    def link_changed(self, is_connected: bool) -> None:
        """The broker's session with the controller began or ended."""
        self._feed(ev.LinkChanged(now_ms=monotonic_ms(), is_connected=is_connected))

    def _tick(self, latest_ms: int) -> int:
        now_ms = monotonic_ms()
        if now_ms >= self._deserted_due_ms:
            self._deserted_due_ms = now_ms + DESERTED_CHECK_MS
            for number in self._requests.take_deserted():
                self._near.discard(number)
                self._feed(ev.RequestDropped(request=number))
        self._feed(ev.Tick(now_ms=now_ms, deleting_ms=self._clock.deleting_ms()))
        return self._machine.next_due_ms(now_ms, latest_ms)

    def _feed(self, event: ev.Event) -> None:
        for effect in self._machine.step(event).now:
            self._effects[type(effect)](effect)

    # ------------------------------------------------------------ effects

    def _answer_fetch(self, effect: ev.AnswerFetch) -> None:
        request, is_near = self._taken(effect.request)
        if request is not None:
            mark, start = effect.high_watermark, effect.log_start_offset
            request.reply(FetchNearReply(mark, mark, start) if is_near else FetchReply(mark, mark, start))

    def _answer_offset(self, effect: ev.AnswerOffset) -> None:
        request, _ = self._taken(effect.request)
        if request is not None:
            request.reply(ListOffsetsReply(effect.offset, NONE, effect.leader_epoch))

    def _answer_epoch_end(self, effect: ev.AnswerEpochEnd) -> None:
        request, _ = self._taken(effect.request)
        if request is not None:
            request.reply(OffsetForLeaderEpochReply(effect.epoch, effect.end_offset, effect.log_start_offset))

    def _refuse(self, effect: ev.RefuseRequest) -> None:
        request, _ = self._taken(effect.request)
        if request is not None:
            request.fail(effect.error)

    def _taken(self, number: int) -> tuple[Request | None, bool]:
        """Return the request to answer, and whether it is a ``fetch_near``; None: its sender no longer waits."""
        is_near = number in self._near
        self._near.discard(number)
        return self._requests.pop(number, None), is_near

    def _wake(self, effect: ev.WakePartition) -> None:
        task = asyncio.create_task(self._have_woken(effect.partition), name=f"wake of {effect.partition}")
        self._waking.add(task)
        task.add_done_callback(self._waking.discard)

    async def _have_woken(self, partition: TopicPartition) -> None:
        request = WakePartitionsRequest(partition.topic, [partition.partition])
        try:
            await self._link().call(WAKE_PARTITIONS.name, request, timeout_s=WAKE_TIMEOUT_MS / 1000)
        except RaylogError as error:
            logger.info("%s is not woken yet: %s", partition, error)
            self._feed(ev.WakeRefused(now_ms=monotonic_ms(), partition=partition, error=error))


def _event_of(args: Any, common: dict[str, Any]) -> ev.Event:
    match args:
        case FetchRequest() | FetchNearRequest():
            return ev.FetchReceived(**common, fetch_offset=Offset(args.fetch_offset))
        case ListOffsetsRequest():
            return ev.ListOffsetsReceived(**common, timestamp=args.timestamp)
        case OffsetForLeaderEpochRequest():
            return ev.EpochEndReceived(**common, epoch=LeaderEpoch(args.leader_epoch))
        case _:
            return ev.WriteReceived(**common)
