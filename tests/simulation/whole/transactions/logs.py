"""What a partition's log holds of transactions: each ends in one way, in all partitions, and once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.marker import decode_marker, is_marker
from tests.simulation.whole.books import At
from tests.simulation.world import Violation

RULE: Final = "W25"


@dataclass(frozen=True, slots=True)
class Entry:
    """One batch as far as transactions matter. ``committed`` None: of records; else it is a marker."""

    offset: int
    producer_id: int
    producer_epoch: int
    is_transactional: bool
    committed: bool | None = None
    is_emptied: bool = False
    """Whether a cleaner has removed its records: it only states its producer's epoch."""
    written_ms: int = 0
    """When it was appended, by the clock of its leader."""


@dataclass(slots=True)
class _Producer:
    epoch: int = -1
    open_at: int | None = None
    """The first offset of the open transaction; None = none is open."""
    open_epoch: int = -1
    written_ms: int = 0


@dataclass(slots=True)
class Outcomes:
    """How each transaction ended, by producer id and the epoch of its records, over all partitions."""

    found: dict[tuple[int, int], tuple[bool, At]] = field(default_factory=dict)

    def enter(self, producer_id: int, epoch: int, at: At, *, committed: bool) -> None:
        """A partition ends a transaction in one way; all others must do so, too."""
        first, where = self.found.setdefault((producer_id, epoch), (committed, at))
        if first != committed:
            raise Violation(RULE, f"producer {producer_id} in epoch {epoch}: committed {first} in {where}, not in {at}")


def check_logs(logs: Mapping[At, Iterable[Entry]], forgets_ms: float = math.inf) -> None:
    """Check the batches of all partitions of transactions, each log from its start to its end.

    A producer that was idle for ``forgets_ms`` is not known any more: its marker, sent again, is written again.
    """
    outcomes = Outcomes()
    for at, entries in logs.items():
        for producer_id, producer in _check_log(at, entries, outcomes, forgets_ms):
            if producer.open_at is not None:
                raise Violation(RULE, f"the transaction of producer {producer_id} at {producer.open_at} of {at} hangs")


def _check_log(
    at: At, entries: Iterable[Entry], outcomes: Outcomes, forgets_ms: float
) -> Iterator[tuple[int, _Producer]]:
    producers: dict[int, _Producer] = {}
    for entry in entries:
        if entry.producer_id < 0:
            continue
        producer = producers.setdefault(entry.producer_id, _Producer())
        where = f"producer {entry.producer_id} at {entry.offset} of {at}"
        if entry.producer_epoch < producer.epoch:
            raise Violation(RULE, f"{where}: epoch {entry.producer_epoch} comes behind {producer.epoch}")
        if entry.committed is not None:
            idle_ms = entry.written_ms - producer.written_ms
            # A cleaner keeps no time of what it has emptied.
            is_known = forgets_ms == math.inf or min(entry.written_ms, producer.written_ms) >= 0
            if entry.producer_epoch == producer.epoch and is_known and idle_ms < forgets_ms:
                raise Violation(RULE, f"{where}: a second marker of epoch {entry.producer_epoch}, {idle_ms} ms later")
            if producer.open_at is not None:
                outcomes.enter(entry.producer_id, producer.open_epoch, at, committed=entry.committed)
            producer.open_at = None
        elif entry.is_emptied:
            pass
        elif entry.is_transactional:
            if producer.open_at is None:
                producer.open_at, producer.open_epoch = entry.offset, entry.producer_epoch
            elif entry.producer_epoch != producer.open_epoch:
                raise Violation(RULE, f"{where}: epoch {entry.producer_epoch} joins the transaction of an earlier one")
        elif producer.open_at is not None:
            raise Violation(RULE, f"{where}: a plain batch inside the transaction that began at {producer.open_at}")
        producer.epoch, producer.written_ms = entry.producer_epoch, entry.written_ms
    yield from producers.items()


def entries_of(runner: Any) -> Iterator[Entry]:
    """Yield what a replica's log holds, from its start to its end."""
    offset = runner.log.log_start_offset
    while offset < runner.log.log_end_offset:
        data = memoryview(runner.log.read(offset, 1 << 20, runner.log.log_end_offset))
        for position, header in iter_headers(data):
            offset = header.next_offset
            committed = decode_marker(data, position, header).committed if is_marker(header) else None
            yield Entry(
                header.base_offset,
                header.producer_id,
                header.producer_epoch,
                header.is_transactional,
                committed,
                header.is_control and committed is None,
                header.max_timestamp,
            )


def check_cleaned(at: At, entries: Iterable[Entry], cleaned_to: int) -> None:
    """No record of an aborted transaction is left below the end of the last cleaning."""
    opened: dict[int, int] = {}
    for entry in entries:
        if entry.committed is not None:
            first = opened.pop(entry.producer_id, cleaned_to)
            if first < cleaned_to and not entry.committed:
                raise Violation(RULE, f"{at} was cleaned up to {cleaned_to}, and has an aborted record at {first}")
        elif entry.is_transactional and not entry.is_emptied:
            opened.setdefault(entry.producer_id, entry.offset)
