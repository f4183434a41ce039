"""Runs a coordinator's machine: requests and time go in; rows and answers come out, through ports.

A runner exists from the load of the log until an append fails, the leadership ends or the process does. An actor's
shell (``server.py``), a leader's role (``state_role.py``) and the simulator are adapters around it; the order of rows,
replies and events is decided here. Each kind of coordinator adds its own effects. No event loop, socket or clock. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from raylog.actors.answering import spoiled
from raylog.actors.received import ArrivedRequest
from raylog.actors.request_table import Answerable, RequestTable
from raylog.actors.runner import Runner
from raylog.base.errors import NotCoordinator, RaylogError, RecordTooLarge
from raylog.core.coordinators.events import (
    AppendRecords,
    ProposeSleep,
    RequestDropped,
    SleepRefused,
    SleepRequested,
    StoreProof,
    Tick,
)
from raylog.core.coordinators.writing import RowQueue
from raylog.core.decision import Refuse, Reply
from raylog.core.outbox import Outbox

RowT = TypeVar("RowT")
_RowT_co = TypeVar("_RowT_co", covariant=True)

TICK_MS: Final = 50
"""Shortest time between two ticks, and longest from an event to the tick that finds the deadlines it has set."""
STALE_MS: Final = 1_000
"""Before a request the time of day is read if it was read longer ago."""
_FENCE: Final = "fence"
_ANY_EPOCH: Final = -1


def fence_row(epoch: int) -> list[object]:
    """Return the key of an incarnation's first row; storing it fences the earlier incarnations."""
    return [_FENCE, epoch]


def proof_row() -> list[object]:
    """Return the key of a row without meaning; storing it proves that no later incarnation has begun."""
    return [_FENCE, _ANY_EPOCH]


class CoordinatorRequest(Answerable, ArrivedRequest, Protocol):
    """A request to a coordinator: :class:`raylog.rpc.Request`, or its counterpart in the simulator."""


RequestT = TypeVar("RequestT", bound=CoordinatorRequest)


