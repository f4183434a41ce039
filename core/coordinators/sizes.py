"""Upper bounds of the size of a coordinator's records, computed without encoding them. Pure.

A request whose record would be too large for the log must be refused before the record is decided: if a decided record
cannot be stored, the coordinator has to load everything again.
"""

from __future__ import annotations

from collections.abc import Sequence

_HEAD = 5
"""Most bytes of msgpack before text, bytes or a list."""
_NUMBER = 9


def wire_bytes(value: object) -> int:
    """Return an upper bound of the bytes of wire values in msgpack."""
    if isinstance(value, str):
        return _HEAD + (len(value) if value.isascii() else len(value.encode(errors="surrogatepass")))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _HEAD + len(value)
    if isinstance(value, (list, tuple)):
        return _HEAD + sum(map(wire_bytes, value))
    return _NUMBER


def row_bytes(key: Sequence[object], value: Sequence[object] | None) -> int:
    """Return an upper bound of the bytes that a record takes in a batch."""
    return 2 * _HEAD + wire_bytes(key) + wire_bytes(value)
