"""Computes the offsets that may be committed while the records of partitions are handled out of order.

The records of a partition that one poll returned are a *span*. It is cut into *chunks*, one for each lane that gets
records of it. A chunk is handled in order, so one number says how far it is. Owned by `pool.py`. A worker changes
`Chunk.done` of the chunk that it handles; all else is changed under the pool's lock. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from raylog.base.ids import TopicPartition
from raylog.client.types import Record


class Chunk:
    """The records of one span that go to one lane, in the order of their offsets."""

    __slots__ = ("done", "is_active", "is_dropped", "partition", "records", "span")

    def __init__(self, partition: TopicPartition, records: list[Record]) -> None:
        self.partition = partition
        self.records = records
        self.done = 0
        """How many of the records are finished; 0 <= done <= len(records), and it only rises."""
        self.is_active = False
        """Whether a worker handles it now."""
        self.is_dropped = False
        """Whether no further records of it are to be handled."""
        self.span: Span | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every record is finished."""
        return self.done >= len(self.records)


class Span:
    """The records of one partition that one poll returned."""

    __slots__ = ("after", "chunks", "unfinished")

    def __init__(self, chunks: Sequence[Chunk], after: int) -> None:
        self.chunks = chunks
        self.after = after
        """The consumer's position after them."""
        self.unfinished = len(chunks)
        """How many chunks are not finished; 0 = the span is finished."""

    @property
    def finished_to(self) -> int:
        """The offset of the span's first unfinished record; `after` if there is none."""
        if not self.unfinished:
            return self.after
        unfinished = []
        for chunk in self.chunks:
            done = chunk.done  # read once: a worker may be incrementing it
            if done < len(chunk.records):
                unfinished.append(chunk.records[done].offset)
        return min(unfinished, default=self.after)


class Ledger:
    """The spans of all partitions, in the order of their offsets."""

    def __init__(self) -> None:
        self._spans: dict[TopicPartition, deque[Span]] = {}
        self._finished_to: dict[TopicPartition, int] = {}
        """By partition the end of the finished spans that were removed from the front of `_spans`."""
        self._committed: dict[TopicPartition, int] = {}

    def add(self, partition: TopicPartition, chunks: Sequence[Chunk], after: int) -> None:
        """Add a span; `after`: the consumer's position after it."""
        span = Span(chunks, after)
        for chunk in chunks:
            chunk.span = span
        self._spans.setdefault(partition, deque()).append(span)

    def chunk_ended(self, chunk: Chunk) -> None:
        """A worker has ended its work on a chunk; if all records are finished, it counts as finished."""
        if chunk.is_finished and chunk.span is not None:
            chunk.span.unfinished -= 1
            chunk.span = None

    def finished_to(self, partition: TopicPartition) -> int | None:
        """The offset below which all records are finished; None = the partition has no spans."""
        spans = self._spans.get(partition)
        while spans and not spans[0].unfinished:
            self._finished_to[partition] = spans.popleft().after
        if spans:
            return spans[0].finished_to
        return self._finished_to.get(partition)

    def committable(self) -> dict[TopicPartition, int]:
        """By partition the finished offset, if it is not committed yet."""
        found = {partition: self.finished_to(partition) for partition in self._spans}
        return {at: offset for at, offset in found.items() if offset is not None and offset != self._committed.get(at)}

    def committed(self, offsets: dict[TopicPartition, int]) -> None:
        """Note that these offsets are committed, or their commit is in flight."""
        self._committed |= {at: offset for at, offset in offsets.items() if at in self._spans}

    def not_committed(self, offsets: dict[TopicPartition, int]) -> None:
        """Note that the commit of these offsets has failed: they are committable again."""
        for at, offset in offsets.items():
            if self._committed.get(at) == offset:
                del self._committed[at]

    def chunks(self, partitions: Iterable[TopicPartition] | None = None) -> list[Chunk]:
        """The unfinished chunks of these partitions (None = of all)."""
        wanted = list(self._spans) if partitions is None else partitions
        return [
            chunk
            for partition in wanted
            for span in self._spans.get(partition, ())
            for chunk in span.chunks
            if not chunk.is_finished
        ]

    def forget(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Drop these partitions (None = all), which the consumer no longer has."""
        for partition in list(self._spans) if partitions is None else partitions:
            self._spans.pop(partition, None)
            self._finished_to.pop(partition, None)
            self._committed.pop(partition, None)
