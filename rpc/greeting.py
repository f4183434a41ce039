"""The bytes of a handshake on one connection: collected message by message, before any frame is read.

Owned by `Connection` until the peer has authenticated. Pure: the bytes to send are returned.
"""

from __future__ import annotations

from raylog.rpc.auth.handshake import ClientHandshake, Endpoints, Peer, ServerHandshake


class Greeting:
    """Collects the peer's messages of one handshake, and never reads a byte after them."""

    def __init__(self, handshake: ClientHandshake | ServerHandshake, most_bytes: int) -> None:
        """`most_bytes` is the longest message accepted from an unauthenticated peer."""
        self._handshake = handshake
        self._buffer = memoryview(bytearray(most_bytes))
        self._collected_bytes = 0
        self.is_accepting = isinstance(handshake, ServerHandshake)
        """Whether the peer connected to this end."""
        self.has_received = False
        """Whether any byte of the peer has come."""

    @property
    def peer(self) -> Peer | None:
        """The peer, once it has authenticated."""
        return self._handshake.peer

    @property
    def farewell(self) -> bytes:
        """The bytes to send to a refused peer."""
        return self._handshake.farewell

    def open(self, ends: Endpoints) -> bytes:
        """Return the first message to send, over a connection with these ends."""
        self._handshake.bind(ends)
        return self._handshake.opening

    def get_buffer(self) -> memoryview:
        """The buffer for the socket's next bytes: at most the rest of the awaited message."""
        return self._buffer[self._collected_bytes : self._handshake.wanted_bytes or None]

    def take(self, count: int) -> bytes:
        """Process `count` bytes written to the buffer; return the bytes to send. Raises AuthenticationFailed."""
        self._collected_bytes += count
        self.has_received = True
        if self._collected_bytes < self._handshake.wanted_bytes:
            return b""
        message = bytes(self._buffer[: self._collected_bytes])
        self._collected_bytes = 0
        return self._handshake.receive(message)
