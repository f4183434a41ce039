"""Frames in memory: the cases with a name. Arbitrary ones are in tests/property/rpc."""

import mmap
import struct

import msgspec
import pytest

from raylog.base.errors import InvalidRequest
from raylog.rpc.errors import FrameTooLarge
from raylog.rpc.framing import (
    ERROR,
    LARGE_FRAME_BYTES,
    NOTIFICATION,
    REPLY,
    REQUEST,
    Frame,
    FrameDecoder,
    Header,
    check_frame_bytes,
    decode_args,
    decode_header,
    encode_header,
    payload_parts,
)


def feed(decoder: FrameDecoder, stream: bytes, piece_bytes: int | None = None) -> list[Frame]:
    """Write the stream as a socket would: as much as there is room for, at most `piece_bytes` at once."""
    frames: list[Frame] = []
    rest = memoryview(stream)
    while rest:
        room = decoder.get_buffer()
        count = min(len(room), len(rest), piece_bytes or len(rest))
        room[:count] = rest[:count]
        frames += decoder.buffer_updated(count)
        rest = rest[count:]
    return frames


def plain(header: Header) -> Header:
    """A header with everything in it decoded."""
    kind, number, third, args = header
    if isinstance(third, tuple):
        third = [*third[:2], decode_args(third[2])]
    return kind, number, third, decode_args(args)


def frame(payload: bytes = b"", args: object = (1,), kind: int = REQUEST) -> bytes:
    return encode_header(kind, 7, "method", args, len(payload)) + payload


def test_a_frame_is_laid_out_as_documented() -> None:
    encoded = frame(b"tail")
    length, header_length = struct.unpack_from(">II", encoded)
    assert length == len(encoded) - 4
    assert msgspec.msgpack.decode(encoded[8 : 8 + header_length]) == [0, 7, "method", [1]]
    assert encoded[8 + header_length :] == b"tail"


@pytest.mark.parametrize("size", [0, 1, 8191, LARGE_FRAME_BYTES - 1, LARGE_FRAME_BYTES + 1, 300_000, 5_000_000])
def test_a_payload_of_any_size_arrives_whole(size: int) -> None:
    payload = bytes(i % 251 for i in range(1000)) * (size // 1000 + 1)
    payload = payload[:size]
    decoder = FrameDecoder(10_000_000)
    first, second = feed(decoder, frame(payload) + frame(b"after"))
    assert plain(first[0]) == (REQUEST, 7, "method", [1])
    assert bytes(first[1]) == payload
    assert bytes(second[1]) == b"after"


def test_each_payload_has_writable_memory_of_its_own() -> None:
    decoder = FrameDecoder(1_000_000)
    (_, small), (_, large) = feed(decoder, frame(b"aaaa") + frame(bytes(200_000)), 100_000)
    small[0] = large[0] = 255
    feed(decoder, frame(b"bbbb") + frame(bytes(200_000)))
    assert bytes(small) == b"\xffaaa"
    assert (large[0], large[1], len(large)) == (255, 0, 200_000)


def test_a_frame_over_the_limit_is_refused_by_its_length_alone() -> None:
    decoder = FrameDecoder(1000)
    frames = feed(decoder, frame(b"fine") + struct.pack(">II", 1001, 10))
    assert len(frames) == 1
    assert isinstance(decoder.failure, FrameTooLarge)
    assert feed(decoder, frame(b"ignored")) == []


def test_a_header_longer_than_its_frame_is_refused() -> None:
    decoder = FrameDecoder(1000)
    feed(decoder, struct.pack(">II", 10, 7))
    assert isinstance(decoder.failure, InvalidRequest)


def test_a_frame_without_room_for_the_header_length_is_refused() -> None:
    decoder = FrameDecoder(1000)
    feed(decoder, bytes(8))
    assert isinstance(decoder.failure, InvalidRequest)


@pytest.mark.parametrize(
    "header",
    [
        [],
        [0, 1, "method"],
        [0, 1, "method", [], 5],
        [0, -1, "method", []],
        [0, 1, None, []],
        [3, 1, 5, []],
        [2, 1, "error", None],
        [2, 1, [1, "message"], None],
        [2, 1, ["1", "message", {}], None],
        [4, 1, "method", []],
        ["0", 1, "method", []],
        {"kind": 0},
        5,
    ],
)
def test_a_header_without_meaning_is_refused(header: object) -> None:
    with pytest.raises(InvalidRequest):
        decode_header(msgspec.msgpack.encode(header))


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        b"\x94\x00\x01\xa1",
        b"\x91" * 100_000,
        b"\x94\x00\x01\xa1\xff\x90",
    ],
)
def test_bytes_that_are_no_msgpack_are_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_header(encoded)


def test_arguments_that_msgpack_cannot_state_are_refused_when_read() -> None:
    _, _, _, args = decode_header(b"\x94\x00\x01\xa1m\x81\x80\x00")  # a list as a key
    with pytest.raises(InvalidRequest):
        decode_args(args)


def test_a_method_name_longer_than_any_of_ours_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        decode_header(encode_header(REQUEST, 1, "m" * 101, [], 0)[8:])


@pytest.mark.parametrize(
    "header", [(REQUEST, 1, "m", []), (REPLY, 1, None, 5), (ERROR, 1, [3, "m", {}], None), (NOTIFICATION, 0, "m", {})]
)
def test_each_kind_of_header_comes_back_as_it_was(header: tuple[int, int, object, object]) -> None:
    assert plain(decode_header(encode_header(*header, 0)[8:])) == header


def test_our_own_frame_over_the_limit_is_refused_before_it_is_sent() -> None:
    header = encode_header(REQUEST, 1, "m", [], 1000)
    check_frame_bytes(header, 1000, len(header) - 4 + 1000)
    with pytest.raises(FrameTooLarge, match="max_frame_bytes"):
        check_frame_bytes(header, 1000, len(header) - 4 + 999)


def test_a_payload_may_be_any_buffer_or_a_sequence_of_them() -> None:
    with mmap.mmap(-1, 4096) as mapped:
        parts, size = payload_parts([b"ab", bytearray(b"c"), memoryview(b"defg")[1:3], b""])
        assert (b"".join(parts), size) == (b"abcef", 5)
        parts, size = payload_parts(mapped)  # type: ignore[arg-type]
        assert size == 4096
        del parts
    parts, size = payload_parts(memoryview(struct.pack("4i", 1, 2, 3, 4)).cast("i"))
    assert size == 16
    assert len(parts[0]) == 16
    with pytest.raises(TypeError):
        payload_parts("text")  # type: ignore[arg-type]
