"""The send side of a connection: frames are gathered for one loop iteration, then leave in one scatter write.

Small frames are joined; large payloads are never copied, but passed to the kernel in place (`writev`). Python 3.11's
transport would copy all bytes that the socket does not accept at once, so unsent bytes wait here, and the transport
gets only a small piece; when that has left, the socket accepts bytes again. Over TLS everything goes through the
transport. Used by `Connection` alone. May touch: its transport and that transport's socket.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import ClassVar
from weakref import WeakKeyDictionary

from raylog.rpc.framing import Buffer
from raylog.rpc.limits import Limits

JOIN_BELOW_BYTES = 8 * 1024
"""A payload part below this is copied next to its header: cheaper than an entry of its own in the scatter write."""
FLUSH_AT_ONCE_BYTES = 128 * 1024
_RESIDUE_BYTES = 32 * 1024
_TURN_BYTES = 4 * 1024 * 1024  # after so much at a time, other connections get their turn
_PIECES_PER_WRITE = 512  # the kernel's own limit is 1024
_TLS_HIGH_BYTES = 256 * 1024


class WriteCoalescer:
    """While it is entered, nothing queued by a loop's connections is sent; at its end all of it is.

    For code that queues many frames at a time: each connection then writes once, and at once, where it would otherwise
    need another iteration of the loop. One for each loop; may be nested.
    """

    __slots__ = ("depth", "queues", "unsent_bytes")
    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, WriteCoalescer]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self.depth = 0
        """Nesting depth. The path of every message raises and lowers it inline, without a call."""
        self.queues: list[SendQueue] = []
        """Queues to flush at the end; a queue appends itself while `depth` is not zero."""
        self.unsent_bytes = 0
        """Bytes that the sockets of this loop have not accepted yet, as of the last write of each connection."""

    @classmethod
    def on(cls, loop: asyncio.AbstractEventLoop) -> WriteCoalescer:
        """The coalescer of this loop."""
        found = cls._of_loops.get(loop)
        if found is None:
            found = cls._of_loops[loop] = cls()
        return found

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth and self.queues:
            self.flush()

    def flush(self) -> None:
        """Flush the waiting queues; for callers that have lowered `depth` to zero."""
        queues, self.queues = self.queues, []
        for queue in queues:
            queue.scheduled_flush()


class SendQueue:
    """Unsent frames of one connection, in order.

    `on_low` is called when the unsent bytes have fallen to half of the high mark after having been above it; `on_error`
    when the socket fails permanently.
    """

    __slots__ = (
        "_closing",
        "_coalescer",
        "_counted_bytes",
        "_fd",
        "_flush_scheduled",
        "_linger",
        "_loop",
        "_on_error",
        "_on_low",
        "_paused",
        "_pieces",
        "_tail",
        "_transport",
        "_waiters",
        "high_water_bytes",
        "is_over",
        "unsent_bytes",
        "writes",
    )  # fmt: skip

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        on_low: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        self._loop = loop
        self._on_low = on_low
        self._on_error = on_error
        self._transport: asyncio.Transport | None = None
        self._fd = -1  # of a plain TCP socket; -1 = write through the transport
        self._pieces: deque[Buffer] = deque()
        self._tail = bytearray()  # the piece that still grows
        self._flush_scheduled = False
        self._coalescer = WriteCoalescer.on(loop)
        self._paused = False
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self.high_water_bytes = limits.send_high_water_bytes
        self.unsent_bytes = 0
        self.is_over = False
        """The unsent bytes have crossed the high mark and have not yet fallen to half of it."""
        self.writes = 0
        """Writes of which the socket accepted something while bytes waited: it grows as long as the peer reads."""
        self._counted_bytes = 0  # our share of `WriteCoalescer.unsent_bytes`
        self._waiters: list[asyncio.Future[None]] = []

    def attach(self, transport: asyncio.Transport) -> None:
        """Start sending through `transport`."""
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if transport.get_extra_info("sslcontext") is None and sock is not None and hasattr(os, "writev"):
            self._fd = sock.fileno()
            # Zero: the transport reports as soon as it holds a byte, and again when it holds none.
            transport.set_write_buffer_limits(high=0)
        else:
            transport.set_write_buffer_limits(high=_TLS_HIGH_BYTES)

    def detach(self) -> None:
        """Drop the transport and everything unsent: the connection is closed, and its descriptor may be reused."""
        self._transport = None
        self._fd = -1
        self._pieces.clear()
        self._tail = bytearray()
        self.unsent_bytes = 0
        self.is_over = False
        self._count()
        if self._linger is not None:
            self._linger.cancel()

    def put(self, header: bytes, parts: Sequence[Buffer], payload_bytes: int) -> None:
        """Queue one frame. Large parts are kept by reference until they are sent: do not change them."""
        if self._transport is None:
            return
        self._tail += header
        for part in parts:
            if len(part) < JOIN_BELOW_BYTES:
                self._tail += part
            else:
                if self._tail:
                    self._pieces.append(self._tail)
                    self._tail = bytearray()
                self._pieces.append(part)
        self.unsent_bytes += len(header) + payload_bytes
        if self.unsent_bytes > self.high_water_bytes:
            self.is_over = True
        if self._paused:
            self._count()
        if not self._flush_scheduled:
            if payload_bytes >= FLUSH_AT_ONCE_BYTES:
                self._flush()
            elif not self._paused:
                self._flush_scheduled = True
                if self._coalescer.depth:
                    self._coalescer.queues.append(self)
                else:
                    self._loop.call_soon(self.scheduled_flush)

    async def wait_low(self) -> None:
        """Wait until the unsent bytes have fallen to half the high mark, or the connection has ended."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def release_waiters(self) -> None:
        """End every `wait_low`."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def pause(self) -> None:
        """The transport holds unsent bytes: the socket's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """The transport has sent all it held."""
        self._paused = False
        self._flush()

    def close_when_sent(self, linger_s: float) -> None:
        """Close the transport after the last queued byte, or cut it after `linger_s` seconds."""
        if self._transport is None or self._closing:
            return
        self._closing = True
        self._linger = self._loop.call_later(linger_s, self._transport.abort)
        self._flush()

    def scheduled_flush(self) -> None:
        """Send what was deferred to the end of the iteration."""
        self._flush_scheduled = False
        tail = self._tail
        if tail and self._fd >= 0 and not (self._pieces or self._paused or self._closing or self.is_over):
            # The common case: a few small frames, and a socket that accepts them all.
            try:
                written = os.write(self._fd, tail)
            except OSError:
                written = 0  # the error shows again below
            self.unsent_bytes -= written
            if written == len(tail):
                tail.clear()
                return
            del tail[:written]
        self._flush()

    def _flush(self) -> None:
        transport, pieces = self._transport, self._pieces
        if transport is None or self._paused:
            return
        if self._tail:
            pieces.append(self._tail)
            self._tail = bytearray()
        turn_end = self.unsent_bytes - _TURN_BYTES
        while pieces and not self._paused:
            if self.unsent_bytes <= turn_end:
                if not self._flush_scheduled:
                    self._flush_scheduled = True
                    self._loop.call_soon(self.scheduled_flush)
                break
            if self._fd < 0:
                self._write_through(transport, _TLS_HIGH_BYTES)
            elif not self._write_scattered(transport):
                return
        self._count()
        if self.is_over and self.unsent_bytes <= self.high_water_bytes // 2:
            self.is_over = False
            self.release_waiters()
            self._on_low()
        if self._closing and not pieces:
            # Deferred: this may run inside the transport's own write, which closes a second time in that case.
            self._loop.call_soon(transport.close)

    def _write_scattered(self, transport: asyncio.Transport) -> bool:
        """Write to the socket until it is full; False when the connection is broken."""
        batch = list(islice(self._pieces, _PIECES_PER_WRITE))
        try:
            written = os.writev(self._fd, batch)
        except (BlockingIOError, InterruptedError):
            written = 0
        except OSError as error:
            self._paused = True
            self._loop.call_soon(self._on_error, error)  # deferred, for the reason given in `_flush`
            return False
        self.writes += written > 0
        if written == sum(map(len, batch)):
            self.unsent_bytes -= written
            if len(batch) == len(self._pieces):
                self._pieces.clear()
            else:
                self._drop(written)
            return True
        self.unsent_bytes -= written
        self._drop(written)
        # The socket is full. The transport waits for it with a small piece, and then calls `resume`.
        self._write_through(transport, _RESIDUE_BYTES)
        return True

    def _write_through(self, transport: asyncio.Transport, most_bytes: int) -> None:
        piece = memoryview(self._pieces[0])[:most_bytes]
        self.unsent_bytes -= len(piece)
        self.writes += 1
        self._drop(len(piece))
        transport.write(piece)

    def _count(self) -> None:
        """Update this queue's share of the loop's unsent bytes."""
        self._coalescer.unsent_bytes += self.unsent_bytes - self._counted_bytes
        self._counted_bytes = self.unsent_bytes

    def _drop(self, count: int) -> None:
        """Drop the first `count` bytes of the queue."""
        pieces = self._pieces
        while count:
            head = pieces[0]
            if len(head) <= count:
                count -= len(head)
                pieces.popleft()
            else:
                pieces[0] = memoryview(head)[count:]
                return