class Machine(Protocol):
    """The state machine of any kind of coordinator; its events and effects are its own."""

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Apply one row of the log, after the rows with its key that are read."""

    def loaded(self, now_ms: int, *, wall_ms: int | None = None) -> Outbox[Any]:
        """Begin to serve, once the log is read to its end."""

    def step(self, event: Any) -> Outbox[Any]:
        """Handle one event."""

    def next_due_ms(self) -> int | None:
        """Return when a tick has something to do, as things are now; None = never."""

    def set_clock(self, now_ms: int, wall_ms: int) -> None:
        """Take note of the time of day."""


class CoordinatorPorts(Protocol[_RowT_co]):
    """Ports that every kind of coordinator has."""

    def now_ms(self) -> int:
        """Return the time of a clock that does not go back."""

    def wall_ms(self) -> int:
        """Return the time of day by which stored state expires, in milliseconds since 1970."""

    def row(self, key: list[object], value: list[object] | None) -> tuple[_RowT_co, int]:
        """Return a row in its stored form, and the most bytes that it takes in a batch."""

    def row_bytes_max(self) -> int:
        """Return the bytes of the largest row that the log takes."""

    def tick_at(self, due_ms: int) -> None:
        """Request a call of :meth:`CoordinatorRunner.tick` at this time, in place of the one requested before."""

    def wake_writer(self) -> None:
        """Request that batches are taken and appended until there are none; may be called again meanwhile."""

    def propose_sleep(self) -> None:
        """Propose to the controller that this coordinator ends; ``sleep_refused`` follows if it does not agree."""

    def fatal(self, reason: str) -> None:
        """Load the log again: the state is invalid, because a step may have failed halfway."""


class CoordinatorRunner(Generic[RequestT, RowT]):
    """One load of a coordinator: :meth:`replay` each row, then :meth:`serve`, and at last :meth:`end`."""

    def __init__(
        self,
        machine: Machine,
        ports: CoordinatorPorts[RowT],
        event_for: Callable[[RequestT, int, int], object],
        carry_out: Mapping[type[Any], Callable[[Any], object]],
        *,
        ticks: bool = False,
    ) -> None:
        """``machine``: a new one. ``event_for`` makes an event from a request, its number and the time.

        ``carry_out`` has functions for the effects that only this kind of coordinator has; each returns the event that
        is its outcome, or None. ``ticks``: whether the machine has deadlines.
        """
        self._ticks = ticks
        self._coordinator = machine
        self._ports = ports
        self._event_for = event_for
        self._requests: RequestTable[RequestT] = RequestTable()
        self._rows: RowQueue[RowT] = RowQueue(ports.wake_writer)
        effects: dict[type[Any], Callable[[Any], object]] = {
            AppendRecords: self._append,
            StoreProof: self._prove,
            Reply: self._reply,
            Refuse: self._refuse,
            ProposeSleep: lambda _: ports.propose_sleep(),
            **carry_out,
        }
        self._runner: Runner[Any, Any] = Runner(machine.step, effects, self._rows, on_defect=ports.fatal)
        self._due_ms: int | None = None
        """When the next tick was requested for; None = it was not."""
        self._ticked_ms = self._looked_ms = 0
        """When the last tick was, and when the time of day was read last."""
        self.rows_replayed = 0

    # ------------------------------------------------------------ life

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Take one row, in the order of ``StoredRows``. Raises ValueError or TypeError for one that cannot be read."""
        if key[0] != _FENCE:
            self._coordinator.replay(key, value)
            self.rows_replayed += 1

    def serve(self) -> None:
        """Begin to answer, once the log is read to its end."""
        self._ticked_ms = self._looked_ms = self._ports.now_ms()
        self._runner.perform(self._coordinator.loaded(self._ticked_ms, wall_ms=self._ports.wall_ms()))
        self._tick_soon()

    def end(self) -> None:
        """Take no more events; open requests are answered with NotCoordinator, so that senders look it up again."""
        self._runner.end()
        self._requests.fail_all(_ended())

    # ------------------------------------------------------------ events in

    def receive(self, request: RequestT) -> None:
        """Take a request; the reply is sent at once, or when its rows are stored, or when what it waits for happens."""
        if self._runner.is_over:
            request.fail(_ended())
            return
        if self._ticks and (now_ms := self._ports.now_ms()) - self._looked_ms > STALE_MS:
            # Not a tick: after a pause of the process, requests come before what is due by itself.
            self._looked_ms = now_ms
            self._coordinator.set_clock(now_ms, self._ports.wall_ms())
        number = self._requests.remember(request)
        try:
            event = self._event_for(request, number, self._ports.now_ms())
        except RaylogError as refusal:
            del self._requests[number]
            request.fail(refusal)
            return
        except Exception as defect:  # nothing was changed yet: it concerns this request alone
            del self._requests[number]
            spoiled(request, defect)
            return
        try:
            self.feed(event)
        except RecordTooLarge as refusal:  # none of its rows was stored; `fatal` was called, so the log is loaded again
            blamed = self._requests.pop(number, None)
            if blamed is not None:
                blamed.fail(refusal)
        except Exception as defect:  # `fatal` was called; the sender must not repeat the request
            blamed = self._requests.pop(number, None)
            if blamed is not None:
                spoiled(blamed, defect)

    def feed(self, event: object) -> None:
        """Take an event that does not come from a tick; it may set a deadline, which the next tick finds."""
        self._tick_soon()
        self._runner.feed(event)

    def tick(self) -> None:
        """Advance the time, and drop the requests of closed connections."""
        self._ticked_ms = self._looked_ms = self._ports.now_ms()
        self._due_ms = None
        self.drop_deserted()
        self._runner.feed(Tick(cause="tick", now_ms=self._ticked_ms, wall_ms=self._ports.wall_ms()))
        due_ms = self._coordinator.next_due_ms()
        if due_ms is not None:
            self._tick_by(max(due_ms, self._ticked_ms + TICK_MS))

    def drop_deserted(self) -> None:
        """Drop the requests of closed connections."""
        now_ms = self._ports.now_ms()
        for number in self._requests.take_deserted():
            self.feed(RequestDropped(cause="connection lost", now_ms=now_ms, request=number))

    def _tick_soon(self) -> None:
        if self._ticks:
            self._tick_by(self._ports.now_ms() + TICK_MS)

    def _tick_by(self, due_ms: int) -> None:
        if self._due_ms is None or due_ms < self._due_ms:
            self._due_ms = due_ms
            self._ports.tick_at(due_ms)

    @property
    def has_rows(self) -> bool:
        """Whether rows wait to be appended, or are being appended."""
        return self._rows.end() > self._rows.durable_end()

    def take_batch(self, bytes_max: int) -> list[RowT]:
        """Return the rows to append next, empty when none wait; :meth:`stored` or :meth:`end` has to follow."""
        return self._rows.take(bytes_max)

    def stored(self) -> None:
        """Note that the last taken batch is in the log, and carry out the effects that waited for its rows."""
        self._rows.stored()
        self._runner.release()

    def sleep_requested(self) -> None:
        """Propose now that this coordinator ends, unless it is in use, because the cluster is about to stop."""
        self.feed(SleepRequested(cause="sleep requested", now_ms=self._ports.now_ms()))

    def sleep_refused(self) -> None:
        """Continue to serve, because the controller did not agree that this coordinator ends."""
        self.feed(SleepRefused(cause="sleep refused", now_ms=self._ports.now_ms()))

    # ------------------------------------------------------------ effects out

    def _append(self, effect: AppendRecords) -> None:
        rows = [self._ports.row(key, value) for key, value in effect.records]
        largest, most = max(size for _, size in rows), self._ports.row_bytes_max()
        if largest > most:
            # Machines refuse requests that make a row too large. A row that they miss must not reach the log, which
            # would refuse it for good. So the state is loaded again without it, and the sender gets this error.
            raise RecordTooLarge(
                f"A row of {largest} bytes would be needed in the coordinator's log, which takes {most}; use fewer or "
                "shorter names, or raise max.message.bytes of its topic."
            )
        self._rows.add(rows)

    def _prove(self, _: StoreProof) -> None:
        # Only rows that are still queued prove it: rows that are under way may have been stored before the request.
        if not self._rows.has_queued:
            self._rows.add([self._ports.row(proof_row(), None)])

    def _reply(self, effect: Reply) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply(effect.result)

    def _refuse(self, effect: Refuse) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.fail(effect.error)


def _ended() -> NotCoordinator:
    return NotCoordinator("The coordinator is loading its log again; look it up and repeat.")
