"""The queues of a partition: a role of its leader. It costs nothing before the first request for a queue."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar, Final

from raylog.actors.answering import answering, spoiled
from raylog.actors.queues.copies import CopySender
from raylog.actors.queues.letters import LetterSender
from raylog.actors.queues.queue import Queue
from raylog.actors.queues.reading import LogReader, RecordReader
from raylog.actors.queues.store import ShareStateClient
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.role import Role
from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.base.errors import (
    InvalidGroupId,
    LimitReached,
    NotLeaderOrFollower,
    RaylogError,
    UnknownMemberId,
)
from raylog.core.forwarding.settings import check_queue
from raylog.protocol import queues as wire
from raylog.protocol.message import Message
from raylog.rpc import Request

logger = logging.getLogger(__name__)

CLOCK_WAIT_MS: Final = 1_000
"""Wait for the clocks of most brokers when a queue is loaded; after it, the earliest clock counts."""


class QueuesRole(Role):
    """All queues of one partition in one leader epoch; each is loaded with the first request for it."""

    kind = "queues"
    requests: ClassVar[frozenset[type[Message]]] = frozenset(method.request for method in wire.QUEUE_METHODS)

    def __init__(self, host: RoleHost) -> None:
        super().__init__(host)
        self.queues: dict[str, Queue] = {}
        """The queues that serve, by group."""
        self._loading: dict[str, list[tuple[Request, Any]]] = {}
        """The requests for queues that are being loaded, by group."""
        self._states = ShareStateClient(host)
        self._reader = LogReader(host, self._more)
        records = RecordReader(host, self._reader)
        self._letters = LetterSender(host, records, self._wall_ms)
        self._copies = CopySender(host, records)
        self._clock: TimeOfDay | None = None
        self._clock_lock = asyncio.Lock()

    def begin(self) -> None:
        """Do nothing: queues are loaded by requests."""

    def reconfigured(self) -> None:
        """Apply the topic's new settings to every queue."""
        for queue in list(self.queues.values()):
            queue.reconfigured()

    async def end(self) -> None:
        """End the queues; the next leader loads them."""
        for queue in list(self.queues.values()):
            queue.end("its leader was replaced")
        self.queues.clear()
        loading, self._loading = self._loading, {}
        for requests in loading.values():
            for request, _ in requests:
                request.fail(NotLeaderOrFollower(f"{self.host.partition} leads no longer; look its leader up."))

    @property
    def is_busy(self) -> bool:
        """Whether a queue is being loaded, or is busy."""
        return bool(self._loading) or any(queue.is_busy for queue in self.queues.values())

    @property
    def needed_from(self) -> int | None:
        """The first offset whose dead letter or late retry is not stored yet; None: there is none."""
        log_start = self.host.log.log_start_offset
        machines = [queue.machine for queue in self.queues.values() if queue.machine is not None]
        return min(
            (each for machine in machines if (each := machine.archiving_from(log_start)) is not None), default=None
        )

    def figures(self) -> dict[str, int]:
        """Return the number of queues, and the sums of their censuses and counters."""
        found: dict[str, int] = {"queues": len(self.queues)}
        for queue in self.queues.values():
            if queue.machine is not None:
                for name, number in {**queue.machine.census(), **queue.machine.counters}.items():
                    found[name] = found.get(name, 0) + number
        return found

    def receive(self, request: Request, args: Any) -> None:
        """Take a request for a queue, or hold it until the queue is loaded.

        Raises NotLeaderOrFollower, InvalidGroupId and UnknownMemberId.
        """
        if args.current_leader_epoch not in (-1, self.host.leader_epoch):
            raise NotLeaderOrFollower(f"{self.host.partition} has leader epoch {self.host.leader_epoch}; look it up.")
        group = args.group_id
        if not group:
            raise InvalidGroupId("A queue needs a group; set group_id.")
        queue = self.queues.get(group)
        if queue is not None:
            self._hand_over(queue, request, args)
            return
        if isinstance(args, (wire.QueueFetchRequest, wire.QueueLeaveRequest)) and group not in self._loading:
            raise UnknownMemberId(f"The queue does not know the member {args.member_id!r}; open it again.")
        waiting = self._loading.get(group)
        if waiting is None:
            self._loading[group] = [(request, args)]
            self.host.spawn(self._load(group), f"queue {group} load")
        else:
            waiting.append((request, args))

    async def _wall_ms(self) -> int:
        """Return the time of day on which most brokers agree; the ends of delays are stored by it."""
        async with self._clock_lock:
            if self._clock is None:
                clock = TimeOfDay(self.host)
                await clock.set(CLOCK_WAIT_MS)
                self._clock = clock
        return self._clock.now_ms()

    async def _load(self, group: str) -> None:
        queue = Queue(
            group,
            self.host,
            self._reader,
            self._states,
            self._letters,
            self._copies,
            is_watched=self._is_watched,
            on_over=self._over,
            wall_ms=self._wall_ms,
        )
        error: RaylogError | None = None
        try:
            await queue.load()
        except RaylogError as trouble:
            error = trouble
        requests = self._loading.pop(group, [])
        if error is not None:
            logger.warning("%s: the queue of group %s was not loaded: %s", self.host.partition, group, error)
            refusal = (
                error
                if isinstance(error, (InvalidGroupId, LimitReached))
                else NotLeaderOrFollower(f"The queue is not served here: {error}")
            )
            for request, _ in requests:
                request.fail(refusal)
            return
        self.queues[group] = queue
        for request, args in requests:
            if request.is_deserted:
                continue
            try:
                self._hand_over(queue, request, args)
            except RaylogError as refusal:
                request.fail(refusal)
            except Exception as defect:  # as in `answering`, it fails this request only
                spoiled(request, defect)

    def _hand_over(self, queue: Queue, request: Request, args: Any) -> None:
        match args:
            case wire.QueueFetchRequest():
                queue.fetch(request, args)
            case wire.QueueAcknowledgeRequest():
                queue.acknowledge(request, args)
            case wire.QueueOpenRequest():
                check_queue(self.host.partition.topic, self.host.config)
                queue.open(request, args)
            case wire.QueueLeaveRequest():
                queue.leave(args.member_id)
                request.reply()
            case wire.QueueDescribeRequest():
                request.reply(queue.describe())
            case wire.QueuePeekRequest():
                request.reply(wire.QueuePeekReply(queue.peek(args.first, args.limit)))
            case _:
                self.host.spawn(answering(self._reset(queue, request, args), request), "queue reset")

    async def _reset(self, queue: Queue, request: Request, args: wire.QueueResetRequest) -> None:
        await self._reader.begin()
        queue.reset(request, args)

    def _over(self, queue: Queue, reason: str) -> None:
        logger.warning("%s: the queue of group %s ends: %s", self.host.partition, queue.group, reason)
        if self.queues.get(queue.group) is queue:
            del self.queues[queue.group]
        queue.end(reason)

    def _is_watched(self) -> bool:
        return any(queue.wants_more for queue in self.queues.values())

    def _more(self) -> None:
        for queue in list(self.queues.values()):
            queue.more()
