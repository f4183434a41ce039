"""How old the records of a segment are, for `max.compaction.lag.ms`: the time of the first record that has a time.

A segment may begin with batches without a time: markers of transactions, fillers, batches that a cleaner has emptied.
So its first batch says nothing. Owned by a log, in its thread. May touch: reads the headers of segments.
"""

from __future__ import annotations

from collections.abc import Iterable

from raylog.storage.log.segment import Segment

UNDATED_MS = 0
"""No record has a time. Kafka takes no earlier one for a time either."""


class Ages:
    """Reads the headers of a segment once, up to the first record with a time, and remembers that time."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[int, tuple[Segment, int]] = {}
        """The segments whose first time was read, by base offset."""

    def first_ms(self, segment: Segment) -> int:
        """The time of the first record that has one, in milliseconds since 1970; UNDATED_MS where none has.

        Raises LogDamaged, StorageIoError, DescriptorsExhausted.
        """
        if segment.max_timestamp <= UNDATED_MS:
            return UNDATED_MS
        known = self._known.get(segment.base_offset)
        if known is None or known[0] is not segment:
            times = (header.max_timestamp for _, header in segment.walk(0) if header.max_timestamp > UNDATED_MS)
            known = self._known[segment.base_offset] = (segment, next(times, UNDATED_MS))
        return known[1]

    def keep_only(self, segments: Iterable[Segment]) -> None:
        """Forget all segments but these."""
        wanted = {id(segment) for segment in segments}
        self._known = {base: entry for base, entry in self._known.items() if id(entry[0]) in wanted}

    def clear(self) -> None:
        """Forget all: the log was cut, and a segment may have lost its first record with a time."""
        self._known.clear()


def has_dated(segments: Iterable[Segment], since: int) -> bool:
    """Whether a record with a time may lie at or after offset `since`: not if only control batches do."""
    return any(segment.next_offset > since and segment.max_timestamp > UNDATED_MS for segment in segments)
