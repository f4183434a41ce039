"""Where `raylog consume` begins: an end of the log, an offset, so many records before the end, or a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from raylog.base.ids import TopicPartition

if TYPE_CHECKING:
    from raylog.client.consumer.consumer import Consumer


@dataclass(frozen=True, slots=True)
class Place:
    """Where to begin; exactly one field is set."""

    edge: str = ""
    """`earliest` or `latest`."""
    offset: int | None = None
    last: int | None = None
    """Begin so many records before the end of each partition."""
    time: datetime | int | None = None
    """Begin with the first record of each partition that is not older; a datetime, or milliseconds since 1970."""

    def go_to(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        """Seek in these partitions, which have to be assigned."""
        if self.edge == "earliest":
            consumer.seek_to_beginning(*partitions)
        elif self.edge == "latest":
            consumer.seek_to_end(*partitions)
        elif self.offset is not None:
            for each in partitions:
                consumer.seek(each, self.offset)
        elif self.last is not None:
            starts, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
            for each in partitions:
                consumer.seek(each, max(starts[each], ends[each] - self.last))
        elif self.time is not None:
            self._go_to_time(consumer, partitions)

    def _go_to_time(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        from raylog.client.scheduling import moment_ms

        at_ms = moment_ms(self.time or 0, "--from-time")
        found = consumer.offsets_for_times(dict.fromkeys(partitions, at_ms))
        ends = consumer.end_offsets(partitions)
        for each in partitions:
            first = found[each]
            consumer.seek(each, ends[each] if first is None else first.offset)


def place_of(
    partition: int | None,
    offset: str | None,
    time: datetime | int | None,
    group: str | None,
    from_beginning: bool,
) -> Place | None:
    """The place that the options name; None: where a subscription begins. Raises UsageError for contradictions."""
    if sum((offset is not None, time is not None, from_beginning)) > 1:
        raise click.UsageError("--offset, --from-time and --from-beginning say different things; give one of them")
    if offset is None and time is None:
        return Place(edge="earliest") if partition is not None and from_beginning else None
    if group is not None and partition is None:
        raise click.UsageError(
            f"members of a group begin where it has committed; `raylog group reset-offsets {group}` moves it"
        )
    if time is not None:
        return Place(time=time)
    assert offset is not None  # one of both is given
    if offset in ("earliest", "latest"):
        return Place(edge=offset)
    if offset.startswith("-") and offset[1:].isdecimal():
        return Place(last=int(offset[1:]))
    if not offset.isdecimal():
        raise click.UsageError(
            f"--offset takes a number, a negative one for the last records, `earliest` or `latest`, not {offset!r}"
        )
    if partition is None:
        raise click.UsageError("--offset needs --partition, because offsets count within a partition")
    return Place(offset=int(offset))
