"""Decides when a server closes a stuck connection: an incomplete frame, unread answers, or idleness.

`RpcServer` samples its connections every few seconds and passes each sample, as `Vitals`, to the connection's
`Patience`. Sampling adds nothing to the request path: it compares counters that the connection keeps anyway. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raylog.rpc.limits import Limits


class Vitals(NamedTuple):
    """A connection at one instant."""

    rounds: int
    """Reads that completed a frame, since the connection began."""
    partial_bytes: int
    """Bytes of a frame that has begun to arrive; 0 between frames, and while this end does not read."""
    unsent_bytes: int
    """Bytes of answers that the peer has not read."""
    writes: int
    """Writes of which the peer accepted something, since the connection began."""
    is_busy: bool
    """Whether a request or a call is in flight in either direction."""


@dataclass(slots=True)
class Patience:
    """How long one connection has been stuck, and in what. All times are seconds of one monotonic clock."""

    frame_since_s: float | None = None
    frame_begun: tuple[int, int] = (0, 0)
    """Rounds and partial bytes when the frame was first seen incomplete."""
    stalled_since_s: float | None = None
    stalled_writes: int = 0
    """Writes when unsent bytes were first seen not to shrink."""
    idle_since_s: float | None = None
    idle_at: tuple[int, int] = (0, 0)
    """Rounds and writes when the connection was first seen idle."""

    def verdict(self, now_s: float, seen: Vitals, limits: Limits, *, may_be_idle: bool) -> str:
        """Return why the connection has to be closed; empty = it may stay.

        `may_be_idle` exempts connections whose end signals a failure to the other end, as between brokers.
        """
        return (
            self._frame_late(now_s, seen, limits)
            or self._stalled(now_s, seen, limits)
            or ("" if may_be_idle else self._idle(now_s, seen, limits))
        )

    def _frame_late(self, now_s: float, seen: Vitals, limits: Limits) -> str:
        if not seen.partial_bytes:
            self.frame_since_s = None
            return ""
        if self.frame_since_s is None or self.frame_begun[0] != seen.rounds:
            self.frame_since_s, self.frame_begun = now_s, (seen.rounds, seen.partial_bytes)
            return ""
        age_s = now_s - self.frame_since_s
        came = seen.partial_bytes - self.frame_begun[1]
        if age_s <= limits.frame_timeout_s or came >= age_s * limits.min_frame_bytes_per_s:
            return ""
        return f"a frame did not arrive within {age_s:.0f} s: {seen.partial_bytes} bytes of it came"

    def _stalled(self, now_s: float, seen: Vitals, limits: Limits) -> str:
        if not seen.unsent_bytes:
            self.stalled_since_s = None
            return ""
        if self.stalled_since_s is None or self.stalled_writes != seen.writes:
            self.stalled_since_s, self.stalled_writes = now_s, seen.writes
            return ""
        age_s = now_s - self.stalled_since_s
        if age_s <= limits.stalled_peer_timeout_s:
            return ""
        return f"the peer took none of {seen.unsent_bytes} bytes of answers for {age_s:.0f} s"

    def _idle(self, now_s: float, seen: Vitals, limits: Limits) -> str:
        at = (seen.rounds, seen.writes)
        if self.idle_since_s is None or self.idle_at != at or seen.is_busy or seen.unsent_bytes:
            self.idle_since_s, self.idle_at = now_s, at
            return ""
        age_s = now_s - self.idle_since_s
        return f"no request for {age_s:.0f} s" if age_s > limits.idle_timeout_s else ""
