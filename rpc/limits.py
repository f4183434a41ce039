"""The named bounds of one connection. Built by servers and clients, read by every module here. Touches nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection; both ends should agree on `max_frame_bytes`.

    A pause for unanswered requests begins after the receive buffer that crossed the limit has been handed out, so
    up to 256 KiB of small requests can go over it. While reading pauses, answers to our own calls on that connection
    wait too: a handler that calls back over the same connection before it answers needs a limit it does not reach.
    """

    max_frame_bytes: int = 104_857_600
    """Largest frame sent or accepted, without its own length field (Kafka's socket.request.max.bytes)."""
    max_preauth_bytes: int = 1024
    """Most bytes held for a peer that has not proved itself."""
    auth_timeout_s: float = 5.0
    """Time for TLS, and again for our handshake, before an unproved peer is dropped."""
    max_pending_calls: int = 65_536
    """Calls of ours on one connection that wait for an answer; one more is refused with TooManyPendingCalls."""
    max_unanswered_requests: int = 16_384
    """Requests of the peer that wait for our answer; above it we stop reading until half of them are answered."""
    max_unanswered_bytes: int = 268_435_456
    """Payload bytes of such requests; above it we stop reading until half of them are answered."""
    send_high_water_bytes: int = 4_194_304
    """Unsent bytes above which `drain()` waits, and above which an accepted connection reads no further requests."""
    close_linger_s: float = 5.0
    """Time that a closing connection has to send what is queued, before it is cut."""
    dead_peer_timeout_s: float = 30.0
    """Time after which a peer that acknowledges nothing (or no keepalive probe) counts as gone."""
    max_connections: int = 10_000
    """Connections of one server, proved or not; one more is closed at once."""

    def __post_init__(self) -> None:
        """Raise ValueError for a bound that would stop all traffic."""
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"Limits.{name} must be above zero, not {getattr(self, name)}.")
        if self.max_preauth_bytes < 128:
            raise ValueError("Limits.max_preauth_bytes must be at least 128, the handshake's messages need it.")
