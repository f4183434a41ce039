"""The shell of a group coordinator: the groups that hash to one partition of the offsets topic.

Runs in a ``GroupCoordinator`` actor. Each incarnation registers with the controller under a higher epoch, fences its
predecessor with its first append, replays the partition, and only then serves. A failed append begins the next
incarnation in the same process. ``runner.py`` handles events and effects, with one runner for each load. A coordinator
that is not in use has the controller end it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from raylog.actors.actor_specs import CoordinatorSpec
from raylog.actors.careful_clock import CarefulClock
from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_link import ControllerLink, FindController
from raylog.actors.groups.early_requests import EarlyRequests
from raylog.actors.groups.offsets_log import ROW_HEAD_BYTES, EncodedRow, Identity, OffsetsLog, encoded_row
from raylog.actors.groups.runner import GroupCoordinatorRunner, fence_row
from raylog.actors.metrics.process import usage_of
from raylog.actors.naming import OFFSETS_TOPIC
from raylog.actors.settings import group_settings, session_heartbeat_s
from raylog.actors.transport import listen
from raylog.core.errors import InvalidProducerEpoch, InvalidRequest, NotController, NotCoordinator, RaylogError
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.events import LogExtent
from raylog.protocol.controller import (
    REGISTER_COORDINATOR,
    SLEEP_COORDINATOR,
    RegisterCoordinatorRequest,
    SleepCoordinatorRequest,
)
from raylog.protocol.groups import COORDINATOR_METRICS, GROUP_COORDINATOR
from raylog.protocol.notifications import FALL_ASLEEP
from raylog.protocol.permissions import permissions
from raylog.rpc import Connection, Request

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05
REGISTER_TIMEOUT_S: Final = 5.0
LOAD_TIMEOUT_S: Final = 60.0
APPEND_TIMEOUT_S: Final = 20.0
RELOAD_PAUSE_S: Final = 0.2
ENDED_WITHIN_S: Final = 10.0
"""A coordinator that sleeps and was not ended by then begins its next incarnation: the controller may have died."""

_Runner = GroupCoordinatorRunner[Request, EncodedRow]


class GroupCoordinatorServer:
    """One group coordinator, through as many loads as it takes, to shutdown."""

    def __init__(
        self, spec: CoordinatorSpec, *, find_controller: FindController, on_fatal: Callable[[str], None]
    ) -> None:
        """``on_fatal`` ends the process: a newer incarnation of this coordinator is registered."""
        self.spec = spec
        self._on_fatal = on_fatal
        self._name = f"{spec.kind} coordinator {spec.index}"
        self._epoch = -1
        self._identity: Identity | None = None
        self._registered = asyncio.Event()
        self._runner: _Runner | None = None
        """None = loading, or asleep."""
        self._early = EarlyRequests()
        self._is_asleep = False
        """The controller has agreed that this coordinator ends, and ends it."""
        self._trouble: RaylogError | None = None
        """Why this incarnation has to end; None = it has not."""
        self._clock = CarefulClock(self._name)
        """The clock by which offsets expire."""
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._trimming: asyncio.Task[None] | None = None
        self._proposing: asyncio.Task[None] | None = None
        self._server = listen(self._on_request, spec, permissions(GROUP_COORDINATOR))
        self.endpoint: tuple[str, int] = ("", 0)
        self._link = ControllerLink(
            find_controller,
            name=self._name,
            secret=spec.secret,
            register=self._register,
            handler=self._on_controller_message,
            heartbeat_s=session_heartbeat_s(spec.cluster_config),
            on_superseded=on_fatal,
        )
        self._log = OffsetsLog(spec.index, secret=spec.secret, fetch_metadata=self._fetch_metadata)

    @property
    def epoch(self) -> int:
        """The epoch of this incarnation, from the controller; -1 before the registration."""
        return self._epoch

    async def start(self) -> None:
        """Open the endpoint and begin to load; returns at once."""
        self.endpoint = await self._server.start()
        self._link.start()
        self._tasks = [
            asyncio.create_task(self._live(), name=f"{self._name} life"),
            asyncio.create_task(self._keep_ticking(), name=f"{self._name} ticks"),
        ]

    async def stop(self) -> None:
        """Stop serving; everything acknowledged is in the log."""
        tasks = [*self._tasks, *(task for task in (self._trimming, self._proposing) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.stop()
        self._log.close()
        await self._server.close()

    # ------------------------------------------------------------ life: register, fence, replay, serve

    async def _register(self, connection: Connection) -> None:
        host, port = self.endpoint
        reply = await connection.call(
            REGISTER_COORDINATOR.name,
            RegisterCoordinatorRequest(self.spec.kind, self.spec.index, self._epoch, host, port),
            timeout_s=REGISTER_TIMEOUT_S,
        )
        registered = REGISTER_COORDINATOR.read_reply(reply.args)
        self._epoch = registered.epoch
        self._identity = Identity(registered.producer_id, registered.producer_epoch)
        self._registered.set()

    async def _live(self) -> None:
        while True:
            try:
                runner = await self._load()
                self._runner = runner
                runner.serve()
                self._early.hand_over(runner.receive)
                await self._keep_writing(runner)
            except InvalidProducerEpoch as fenced:
                self.fatal(f"a newer coordinator has taken over: {fenced}")
                return
            except RaylogError as trouble:
                if not self._is_asleep:
                    logger.warning("%s: %s; loading again", self._name, trouble)
            except Exception as defect:  # a defect, or rows that cannot be read: half a coordinator is of no use
                self.fatal(f"its life failed: {defect!r}")
                raise
            if self._runner is not None:
                self._runner.end()
                self._runner = None
            if self._is_asleep:
                await self._link.stop()  # it must not register this incarnation again
            await asyncio.sleep(ENDED_WITHIN_S if self._is_asleep else RELOAD_PAUSE_S)
            await self._link.stop()
            self._epoch = -1
            self._is_asleep, self._trouble = False, None
            self._registered.clear()
            self._link.start()

    async def _load(self) -> _Runner:
        await self._registered.wait()
        identity = self._identity
        if identity is None:
            raise NotCoordinator("not registered")
        self._log.become(identity)
        fence, _ = encoded_row(fence_row(self._epoch), None)
        end = await self._log.append([fence], timeout_s=LOAD_TIMEOUT_S)
        settings = replace(
            group_settings(self.spec.cluster_config, self._log.config),
            record_bytes_max=self._log.rows_bytes_max - ROW_HEAD_BYTES,
        )
        runner = _Runner(CoordinatorMachine(settings=settings, new_member_id=_new_member_id), self)
        async for key, value in self._log.read_to(end, timeout_s=LOAD_TIMEOUT_S):
            runner.replay(key, value)
        logger.info("%s ready in epoch %d after %d rows", self._name, self._epoch, runner.rows_replayed)
        return runner

    async def _keep_writing(self, runner: _Runner) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            if self._trouble is not None:
                raise self._trouble
            while rows := runner.take_batch(self._log.rows_bytes_max):
                await self._log.append(rows, timeout_s=APPEND_TIMEOUT_S)
                runner.stored()

    # ------------------------------------------------------------ events in

    def _on_request(self, request: Request) -> None:
        if request.method == COORDINATOR_METRICS.name:
            request.reply(self._metrics())
        elif self._runner is not None:
            self._runner.receive(request)
        elif self._is_asleep:
            request.fail(NotCoordinator("The coordinator has ended, because its groups were not used; find it again."))
        else:
            self._early.hold(request, monotonic_ms())

    def _on_controller_message(self, request: Request) -> None:
        if request.method != FALL_ASLEEP.name:
            request.fail(InvalidRequest(f"unexpected message {request.method!r}"))
        elif self._runner is not None:
            self._runner.sleep_requested()

    def _metrics(self) -> dict[str, object]:
        groups = [] if self._runner is None else self._runner.census()
        return {"process": usage_of(self._server).to_wire(), "loaded": self._runner is not None, "groups": groups}

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._early.expire(monotonic_ms())
            if self._runner is not None:
                self._runner.tick()

    async def _fetch_metadata(self) -> list[object]:
        reply = await self._link.call("metadata", [[OFFSETS_TOPIC]], timeout_s=REGISTER_TIMEOUT_S)
        row: list[object] = reply.args[3][0]
        return row

    # ------------------------------------------------------------ the runner's ports

    def now_ms(self) -> int:
        """Return the time of a clock that does not go back."""
        return monotonic_ms()

    def wall_ms(self) -> int:
        """Return the time of day by which offsets expire; it does not follow a clock that jumps."""
        return self._clock.deleting_ms()

    def log_extent(self) -> LogExtent:
        """Return how far the log is known to be stored."""
        return LogExtent(end_offset=self._log.end_offset, size_bytes=self._log.size_bytes)

    def row(self, key: list[object], value: list[object] | None) -> tuple[EncodedRow, int]:
        """Return a row as it is stored, and its size."""
        return encoded_row(key, value)

    def wake_writer(self) -> None:
        """Have the rows that wait appended, with those of other events of this turn of the loop."""
        self._wanted.set()

    def trim(self, before_offset: int) -> None:
        """Delete the beginning of the log, one deletion at a time."""
        if self._trimming is None or self._trimming.done():
            self._trimming = asyncio.create_task(self._trim(before_offset), name=f"{self._name} trim")

    def propose_sleep(self) -> None:
        """Have the controller end this coordinator, if it agrees."""
        self._proposing = asyncio.create_task(self._propose(), name=f"{self._name} sleep")

    def fatal(self, reason: str) -> None:
        """End the process."""
        self._on_fatal(f"{self._name}: {reason}")

    async def _propose(self) -> None:
        runner = self._runner
        try:
            request = SleepCoordinatorRequest(self.spec.kind, self.spec.index, self._epoch)
            await self._link.call(SLEEP_COORDINATOR.name, request, timeout_s=REGISTER_TIMEOUT_S)
        except RaylogError as refusal:
            if refusal.is_remote or isinstance(refusal, NotController):
                logger.debug("%s: it stays: %s", self._name, refusal)
                if runner is not None and runner is self._runner:
                    runner.sleep_refused()
                return
            self._trouble = refusal  # it may be over, or not: the next incarnation is sure to be registered
        else:
            logger.info("%s ends, because its groups are not used", self._name)
            self._is_asleep = True
            self._trouble = NotCoordinator("it was not ended in time")
        self._wanted.set()

    async def _trim(self, before_offset: int) -> None:
        runner = self._runner
        try:
            await self._log.trim(before_offset)
        except (RaylogError, OSError) as trouble:
            logger.warning("%s: its log is not shortened yet, trying again later: %s", self._name, trouble)
            return
        logger.info("%s: its log starts at offset %d now", self._name, before_offset)
        if runner is not None and runner is self._runner:
            runner.trimmed(before_offset)


def _new_member_id(client_id: str) -> str:
    return f"{client_id}-{secrets.token_hex(8)}"
