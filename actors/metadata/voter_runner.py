"""Runs a metadata voter: takes requests, writes to its disk in order, and replies once the content is durable.

Used by :mod:`raylog.actors.metadata.voter` with real files, and by the simulator with a virtual disk. It opens no file
and knows no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from raylog.actors.runner import Durability, Runner
from raylog.core.quorum import VoterMachine
from raylog.core.quorum import events as ev
from raylog.protocol.voter import EpochStart, VoterAppendReply, VoterPromiseReply, VoterReadReply

VoterReply: TypeAlias = VoterPromiseReply | VoterAppendReply | VoterReadReply


@dataclass(frozen=True, slots=True)
class Order:
    """A decoded request to a voter, and its payload; the event's ``request`` is its number."""

    event: ev.VoterEvent
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to the request with the number ``request``."""

    request: int
    args: VoterReply
    payload: bytes = b""


class VoterDisk(Durability, Protocol):
    """One voter's files. Positions are offsets of its log. Every method may block, and raises storage errors."""

    @property
    def holds_data(self) -> bool:
        """Whether the data directory also has partitions of topics."""

    @property
    def is_founder(self) -> bool:
        """Whether this copy may found the cluster."""

    def save_promise(self, promise: ev.SavePromise) -> None:
        """Write the promise durably."""

    def truncate_to(self, to: int) -> None:
        """Truncate the log."""

    def append(self, payload: memoryview, first: int) -> None:
        """Append the batches of a payload from number ``first`` on."""

    def save_snapshot(self, payload: memoryview, effect: ev.SaveSnapshot) -> None:
        """Replace the snapshot durably."""

    def drop_prefix(self, to: int) -> None:
        """Drop records below ``to``, because the snapshot has them."""

    def restart_at(self, at: int) -> None:
        """Empty the log durably, to continue at ``at``."""

    def sync(self) -> None:
        """Make everything appended so far durable."""

    def read(self, offset: int, end: int) -> bytes:
        """Return batches from ``offset`` up to ``end``; the snapshot if the log starts above ``offset``.

        Empty when there is nothing to return.
        """


class VoterRunner:
    """One incarnation of a voter. Any error ends it, because memory and disk may differ afterwards."""

    def __init__(
        self,
        machine: VoterMachine,
        disk: VoterDisk,
        *,
        answer: Callable[[Answer], None],
        on_defect: Callable[[str], None],
    ) -> None:
        """``answer`` sends a reply; ``on_defect`` is called before an error is raised, and ends this incarnation."""
        self.machine = machine
        self._disk = disk
        self._answer = answer
        self._payload = memoryview(b"")
        """The payload of the order that is being carried out."""
        self._runner: Runner[ev.VoterEvent, ev.VoterEffect] = Runner(
            machine.step,
            {
                ev.SavePromise: disk.save_promise,
                ev.TruncateLog: self._truncate,
                ev.AppendSpans: lambda effect: disk.append(self._payload, effect.first),
                ev.SaveSnapshot: lambda effect: disk.save_snapshot(self._payload, effect),
                ev.DropPrefix: lambda effect: disk.drop_prefix(effect.to),
                ev.RestartLog: self._restart,
                ev.PromiseReply: self._reply_promise,
                ev.AppendReply: self._reply_append,
                ev.ReadReply: self._reply_read,
            },
            disk,
            on_defect=on_defect,
        )

    @property
    def is_over(self) -> bool:
        """Whether this incarnation has ended."""
        return self._runner.is_over

    def take(self, order: Order) -> None:
        """Carry out one request; its reply follows now or at a later :meth:`release`. ``answer`` must not call this."""
        self._payload = order.payload
        self._runner.feed(order.event)

    def release(self) -> None:
        """Send the replies whose state is durable now."""
        self._runner.release()

    def end(self) -> None:
        """Carry out no more requests and send no more replies."""
        self._runner.end()

    # ------------------------------------------------------------ effects

    def _settle(self) -> None:
        """Send the waiting replies before a truncation: they describe the present log, and a read needs it."""
        if self._runner.waits_for_disk:
            self._disk.sync()
            self._runner.settle()

    def _truncate(self, effect: ev.TruncateLog) -> None:
        self._settle()
        self._disk.truncate_to(effect.to)

    def _restart(self, effect: ev.RestartLog) -> None:
        self._settle()
        self._disk.restart_at(effect.at)

    def _reply_promise(self, effect: ev.PromiseReply) -> None:
        reply = VoterPromiseReply(
            granted=effect.granted,
            promised=effect.promised,
            identity=self.machine.identity,
            epochs=_starts(effect.epochs),
            start=effect.start,
            end=effect.end,
            holds_data=self._disk.holds_data,
            founder=self._disk.is_founder,
        )
        self._answer(Answer(effect.request, reply))

    def _reply_append(self, effect: ev.AppendReply) -> None:
        reply = VoterAppendReply(
            promised=effect.promised,
            identity=self.machine.identity,
            matched=effect.matched,
            epochs=_starts(effect.epochs),
            end=effect.end,
            start=effect.start,
        )
        self._answer(Answer(effect.request, reply))

    def _reply_read(self, effect: ev.ReadReply) -> None:
        has_more = effect.allowed and effect.offset < effect.end
        payload = self._disk.read(effect.offset, effect.end) if has_more else b""
        reply = VoterReadReply(effect.allowed, effect.promised, effect.end, effect.start)
        self._answer(Answer(effect.request, reply, payload))


def _starts(epochs: Sequence[tuple[int, int]]) -> list[EpochStart]:
    return [EpochStart(*entry) for entry in epochs]
