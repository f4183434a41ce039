"""Compress and decompress batch bodies with Kafka's four codecs.

Called by `records` on producers and consumers, and by a leader whose topic has a codec of its own. A codec's library is
imported when the codec is first used, so that a process which never compresses pays nothing. The framings are those
that Kafka clients read and write: gzip streams, xerial-framed snappy, lz4 frames with independent blocks, zstd frames.

A body comes from the network, so every decompressor has a size limit and raises `CorruptBatch` above it.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from raylog.storage.errors import BodyTooLarge, CorruptBatch, unsupported

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
COMPRESSIONS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

Buffer = bytes | bytearray | memoryview

_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SNAPPY_GROWTH_MAX = 32  # an element of 3 bytes makes 64 bytes at most; the format allows no more
_FIRST_GUESS_BYTES = 1 << 20
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_UNBOUNDED = 1 << 62
_GROWTH_MAX = {GZIP: 1_032, LZ4: 255}
"""Most plain bytes per compressed byte, for formats that bound it low: most data then fits by this bound alone, without
a look at its headers."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """The bytes of `data` compressed by `codec` (a value of COMPRESSIONS); `level` None is the codec's default."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        packer = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        frame = _lz4_frame()
        packed: bytes = frame.compress(data, compression_level=level or 0, block_linked=False, store_size=False)
        return packed
    if codec == ZSTD:
        return bytes(_cramjam().zstd.compress(data, level=3 if level is None else level))
    raise unsupported(codec)


