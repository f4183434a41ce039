"""A voter: keeps one copy of the metadata log and its promise to one candidate. Driven by the broker's shell.

Writes are in ``now`` and answers in ``after_sync``, so that no shell can answer before the promise and the batches are
on disk. The rules are Raft's for a follower; the proposer is not a voter. A voter does not know whether its vote
counts: learners and removed voters follow the same rules, and proposers count only voters that the configuration in the
log names.
"""

from __future__ import annotations

from typing import assert_never

from raylog.base.invariants import require
from raylog.core.decision import RequestId
from raylog.core.outbox import Outbox
from raylog.core.quorum.events import (
    AppendReply,
    AppendRequested,
    AppendSpans,
    DropPrefix,
    PromiseReply,
    ReadReply,
    RestartLog,
    SavePromise,
    SaveSnapshot,
    SnapshotOffered,
    TruncateLog,
    VoterEffect,
    VoterEvent,
)
from raylog.core.quorum.history import LogHistory
from raylog.core.received import Received
from raylog.protocol.voter import VoterPromiseRequest, VoterReadRequest


class VoterMachine:
    """One incarnation of a voter."""

    def __init__(self, history: LogHistory, *, identity: str, promised: int, candidate: str, trusted: bool) -> None:
        """Start from the state on disk: the log, the promise, and whether a proposer has ever written to this copy."""
        self.history = history
        self.identity = identity
        self.promised = promised
        self.candidate = candidate
        self.trusted = trusted
        self.committed = history.start
        """Highest commit offset received in this incarnation; the log is never cut below it."""

    def step(self, event: VoterEvent) -> Outbox[VoterEffect]:
        """Handle one request and return its effects."""
        outbox: Outbox[VoterEffect] = Outbox()
        match event:
            case Received():
                request = event.message
                if isinstance(request, VoterPromiseRequest):
                    self._promise(event.request, request, outbox)
                else:
                    self._read(event.request, request, outbox)
            case AppendRequested():
                self._append(event, outbox)
            case SnapshotOffered():
                self._snapshot(event, outbox)
            case _:
                assert_never(event)
        return outbox

    def _is_from_promised(self, epoch: int, candidate: str) -> bool:
        return epoch == self.promised and candidate == self.candidate

    def _save(self, epoch: int, candidate: str, outbox: Outbox[VoterEffect]) -> None:
        self.promised, self.candidate = epoch, candidate
        outbox.now.append(SavePromise(epoch=epoch, candidate=candidate, trusted=self.trusted))

    def _read(self, number: RequestId, request: VoterReadRequest, outbox: Outbox[VoterEffect]) -> None:
        outbox.after_sync.append(
            ReadReply(
                request=number,
                allowed=self._is_from_promised(request.epoch, request.candidate),
                promised=self.promised,
                offset=request.offset,
                end=self.history.end,
                start=self.history.start,
            )
        )

    def _promise(self, number: RequestId, request: VoterPromiseRequest, outbox: Outbox[VoterEffect]) -> None:
        if request.epoch > self.promised:
            self._save(request.epoch, request.candidate, outbox)
        # A request of the candidate that has the promise is granted again: the first answer may have been lost.
        granted = self._is_from_promised(request.epoch, request.candidate)
        outbox.after_sync.append(
            PromiseReply(
                request=number,
                granted=granted,
                promised=self.promised,
                epochs=tuple(self.history.epochs),
                start=self.history.start,
                end=self.history.end,
            )
        )

    def _is_from_leader(self, event: AppendRequested | SnapshotOffered, outbox: Outbox[VoterEffect]) -> bool:
        """Return whether to accept a proposer's request; accepting promises its epoch and trusts the copy."""
        if event.epoch < self.promised:
            return False
        # In one epoch one candidate has a majority of promises, so the one that appends in it has won it.
        if not self.trusted or not self._is_from_promised(event.epoch, event.candidate):
            self.trusted = True
            self._save(event.epoch, event.candidate, outbox)
        return True

    def _append(self, event: AppendRequested, outbox: Outbox[VoterEffect]) -> None:
        matched: int | None = None
        if self._is_from_leader(event, outbox) and self.history.matches(event.start, event.previous_epoch):
            matched = self._take(event, outbox)
            self.committed = max(self.committed, min(event.committed, matched))
        self._answer(event.request, matched, outbox)

    def _snapshot(self, event: SnapshotOffered, outbox: Outbox[VoterEffect]) -> None:
        matched: int | None = None
        if self._is_from_leader(event, outbox):
            matched = event.end
            if event.end > self.history.start:
                outbox.now.append(SaveSnapshot(request=event.request, end=event.end, epoch=event.end_epoch))
                self._put_behind(event, outbox)
                self.committed = max(self.committed, event.end)
        self._answer(event.request, matched, outbox)

    def _put_behind(self, event: SnapshotOffered, outbox: Outbox[VoterEffect]) -> None:
        """Keep the part of the log that continues the snapshot. A log without the snapshot's last record is emptied."""
        if self.history.matches(event.end, event.end_epoch):
            self.history.drop_before(event.end)
            outbox.now.append(DropPrefix(to=event.end))
            return
        require(event.end >= self.committed, f"{event} ends behind {self.committed}, which is committed, or has it")
        self.history.restart(event.end, event.end_epoch)
        outbox.now.append(RestartLog(at=event.end))

    def _answer(self, request: int, matched: int | None, outbox: Outbox[VoterEffect]) -> None:
        outbox.after_sync.append(
            AppendReply(
                request=request,
                promised=self.promised,
                matched=matched,
                epochs=tuple(self.history.epochs),
                end=self.history.end,
                start=self.history.start,
            )
        )

    def _take(self, event: AppendRequested, outbox: Outbox[VoterEffect]) -> int:
        """Append the missing batches, and truncate only at divergence."""
        for place, span in enumerate(event.spans):
            if span.end <= self.history.end and self.history.epoch_before(span.end) == span.epoch:
                continue  # there already: the request is a repeat, or a late one of this epoch
            if span.start < self.history.end:
                require(
                    span.start >= self.committed,
                    f"nothing below {self.committed} is cut: it is committed, and {event} starts at {span.start}",
                )
                self.history.truncate(span.start)
                outbox.now.append(TruncateLog(to=span.start))
            self.history.append(event.spans[place:])
            outbox.now.append(AppendSpans(request=event.request, first=place))
            break
        return event.spans[-1].end if event.spans else event.start
