"""`ClientMetrics`: what `Producer.metrics()` and `Consumer.metrics()` return. Pure.

Counters are kept per batch, request or poll, never per record, and cost nothing until they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from raylog.base.ids import TopicPartition

Values: TypeAlias = Mapping[str, float]
_TOTAL, _RATE = "-total", "-rate"


class ClientMetrics(Mapping[str, float]):
    """A snapshot of a client's metrics: a mapping by Kafka's names, with attributes for those of topics and partitions.

    Times are in milliseconds and sizes in bytes if the name has no unit. Names that end in `-total` count from the
    start of the client; `since(earlier)` gives rates.
    """

    __slots__ = ("_values", "partitions", "taken_s", "topics")

    def __init__(
        self,
        values: Values,
        taken_s: float,
        *,
        topics: Mapping[str, Values] | None = None,
        partitions: Mapping[TopicPartition, Values] | None = None,
    ) -> None:
        self._values = dict(values)
        self.taken_s = taken_s
        """When the snapshot was taken, in seconds of the monotonic clock."""
        self.topics: Mapping[str, Values] = dict(topics or {})
        """Kafka's `producer-topic-metrics`, by topic; empty for a consumer."""
        self.partitions: Mapping[TopicPartition, Values] = dict(partitions or {})
        """Kafka's `consumer-fetch-manager-metrics` of assigned partitions; empty for a producer."""

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ClientMetrics({self._values!r})"

    def since(self, earlier: ClientMetrics) -> ClientMetrics:
        """The rates per second since an earlier snapshot of the same client; `-total` in a name becomes `-rate`.

        Raises ValueError for a snapshot that is not earlier.
        """
        elapsed_s = self.taken_s - earlier.taken_s
        if elapsed_s <= 0:
            raise ValueError("The other snapshot must be an earlier one of the same client.")
        topics, partitions = earlier.topics, earlier.partitions
        return ClientMetrics(
            _rates(self, earlier, elapsed_s),
            self.taken_s,
            topics={name: _rates(found, topics.get(name, {}), elapsed_s) for name, found in self.topics.items()},
            partitions={
                each: _rates(found, partitions.get(each, {}), elapsed_s) for each, found in self.partitions.items()
            },
        )


def _rates(values: Values, earlier: Values, elapsed_s: float) -> dict[str, float]:
    return {
        name.removesuffix(_TOTAL) + _RATE: (value - earlier.get(name, 0)) / elapsed_s
        for name, value in values.items()
        if name.endswith(_TOTAL)
    }
