"""What of each partition is finished: the offset that may be committed while records are handled out of order.

Records are handed out in *spans*, the records of a partition that one poll returned; a span is cut into *chunks*, one
for each lane that its records go to. A chunk is handled in its order, so one number says how far it is. Owned by
`pool.py`; a worker changes `Chunk.done` of the chunk it handles, all else is changed under the pool's lock. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from raylog.client.types import Record
from raylog.core.ids import TopicPartition


class Chunk:
    """Consecutive records of one lane, of one partition, in the order of their offsets."""

    __slots__ = ("done", "is_active", "is_dropped", "partition", "records", "span")

    def __init__(self, partition: TopicPartition, records: list[Record]) -> None:
        self.partition = partition
        self.records = records
        self.done = 0
        """How many of the records are finished; 0 <= done <= len(records), and it only rises."""
        self.is_active = False
        """Whether a worker handles it now."""
        self.is_dropped = False
        """No further record of it is handled."""
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
        """The consumer's position behind them."""
        self.unfinished = len(chunks)
        """Chunks that are not finished; at 0 the span is."""

    @property
    def finished_to(self) -> int:
        """Every record of the span below this offset is finished, and no smaller offset would do."""
        if not self.unfinished:
            return self.after
        unfinished = []
        for chunk in self.chunks:
            done = chunk.done  # once: a worker counts on
            if done < len(chunk.records):
                unfinished.append(chunk.records[done].offset)
        return min(unfinished, default=self.after)


class Ledger:
    """The spans of all partitions, in the order of their offsets."""

    def __init__(self) -> None:
        self._spans: dict[TopicPartition, deque[Span]] = {}
        self._finished_to: dict[TopicPartition, int] = {}
        """Behind the last span that was finished with all before it."""
        self._committed: dict[TopicPartition, int] = {}

    def add(self, partition: TopicPartition, chunks: Sequence[Chunk], after: int) -> None:
        """Record what was handed out; `after` is the consumer's position behind it."""
        span = Span(chunks, after)
        for chunk in chunks:
            chunk.span = span
        self._spans.setdefault(partition, deque()).append(span)

    def chunk_ended(self, chunk: Chunk) -> None:
        """A worker will not return to this chunk."""
        if chunk.is_finished and chunk.span is not None:
            chunk.span.unfinished -= 1
            chunk.span = None

    def finished_to(self, partition: TopicPartition) -> int | None:
        """Every record below this offset is finished; None when nothing was handed out."""
        spans = self._spans.get(partition)
        while spans and not spans[0].unfinished:
            self._finished_to[partition] = spans.popleft().after
        if spans:
            return spans[0].finished_to
        return self._finished_to.get(partition)

    def committable(self) -> dict[TopicPartition, int]:
        """The offsets that are finished and not recorded as committed."""
        found = {partition: self.finished_to(partition) for partition in self._spans}
        return {at: offset for at, offset in found.items() if offset is not None and offset != self._committed.get(at)}

    def committed(self, offsets: dict[TopicPartition, int]) -> None:
        """These offsets are committed, or their commit is under way."""
        self._committed |= {at: offset for at, offset in offsets.items() if at in self._spans}

    def not_committed(self, offsets: dict[TopicPartition, int]) -> None:
        """The commit of these offsets has failed: they are committable again."""
        for at, offset in offsets.items():
            if self._committed.get(at) == offset:
                del self._committed[at]

    def chunks(self, partitions: Iterable[TopicPartition] | None = None) -> list[Chunk]:
        """The chunks of these partitions that are not finished; of all without an argument."""
        wanted = list(self._spans) if partitions is None else partitions
        return [
            chunk
            for partition in wanted
            for span in self._spans.get(partition, ())
            for chunk in span.chunks
            if not chunk.is_finished
        ]

    def forget(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """These partitions are not the consumer's any more; without an argument, none is."""
        for partition in list(self._spans) if partitions is None else partitions:
            self._spans.pop(partition, None)
            self._finished_to.pop(partition, None)
            self._committed.pop(partition, None)
