"""The types of what the clients' keywords take, where a key's own type does not state it. Pure.

The registry names them (`accepts` in `client/config.py`), and `client/keywords.py` is written with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from raylog.client.serializers import Deserializer, Serializer

if TYPE_CHECKING:
    from raylog.client.group.assignor import PartitionAssignor

Duration: TypeAlias = str | int | float | timedelta
"""`30s`, milliseconds, or a timedelta."""
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
SerializerChoice: TypeAlias = Literal["json", "msgpack", "string", "bytes", "int"] | Serializer
DeserializerChoice: TypeAlias = Literal["json", "msgpack", "string", "bytes", "int"] | Deserializer


class HasPartition(Protocol):
    """An object that chooses partitions, as `kafka-python` has them."""

    @property
    def partition(self) -> Callable[..., int | None]:
        """Called with (topic, key, value, count) or (topic, key, count)."""


PartitionerName: TypeAlias = Literal[
    "murmur2",
    "sticky",
    "round_robin",
    "crc32",
    # What Kafka, kafka-python and librdkafka call them.
    "default",
    "murmur2_random",
    "uniform_sticky",
    "roundrobin",
    "consistent_random",
]
PartitionerChoice: TypeAlias = PartitionerName | Callable[..., int | None] | HasPartition
InterceptorChoice: TypeAlias = Any
"""An object with the methods, its class or dotted name; or several of them."""
AssignorChoice: TypeAlias = "str | PartitionAssignor | type[PartitionAssignor]"
PathChoice: TypeAlias = str | PathLike[str]
PriorityChoice: TypeAlias = Literal["strict"] | Mapping[str, float] | Sequence[float]

ACCEPTED = (
    "AssignorChoice",
    "DeserializerChoice",
    "Duration",
    "InterceptorChoice",
    "PartitionerChoice",
    "PathChoice",
    "PriorityChoice",
    "SerializerChoice",
)
"""The names that the registry may use."""
