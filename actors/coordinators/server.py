"""The shell of a coordinator of any kind, which owns the keys that hash to one partition of its internal topic.

Each incarnation registers with the controller under a higher epoch, fences its predecessor with its first append,
replays the partition, and only then serves. After a failed append the next incarnation begins in the same process.
``runner.py`` handles events and effects, with one runner for each load. An unused coordinator lets the controller end
it (ADR 0044).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

from raylog.actors.actor_specs import CoordinatorSpec
from raylog.actors.answering import defects
from raylog.actors.careful_clock import CarefulClock
from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_link import ControllerLink, FindController
from raylog.actors.coordinators.early_requests import EarlyRequests
from raylog.actors.coordinators.live_rows import LiveRows
from raylog.actors.coordinators.runner import CoordinatorRunner, fence_row
from raylog.actors.coordinators.state_log import PRODUCER_EPOCH_MAX, EncodedRow, Identity, StateLog, encoded_row
from raylog.actors.listening import open_endpoint
from raylog.actors.settings import session_heartbeat_s
from raylog.actors.transport import listen
from raylog.core.errors import InvalidProducerEpoch, NotController, NotCoordinator, RaylogError
from raylog.core.invariants import InvariantBroken
from raylog.protocol.controller import (
    REGISTER_COORDINATOR,
    SLEEP_COORDINATOR,
    RegisterCoordinatorRequest,
    SleepCoordinatorRequest,
)
from raylog.protocol.method import Endpoint
from raylog.protocol.notifications import COORDINATOR_SESSION, ClusterConfigUpdate, FallAsleep
from raylog.protocol.permissions import permissions
from raylog.rpc import Connection, Request

logger = logging.getLogger(__name__)

TICK_S: Final = 0.05
REGISTER_TIMEOUT_S: Final = 5.0
LOAD_TIMEOUT_S: Final = 60.0
APPEND_TIMEOUT_S: Final = 20.0
UNREADABLE_NAMED: Final = 20
"""Most unreadable rows whose offsets are logged."""
REPLAY_TURN: Final = 5_000
"""Rows that are replayed in one turn of the event loop; they take a few hundredths of a second."""
RELOAD_PAUSE_S: Final = 0.2
ENDED_WITHIN_S: Final = 10.0
"""If the controller, which may have died, does not end a sleeping coordinator within this time, the coordinator begins
its next incarnation."""

RunnerT = TypeVar("RunnerT", bound=CoordinatorRunner[Request, EncodedRow])


class CoordinatorServer(ABC, Generic[RunnerT]):
    """One coordinator, from its start through any number of loads to its end; each kind is a subclass."""

    page: ClassVar[Endpoint]
    """The methods of this kind of coordinator."""
    metrics_method: ClassVar[str]
    """The method that :meth:`_metrics` answers, even while the coordinator loads."""

    def __init__(
        self, spec: CoordinatorSpec, topic: str, *, find_controller: FindController, on_fatal: Callable[[str], None]
    ) -> None:
        """``topic``: the internal topic; ``on_fatal`` ends the process, for example if a newer incarnation exists."""
        self.spec = spec
        self._config = spec.cluster_config
        """The cluster's settings as the controller last sent them."""
        self._topic = topic
        self._on_fatal = on_fatal
        self._name = f"{spec.kind} coordinator {spec.index}"
        self._epoch = -1
        self._identity: Identity | None = None
        self._registered = asyncio.Event()
        self._runner: RunnerT | None = None
        """None: the coordinator loads, or is asleep."""
        self._early = EarlyRequests()
        self._is_asleep = False
        """Whether the controller has agreed that this coordinator ends, and is about to end it."""
        self._trouble: RaylogError | None = None
        """Why this incarnation has to end; None = it does not."""
        self._clock = CarefulClock(self._name)
        """The clock by which stored state expires."""
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._proposing: asyncio.Task[None] | None = None
        self._server = listen(self._on_request, spec, permissions(self.page))
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
        self._log = StateLog(topic, spec.index, secret=spec.secret, fetch_metadata=self._fetch_metadata)

    @property
    def epoch(self) -> int:
        """The epoch of this incarnation, from the controller; -1 before the registration."""
        return self._epoch

    async def start(self) -> None:
        """Open the endpoint and begin to load; returns at once."""
        folder = self.spec.folder
        self.endpoint = await open_endpoint(
            self._server,
            self.spec,
            name=self._name,
            config=self.spec.cluster_config,
            kept=None if folder is None else folder / f"{self.spec.kind}-coordinator-{self.spec.index}.properties",
        )
        self._link.start()
        self._tasks = [
            asyncio.create_task(self._live(), name=f"{self._name} life"),
            asyncio.create_task(self._keep_ticking(), name=f"{self._name} ticks"),
        ]

    async def stop(self) -> None:
        """Stop serving; everything acknowledged is in the log."""
        tasks = [*self._tasks, *([] if self._proposing is None else [self._proposing])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.stop()
        self._log.close()
        await self._server.close()

    # ------------------------------------------------------------ what a kind of coordinator adds

    @abstractmethod
    def _new_runner(self) -> RunnerT:
        """Return a runner with a new machine; by now the topic's configuration is known."""

    @abstractmethod
    def _reconfigure(self, runner: RunnerT) -> None:
        """Give a runner's machine the cluster's present settings."""

    @abstractmethod
    def _metrics(self) -> object:
        """Return the answer to ``metrics_method``."""

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
        self._configure(registered.cluster_config)  # Ray restarts a process with its first arguments, which may be old
        self._registered.set()

    async def _live(self) -> None:
        while True:
            try:
                runner = await self._load()
                self._runner = runner
                self._reconfigure(runner)  # they may have been altered while the log was read
                runner.serve()
                self._early.hand_over(runner.receive)
                await self._keep_writing(runner)
            except InvalidProducerEpoch as fenced:
                self._end_process(f"a newer coordinator has taken over: {fenced}")
                return
            except RaylogError as trouble:
                if not self._is_asleep:
                    logger.warning("%s: %s; loading again", self._name, trouble)
            except Exception as defect:  # a defect: the process must not stay without a working coordinator
                self._end_process(f"its life failed: {defect!r}")
                raise
            self._end_load()
            if self._is_asleep:
                await self._link.stop()  # so that it does not register this incarnation again
            await asyncio.sleep(ENDED_WITHIN_S if self._is_asleep else RELOAD_PAUSE_S)
            await self._link.stop()
            self._epoch = -1
            self._is_asleep, self._trouble = False, None
            self._registered.clear()
            self._link.start()

    async def _load(self) -> RunnerT:
        await self._registered.wait()
        identity = self._identity
        if identity is None:
            raise NotCoordinator("not registered")
        self._log.become(identity)
        fence, _ = encoded_row(fence_row(self._epoch), None)
        if self._epoch >= PRODUCER_EPOCH_MAX:  # below that, all incarnations have had the same producer id
            await self._log.fence_earlier(fence, timeout_s=LOAD_TIMEOUT_S)
        end = await self._log.append([fence], timeout_s=LOAD_TIMEOUT_S)
        runner = self._new_runner()
        rows = await self._log.read_to(end, timeout_s=LOAD_TIMEOUT_S)
        for number, (key, value) in enumerate(rows):
            try:
                runner.replay(key, value)
            except InvariantBroken:
                raise
            except Exception as error:  # any error: a foreign row must not keep the coordinator from serving
                rows.pass_over(error)
            if number % REPLAY_TURN == 0:
                await asyncio.sleep(0)  # so that heartbeats continue
        live, read = runner.rows_replayed, rows.rows_read
        await self._name_unreadable(runner, rows, end)
        logger.info("%s ready in epoch %d: %d rows of %d are live", self._name, self._epoch, live, read)
        return runner

    async def _name_unreadable(self, runner: RunnerT, rows: LiveRows, end: int) -> None:
        """Log which rows were skipped: they have no effect, and everything else is served."""
        if not (rows.passed_over or rows.damaged):
            return
        found = await self._log.unreadable(rows, end, timeout_s=LOAD_TIMEOUT_S)
        runner.rows_unreadable = len(found)
        for offset, why in sorted(found.items())[:UNREADABLE_NAMED]:
            logger.error(
                "%s: the row at offset %d of %s-%d cannot be read, and is passed over: %.300s",
                self._name,
                offset,
                self._topic,
                self.spec.index,
                why,
            )

    @property
    def rows_unreadable(self) -> int:
        """How many unreadable rows were skipped when the log was loaded."""
        return 0 if self._runner is None else self._runner.rows_unreadable

    def _end_load(self) -> None:
        """Drop the runner; its decisions that are not in the log are void."""
        if self._runner is not None:
            self._runner.end()
            self._runner = None

    async def _keep_writing(self, runner: RunnerT) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._trouble is None and (rows := runner.take_batch(self._log.rows_bytes_max)):
                await self._log.append(rows, timeout_s=APPEND_TIMEOUT_S)
                runner.stored()
            if self._trouble is not None:  # waiting rows may come from a step that failed halfway
                raise self._trouble

    # ------------------------------------------------------------ events in

    def _on_request(self, request: Request) -> None:
        if request.method == self.metrics_method:
            request.reply(self._metrics())
        elif self._runner is not None:
            self._runner.receive(request)
        elif self._is_asleep:
            request.fail(NotCoordinator("The coordinator has ended, because it was not used; find it again."))
        else:
            self._early.hold(request, monotonic_ms())

    def _on_controller_message(self, request: Request) -> None:
        match args := COORDINATOR_SESSION.read_request(request.method, request.args):
            case ClusterConfigUpdate():
                self._configure(args.config)
            case FallAsleep() if self._runner is not None:
                self._runner.sleep_requested()

    def _configure(self, config: Mapping[str, str]) -> None:
        """Use these settings of the cluster from now on."""
        self._config = dict(config)
        if self._runner is not None:
            self._reconfigure(self._runner)

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._early.expire(monotonic_ms())
            if self._runner is not None:
                try:
                    self._runner.tick()
                except Exception as defect:  # `fatal` was called; the ticks of the next load must go on
                    defects.report(defect, "A tick of a coordinator failed.")

    async def _fetch_metadata(self) -> list[object]:
        reply = await self._link.call("metadata", [[self._topic]], timeout_s=REGISTER_TIMEOUT_S)
        row: list[Any] = reply.args[3][0]
        return row

    # ------------------------------------------------------------ the runner's ports

    def now_ms(self) -> int:
        """Return the time of a clock that does not go back."""
        return monotonic_ms()

    def wall_ms(self) -> int:
        """Return the time of day by which stored state expires; it does not follow jumps of the wall clock."""
        return self._clock.deleting_ms()

    def row(self, key: list[object], value: list[object] | None) -> tuple[EncodedRow, int]:
        """Return a row in its stored form, and its size in bytes."""
        return encoded_row(key, value)

    def row_bytes_max(self) -> int:
        """Return the bytes of the largest row that the log takes."""
        return self._log.rows_bytes_max

    def wake_writer(self) -> None:
        """Let the writer append the waiting rows, together with those of other events in this turn of the loop."""
        self._wanted.set()

    def propose_sleep(self) -> None:
        """Propose to the controller that it ends this coordinator."""
        self._proposing = asyncio.create_task(self._propose(), name=f"{self._name} sleep")

    def fatal(self, reason: str) -> None:
        """Load again, as a new incarnation: a step may have failed halfway, so only the log has a valid state."""
        logger.error("%s: %s", self._name, reason)
        self._trouble = NotCoordinator("a defect has voided its state")
        self._wanted.set()

    def _end_process(self, reason: str) -> None:
        self._on_fatal(f"{self._name}: {reason}")

    async def _propose(self) -> None:
        runner = self._runner
        try:
            request = SleepCoordinatorRequest(self.spec.kind, self.spec.index, self._epoch)
            await self._link.call(SLEEP_COORDINATOR.name, request, timeout_s=REGISTER_TIMEOUT_S)
        except OSError as broken:
            self._trouble = NotController(f"it is not known whether it ends: {broken}")
        except RaylogError as refusal:
            if refusal.is_remote or isinstance(refusal, NotController):
                logger.debug("%s: it stays: %s", self._name, refusal)
                if runner is not None and runner is self._runner:
                    runner.sleep_refused()
                return
            self._trouble = refusal  # the outcome is not known, so the next incarnation registers in any case
        else:
            logger.info("%s ends, because it is not used", self._name)
            self._is_asleep = True
            self._trouble = NotCoordinator("it was not ended in time")
        self._wanted.set()
