"""The errors of the tree that only this layer raises. Pure."""

from __future__ import annotations

from raylog.base.errors import AuthenticationFailed, RecordTooLarge, ThrottlingQuotaExceeded


class TooManyPendingCalls(ThrottlingQuotaExceeded):
    """This connection already has `Limits.max_pending_calls` calls without an answer. Wait for some of them."""


class FrameTooLarge(RecordTooLarge):
    """A frame is over `Limits.max_frame_bytes`. Send less at once, or raise the limit at both ends."""


class TlsMismatch(AuthenticationFailed):
    """One end speaks TLS and the other does not; trying again changes nothing."""
