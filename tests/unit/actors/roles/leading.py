"""A leader's log on a disk, and the host of its roles: requests to the own log are answered as its replica would.

A leader that was deposed without knowing it stores what it is sent; nothing of that is ever committed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from raylog.actors.clock import wall_ms
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.local import LocalRequest
from raylog.base.errors import OffsetOutOfRange, RequestTimedOut
from raylog.base.ids import EARLIEST, MAX_TIMESTAMP, TopicPartition
from raylog.protocol.replica import (
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    ProduceReply,
)
from raylog.storage.batch.header import iter_headers
from tests.unit.storage.logs import NOW, open_log

ANSWERED_S: Final = 0.002


class LeadingHost(RoleHost):
    """The host of a role of the only broker."""

    def __init__(self, folder: Path, topic: str) -> None:
        nothing: Any = None
        self.stored = open_log(folder)
        super().__init__(
            partition=TopicPartition(topic, 0),
            topic_id="i",
            broker=1,
            leader_epoch=1,
            log=self.stored,
            config=dict,
            trusted_ms=wall_ms,
            receive=self._received,
            controller=nothing,
            targets=nothing,
            on_failed=self._failed,
        )
        self.is_deposed = False
        self.appended: list[int] = []
        """How many records each batch had that was committed."""
        self._committed = 0

    async def producer_id(self) -> int:
        return 1

    async def clocks(self) -> tuple[list[int], int]:
        return [self.wall_ms()], 1

    async def end(self) -> None:
        """Cancel the role's tasks."""
        for task in list(self._tasks):
            task.cancel()
        self.close()

    def _failed(self, reason: str) -> None:
        raise AssertionError(reason)

    def _received(self, request: LocalRequest) -> None:
        # A disk and followers take their time: what comes meanwhile waits for the next append.
        asyncio.get_running_loop().call_later(ANSWERED_S, self._answer, request)

    def _answer(self, request: LocalRequest) -> None:
        try:
            request.reply(*getattr(self, f"_{request.method}")(request.args, request))
        except Exception as error:
            request.fail(error)

    def _produce(self, _: Any, request: LocalRequest) -> tuple[ProduceReply, bytes]:
        assert request.method == PRODUCE.name
        info = self.stored.append_as_leader(request.payload, self.leader_epoch, NOW)
        if self.is_deposed:
            raise RequestTimedOut("No follower fetches any more.")
        self._committed = info.end_offset
        self.appended.append(info.end_offset - info.first_offset)
        return ProduceReply(info.first_offset, 0), b""

    def _fetch(self, args: FetchRequest, request: LocalRequest) -> tuple[FetchReply, bytes]:
        assert request.method == FETCH.name
        if not 0 <= args.fetch_offset <= self._committed:
            raise OffsetOutOfRange()
        records = self.stored.read(args.fetch_offset, args.max_bytes, self._committed)
        return FetchReply(self._committed, 0, self._committed, ()), records

    def _list_offsets(self, args: ListOffsetsRequest, request: LocalRequest) -> tuple[ListOffsetsReply, bytes]:
        assert request.method == LIST_OFFSETS.name
        offset, timestamp = (0 if args.timestamp == EARLIEST else self._committed), -1
        if args.timestamp == MAX_TIMESTAMP:
            records = self.stored.read(0, 1 << 20, self._committed) if self._committed else b""
            stamps = [(header.max_timestamp, header.base_offset) for _, header in iter_headers(records)]
            timestamp, offset = max(stamps, default=(-1, -1))
        return ListOffsetsReply(offset, timestamp, self.leader_epoch), b""
