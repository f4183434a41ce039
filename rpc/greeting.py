"""The bytes of a handshake on one connection: collected message by message, before any frame is read.

Owned by `Connection` until the peer has proved itself. Pure: what to send is returned.
"""

from __future__ import annotations

from raylog.rpc.auth.handshake import ClientHandshake, Endpoints, Peer, ServerHandshake


class Greeting:
    """Collects the peer's messages of one handshake, and never reads a byte behind them."""

    def __init__(self, handshake: ClientHandshake | ServerHandshake, most_bytes: int) -> None:
        """`most_bytes` is the longest message that is taken from a peer that has proved nothing."""
        self._handshake = handshake
        self._buffer = memoryview(bytearray(most_bytes))
        self._collected_bytes = 0
        self.is_accepting = isinstance(handshake, ServerHandshake)
        """Whether the peer connected to this end."""

    @property
    def peer(self) -> Peer | None:
        """The peer, once it has proved itself."""
        return self._handshake.peer

    @property
    def farewell(self) -> bytes:
        """What a refused peer is sent."""
        return self._handshake.farewell

    def open(self, ends: Endpoints) -> bytes:
        """Return the first message to send, over a connection with these ends."""
        self._handshake.bind(ends)
        return self._handshake.opening

    def get_buffer(self) -> memoryview:
        """Where the socket's next bytes go: at most the rest of the message that is awaited."""
        return self._buffer[self._collected_bytes : self._handshake.wanted_bytes or None]

    def take(self, count: int) -> bytes:
        """Take in `count` bytes that were put into the buffer; return what to send. Raises AuthenticationFailed."""
        self._collected_bytes += count
        if self._collected_bytes < self._handshake.wanted_bytes:
            return b""
        message = bytes(self._buffer[: self._collected_bytes])
        self._collected_bytes = 0
        return self._handshake.receive(message)
