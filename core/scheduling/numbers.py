"""Columns of numbers as they are stored: little-endian, on any machine. Pure."""

from __future__ import annotations

from array import array
from typing import Final

_IS_BIG_ENDIAN: Final[bool] = array("H", [1]).tobytes() != b"\x01\x00"


def to_bytes(numbers: array[int]) -> bytes:
    """Return the stored form of a column."""
    if _IS_BIG_ENDIAN:
        numbers = array(numbers.typecode, numbers)
        numbers.byteswap()
    return numbers.tobytes()


def numbers_of(typecode: str, stored: bytes) -> array[int]:
    """Return the numbers of a stored column of an array type."""
    numbers = array(typecode, stored)
    if _IS_BIG_ENDIAN:
        numbers.byteswap()
    return numbers
