"""The shell of the scheduler: a role of the leader of a partition of ``__scheduled``, which delivers records when due.

All appends to the partition pass through this role, so it reads the log after each of them, and does not poll it. Rows
and deliveries are tasks of the role's host, which cancels them with the leadership. When an append fails, its outcome
is not known: the role loads its state from the log again, as a new leader does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ClassVar, Final

from raylog.actors.answering import answering
from raylog.actors.coordinators.state_role import until_committed
from raylog.actors.naming import UNDELIVERABLE_TOPIC
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.role import Role
from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.actors.runner import AlwaysDurable, Runner
from raylog.actors.scheduling import requests
from raylog.actors.scheduling.decoded_batches import Bodies, copies_for
from raylog.actors.scheduling.delivering import Deliveries
from raylog.actors.scheduling.halves import policy_of
from raylog.actors.scheduling.lateness import Lateness
from raylog.actors.scheduling.placing import Placing
from raylog.actors.scheduling.rows import Copy, encode_row, joined, pieces, read_batches
from raylog.actors.scheduling.run_reader import RunReader
from raylog.base.errors import (
    NotLeaderOrFollower,
    RaylogError,
)
from raylog.base.ids import MAX_TIMESTAMP
from raylog.core.decision import Refuse, RequestId
from raylog.core.scheduling import events as ev
from raylog.core.scheduling.machine import SchedulerMachine
from raylog.core.scheduling.mover import shortened
from raylog.core.scheduling.rows import Checkpoint, CheckpointEnd, Relocated, Row
from raylog.core.scheduling.settings import SchedulerSettings
from raylog.protocol.halves import DecideHalvesReply
from raylog.protocol.message import Message
from raylog.protocol.replica import ProduceReply
from raylog.rpc import Request
from raylog.storage.batch.header import LASTING_PRODUCERS

logger = logging.getLogger(__name__)

READ_BYTES: Final = 4 * 1024 * 1024
READ_WAIT_MS: Final = 1_000
APPEND_TIMEOUT_MS: Final = 10_000
AGAIN_S: Final = 0.2
"""Pause after a failure, before the state is loaded again."""
LONGEST_TIMER_S: Final = 3_600.0
REPLAY_TURN: Final = 200
"""Events that are replayed in one turn of the event loop."""
CHECKPOINT_TIME: Final = 1 << 62
"""Base of the timestamps of checkpoints. So the newest one has the highest timestamp, which the log's index finds."""


