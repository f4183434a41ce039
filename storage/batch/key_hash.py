"""Kafka's hash of a record's key, which decides its partition: murmur2, the same for every client. Pure."""

from __future__ import annotations

import struct

from murmurhash2 import murmurhash2

SEED = 0x9747B28C
PYTHON_KEY_BYTES = 64
_M = 0x5BD1E995
_UNPACK_WORDS = [struct.Struct(f"<{words}I").unpack_from for words in range(PYTHON_KEY_BYTES // 4 + 1)]


def hash_of_key(key: bytes) -> int:
    """Kafka's murmur2 of a key, made positive.

    The C library releases the interpreter's lock around each call, which under load costs a thread switch: a short key
    is hashed faster in Python.
    """
    length = len(key)
    if length > PYTHON_KEY_BYTES:
        hashed: int = murmurhash2(key, SEED)
        return hashed & 0x7FFFFFFF
    mixed = SEED ^ length
    whole = length & ~3
    for word in _UNPACK_WORDS[whole >> 2](key):
        word = word * _M & 0xFFFFFFFF
        mixed = (mixed * _M ^ (word ^ word >> 24) * _M) & 0xFFFFFFFF
    if length != whole:
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * _M & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * _M & 0xFFFFFFFF
    return (mixed ^ mixed >> 15) & 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Kafka's default partition of a key."""
    return hash_of_key(key) % partitions
