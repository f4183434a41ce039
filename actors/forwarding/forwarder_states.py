"""The shell of the states of forwarders: a role of the leader of ``__forwarding``, which also runs the redrives."""

from __future__ import annotations

from typing import Any, ClassVar

from raylog.actors.coordinators.runner import CoordinatorRunner
from raylog.actors.coordinators.state_role import StateRole
from raylog.actors.coordinators.stored_rows import EncodedRow, LiveRows
from raylog.actors.forwarding.redrives import Redrives
from raylog.actors.received import received_by_role
from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.local import LocalRequest
from raylog.base.errors import CoordinatorNotAvailable, RaylogError
from raylog.core.forwarding import states as fs
from raylog.core.forwarding.redrives import Outcome
from raylog.core.forwarding.states import ForwarderStates
from raylog.protocol.forwarding import FORWARDING_METHODS, ListRedrivesRequest
from raylog.protocol.message import Message

_Runner = CoordinatorRunner[Any, EncodedRow]


class ForwarderStateRole(StateRole[_Runner]):
    """The states of forwarders in one leader epoch."""

    kind = "forwarding"
    rows = LiveRows
    requests: ClassVar[frozenset[type[Message]]] = frozenset(method.request for method in FORWARDING_METHODS)

    def __init__(self, host: RoleHost) -> None:
        """Nothing is read before :meth:`begin`."""
        super().__init__(host)
        self.machine = ForwarderStates(0)
        self.redrives = Redrives(self)
        self._looking = 0
        """How many topics are being looked up."""

    @property
    def is_busy(self) -> bool:
        """Whether the log is being read, something is being stored, or a redrive begins or runs."""
        return super().is_busy or self._looking > 0 or self.redrives.is_busy

    def figures(self) -> dict[str, int]:
        """Return counters and gauges."""
        unreadable = self.runtime.rows_unreadable
        return {"forwarders": len(self.machine.states), "unreadable": unreadable, **self.redrives.figures()}

    def new_runner(self) -> _Runner:
        """Return a runner with a new machine."""
        self.machine = ForwarderStates(self.row_bytes_max())
        effects: dict[type[Any], Any] = {
            fs.LookUpTopic: self._look_up,
            fs.RunRedrive: lambda effect: self.redrives.run(effect.redrive),
            fs.StopRedrive: lambda effect: self.redrives.stop(effect.redrive),
            fs.RedriveEnded: lambda effect: self.redrives.ended(effect.redrive),
        }
        return _Runner(self.machine, self, self._event_for, effects)

    def _event_for(self, request: Any, number: int, now_ms: int) -> fs.Event:
        event = received_by_role(request, number, now_ms)
        if not isinstance(event.message, ListRedrivesRequest):
            return event
        return fs.ListRedrives(
            message=event.message,
            cause=event.cause,
            request=number,
            now_ms=now_ms,
            progress=self.redrives.progress(),
            holding=self.redrives.holding(),
        )

    # ------------------------------------------------------------ for redrives

    async def call(self, request: Message) -> Any:
        """Return the answer to a request of this process. Raises RaylogError."""
        local: Any = LocalRequest(type(request).__name__, request)
        self.runtime.receive(local)
        answer, _ = await local.answer
        return answer

    def redriven(self, redrive: int, partition: int, outcome: Outcome) -> None:
        """Note how a redrive has ended in one partition. While the log is read this is lost: it is repeated then."""
        self._feed(
            fs.PartitionRedriven(
                cause="partition redriven",
                now_ms=self.now_ms(),
                redrive=redrive,
                partition=partition,
                outcome=outcome,
                wall_ms=self.wall_ms(),
            )
        )

    def _feed(self, event: fs.Event) -> None:
        if self.runtime.runner is not None:
            self.runtime.runner.feed(event)

    def _look_up(self, effect: fs.LookUpTopic) -> None:
        self._looking += 1
        self.host.spawn(self._looked_up(effect), "redrive look-up")

    async def _looked_up(self, effect: fs.LookUpTopic) -> None:
        error: RaylogError | None = None
        topic_id, bounds = "", list[tuple[int, int]]()
        try:
            topic_id, bounds = await self.redrives.bounds(effect.topic, effect.to)
        except RaylogError as trouble:
            error = trouble
        except OSError as broken:
            error = CoordinatorNotAvailable(f"{effect.topic} could not be looked up: {broken}; try again.")
        finally:
            self._looking -= 1
        self._feed(
            fs.TopicLookedUp(
                cause="topic looked up",
                now_ms=self.now_ms(),
                topic=effect.topic,
                topic_id=topic_id,
                bounds=bounds,
                error=error,
                wall_ms=self.wall_ms(),
            )
        )
