"""A simulated controller on its replicated log: the shipped controller runner on the shipped quorum runner.

Two of them may run at once, the older one unaware that it has been replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from raylog.actors.broker.vouching import PLAIN
from raylog.actors.controller.runner import ControllerRunner
from raylog.base.errors import BrokerIdNotRegistered, NotController, RaylogError
from raylog.base.ids import ControllerEpoch
from raylog.core.controller import events as ctl
from raylog.core.controller.controller import ControllerSettings
from raylog.core.metadata.image import MetadataImage
from raylog.core.outbox import Outbox
from raylog.protocol.controller import SessionHeartbeatReply, SessionHeartbeatRequest
from raylog.protocol.message import Message
from raylog.rpc.framing import NO_PAYLOAD, Buffers
from tests.simulation.checks.decisions import WatchedMachine
from tests.simulation.metadata.members import SESSION_MS
from tests.simulation.quorum.controller import SimController

if TYPE_CHECKING:
    from tests.simulation.metadata.world import MetadataWorld

Answered = Callable[[int, list[object] | dict[str, object]], None]
"""Takes an error code (0 = done) and the result."""


class SessionEnd(Protocol):
    """The other end of a session."""

    def notified(self, message: Message) -> None:
        """A notification arrives."""

    def lost(self) -> None:
        """The connection broke."""

    def is_steady(self, controller: MetadataController, session: int) -> bool:
        """Whether it has sent heartbeats on this session all the time."""


class Arrived:
    """A request on a connection."""

    is_deserted = False

    def __init__(self, controller: MetadataController, answered: Answered) -> None:
        self._controller, self._answered = controller, answered

    def reply(self, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        assert isinstance(args, list | dict)
        self._answer(0, args)

    def fail(self, error: BaseException) -> None:
        self._answer(error.code if isinstance(error, RaylogError) else -1, [])

    def _answer(self, code: int, result: list[object] | dict[str, object]) -> None:
        self._controller.later(lambda: self._answered(code, result))


class SampledMachine(WatchedMachine):
    """Checks itself at some steps only: here an image has many partitions."""

    _steps = 0

    def step(self, event: ctl.Event) -> Outbox[ctl.Effect]:
        out = super().step(event)
        self._steps += 1
        if self._steps % 64 == 0:
            self.validate()
        return out


class MetadataController(SimController):
    """One life of a controller."""

    DECIDES = False
    world: MetadataWorld

    def __init__(self, world: MetadataWorld, name: str) -> None:
        self.controller: ControllerRunner[Arrived] | None = None
        self.ends: dict[int, SessionEnd] = {}
        self._last_session = 0
        self._last_ms = 0
        super().__init__(world, name)

    def _turn(self) -> None:
        super()._turn()
        if self.controller is not None:
            self.controller.tick()

    # ------------------------------------------------------------ listener

    def on_won(self, image: MetadataImage, epoch: int, founding: Mapping[str, str]) -> None:
        world = self.world
        if epoch > max(world.winners, default=0):  # one that was paused since it won misses what later ones committed
            world.facts.hold_in(image, f"the log that {self.name} adopts")
        self.image = image
        world.won(epoch, self, {int(number): identity for number, identity in founding.items()})
        settings = ControllerSettings(
            new_topic_id=world.new_topic_id,
            cluster_id="c" * 32,
            session_timeout_ms=SESSION_MS,
            registration_grace_ms=600,
            initial_leader_wait_ms=300,
        )
        machine = SampledMachine(image, settings=settings, now_ms=world.now_ms, cluster_config=world.config)
        self.controller = ControllerRunner(
            machine, self.runner, self, on_records=lambda _: None, on_defect=lambda _: None
        )
        self.controller.start(ControllerEpoch(epoch), founding)
        self.leads = True
        self._maybe_die()

    def on_voters(self, voters: Mapping[str, str]) -> None:
        self.world.enters(self, {int(number): identity for number, identity in voters.items()})
        self.world.changes += 1
        if self.controller is not None:
            self.controller.voters_shown(voters)
        self._maybe_die()

    def on_committed(self, end: int) -> None:
        super().on_committed(end)
        if self.controller is not None:
            self.controller.release()

    def on_confirmed(self) -> None:
        super().on_confirmed()
        if self.controller is not None:
            self.controller.release()

    def on_failed(self, error: Exception) -> None:
        super().on_failed(error)
        self.die()

    def die(self) -> None:
        super().die()
        if self.controller is not None:
            self.controller.end()
        ends, self.ends = self.ends, {}
        for end in ends.values():
            self.world.after(self.world.random.randint(1, 100), end.lost)

    # ------------------------------------------------------------ sessions and requests

    def connect(self, end: SessionEnd) -> int:
        """Open a session."""
        self._last_session += 1
        self.ends[self._last_session] = end
        return self._last_session

    def hang_up(self, session: int) -> None:
        """The other end of a session has disconnected."""
        if self.ends.pop(session, None) is not None:
            self._feed(lambda runner: runner.session_lost(session, "lost"))

    def heartbeat(
        self,
        session: int,
        report: SessionHeartbeatRequest = PLAIN,
        answered: Callable[[SessionHeartbeatRequest, SessionHeartbeatReply], None] = lambda *_: None,
    ) -> None:
        """A heartbeat arrives."""

        def take(runner: ControllerRunner[Arrived]) -> None:
            try:
                reply = runner.heartbeat(report, session)
            except BrokerIdNotRegistered:
                self.later(lambda: self._refused(session))
                return
            self.later(lambda: answered(report, reply) if session in self.ends else None)

        self._feed(take)

    def _refused(self, session: int) -> None:
        """A member reads that its session is over."""
        end = self.ends.pop(session, None)
        if end is not None:
            end.lost()

    def request(self, message: ctl.ControllerRequest, answered: Answered, session: int = 0) -> None:
        """A request arrives."""
        request, method = Arrived(self, answered), type(message).__name__
        self._feed(lambda runner: runner.take(request, method, message, session))

    def _feed(self, work: Callable[[ControllerRunner[Arrived]], None]) -> None:
        self.when_awake(lambda: self._now(work))

    def _now(self, work: Callable[[ControllerRunner[Arrived]], None]) -> None:
        if self.controller is None or self.controller.is_over:
            return
        try:
            work(self.controller)
        except NotController:  # a newer controller exists: this process ends
            self.die()

    def later(self, work: Callable[[], None]) -> None:
        """Deliver on a connection: in order, with a delay."""
        world = self.world
        self._last_ms = max(self._last_ms, world.now_ms + world.random.randint(1, 10))
        world.after(self._last_ms - world.now_ms, work)

    # ------------------------------------------------------------ ports

    def notify(self, session: int, method: str, args: Message) -> None:
        self.later(lambda: self.ends[session].notified(args) if session in self.ends else None)

    def close_session(self, session: int, reason: str) -> None:
        end = self.ends.pop(session, None)
        if end is not None:
            is_steady = self.world.now_ms - self.paused_until_ms > 2 * SESSION_MS and end.is_steady(self, session)
            if is_steady and reason.startswith("no heartbeat"):
                self.world.silenced(self, end, reason)
            self.later(end.lost)

    def start_coordinator(self, kind: str, index: int) -> None:
        self.world.start_coordinator(kind, index)

    def end_coordinator(self, kind: str, index: int) -> None:
        """No coordinator proposes to end here."""

    def warn(self, warning: str) -> None:
        self.world.warnings += 1
