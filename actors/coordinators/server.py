"""The shell of a coordinator of any kind, which owns the keys that hash to one partition of its internal topic.

Each incarnation registers with the controller under a higher epoch, fences its predecessor with its first append,
replays the partition, and only then serves (``runtime.py``). After a failed append the next incarnation begins in the
same process. An unused coordinator lets the controller end it (ADR 0044).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Generic

from raylog.actors.actor_specs import CoordinatorSpec
from raylog.actors.answering import defects
from raylog.actors.careful_clock import CarefulClock
from raylog.actors.clock import monotonic_ms
from raylog.actors.controller_link import ControllerLink, FindController
from raylog.actors.coordinators.runtime import RunnerT, StateRuntime
from raylog.actors.coordinators.state_log import Incarnation, StateLog
from raylog.actors.coordinators.stored_rows import EncodedRow, LiveRows, encoded_row
from raylog.actors.listening import open_endpoint
from raylog.actors.permissions import permissions
from raylog.actors.settings import session_heartbeat_s
from raylog.actors.transport import listen
from raylog.base.errors import InvalidProducerEpoch, NotController, NotCoordinator, RaylogError
from raylog.protocol.broker import METADATA, MetadataRequest, MetadataTopic
from raylog.protocol.controller import (
    REGISTER_COORDINATOR,
    SLEEP_COORDINATOR,
    RegisterCoordinatorRequest,
    SleepCoordinatorRequest,
)
from raylog.protocol.method import Endpoint
from raylog.protocol.notifications import COORDINATOR_SESSION, ClusterConfigUpdate, FallAsleep
from raylog.rpc import Connection, Request

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_S: Final = 5.0
RELOAD_PAUSE_S: Final = 0.2
ENDED_WITHIN_S: Final = 10.0
"""If the controller, which may have died, does not end a sleeping coordinator within this time, the coordinator begins
its next incarnation."""


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
        self.name = f"{spec.kind} coordinator {spec.index}"
        self._incarnation: Incarnation | None = None
        """None: it is not registered."""
        self._registered = asyncio.Event()
        self._is_asleep = False
        """Whether the controller has agreed that this coordinator ends, and is about to end it."""
        self._clock = CarefulClock(self.name)
        """The clock by which stored state expires."""
        self._tasks: list[asyncio.Task[None]] = []
        self._proposing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """The next tick."""
        self._server = listen(self._on_request, spec, permissions(self.page), on_closed=self._on_closed)
        self.endpoint: tuple[str, int] = ("", 0)
        self._link = ControllerLink(
            find_controller,
            name=self.name,
            secret=spec.secret,
            register=self._register,
            handler=self._on_controller_message,
            heartbeat_s=session_heartbeat_s(spec.cluster_config),
            on_superseded=on_fatal,
        )
        self._log = StateLog(
            topic,
            spec.index,
            secret=spec.secret,
            fetch_metadata=self._fetch_metadata,
            registered=self._until_registered,
        )
        self.runtime: StateRuntime[RunnerT] = StateRuntime(self._log, self)

    @property
    def epoch(self) -> int:
        """The epoch of this incarnation, from the controller; -1 before the registration."""
        return -1 if self._incarnation is None else self._incarnation.epoch

    @property
    def _runner(self) -> RunnerT | None:
        """None: the coordinator loads, or is asleep."""
        return self.runtime.runner

    async def start(self) -> None:
        """Open the endpoint and begin to load; returns at once."""
        folder = self.spec.folder
        self.endpoint = await open_endpoint(
            self._server,
            self.spec,
            name=self.name,
            config=self.spec.cluster_config,
            kept=None if folder is None else folder / f"{self.spec.kind}-coordinator-{self.spec.index}.properties",
        )
        self._link.start()
        self._tasks = [
            asyncio.create_task(self._live(), name=f"{self.name} life"),
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
    def new_runner(self) -> RunnerT:
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
            RegisterCoordinatorRequest(self.spec.kind, self.spec.index, self.epoch, host, port),
            timeout_s=REGISTER_TIMEOUT_S,
        )
        registered = REGISTER_COORDINATOR.read_reply(reply.args)
        self._incarnation = Incarnation(registered.epoch, registered.producer_id, registered.producer_epoch)
        self._configure(registered.cluster_config)  # Ray restarts a process with its first arguments, which may be old
        self._registered.set()

    async def _until_registered(self) -> Incarnation:
        await self._registered.wait()
        if self._incarnation is None:
            raise NotCoordinator("not registered")
        return self._incarnation

    async def _live(self) -> None:
        while True:
            try:
                await self.runtime.live()
            except InvalidProducerEpoch as fenced:
                self._end_process(f"a newer coordinator has taken over: {fenced}")
                return
            except RaylogError as trouble:
                if not self._is_asleep:
                    logger.warning("%s: %s; loading again", self.name, trouble)
            except Exception as defect:  # a defect: the process must not stay without a working coordinator
                self._end_process(f"its life failed: {defect!r}")
                raise
            if self._is_asleep:
                await self._link.stop()  # so that it does not register this incarnation again
            await asyncio.sleep(ENDED_WITHIN_S if self._is_asleep else RELOAD_PAUSE_S)
            await self._link.stop()
            self._incarnation = None
            self._is_asleep = False
            self._registered.clear()
            self._link.start()

    # ------------------------------------------------------------ for the runtime

    def new_rows(self) -> LiveRows:
        """Return what reads the log: the last row of each key counts."""
        return LiveRows()

    def serves(self, runner: RunnerT) -> None:
        """Take the present settings: they may have been altered while the log was read."""
        self._reconfigure(runner)

    def stored(self, runner: RunnerT, base_offset: int, size: int) -> None:
        """Do nothing: the log is compacted."""

    def ended(self, runner: RunnerT) -> None:
        """Tick no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------ events in

    def _on_request(self, request: Request) -> None:
        if request.method == self.metrics_method:
            request.reply(self._metrics())
        elif self._is_asleep and self._runner is None:
            request.fail(NotCoordinator("The coordinator has ended, because it was not used; find it again."))
        else:
            self.runtime.receive(request)

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

    def _tick(self) -> None:
        self._timer = None
        if self._runner is not None:
            try:
                self._runner.tick()
            except Exception as defect:  # `fatal` was called
                defects.report(defect, "A tick of a coordinator failed.")

    def _on_closed(self, _: Connection) -> None:
        """Let the machine forget the requests of a closed connection."""
        if self._runner is not None:
            try:
                self._runner.drop_deserted()
            except Exception as defect:  # `fatal` was called; the server has to close the connection
                defects.report(defect, "The requests of a closed connection could not be dropped.")

    async def _fetch_metadata(self) -> MetadataTopic:
        request = MetadataRequest([self._topic])
        reply = await self._link.call(METADATA.name, request, timeout_s=REGISTER_TIMEOUT_S)
        return METADATA.read_reply(reply.args).topics[0]

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

    def tick_at(self, due_ms: int) -> None:
        """Tick the runner at this time."""
        if self._timer is not None:
            self._timer.cancel()
        left_s = max(0, due_ms - self.now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(left_s, self._tick)

    def wake_writer(self) -> None:
        """Let the writer append the waiting rows, together with those of other events in this turn of the loop."""
        self.runtime.wake_writer()

    def propose_sleep(self) -> None:
        """Propose to the controller that it ends this coordinator."""
        self._proposing = asyncio.create_task(self._propose(), name=f"{self.name} sleep")

    def fatal(self, reason: str) -> None:
        """Load again, as a new incarnation: a step may have failed halfway, so only the log has a valid state."""
        logger.error("%s: %s", self.name, reason)
        self.runtime.fail(NotCoordinator("a defect has voided its state"))

    def _end_process(self, reason: str) -> None:
        self._on_fatal(f"{self.name}: {reason}")

    async def _propose(self) -> None:
        runner = self._runner
        try:
            request = SleepCoordinatorRequest(self.spec.kind, self.spec.index, self.epoch)
            await self._link.call(SLEEP_COORDINATOR.name, request, timeout_s=REGISTER_TIMEOUT_S)
        except OSError as broken:
            self.runtime.fail(NotController(f"it is not known whether it ends: {broken}"))
        except RaylogError as refusal:
            if refusal.is_remote or isinstance(refusal, NotController):
                logger.debug("%s: it stays: %s", self.name, refusal)
                if runner is not None and runner is self._runner:
                    runner.sleep_refused()
                return
            self.runtime.fail(refusal)  # the outcome is not known, so the next incarnation registers in any case
        else:
            logger.info("%s ends, because it is not used", self.name)
            self._is_asleep = True
            self.runtime.fail(NotCoordinator("it was not ended in time"))
