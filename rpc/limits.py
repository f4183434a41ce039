"""The named bounds of one connection. Built by servers and clients, read by every module here. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection; both ends should agree on `max_frame_bytes`.

    Reading pauses for unanswered requests after the receive buffer that crossed the limit has been handled, so up to
    256 KiB of small requests can go over it. While reading pauses, answers to our own calls on that connection wait
    too: a handler that calls back over the same connection before it answers needs a limit it does not reach.
    """

    max_frame_bytes: int = 104_857_600
    """Largest frame sent or accepted, without its own length field (Kafka's socket.request.max.bytes)."""
    max_preauth_bytes: int = 1024
    """Most bytes buffered for an unauthenticated peer."""
    auth_timeout_s: float = 5.0
    """Time for TLS, and again for our handshake, before an unauthenticated peer is dropped."""
    max_pending_calls: int = 65_536
    """Pending calls of ours on one connection; one more is refused with TooManyPendingCalls."""
    max_unanswered_requests: int = 16_384
    """Unanswered requests of the peer; above it reading pauses until half of them are answered."""
    max_unanswered_bytes: int = 268_435_456
    """Argument and payload bytes of such requests; above it reading pauses until half of them are answered."""
    send_high_water_bytes: int = 4_194_304
    """Unsent bytes above which `drain()` waits, and above which an accepted connection reads no further requests."""
    close_linger_s: float = 5.0
    """Time for a closing connection to send what is queued, before it is cut."""
    dead_peer_timeout_s: float = 30.0
    """Time after which a peer that acknowledges nothing (or no keepalive probe) counts as lost."""
    max_connections: int = 10_000
    """Most connections of one server, authenticated or not; the descriptor limit of the process may allow fewer."""
    max_unauthenticated: int = 2048
    """Most connections of one server that have not authenticated, at most a quarter of all that it accepts; another
    one replaces the oldest of them."""
    max_header_bytes: int = 1_048_576
    """Largest header of a request that an accepted connection accepts from a client."""
    max_token_frame_bytes: int = 65_536
    """Largest frame of a peer with only a token, without records; those of a token that writes come on top."""
    max_process_request_bytes: int = 268_435_456
    """Bytes that the clients of a process make it hold: incomplete frames, at most half of it, and requests that wait
    or are unanswered. Above it each connection has its share; the oldest incomplete frames are given up for others."""
    max_process_unsent_bytes: int = 268_435_456
    """Unsent bytes of all accepted connections of a process; above it, connections with unsent bytes are not read, and
    fetches get little. 64 MiB above it the peers that have read nothing for longest are cut."""
    frame_timeout_s: float = 30.0
    """Time for a frame that has begun to arrive; a longer frame needs at least `min_frame_bytes_per_s`."""
    min_frame_bytes_per_s: int = 16_384
    """Slowest rate of a frame that takes longer than `frame_timeout_s`."""
    stalled_peer_timeout_s: float = 60.0
    """Time after which an accepted connection is cut if its peer reads none of the bytes queued for it."""
    idle_timeout_s: float = 600.0
    """Time after which a client's connection without a request or an answer in flight is closed (Kafka's
    connections.max.idle.ms)."""

    def __post_init__(self) -> None:
        """Raise ValueError for a bound that would stop all traffic."""
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"Limits.{name} must be above zero, not {getattr(self, name)}.")
        if self.max_preauth_bytes < 1024:
            raise ValueError("Limits.max_preauth_bytes must be at least 1024, the handshake's messages need it.")
