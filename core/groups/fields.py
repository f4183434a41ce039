"""Type checks for the values of group records: a record that another release wrote may hold anything. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def as_int(value: object) -> int:
    """Return a whole number; raises TypeError for anything else."""
    if isinstance(value, int):
        return value
    raise TypeError(f"expected a whole number in a group record, got {value!r}")


def as_str(value: object) -> str:
    """Return text; raises TypeError for anything else."""
    if isinstance(value, str):
        return value
    raise TypeError(f"expected text in a group record, got {value!r}")


def as_bytes(value: object) -> bytes:
    """Return bytes; raises TypeError for anything else."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"expected bytes in a group record, got {value!r}")


def as_list(value: object) -> Sequence[object]:
    """Return a sequence; raises TypeError for anything else."""
    if isinstance(value, (list, tuple)):
        return value
    raise TypeError(f"expected a list in a group record, got {value!r}")
