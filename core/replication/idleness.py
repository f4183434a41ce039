"""When a leader proposes that its partition sleeps. Owned by the leader's half of the machine, one a leader epoch.

From the proposal on the leader takes no appends: the end that it proposed is the end of the log for as long as the
partition sleeps. It takes them again when the proposal is refused, or when a newer state without it has come. While the
outcome is unknown it stays closed and repeats the proposal; clients refresh their metadata, which may name the broker.
"""

from __future__ import annotations

from typing import Final

from raylog.base.errors import (
    FencedLeaderEpoch,
    InvalidUpdateVersion,
    NotController,
    RequestTimedOut,
    StaleBrokerEpoch,
)
from raylog.base.ids import PartitionEpoch
from raylog.core.replication.events import ProposeSleep, SleepAnswered

REFUSED_PAUSE_MS: Final = 10_000
"""Pause before a partition whose sleep was refused proposes it again."""
REQUEST_HOLDS_MS: Final = 10_000
"""How long a request to sleep soon holds."""
LINK_BROKEN: Final = 1001
_UNDECIDED: Final = frozenset(
    {
        LINK_BROKEN,
        RequestTimedOut.code,
        NotController.code,
        StaleBrokerEpoch.code,
        FencedLeaderEpoch.code,
        InvalidUpdateVersion.code,
    }
)
"""Errors after which the proposal may still be committed, or is already: the next state decides."""


class Idleness:
    """How long nothing was written or read, and the proposal that is under way."""

    __slots__ = ("_for_stop", "_proposal", "_requested_idle_ms", "_requested_until_ms", "_resend_at_ms", "active_ms")

    def __init__(self, now_ms: int) -> None:
        """An epoch begins as if its partition had just been used."""
        self.active_ms = now_ms
        """When something was last written or read, as far as the last tick knows."""
        self._proposal: ProposeSleep | None = None
        self._resend_at_ms = 0
        self._requested_until_ms = now_ms
        self._requested_idle_ms = 0
        self._for_stop = False

    def request_sleep(self, now_ms: int, idle_ms: int, *, for_stop: bool = False) -> None:
        """Let ``idle_ms`` without use suffice for a while.

        A partition that never sleeps stays awake all the same, unless it is for a stop of the cluster.
        """
        self._requested_until_ms, self._requested_idle_ms, self._for_stop = now_ms + REQUEST_HOLDS_MS, idle_ms, for_stop

    @property
    def is_closed(self) -> bool:
        """Whether the leader takes no appends, because a proposal is under way."""
        return self._proposal is not None

    def is_due(self, now_ms: int, sleep_after_ms: int) -> bool:
        """Whether the partition should sleep: unused for ``sleep_after_ms`` (-1 = never), and not proposed yet."""
        enough_ms = self._enough_ms(sleep_after_ms) if now_ms < self._requested_until_ms else sleep_after_ms
        return enough_ms >= 0 and now_ms - self.active_ms >= enough_ms and self._proposal is None

    def due_ms(self, sleep_after_ms: int) -> int | None:
        """When :meth:`is_due` begins to hold, if nothing is written or read; None = never."""
        enough_ms = self._enough_ms(sleep_after_ms)
        if enough_ms >= 0 and self.active_ms + enough_ms < self._requested_until_ms:
            return self.active_ms + enough_ms
        return None if sleep_after_ms < 0 else self.active_ms + sleep_after_ms

    def _enough_ms(self, sleep_after_ms: int) -> int:
        """Return which time without use suffices while a request to sleep soon holds; -1 = none."""
        if sleep_after_ms < 0:
            return self._requested_idle_ms if self._for_stop else sleep_after_ms
        return min(self._requested_idle_ms, sleep_after_ms)

    def propose(self, proposal: ProposeSleep, resend_at_ms: int) -> ProposeSleep:
        """Note that the proposal is under way; returns it."""
        self._proposal, self._resend_at_ms = proposal, resend_at_ms
        return proposal

    def due_again(self, now_ms: int, resend_at_ms: int) -> ProposeSleep | None:
        """Return the proposal if it is to be repeated now."""
        if self._proposal is None or now_ms < self._resend_at_ms:
            return None
        self._resend_at_ms = resend_at_ms
        return self._proposal

    def answered(self, event: SleepAnswered, retry_ms: int, sleep_after_ms: int) -> None:
        """Handle a refusal; an agreement comes as a state."""
        if self._proposal is None or event.request != self._proposal.request or event.error_code == 0:
            return
        if event.error_code in _UNDECIDED:
            self._resend_at_ms = event.now_ms + retry_ms
            return
        self._proposal = None
        # So that `is_due` holds again after the pause.
        self.active_ms = event.now_ms + min(REFUSED_PAUSE_MS, sleep_after_ms) - sleep_after_ms

    def state_came(self, partition_epoch: PartitionEpoch) -> None:
        """End a proposal that another state has overtaken: it can never be committed."""
        if self._proposal is not None and partition_epoch > self._proposal.partition_epoch:
            self._proposal = None
