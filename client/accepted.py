"""Types of the clients' keyword arguments that accept more than the configuration key's own type. Pure.

The key registry refers to them by name (`accepts` in `client/config.py`), and so does `client/keywords.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from raylog.client.serializers import Deserializer, Serializer

if TYPE_CHECKING:
    from raylog.client.assignor import PartitionAssignor

Duration: TypeAlias = str | int | float | timedelta
"""A text such as `30s`, a number of milliseconds, or a timedelta."""
IsolationLevel: TypeAlias = Literal["read_uncommitted", "read_committed"]
SerializerChoice: TypeAlias = Literal["json", "msgpack", "string", "bytes", "int"] | Serializer
DeserializerChoice: TypeAlias = Literal["json", "msgpack", "string", "bytes", "int"] | Deserializer


class HasPartition(Protocol):
    """A partitioner object in the style of `kafka-python`."""

    @property
    def partition(self) -> Callable[..., int | None]:
        """Called with (topic, key, value, partition count) or (topic, key, partition count)."""


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
"""An interceptor object, its class, or its dotted name; or a sequence of these."""
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
"""The names that `accepts` in the key registry may use."""