class SchedulerRole(Role):
    """The scheduler in one leader epoch."""

    kind = "scheduler"
    requests: ClassVar[frozenset[type[Message]]] = requests.KINDS

    machine: SchedulerMachine
    settings: ClassVar[SchedulerSettings] = SchedulerSettings()
    """Sizes and times; the simulator sets smaller ones."""

    def __init__(self, host: RoleHost) -> None:
        """The log is not read before :meth:`begin`."""
        super().__init__(host)
        self.bodies = Bodies(host.log, lambda offset: self.machine.space.row_of(offset))
        self.placing = Placing(host, UNDELIVERABLE_TOPIC)
        self.deliveries = Deliveries(self)
        self.machine = self._new_machine()
        self.clock = TimeOfDay(host)
        self.lateness = Lateness()
        self.loaded = asyncio.Event()
        """Set while the state machine is loaded."""
        self._waiting: dict[RequestId, asyncio.Future[Any]] = {}
        """The futures of open requests."""
        self._halves_waiters: set[asyncio.Future[None]] = set()
        self._last_request = 0
        self._reading = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._trouble: asyncio.Future[None] | None = None
        self.appends = 0
        """Number of appends without a reply yet."""

    # ------------------------------------------------------------ life

    def begin(self) -> None:
        """Begin to load the state from the log; deliveries follow."""
        self.host.spawn(self._live(), "scheduler")
        self.host.spawn(self.clock.follow(self.tick), "scheduler clock")

    async def end(self) -> None:
        """Stop the timer."""
        self._stop_timer()

    @property
    def is_busy(self) -> bool:
        """Whether records wait to be delivered, appends are open, or the state is being loaded."""
        return not self.loaded.is_set() or self.appends > 0 or self.machine.is_busy

    def receive(self, request: Request, args: Any) -> None:
        """Take a request of a producer or an administrator. Raises NotLeaderOrFollower."""
        if args.current_leader_epoch not in (-1, self.host.leader_epoch):
            raise NotLeaderOrFollower(f"{self.host.partition} has leader epoch {self.host.leader_epoch}; look it up.")
        self.host.spawn(answering(requests.answered(self, request, args), request), "scheduler request")

    def now_ms(self) -> int:
        """Return the time of day by which records are due, in milliseconds since 1970."""
        return self.clock.now_ms()

    def _new_machine(self) -> SchedulerMachine:
        self._runs = RunReader(self.host.log)
        machine = SchedulerMachine(self._runs.part, self.settings)
        machine.halves.follow(policy_of(self.host.config))
        effects: dict[type[Any], Callable[[Any], None]] = {
            ev.Append: lambda effect: self.host.spawn(self._append_row(effect.row, effect.value), "scheduler row"),
            ev.Resolve: lambda effect: self.deliveries.resolve(effect.keys),
            ev.Deliver: lambda effect: self.host.spawn(self.deliveries.deliver(effect.batch), "scheduler delivery"),
            ev.TakeProducer: lambda _: self.host.spawn(self._take_producer(), "scheduler producer id"),
            ev.Reply: self._reply,
            Refuse: self._refuse,
            ev.Trim: lambda effect: self.host.spawn(self._trim(effect.before_offset), "scheduler trim"),
        }
        self._runner: Runner[ev.Event, ev.Effect] = Runner(
            machine.step, effects, AlwaysDurable(), on_defect=self._spoiled
        )
        return machine

    def _spoiled(self, reason: str) -> None:
        """Log why a step failed; its error ends the process, since only the log has the valid state."""
        logger.error("%s: %s", self.host.partition, reason)

    async def _live(self) -> None:
        await self.clock.set()
        while not self.host.is_over:
            try:
                await self._load()
                self._trouble = asyncio.get_running_loop().create_future()
                self.loaded.set()
                self.tick()
                await self._trouble
            except (RaylogError, OSError) as trouble:
                logger.warning("%s: the scheduler begins again: %s", self.host.partition, trouble)
            self.loaded.clear()
            self._stop_timer()
            self._waiting.clear()
            await asyncio.sleep(AGAIN_S)

    def failed(self, error: BaseException) -> None:
        if self._trouble is not None and not self._trouble.done():
            self._trouble.set_exception(error)

    async def _load(self) -> None:
        self.machine = self._new_machine()
        end = await until_committed(self.host)
        offset = await self._restore()
        await self._replay(offset, end)
        self.feed(ev.Loaded(now_ms=self.now_ms(), producer_id=await self._new_producer()))

    async def _restore(self) -> int:
        """Restore the newest checkpoint, if there is one; returns the offset from which to replay the log."""
        newest = await self.host.list_offsets(MAX_TIMESTAMP)
        if newest.offset < 0 or newest.timestamp < CHECKPOINT_TIME:
            return self.host.log.log_start_offset
        read = await self._row_at(newest.offset)
        row = None if read is None else read.row
        if isinstance(row, CheckpointEnd):
            parts = [await self._row_at(place) for place in row.places]
            row = await asyncio.to_thread(joined, row, parts)
        if not isinstance(row, Checkpoint):
            raise RaylogError(f"{self.host.partition}: the checkpoint at offset {newest.offset} cannot be read.")
        self.machine.restore(row, self._runs.directory)
        return row.covers

    async def _row_at(self, offset: int) -> ev.RowRead | None:
        _, records = await self.host.fetch(offset, max_bytes=1, max_wait_ms=0)
        event = next(read_batches(records, offset), None)
        return event if isinstance(event, ev.RowRead) and event.offset == offset else None

    async def _replay(self, offset: int, end: int) -> None:
        read = 0
        while offset < end:
            _, records = await self.host.fetch(offset, max_bytes=READ_BYTES, max_wait_ms=READ_WAIT_MS)
            for event in read_batches(records, offset):
                self.machine.step(event)
                read += 1
                if read % REPLAY_TURN == 0:
                    await asyncio.sleep(0)  # lets heartbeats be sent meanwhile
            offset = max(offset, self.machine.read_end)

    # ------------------------------------------------------------ the log

    async def append(self, batch: bytes, count: int) -> ProduceReply:
        """Append a batch of ``count`` records, and feed the log to the state machine up to its end."""
        self.appends += 1
        try:
            reply = await self.host.produce(batch, timeout_ms=APPEND_TIMEOUT_MS)
            await self.loaded.wait()
            if reply.base_offset >= 0:
                await self.read_on(reply.base_offset + count)
            return reply
        except RaylogError as error:
            if error.retriable:  # the batch may be in the log: load the state again
                self.failed(error)
            raise
        finally:
            self.appends -= 1

    async def read_on(self, end: int) -> None:
        """Feed the committed batches up to the offset ``end`` to the state machine."""
        async with self._reading:
            while self.machine.read_end < end:
                offset = self.machine.read_end
                _, records = await self.host.fetch(offset, max_bytes=READ_BYTES, max_wait_ms=READ_WAIT_MS)
                for event in read_batches(records, offset):
                    self.feed(event)
                    if isinstance(event, ev.DataRead) and event.held:
                        self._halves_changed()
        self.tick()

    async def _append_row(self, row: Row, value: bytes) -> None:
        copies: list[Copy] = []
        try:
            timestamp = self.now_ms()
            if isinstance(row, Checkpoint):
                timestamp = CHECKPOINT_TIME + row.number
                row = await self._append_pieces(row)
            elif isinstance(row, Relocated):
                copies = copies_for(self.bodies, row)
                row = shortened(row, len(copies))
            await self.append(encode_row(row, timestamp, copies, value), 1 + len(copies))
        except (RaylogError, OSError) as error:
            self.failed(error)

    async def _append_pieces(self, row: Checkpoint) -> Checkpoint | CheckpointEnd:
        """Append the pieces of a checkpoint that is larger than a row; returns the row to append after them.

        No other row comes between them: the state machine appends one row at a time, and this counts as one.
        """
        parts = await asyncio.to_thread(pieces, row)  # it may have millions of keys
        if not parts:
            return row
        places: list[int] = []
        for part, value in parts:
            reply = await self.append(encode_row(part, self.now_ms(), value=value), 1)
            places.append(reply.base_offset)
        return CheckpointEnd(row.number, row.covers, tuple(places))

    # ------------------------------------------------------------ the machine

    def tick(self) -> None:
        """Feed a tick to the state machine, and set the timer for the next one."""
        if self.loaded.is_set():
            self.machine.halves.follow(policy_of(self.host.config))
            self.feed(ev.Tick(now_ms=self.now_ms()))

    def decided(self, make: Callable[[RequestId], ev.Command]) -> asyncio.Future[Any]:
        """Feed a request to the state machine; the future has the reply once it is committed."""
        self._last_request = number = self._last_request + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self.feed(make(number))
        return answer

    async def until_halves_change(self, timeout_s: float) -> None:
        """Wait until a half message is prepared or decided, for ``timeout_s`` at most."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._halves_waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout_s)
        finally:
            self._halves_waiters.discard(waiter)

    def _halves_changed(self) -> None:
        for waiter in self._halves_waiters:
            if not waiter.done():
                waiter.set_result(None)

    def feed(self, event: ev.Event) -> None:
        """Let the machine handle an event, and set the timer for what it has due next."""
        self._runner.feed(event)
        self._set_timer()

    def _reply(self, effect: ev.Reply) -> None:
        answer = self._waiting.pop(effect.request, None)
        if answer is not None and not answer.done():
            answer.set_result(effect.message)
        if isinstance(effect.message, DecideHalvesReply):
            self._halves_changed()

    def _refuse(self, effect: Refuse) -> None:
        answer = self._waiting.pop(effect.request, None)
        if answer is not None and not answer.done():
            answer.set_exception(effect.error)

    def _set_timer(self) -> None:
        self._stop_timer()
        due_ms = self.machine.next_due_ms()
        if due_ms is not None and self.loaded.is_set():
            pause_s = min(LONGEST_TIMER_S, max(0, due_ms - self.now_ms()) / 1000)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self.tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _take_producer(self) -> None:
        machine = self.machine
        while machine is self.machine:
            try:
                producer_id = await self._new_producer()
            except (RaylogError, OSError) as error:
                logger.info("%s: no producer id at the moment: %s", self.host.partition, error)
                await asyncio.sleep(AGAIN_S)
                continue
            if machine is self.machine:
                self.feed(ev.ProducerTaken(now_ms=self.now_ms(), producer_id=producer_id))
            return

    async def _new_producer(self) -> int:
        return await self.host.producer_id() | LASTING_PRODUCERS

    async def _trim(self, before_offset: int) -> None:
        if before_offset <= self.host.log.log_start_offset:
            return
        try:
            await self.host.delete_records(before_offset)
        except (RaylogError, OSError) as error:
            logger.debug("%s: nothing is deleted below %d now: %s", self.host.partition, before_offset, error)

    # ------------------------------------------------------------ figures

    def figures(self) -> dict[str, int]:
        """Return counters and gauges for metrics."""
        machine = self.machine
        parked = sum(len(lane.waiting) for lane in machine.lanes.values())
        return {
            "waiting": machine.pending.count,
            "parked": parked,
            "delivered": machine.delivered_count,
            "cancelled": machine.cancelled_count,
            "runs": len(machine.pending.runs),
            "replaced": machine.names.replaced_count,
            "log_bytes": machine.space.size,
            "dead_bytes": machine.dead_bytes,
            "unreadable": machine.unreadable_count,
            "moved": machine.space.moved_records,
            "moved_bytes": machine.space.moved_bytes,
            "freed_bytes": machine.space.freed_bytes,
            "lateness_ms": self.lateness.latest_ms,
            "clock_step_ms": self.clock.step_ms,
            **self._figures_of_halves(),
        }

    def _figures_of_halves(self) -> dict[str, int]:
        halves = self.machine.halves
        oldest_ms = halves.oldest_ms()
        return {
            "halves": len(halves.held),
            "halves_unresolved": len(halves.worn),
            "halves_oldest_ms": 0 if oldest_ms is None else max(0, self.now_ms() - oldest_ms),
            "halves_committed": halves.committed_count,
            "halves_rolled_back": halves.rolled_back_count,
            "halves_checked": halves.checked_count,
        }
