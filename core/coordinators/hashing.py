"""Which coordinator a group or a transactional id belongs to: the partition of its topic that the key hashes to. Pure.

The hash is Kafka's, `abs(key.hashCode()) % partitions`: Kafka's tools and clients find a group in the same partition.
"""

from __future__ import annotations

from typing import Final

_INT_MIN: Final = -(1 << 31)


def java_hash(text: str) -> int:
    """Java's `String.hashCode()`: over UTF-16 units, in 32 bits with a sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFF_FFFF
    return code - (1 << 32) if code >> 31 else code


def coordinator_partition(key: str, partitions: int) -> int:
    """The partition that a key belongs to, of so many ``partitions`` of the coordinators' topic."""
    code = java_hash(key)
    return 0 if code == _INT_MIN else abs(code) % partitions  # Kafka's Utils.abs
