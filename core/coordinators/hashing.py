"""Which coordinator a group or a transactional id belongs to: the partition of its topic that the key hashes to. Pure.

With Kafka's hash, `abs(key.hashCode()) % partitions`, Kafka's tools and clients find a group in the same partition.
Coordinators' topics from before Raylog had this hash keep CRC-32, because their keys would move to other partitions.
The topic's own setting `coordinator.hash` says which hash it uses; it is fixed when the topic is created.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from raylog.core.configuration.config_key import ConfigKey

HASH_KEY: Final = "coordinator.hash"
CRC32: Final = "crc32"
JAVA: Final = "java"
HASH_SETTING: Final = ConfigKey(
    name=HASH_KEY,
    kind="choice",
    default=CRC32,
    choices=(CRC32, JAVA),
    doc="In `__consumer_offsets` and `__transaction_state`: how a group or transactional id is assigned to a "
    "partition. `java` is Kafka's hash, and set when such a topic is created; it cannot be changed.",
)
_INT_MIN: Final = -(1 << 31)


def java_hash(text: str) -> int:
    """Java's `String.hashCode()`: over UTF-16 units, in 32 bits with a sign."""
    units = text.encode("utf-16-be", "surrogatepass")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFF_FFFF
    return code - (1 << 32) if code >> 31 else code


def coordinator_partition(key: str, partitions: int, config: Mapping[str, str]) -> int:
    """The partition that a key belongs to; ``partitions`` and ``config`` are those of the coordinators' topic."""
    if config.get(HASH_KEY, CRC32) == CRC32:
        return zlib.crc32(key.encode()) % partitions
    code = java_hash(key)
    return 0 if code == _INT_MIN else abs(code) % partitions  # Kafka's Utils.abs
