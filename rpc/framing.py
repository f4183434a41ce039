"""The frame format, without I/O: encoding of messages and decoding of byte streams.

    u32 frame length | u32 header length | msgpack [kind, correlation id, method or error, arguments] | raw payload

Both lengths are big-endian; the frame length counts everything after its own field. `Connection` feeds the decoder
straight from the socket; tests feed it byte by byte. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from raylog.base.errors import InvalidRequest, RaylogError, from_code
from raylog.rpc.errors import FrameTooLarge

REQUEST, REPLY, ERROR, NOTIFICATION = 0, 1, 2, 3

Buffer: TypeAlias = bytes | bytearray | memoryview
Buffers: TypeAlias = Buffer | Sequence[Buffer]
Header: TypeAlias = tuple[int, int, Any, Any]
"""Kind, correlation id, then method (0, 3), nothing (1) or (code, message, details) (2), then arguments.

Details and arguments are `msgspec.Raw`: only the page of the method decodes them, into its types.
"""
Frame: TypeAlias = tuple[Header, memoryview]

RECEIVE_BUFFER_BYTES = 256 * 1024
LARGE_FRAME_BYTES = 64 * 1024
"""An incomplete frame above this gets its own buffer, into which the socket then writes without a further copy."""
LARGE_BEGIN_BYTES = 16 * 1024
"""Least of such a frame that has come before it gets a buffer."""
GROWTH = 4
"""Memory for a large frame, as a multiple of what has come of it."""
GROWS_SLOWER_FROM = 4 * 1024 * 1024
"""Once so many bytes have come, the multiple is two."""
METHOD_CHARACTERS_MAX = 100
"""Longest name of a method; Raylog has no longer one."""

_LENGTHS = struct.Struct(">II")
_pack_lengths, _unpack_lengths = _LENGTHS.pack, _LENGTHS.unpack_from
_HEADER_LENGTH_BYTES = 4
NO_PAYLOAD = b""
_NO_PAYLOAD = memoryview(NO_PAYLOAD)
_NO_PARTS: tuple[Buffer, ...] = ()

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    tuple[int, int, str | tuple[int, str, msgspec.Raw] | None, msgspec.Raw]  # type: ignore[type-var,unused-ignore]
).decode
decode_plain = msgspec.msgpack.Decoder(Any).decode


def encode_header(kind: int, correlation_id: int, third: object, args: object, payload_bytes: int) -> bytes:
    """The bytes of a frame before its payload of `payload_bytes`.

    Raises TypeError (or another error of msgspec) when the arguments cannot be encoded as msgpack.
    """
    header = _encode((kind, correlation_id, third, args))
    size = len(header)
    return _pack_lengths(_HEADER_LENGTH_BYTES + size + payload_bytes, size) + header


def check_frame_bytes(encoded_header: bytes, payload_bytes: int, max_frame_bytes: int) -> None:
    """Raise FrameTooLarge when a peer with the same limit would refuse this frame."""
    length = len(encoded_header) - 4 + payload_bytes
    if length > max_frame_bytes:
        raise FrameTooLarge(
            f"A frame of {length} bytes is over the limit of {max_frame_bytes}: send less at once, or raise "
            "max_frame_bytes at both ends."
        )


def payload_parts(payload: Buffers) -> tuple[Sequence[Buffer], int]:
    """The payload as a sequence of flat buffers of bytes, and their total length. Copies nothing.

    Raises TypeError for anything but a contiguous buffer.
    """
    if type(payload) is bytes:
        return ((payload,), len(payload)) if payload else (_NO_PARTS, 0)
    if type(payload) is memoryview and payload.format == "B" and payload.ndim == 1 and payload.contiguous:
        return (payload,), len(payload)
    if isinstance(payload, (list, tuple)):
        parts = [_flat(part) for part in payload]
        return parts, sum(map(len, parts))
    part = _flat(payload)
    return (part,), len(part)


def _flat(part: object) -> Buffer:
    if isinstance(part, (bytes, bytearray)):
        return part
    view = memoryview(part)  # type: ignore[arg-type]  # anything with the buffer protocol, mmap for one; else TypeError
    return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")


class FrameDecoder:
    """Turns a stream of bytes into frames, in the shape of asyncio's BufferedProtocol.

    Write n bytes into `get_buffer()`, then call `buffer_updated(n)` at once, which returns the frames that are now
    complete. Each payload has its own writable memory. After bad bytes `failure` is set, the frames before them are
    still returned, and everything after them is ignored.

    Bytes arrive in a buffer that all decoders of an event loop may share: between two reads a decoder keeps no more
    than the beginning of one frame. Memory for a frame is taken as it arrives, at most `GROWTH` times what has come.
    """

    __slots__ = ("_grow", "_large", "_large_bytes", "_large_filled", "_large_header_bytes", "_max_frame_bytes", "_rest",
                 "_shared", "failure", "held_bytes", "max_header_bytes", "view")  # fmt: skip

    def __init__(
        self,
        max_frame_bytes: int,
        receive_buffer: bytearray | None = None,
        *,
        max_header_bytes: int | None = None,
        grow: Callable[[int], bool] | None = None,
    ) -> None:
        """`receive_buffer` may be shared; None = one of its own.

        `grow(more)` is called before an incomplete frame takes `more` bytes of memory, and may refuse them; None = it
        takes all memory at once.
        """
        self._max_frame_bytes = max_frame_bytes
        self.max_header_bytes = max_frame_bytes if max_header_bytes is None else max_header_bytes
        """Largest header accepted: decoded msgpack takes many times its bytes in memory."""
        self._shared = bytearray(RECEIVE_BUFFER_BYTES) if receive_buffer is None else receive_buffer
        if len(self._shared) < 2 * LARGE_FRAME_BYTES:
            raise ValueError(f"A receive buffer has at least {2 * LARGE_FRAME_BYTES} bytes.")
        self.view = memoryview(self._shared)
        """The whole buffer: where the next bytes go while no frame is incomplete, without a call."""
        self._grow = grow
        self._rest = b""  # the beginning of at most one incomplete frame
        self._large: memoryview | None = None  # as much of an incomplete large frame as there is memory for
        self._large_bytes = 0  # of the whole frame, header and payload
        self._large_filled = 0
        self._large_header_bytes = 0
        self.held_bytes = 0
        """Memory that an incomplete frame takes; 0 between frames."""
        self.failure: RaylogError | None = None

    @property
    def partial_bytes(self) -> int:
        """Bytes of a frame that has begun to arrive and is not complete; 0 between frames."""
        return len(self._rest) if self._large is None else self._large_filled

    def get_buffer(self) -> memoryview:
        """Where the next bytes of the stream go; never empty."""
        if self._large is not None:
            return self._large[self._large_filled :]
        rest = self._rest
        if not rest:
            return self.view
        begun = len(rest)
        self.view[:begun] = rest
        return self.view[begun:]

    def buffer_updated(self, count: int) -> list[Frame]:
        """Account for `count` bytes written to `get_buffer()`; return the frames they completed, in order."""
        if self.failure is not None:
            return []
        if self._large is not None:
            return self._large_updated(self._large, count)
        frames: list[Frame] = []
        shared, end, position = self._shared, count, 0
        if self.held_bytes:
            end += self.held_bytes
            self._rest, self.held_bytes = b"", 0
        while end - position >= 8:
            length, header_length = _unpack_lengths(shared, position)
            if (
                length > self._max_frame_bytes
                or header_length > length - _HEADER_LENGTH_BYTES
                or header_length > self.max_header_bytes
            ):
                self.failure = self._refuse(length, header_length)
                return frames
            stop = position + 4 + length
            if stop > end:
                if length > LARGE_FRAME_BYTES and end - position >= LARGE_BEGIN_BYTES:
                    self._begin_large(length, header_length, self.view[position + 8 : end])
                    return frames
                break
            body = position + 8 + header_length
            try:
                header = decode_header(shared[position + 8 : body])  # a copy, which the arguments keep
            except RaylogError as error:
                self.failure = error
                return frames
            frames.append((header, memoryview(shared[body:stop]) if body < stop else _NO_PAYLOAD))
            position = stop
        if position < end:
            self._rest = bytes(self.view[position:end])
            self.held_bytes = end - position
        return frames

    def forget(self) -> None:
        """Give back the memory of an incomplete frame: the connection is closed."""
        self._large, self._rest, self.held_bytes = None, b"", 0

    def _begin_large(self, length: int, header_length: int, begun: memoryview) -> None:
        self._large_bytes = length - _HEADER_LENGTH_BYTES
        self._large_header_bytes = header_length
        self._take_memory(begun)

    def _take_memory(self, filled: memoryview) -> None:
        """Give an incomplete large frame more memory, in proportion to what has come of it.

        Without `grow` it gets all at once: a member of the cluster sends what it announces.
        """
        come = len(filled)
        size = self._large_bytes
        if self._grow is not None:
            size = min(size, come * (GROWTH if come < GROWS_SLOWER_FROM else 2))
        more = size - self.held_bytes
        if self._grow is not None and not self._grow(more):
            self._large, self.held_bytes = None, 0
            self.failure = FrameTooLarge(
                f"There is no memory for a frame of {self._large_bytes} bytes: too many are incomplete. Send it again."
            )
            return
        large = memoryview(bytearray(size))
        large[:come] = filled
        self._large, self._large_filled, self.held_bytes = large, come, size

    def _large_updated(self, large: memoryview, count: int) -> list[Frame]:
        self._large_filled += count
        if self._large_filled < len(large):
            return []
        if self._large_filled < self._large_bytes:
            self._take_memory(large)
            return []
        self._large, self.held_bytes = None, 0
        try:
            header = decode_header(bytes(large[: self._large_header_bytes]))
        except RaylogError as error:
            self.failure = error
            return []
        return [(header, large[self._large_header_bytes :])]

    def _refuse(self, length: int, header_length: int) -> RaylogError:
        if length > self._max_frame_bytes:
            return FrameTooLarge(
                f"The peer announced a frame of {length} bytes, over the limit of {self._max_frame_bytes}: it must "
                "send less at once, or max_frame_bytes must be raised at both ends."
            )
        if self.max_header_bytes < header_length <= length - _HEADER_LENGTH_BYTES:
            return FrameTooLarge(
                f"The peer announced a request whose arguments take {header_length} bytes, over the limit of "
                f"{self.max_header_bytes}: it must request less at once."
            )
        return InvalidRequest(
            f"A frame of {length} bytes cannot hold a header of {header_length}; the peer is no Raylog."
        )


def decode_header(encoded: bytes | bytearray) -> Header:
    """The four parts of a frame's msgpack header. Raises InvalidRequest when they are missing or malformed.

    What only a method's page can read stays encoded, a view of `encoded`: the arguments, and the details of an error.
    """
    try:
        header = _decode(encoded)
    except Exception as error:  # msgspec, recursion, hashing, overflow: any error is caused by the peer's bytes
        raise InvalidRequest(f"A frame's header is not the msgpack it should be: {error}") from error
    kind, correlation_id, third, _ = header
    if correlation_id < 0:
        raise InvalidRequest(f"The correlation id {correlation_id} is negative.")
    if third is None:
        if kind == REPLY:
            return header
    elif type(third) is str:
        if (kind == REQUEST or kind == NOTIFICATION) and len(third) <= METHOD_CHARACTERS_MAX:  # noqa: SIM109 (no tuple)
            return header
    elif kind == ERROR:
        return header
    raise InvalidRequest(f"A frame of kind {kind} with {type(third).__name__} in the third place has no meaning.")


def decode_args(encoded: object) -> Any:
    """Plain values for encoded arguments; values that are no encoded arguments are returned as they are.

    Raises InvalidRequest for bytes that are no msgpack. The values take many times their bytes in memory: only for what
    comes from a peer that has proved the cluster's secret, and for tests. Servers decode into the types of the method's
    page.
    """
    if type(encoded) is not msgspec.Raw:
        return encoded
    try:
        return decode_plain(encoded)
    except Exception as error:  # as in `decode_header`
        raise InvalidRequest(f"Arguments are not the msgpack they should be: {error}") from error


def decode_error(third: tuple[int, str, msgspec.Raw]) -> RaylogError:
    """The error in the third place of a frame."""
    code, message, encoded = third
    details = decode_args(encoded)
    return from_code(code, message, details if isinstance(details, dict) else None)
