"""The follower's half of the replica machine: fetch, append, truncate at divergence, follow the high watermark.

Rule R1: truncate only on the answer to the fetch in flight, from the leader of the current epoch; a late copy of an
older answer must not cut what was fetched since. A fetch leaves only when everything before its offset is durable
(``after_sync``), because the leader counts its offset as an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raylog.base.errors import FencedLeaderEpoch, OffsetOutOfRange, StaleBrokerEpoch
from raylog.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset
from raylog.base.invariants import require
from raylog.core.dozing.rest import Quiet
from raylog.core.outbox import Outbox
from raylog.core.replication.events import (
    AdvanceLogStart,
    AppendFailed,
    AppendFetched,
    Effect,
    FetchAnswered,
    FetchFailed,
    FollowerAppended,
    RequestId,
    ResetLog,
    SendFetch,
    TruncateLog,
)
from raylog.core.replication.log import LogCut, ReplicaLog, ReplicationSettings
from raylog.core.replication.throttle import Throttle

RESTING_WAIT_MS: Final = 120_000
"""How long a follower's fetch waits at the leader while nothing is written, so that neither has to run meanwhile.

A connection that is silently cut is found by its keepalive probes before that.
"""
USUAL_WAIT_MS: Final = 500
"""How long other fetches wait there at the most."""
SHORTEST_WAIT_MS: Final = 50
_LOOK_AGAIN_MS = 500
"""How often a throttled replica checks whether it still has to wait: it may be in sync, or have a new rate."""


class Follower:
    """Follows one leader in one leader epoch; a new epoch gets a new object."""

    __slots__ = (
        "_appending",
        "_incarnation",
        "_leader_log_start",
        "_leader_watermark",
        "_log",
        "_next_request",
        "_note",
        "_outstanding",
        "_quiet_since_ms",
        "_retry_at_ms",
        "_throttle",
        "_waits_long",
        "in_sync",
        "leader",
        "leader_epoch",
        "settings",
        "throttled",
    )

    def __init__(
        self,
        *,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        incarnation: Incarnation,
        log: ReplicaLog,
        settings: ReplicationSettings,
        next_request: Callable[[], RequestId],
        note: Callable[[str], None],
        throttle: Throttle,
    ) -> None:
        """Prepare; :meth:`fetch` sends the first request."""
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.settings = settings
        self._incarnation = incarnation
        self._log = log
        self._next_request = next_request
        self._note = note
        self._outstanding: RequestId | None = None
        """The fetch in flight."""
        self._appending: RequestId | None = None
        """The fetch whose records are being appended."""
        self._retry_at_ms = 0
        self._quiet_since_ms: int | None = None
        """When the first fetch since the last records was sent; None = none was."""
        self._leader_watermark = Offset(0)
        self._throttle = throttle
        self._waits_long = False
        """Whether the fetch in flight may wait at the leader for :data:`RESTING_WAIT_MS`."""
        self.in_sync = False
        """Whether this replica is in the ISR, as far as it knows: then it needs no fetch to join."""
        self.throttled = False
        """Whether this replica is being added and not yet in sync: then ``catch_up_bytes_per_s`` applies."""
        self._leader_log_start = Offset(0)

    def fetch(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Fetch from the log end, once all before it is durable; gives up any earlier fetch.

        A throttled replica may have to wait first; the tick that ends the wait sends the fetch.
        """
        rate = self.settings.catch_up_bytes_per_s if self.throttled else 0
        wait_ms = self._throttle.wait_ms(now_ms) if rate else 0
        if wait_ms:
            self._outstanding = None
            self._retry_at_ms = now_ms + min(wait_ms, _LOOK_AGAIN_MS)
            return
        request = self._next_request()
        wait_ms = self._wait_ms(now_ms)
        self._outstanding = request
        self._waits_long = wait_ms == RESTING_WAIT_MS
        self._retry_at_ms = now_ms + wait_ms + self.settings.fetch_timeout_ms
        out.after_sync.append(
            SendFetch(
                cause=cause,
                request=request,
                leader=self.leader,
                leader_epoch=self.leader_epoch,
                incarnation=self._incarnation,
                fetch_offset=self._log.end,
                last_fetched_epoch=self._log.epochs.latest,
                max_bytes=Throttle.fetch_bytes(rate) if rate else 0,
                log_start_offset=self._log.start,
                disk_failing=self._log.disk.is_failing(now_ms),
                max_wait_ms=wait_ms,
            )
        )

    def leave_isr(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """This replica is not in sync any more: give up a fetch that would wait for long."""
        self.in_sync = False
        if self._outstanding is not None and self._waits_long:
            self.fetch(cause, now_ms, out)

    def quiet(self, otherwise_ms: int) -> Quiet | None:
        """Return since when nothing came, and when the fetch at the leader is given up; None = it is not at rest."""
        if self._outstanding is None or self._appending is not None or self.throttled or self._quiet_since_ms is None:
            return None
        return Quiet(since_ms=self._quiet_since_ms, parked=0, due_ms=min(otherwise_ms, self._retry_at_ms))

    def tick(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Send a new fetch when the pause after a failure, or the fetch timeout, is over."""
        if self._appending is None and now_ms >= self._retry_at_ms:
            self.fetch(cause, now_ms, out)

    def next_due_ms(self, now_ms: int, otherwise: int) -> int:
        """Return when the next tick has something to do."""
        if self.throttled:
            return now_ms
        return self._retry_at_ms if self._appending is None else otherwise

    def on_answered(self, event: FetchAnswered, out: Outbox[Effect]) -> None:
        """Handle the leader's answer to the fetch in flight; late answers are dropped."""
        if not self._expects(event.request) or event.leader_epoch != self.leader_epoch:
            return
        self._outstanding = None
        self._log.held_from = event.held_from
        if event.diverging is not None:
            self._cut(event, event.diverging, out)
            return
        if event.end_offset < self._log.end:
            require(False, f"a fetch answer ends at {event.end_offset}, below {self._log.end}")
        if event.high_watermark > self._leader_watermark:
            self._leader_watermark = event.high_watermark
        if self.throttled and self.settings.catch_up_bytes_per_s:
            self._throttle.spend(event.size_bytes, self.settings.catch_up_bytes_per_s, event.now_ms)
        if event.log_start_offset > self._leader_log_start:
            self._leader_log_start = event.log_start_offset
        if event.end_offset > self._log.end:
            self._quiet_since_ms = None
            self._appending = event.request
            out.now.append(AppendFetched(cause=event.cause, request=event.request))
            return
        self._go_on(event.cause, event.now_ms, out)

    def on_appended(self, event: FollowerAppended, out: Outbox[Effect]) -> None:
        """The fetched records are in the log: fetch the next ones, which also acknowledges these once durable."""
        if event.request != self._appending:
            require(False, f"append {event.request} was not requested")
        self._appending = None
        for epoch, start in event.epochs:
            self._log.begin_epoch(epoch, start)
        self._log.appended(event.end_offset, durable=event.durable)
        if self._log.disk.failing_since_ms is not None:
            self._log.disk.append_succeeded()
        self._go_on(event.cause, event.now_ms, out)

    def on_log_start_advanced(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """The log start moved: fetch, which notifies the leader, unless by retention with a fetch in flight."""
        if self._outstanding is None and self._appending is None:
            self.fetch(cause, now_ms, out)

    def on_cut(self, event: LogCut, out: Outbox[Effect]) -> None:
        """The log was cut, perhaps before the place where the histories part: fetch from where it ends.

        If the disk was too full, the next fetch is answered as the last one was.
        """
        if event.done:
            self.fetch(event.cause, event.now_ms, out)
        else:
            self._retry_at_ms = event.now_ms + self.settings.fetch_retry_ms

    def on_append_failed(self, event: AppendFailed) -> None:
        """The disk refused the records: fetch them again after a pause."""
        if event.request == self._appending:
            self._appending = None
            self._retry_at_ms = event.now_ms + self.settings.fetch_retry_ms
            if event.error is None:
                self._log.disk.append_failed(event.now_ms)

    def on_failed(self, event: FetchFailed, out: Outbox[Effect]) -> None:
        """The fetch in flight was refused or lost: retry, or reset if the leader no longer has the next record."""
        if not self._expects(event.request):
            return
        self._outstanding = None
        match event.error_code:
            case OffsetOutOfRange.code:
                self._note(f"reset log [{self._log.start}, {self._log.end}) to {event.log_start_offset}")
                out.now.append(ResetLog(cause=event.cause, start_offset=event.log_start_offset))
            case FencedLeaderEpoch.code | StaleBrokerEpoch.code:
                # Only a new state from the controller helps; retries would not.
                self._retry_at_ms = event.now_ms + self.settings.fetch_timeout_ms
            case _:
                self._retry_at_ms = event.now_ms + self.settings.fetch_retry_ms

    def follow_watermark(self) -> None:
        """Raise the high watermark to the leader's, up to the durable end of the local log."""
        log, watermark = self._log, self._leader_watermark
        log.raise_watermark(watermark if watermark < log.durable_end else log.durable_end)

    def validate(self) -> None:
        """Raise InvariantBroken unless at most one of fetching and appending is under way."""
        require(self._outstanding is None or self._appending is None, "a fetch and an append are both under way")

    def _wait_ms(self, now_ms: int) -> int:
        """Return how long a fetch that is sent now waits at the leader for records; 0 = the shell chooses.

        The high watermark comes with an answer. So the first fetch after records waits no longer than the replica may
        be awake. Once everything that was fetched is committed, the next one waits for as long as the replica may rest.
        A replica that is not in sync joins the ISR by a fetch, perhaps not by the first one: so it repeats fetches.
        """
        log, doze_after_ms = self._log, self.settings.doze_after_ms
        if self._quiet_since_ms is None:
            self._quiet_since_ms = now_ms
        if doze_after_ms < 0 or self.throttled:
            return 0
        enough_ms = max(SHORTEST_WAIT_MS, min(USUAL_WAIT_MS, doze_after_ms))
        has_all = self.in_sync and self._leader_watermark >= log.end and log.high_watermark >= log.end
        return RESTING_WAIT_MS if has_all and now_ms - self._quiet_since_ms >= enough_ms else enough_ms

    def _expects(self, request: RequestId) -> bool:
        return request == self._outstanding

    def _go_on(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Follow the leader's watermark and its log start, then fetch; if the disk refuses, the next tick fetches."""
        self.follow_watermark()
        start = min(self._leader_log_start, self._log.durable_end)
        if start > self._log.start:
            self._retry_at_ms = now_ms + self.settings.fetch_retry_ms
            out.now.append(AdvanceLogStart(cause=cause, to=start))
        else:
            self.fetch(cause, now_ms, out)

    def _cut(self, event: FetchAnswered, parting: tuple[LeaderEpoch, Offset], out: Outbox[Effect]) -> None:
        to = self._cut_point(*parting)
        if to < self._log.high_watermark:
            # Legal only after an unclean election: the new leader lacked committed records.
            self._note(f"truncated_below_hw: to {to}, high watermark was {self._log.high_watermark}")
        if to < self._log.start:
            self._note(f"histories part at {to}, before the log start {self._log.start}")
            out.now.append(ResetLog(cause=event.cause, start_offset=to))
            return
        self._note(f"truncate from {self._log.end} to {to} on the word of epoch {event.leader_epoch}")
        out.now.append(TruncateLog(cause=event.cause, to=to))

    def _cut_point(self, epoch: LeaderEpoch, leader_end: Offset) -> Offset:
        own_end = self._log.epochs.end_for(epoch, self._log.end).end_offset
        return min(own_end, leader_end, self._log.end)
