"""Kafka's murmur2 of a whole column of keys, without a Python object per key. Pure; used by `arrow_columns`.

numpy computes the hash word by word for all keys at once, so the number of steps depends on the longest key. Keys over
`VECTOR_BYTES` are therefore hashed one by one by the C library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from murmurhash2 import murmurhash2

from raylog.client.encoding.libraries import np
from raylog.client.producer.partitioner import SEED

if TYPE_CHECKING:
    from numpy import int64, uint8, uint32
    from numpy.typing import NDArray

VECTOR_BYTES = 256
"""The longest key that numpy hashes together with the others."""
_M: Any = 0x5BD1E995
"""A Python integer, so that arithmetic with a uint32 column stays within 32 bits."""
_POSITIVE: Any = 0x7FFFFFFF


def hashes_of_keys(data: NDArray[uint8], starts: NDArray[int64], lengths: NDArray[int64]) -> NDArray[uint32]:
    """Kafka's positive murmur2 of each key, which is `lengths` bytes of `data` from `starts` on."""
    found: NDArray[uint32] = np.empty(len(starts), dtype=np.uint32)
    long = np.flatnonzero(lengths > VECTOR_BYTES)
    for row in long.tolist():
        key = data[starts[row] : starts[row] + lengths[row]].tobytes()
        found[row] = murmurhash2(key, SEED) & 0x7FFFFFFF
    if len(long):
        short = np.flatnonzero(lengths <= VECTOR_BYTES)
        found[short] = _short(data, starts[short], lengths[short])
        return found
    return _short(data, starts, lengths)


def _short(data: NDArray[uint8], starts: NDArray[int64], lengths: NDArray[int64]) -> NDArray[uint32]:
    mixed: NDArray[uint32] = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    most = int(words.max(initial=0))
    is_even = bool(len(words)) and int(words.min()) == most
    for number in range(most):
        if is_even:
            mixed = _with_word(mixed, _bytes_at(data, starts + 4 * number, 4))
        else:
            rows = np.flatnonzero(words > number)
            mixed[rows] = _with_word(mixed[rows], _bytes_at(data, starts[rows] + 4 * number, 4))
    rest = lengths & 3
    for count in range(1, 4):
        rows = np.flatnonzero(rest == count)
        if len(rows):
            mixed[rows] = (mixed[rows] ^ _bytes_at(data, starts[rows] + 4 * words[rows], count)) * _M
    mixed = (mixed ^ mixed >> 13) * _M
    positive: NDArray[uint32] = (mixed ^ mixed >> 15) & _POSITIVE
    return positive


def _with_word(mixed: NDArray[uint32], word: NDArray[uint32]) -> NDArray[uint32]:
    word = word * _M
    both: NDArray[uint32] = mixed * _M ^ (word ^ word >> 24) * _M
    return both


def _bytes_at(data: NDArray[uint8], at: NDArray[int64], count: int) -> NDArray[uint32]:
    """The little-endian integer of `count` bytes at each position."""
    word: NDArray[uint32] = data[at].astype(np.uint32)
    for number in range(1, count):
        word |= data[at + number].astype(np.uint32) << 8 * number
    return word
