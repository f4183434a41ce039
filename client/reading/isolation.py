"""Finds the aborted batches in a fetch's answer, for consumers with `isolation_level=read_committed`. Pure.

A batch has one producer id, and either all its records belong to one transaction or none does. So whole batches are
hidden, without a look at records. Used by `partition.py`, `local_files.py` and `range_fetcher.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raylog.protocol.replica import READ_COMMITTED, READ_UNCOMMITTED, AbortedTxn
from raylog.storage.batch.header import BatchHeader
from raylog.storage.batch.marker import is_marker

LEVELS: Final = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
"""The values of `isolation_level`, and their numbers in requests."""


class AbortedBatches:
    """The aborted transactions of one answer. Call `hides` once for each of its batches, in offset order."""

    __slots__ = ("_coming", "_present")

    def __init__(self, aborted: Sequence[AbortedTxn]) -> None:
        self._coming = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._present: set[int] = set()
        """Producers whose aborted transaction has begun, and whose marker has not come yet."""

    def hides(self, header: BatchHeader) -> bool:
        """Whether the records of this batch were aborted."""
        coming, present = self._coming, self._present
        while coming and coming[-1].first_offset <= header.last_offset:
            present.add(coming.pop().producer_id)
        if header.producer_id not in present or not header.is_transactional:
            return False
        if not header.is_control:
            return True
        if is_marker(header):  # a producer has one transaction at a time, and this is the marker that ends it
            present.discard(header.producer_id)
        return False


def aborted_batches(aborted: Sequence[AbortedTxn]) -> AbortedBatches | None:
    """`AbortedBatches` for an answer; None if it has no aborted transactions, as nearly always."""
    return AbortedBatches(aborted) if aborted else None