def decompress(codec: int, data: Buffer, *, max_bytes: int) -> bytes:
    """The original bytes; CorruptBatch when `data` is not valid or would exceed `max_bytes`."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        return _decompress_gzip(data, max_bytes)
    if codec == SNAPPY:
        return _decompress_xerial(data, max_bytes)
    if codec == LZ4:
        return _decompress_lz4(data, max_bytes)
    if codec == ZSTD:
        return _decompress_zstd(data, max_bytes)
    raise unsupported(codec)


def plain_size(codec: int, data: memoryview, above: int) -> int | None:
    """The size that compressed data declares for its plain form; None = at most `above`, or not declared.

    Reads frame headers only. CorruptBatch for data that is not of the codec.
    """
    if codec == ZSTD:
        return _zstd_content_size(data)
    if len(data) * _GROWTH_MAX.get(codec, 0) <= above:
        return None
    return int.from_bytes(data[-4:], "little") if codec == GZIP else _lz4_content_size(data) if codec == LZ4 else None


def plain_bound(codec: int, data: memoryview) -> int:
    """An upper bound of compressed data's plain size, by its headers; very large where they declare none.

    A header that lies is found when the data is opened with that bound. 0 for data that cannot be opened.
    """
    if codec == GZIP:
        return int.from_bytes(data[-4:], "little")
    try:
        if codec == ZSTD:
            declared = _zstd_content_size(data)
            return _UNBOUNDED if declared is None else declared
        if codec == LZ4:
            return min(len(data) * _GROWTH_MAX[LZ4], _lz4_content_bound(data))
    except (CorruptBatch, IndexError):
        return 0  # it does not open, which is soon found
    return len(data) * _SNAPPY_GROWTH_MAX if codec == SNAPPY else 0


def _lz4_content_bound(view: memoryview) -> int:
    blocks, block_max, declared = _lz4_blocks(view)
    return blocks * block_max if declared is None else declared


def _lz4_content_size(view: memoryview) -> int | None:
    """The declared content size, or the most that the blocks of the frame can hold."""
    blocks, block_max, declared = _lz4_blocks(view)
    # The last one may hold less: the rest is found when it is opened.
    return max(0, blocks - 1) * block_max if declared is None else declared


def _lz4_blocks(view: memoryview) -> tuple[int, int, int | None]:
    """(Number of blocks, most bytes of each, None), or (0, most bytes of each, the declared size of the content)."""
    if len(view) < 7 or bytes(view[:4]) != _LZ4_MAGIC:
        raise CorruptBatch("its lz4 body has no frame header")
    flags, block_max = view[4], 1 << (8 + 2 * (view[5] >> 4 & 7))
    if flags & 0x08:
        return 0, block_max, int.from_bytes(view[6:14], "little")
    at, blocks = 7 + (4 if flags & 1 else 0), 0
    while at + 4 <= len(view):
        size = int.from_bytes(view[at : at + 4], "little") & 0x7FFFFFFF
        if not size:
            break
        at += 4 + size + (4 if flags & 0x10 else 0)
        blocks += 1
    return blocks, block_max, None


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"its compressed body grows beyond {max_bytes} bytes")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        out = unpacker.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise CorruptBatch(f"its gzip body is invalid ({error})") from error
    if len(out) > max_bytes:
        raise _too_large(max_bytes)
    if not unpacker.eof:
        raise CorruptBatch("its gzip body is cut off")
    return out


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    frame = _lz4_frame()
    try:
        if _lz4_content_bound(memoryview(data)) <= max_bytes:  # a limit costs 10 us
            plain: bytes = frame.decompress(data)
            return plain
        unpacker = frame.LZ4FrameDecompressor()
        out: bytes = unpacker.decompress(data, max_length=max_bytes + 1)
    except RuntimeError as error:  # the only error type of the lz4 binding
        raise CorruptBatch(f"its lz4 body is invalid ({error})") from error
    if len(out) > max_bytes:
        raise _too_large(max_bytes)
    if not unpacker.eof:
        raise CorruptBatch("its lz4 body is cut off")
    return out


def _compress_xerial(data: Buffer) -> bytes:
    pack = _cramjam().snappy.compress_raw
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(pack(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _decompress_xerial(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_HEADER[:8]:  # some clients send one bare snappy block
        return _unpack_snappy_block(view, max_bytes)
    position, left, parts = len(_XERIAL_HEADER), max_bytes, []
    while position < len(view):
        if position + 4 > len(view):
            raise CorruptBatch("its snappy body is cut off")
        (size,) = struct.unpack_from(">i", view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise CorruptBatch("its snappy body is cut off")
        parts.append(_unpack_snappy_block(view[position : position + size], left))
        left -= len(parts[-1])
        position += size
    return b"".join(parts)


def _unpack_snappy_block(block: memoryview, max_bytes: int) -> bytes:
    cramjam = _cramjam()
    try:
        declared = cramjam.snappy.decompress_raw_len(block)
        if declared > max_bytes:
            raise _too_large(max_bytes)
        if declared > len(block) * _SNAPPY_GROWTH_MAX:  # the output is allocated before anything is read
            raise CorruptBatch(f"its snappy body cannot hold the {declared} bytes that it declares")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"its snappy body is invalid ({error})") from error


def _zstd_content_size(view: memoryview) -> int | None:
    """The content size that the frame header declares, or None where it declares none (RFC 8878, 3.1.1.1)."""
    if len(view) < 6 or bytes(view[:4]) != _ZSTD_MAGIC:
        raise CorruptBatch("its zstd body has no frame header")
    descriptor = view[4]
    single_segment = bool(descriptor & 0x20)
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    if width == 0 or start + width > len(view):
        return None
    return int.from_bytes(view[start : start + width], "little") + (256 if width == 2 else 0)


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    cramjam = _cramjam()
    declared = _zstd_content_size(memoryview(data))
    if declared is not None and declared > max_bytes:
        raise _too_large(max_bytes)
    # The output buffer is the guard: the decoder cannot write past it, even if the header declares less.
    room = max_bytes if declared is None else declared
    guess = min(room, max(_FIRST_GUESS_BYTES, 4 * len(data))) if declared is None else room
    while True:
        out = bytearray(guess)
        try:
            size = cramjam.zstd.decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise CorruptBatch(f"its zstd body is invalid ({error})") from error
            if guess >= room:
                raise _too_large(room) from error
            guess = min(room, guess * 4)
            continue
        return bytes(memoryview(out)[:size])


def _lz4_frame() -> Any:  # the module has no type information
    try:
        import lz4.frame
    except ImportError as error:
        raise unsupported("lz4", "Install the package lz4 on this machine") from error
    return lz4.frame


def _cramjam() -> Any:  # the module is loaded on first use
    try:
        import cramjam
    except ImportError as error:
        raise unsupported("snappy or zstd", "Install the package cramjam on this machine") from error
    return cramjam
