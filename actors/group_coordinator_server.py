"""The shell of a group coordinator: the groups that hash to one partition of the offsets topic.

Runs in a ``GroupCoordinator`` actor. Each life registers with the controller under a higher epoch, fences its
predecessor with its first append, replays the partition, and only then answers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from raylog.actors import permissions
from raylog.actors.careful_clock import CarefulClock
from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_link import ControllerLink, FindController
from raylog.actors.group_requests import event_for
from raylog.actors.metrics.process import usage_of
from raylog.actors.naming import OFFSETS_TOPIC
from raylog.actors.offsets_log import ROW_HEAD_BYTES, EncodedRow, Identity, OffsetsLog, encoded_row
from raylog.actors.settings import group_settings, session_heartbeat_s
from raylog.actors.specs import CoordinatorSpec
from raylog.actors.transport import listen
from raylog.core.decision import Refuse, Reply
from raylog.core.errors import (
    CoordinatorLoadInProgress,
    InvalidProducerEpoch,
    InvalidRequest,
    NotCoordinator,
    RaylogError,
)
from raylog.core.groups import events as groups
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.writing import WriteQueue
from raylog.core.outbox import Outbox
from raylog.rpc import Connection, Request, RpcError

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05
REGISTER_TIMEOUT_S: Final = 5.0
LOAD_TIMEOUT_S: Final = 60.0
APPEND_TIMEOUT_S: Final = 20.0
RELOAD_PAUSE_S: Final = 0.2
FENCE_KEY: Final = "fence"


class GroupCoordinatorServer:
    """One group coordinator, through as many loads as it takes, to shutdown."""

    def __init__(
        self, spec: CoordinatorSpec, *, find_controller: FindController, on_fatal: Callable[[str], None]
    ) -> None:
        """``on_fatal`` ends the process: a newer life of this coordinator is registered."""
        self.spec = spec
        self._on_fatal = on_fatal
        self._name = f"{spec.kind} coordinator {spec.index}"
        self._epoch = -1
        self._identity: Identity | None = None
        self._registered = asyncio.Event()
        self._machine: CoordinatorMachine | None = None
        self._clock = CarefulClock(self._name)
        """What offsets expire by."""
        self._requests: dict[int, Request] = {}
        self._next_number = 1
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._trimming: asyncio.Task[None] | None = None
        self._server = listen(self._on_request, spec, permissions.COORDINATOR)
        self.endpoint: tuple[str, int] = ("", 0)
        self._link = ControllerLink(
            find_controller,
            name=self._name,
            secret=spec.secret,
            register=self._register,
            handler=lambda request: request.fail(InvalidRequest(f"unexpected message {request.method!r}")),
            heartbeat_s=session_heartbeat_s(spec.cluster_config),
            on_superseded=on_fatal,
        )
        self._log = OffsetsLog(spec.index, secret=spec.secret, fetch_metadata=self._fetch_metadata)
        self._queue: WriteQueue[EncodedRow, groups.Effect] = WriteQueue(self._log.rows_bytes_max)

    @property
    def epoch(self) -> int:
        """The number of this life as the controller counts them; -1 before it is registered."""
        return self._epoch

    async def start(self) -> None:
        """Open the endpoint and begin to load; returns at once."""
        self.endpoint = await self._server.start()
        self._link.start()
        self._tasks = [
            asyncio.create_task(self._live(), name=f"{self._name} life"),
            asyncio.create_task(self._tick_forever(), name=f"{self._name} ticks"),
        ]

    async def stop(self) -> None:
        """Stop answering; what was acknowledged is in the log."""
        tasks = self._tasks if self._trimming is None else [*self._tasks, self._trimming]
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
            "register_coordinator",
            [self.spec.kind, self.spec.index, self._epoch, host, port],
            timeout_s=REGISTER_TIMEOUT_S,
        )
        self._epoch, producer_id, producer_epoch = reply.args[:3]
        self._identity = Identity(producer_id, producer_epoch)
        self._registered.set()

    async def _live(self) -> None:
        while True:
            try:
                await self._load()
                await self._write_forever()
            except InvalidProducerEpoch as fenced:
                self._on_fatal(f"{self._name}: a newer coordinator has taken over: {fenced}")
                return
            except RaylogError as trouble:
                logger.warning("%s: %s; loading again", self._name, trouble)
            except (
                Exception
            ) as defect:  # a defect, or rows nobody can read: a coordinator that is half alive helps nobody
                self._on_fatal(f"{self._name} failed: {defect!r}")
                raise
            self._forget()
            await asyncio.sleep(RELOAD_PAUSE_S)
            await self._link.stop()
            self._epoch = -1
            self._registered.clear()
            self._link.start()

    async def _load(self) -> None:
        await self._registered.wait()
        identity = self._identity
        if identity is None:
            raise NotCoordinator("not registered")
        self._log.become(identity)
        fence, _ = encoded_row([FENCE_KEY, self._epoch], None)
        end = await self._log.append([fence], timeout_s=LOAD_TIMEOUT_S)
        settings = replace(
            group_settings(self.spec.cluster_config), record_bytes_max=self._log.rows_bytes_max - ROW_HEAD_BYTES
        )
        machine = CoordinatorMachine(settings=settings, new_member_id=_new_member_id)
        rows = 0
        async for key, value in self._log.read_to(end, timeout_s=LOAD_TIMEOUT_S):
            if key[0] != FENCE_KEY:
                machine.replay(key, value)
                rows += 1
        self._machine = machine
        self._perform(machine.loaded(monotonic_ms(), wall_ms=self._clock.deleting_ms()))
        logger.info("%s ready in epoch %d after %d rows", self._name, self._epoch, rows)

    def _forget(self) -> None:
        self._machine = None
        self._queue.clear()
        self._wanted.clear()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.fail(NotCoordinator("The coordinator is loading its groups again; find it anew and repeat."))

    async def _write_forever(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while not self._queue.is_idle:
                self._queue.batch_bytes_max = self._log.rows_bytes_max
                rows = self._queue.take()
                if rows:
                    await self._log.append(rows, timeout_s=APPEND_TIMEOUT_S)
                self._release(self._queue.stored())

    # ------------------------------------------------------------ events in

    def _on_request(self, request: Request) -> None:
        if request.method == "coordinator_metrics":
            request.reply(self._metrics())
            return
        if self._machine is None:
            request.fail(CoordinatorLoadInProgress())
            return
        number = self._next_number
        self._next_number += 1
        event = event_for(request, number, monotonic_ms())
        self._requests[number] = request
        self._step(self._machine, event)

    def _metrics(self) -> dict[str, object]:
        groups = [] if self._machine is None else self._machine.census()
        return {"process": usage_of(self._server).to_wire(), "loaded": self._machine is not None, "groups": groups}

    def _step(self, machine: CoordinatorMachine, event: groups.Event) -> None:
        try:
            self._perform(machine.step(event))
        except Exception as defect:  # half a step may have been taken: only the log can tell what holds
            self._on_fatal(f"{self._name} failed at {event!r:.500}: {defect!r}")
            raise

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._machine is not None:
                self._drop_deserted()
                log = groups.LogExtent(end_offset=self._log.end_offset, size_bytes=self._log.size_bytes)
                tick = groups.Tick(cause="tick", now_ms=monotonic_ms(), wall_ms=self._clock.deleting_ms(), log=log)
                self._step(self._machine, tick)

    def _drop_deserted(self) -> None:
        deserted = [number for number, request in self._requests.items() if request.connection.is_closed]
        for number in deserted:
            del self._requests[number]
            if self._machine is not None:
                dropped = groups.RequestDropped(cause="connection lost", now_ms=monotonic_ms(), request=number)
                self._step(self._machine, dropped)

    async def _fetch_metadata(self) -> list[object]:
        reply = await self._link.call("metadata", [[OFFSETS_TOPIC]], timeout_s=REGISTER_TIMEOUT_S)
        row: list[object] = reply.args[3][0]
        return row

    # ------------------------------------------------------------ effects out

    def _perform(self, outbox: Outbox[groups.Effect]) -> None:
        rows: list[tuple[EncodedRow, int]] = []
        for effect in outbox.now:
            if isinstance(effect, groups.AppendRecords):
                rows.extend(encoded_row(*row) for row in effect.records)
            else:
                self._release([effect])
        self._release(self._queue.add(rows, outbox.after_sync))
        if not self._queue.is_idle:
            self._wanted.set()

    def _release(self, effects: list[groups.Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply():
                    request = self._requests.pop(effect.request, None)
                    if request is not None:
                        request.reply(effect.result)
                case Refuse():
                    request = self._requests.pop(effect.request, None)
                    if request is not None:
                        request.fail(effect.error)
                case groups.ReportStored():
                    if self._machine is not None:
                        self._step(self._machine, groups.RowsStored(cause=effect.cause, now_ms=monotonic_ms()))
                case groups.TrimLog():
                    if self._trimming is None or self._trimming.done():
                        self._trimming = asyncio.create_task(self._trim(effect), name=f"{self._name} trim")
                case groups.AppendRecords():
                    raise TypeError("records are appended before the effects that wait for them")

    async def _trim(self, effect: groups.TrimLog) -> None:
        machine = self._machine
        try:
            await self._log.trim(effect.before_offset)
        except (RpcError, RaylogError, OSError) as trouble:
            logger.warning("%s: its log is not shortened yet, trying again later: %s", self._name, trouble)
            return
        logger.info("%s: its log starts at offset %d now", self._name, effect.before_offset)
        if machine is not None and machine is self._machine:
            trimmed = groups.LogTrimmed(cause="trim", now_ms=monotonic_ms(), before_offset=effect.before_offset)
            self._step(machine, trimmed)


def _new_member_id(client_id: str) -> str:
    return f"{client_id}-{secrets.token_hex(8)}"
