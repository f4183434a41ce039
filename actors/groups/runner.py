"""Runs a group coordinator's machine: requests and time in, rows and answers out, through ports.

One runner lives from the loading of its log until an append fails or its process ends. The actor's shell
(``server.py``) and the simulator are adapters around it: the order of rows, replies and events is decided here. No
event loop, socket or clock. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from raylog.actors.groups.requests import GroupRequest, event_for
from raylog.actors.request_table import RequestTable
from raylog.actors.runner import Runner
from raylog.core.decision import Refuse, Reply
from raylog.core.errors import NotCoordinator, RaylogError
from raylog.core.groups import events as ev
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.figures import GroupFigures
from raylog.core.groups.writing import RowQueue

RowT = TypeVar("RowT")
_RowT_co = TypeVar("_RowT_co", covariant=True)
RequestT = TypeVar("RequestT", bound=GroupRequest)

_FENCE: Final = "fence"


def fence_row(epoch: int) -> list[object]:
    """Return the key of an incarnation's first row: storing it fences the earlier incarnations."""
    return [_FENCE, epoch]


class GroupPorts(Protocol[_RowT_co]):
    """Ports of a coordinator."""

    def now_ms(self) -> int:
        """Return the time of a clock that does not go back."""

    def wall_ms(self) -> int:
        """Return the time of day by which offsets expire, in milliseconds since 1970."""

    def log_extent(self) -> ev.LogExtent:
        """Return how far the log is known to be stored."""

    def row(self, key: list[object], value: list[object] | None) -> tuple[_RowT_co, int]:
        """Return a row as it is stored, and the bytes that it takes in a batch at most."""

    def wake_writer(self) -> None:
        """Have batches taken and appended until there are none; may be called again meanwhile."""

    def trim(self, before_offset: int) -> None:
        """Delete the rows below an offset; ``trimmed`` follows if that succeeds."""

    def propose_sleep(self) -> None:
        """Propose to the controller that this coordinator ends; ``sleep_refused`` follows if it does not agree."""

    def fatal(self, reason: str) -> None:
        """End the process."""


class GroupCoordinatorRunner(Generic[RequestT, RowT]):
    """One load of a coordinator's groups: :meth:`replay` each row, :meth:`serve`, and at last :meth:`end`."""

    def __init__(self, machine: CoordinatorMachine, ports: GroupPorts[RowT]) -> None:
        """``machine`` is a fresh one."""
        self._machine = machine
        self._ports = ports
        self._requests: RequestTable[RequestT] = RequestTable()
        self._rows: RowQueue[RowT] = RowQueue(ports.wake_writer)
        carry_out: dict[type, Callable[[Any], ev.Event | None]] = {
            ev.AppendRecords: self._append,
            Reply: self._reply,
            Refuse: self._refuse,
            ev.ReportStored: self._report_stored,
            ev.TrimLog: self._trim,
            ev.ProposeSleep: lambda _: ports.propose_sleep(),
        }
        self._runner: Runner[ev.Event, ev.Effect] = Runner(machine.step, carry_out, self._rows, on_defect=ports.fatal)
        self.rows_replayed = 0

    # ------------------------------------------------------------ life

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Take one row of the log, in order; raises ValueError or TypeError for one that this release cannot read."""
        if key[0] != _FENCE:
            self._machine.replay(key, value)
            self.rows_replayed += 1

    def serve(self) -> None:
        """Begin to answer: the log is read to its end."""
        self._runner.perform(self._machine.loaded(self._ports.now_ms(), wall_ms=self._ports.wall_ms()))

    def end(self) -> None:
        """Take and carry out no more; senders of open requests are redirected to the next coordinator."""
        self._runner.end()
        self._requests.fail_all(_ended())

    def census(self) -> list[GroupFigures]:
        """Return the groups for the metrics; see :meth:`CoordinatorMachine.census`."""
        return self._machine.census()

    # ------------------------------------------------------------ events in

    def receive(self, request: RequestT) -> None:
        """Take a request; the reply is sent at once, or when its rows are stored, or when its round ends."""
        if self._runner.is_over:
            request.fail(_ended())
            return
        number = self._requests.remember(request)
        try:
            event = event_for(request, number, self._ports.now_ms())
        except RaylogError as refusal:
            del self._requests[number]
            request.fail(refusal)
            return
        self._runner.feed(event)

    def tick(self) -> None:
        """Advance the time, and drop the requests of closed connections."""
        now_ms = self._ports.now_ms()
        for number in self._requests.take_deserted():
            self._runner.feed(ev.RequestDropped(cause="connection lost", now_ms=now_ms, request=number))
        extent = self._ports.log_extent()
        self._runner.feed(ev.Tick(cause="tick", now_ms=now_ms, wall_ms=self._ports.wall_ms(), log=extent))

    def take_batch(self, bytes_max: int) -> list[RowT]:
        """Return the rows to append next, empty when none wait; :meth:`stored` or :meth:`end` has to follow."""
        return self._rows.take(bytes_max)

    def stored(self) -> None:
        """Note that the batch taken last is in the log, and carry out the effects that waited for its rows."""
        self._rows.stored()
        self._runner.release()

    def trimmed(self, before_offset: int) -> None:
        """Note that the log starts at an offset now, or later."""
        self._runner.feed(ev.LogTrimmed(cause="trim", now_ms=self._ports.now_ms(), before_offset=before_offset))

    def sleep_requested(self) -> None:
        """Propose to end now, unless the groups are in use: the cluster is about to stop."""
        self._runner.feed(ev.SleepRequested(cause="sleep requested", now_ms=self._ports.now_ms()))

    def sleep_refused(self) -> None:
        """Serve on: the controller did not agree that this coordinator ends."""
        self._runner.feed(ev.SleepRefused(cause="sleep refused", now_ms=self._ports.now_ms()))

    # ------------------------------------------------------------ effects out

    def _append(self, effect: ev.AppendRecords) -> None:
        self._rows.add(self._ports.row(key, value) for key, value in effect.records)

    def _reply(self, effect: Reply) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply(effect.result)

    def _refuse(self, effect: Refuse) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.fail(effect.error)

    def _report_stored(self, effect: ev.ReportStored) -> ev.Event:
        return ev.RowsStored(cause=effect.cause, now_ms=self._ports.now_ms())

    def _trim(self, effect: ev.TrimLog) -> None:
        self._ports.trim(effect.before_offset)


def _ended() -> NotCoordinator:
    return NotCoordinator("The coordinator is loading its groups again; look it up and repeat.")
