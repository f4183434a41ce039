"""Whether readers of committed records get what they may get (rule S15), against the slow model.

The last stable offset stops at the oldest transaction that is open, or whose marker is not below the high watermark.
Readers get every committed record below it, and no aborted one.
"""

from __future__ import annotations

import random

from raylog.storage.log.partition_log import PartitionLog
from tests.simulation.storage.checks import require
from tests.simulation.storage.model import Model
from tests.simulation.storage.transactions.history import Transaction, ends_of_cleaned, lowest_watermark, transactions
from tests.simulation.storage.transactions.reader import Row, committed_rows

RULE = "S15"


def check_transactions(log: PartitionLog, model: Model, draw: random.Random) -> None:
    """Compare the log with what follows from the batches that were sent."""
    known = transactions(model.sent)
    least = min(max(lowest_watermark(model.sent), ends_of_cleaned(known, model.cleaned_to)), model.end)
    for watermark in (model.end, draw.randint(least, model.end)):
        _check_stable(log, model, known, watermark)
        stable = log.last_stable_offset(watermark)
        if model.start < stable:
            start = draw.choice((model.start, draw.randint(model.start, stable)))
            _check_rows(log, model, known, start, stable, draw)
    if not model.cleaned_to:
        _check_aborted(log, model, known, draw)


def open_in(model: Model) -> set[int]:
    """The producers whose transactions are open."""
    return {found.producer for found in transactions(model.sent) if found.marker is None}


def _is_unstable(found: Transaction, watermark: int) -> bool:
    return found.marker is None or found.marker_offset >= watermark


def _check_stable(log: PartitionLog, model: Model, known: list[Transaction], watermark: int) -> None:
    """The stable end lies between two bounds, which are equal unless part of a transaction was removed.

    So by retention, or by a cleaner: below the log start, or before the marker was cut off. An idle producer's last
    transaction may be forgotten.
    """
    of_producers = {batch.base for batch in model.batches if batch.producer >= 0}
    in_files = max(log.segments[0].base_offset, min(model.cleaned_to, model.start))
    unstable = [found for found in known if _is_unstable(found, watermark)]
    lowest = min((max(found.first, model.start) for found in unstable), default=watermark)
    certain = [
        (found, [offset for offset in found.batches if offset >= in_files and offset in of_producers])
        for found in unstable
        if found.marker is None or found.marker_offset >= model.known_from.get(found.producer, 0)
    ]
    highest = min((max(left[0], model.start) for _, left in certain if left), default=watermark)
    stable = log.last_stable_offset(watermark)
    claim = f"below {watermark} the stable end is {stable}, and not from {lowest} to {highest}"
    require(min(lowest, watermark) <= stable <= min(highest, watermark), RULE, claim)
    opened = {found.producer for found, left in certain if left and found.marker is None}
    has_open = log.has_open_transactions
    require(has_open or not opened, RULE, f"the transactions of {opened} are open, and the log knows of none")


def _check_rows(
    log: PartitionLog, model: Model, known: list[Transaction], start: int, stable: int, draw: random.Random
) -> None:
    aborted = {offset for found in known if found.is_aborted for offset in found.batches}
    expected = [
        Row(row[0], row[2], row[3])
        for batch in model.readable(stable)
        if batch.base not in aborted
        for row in batch.rows()
        if row[0] >= start
    ]
    found = committed_rows(log, start, stable, draw.choice((1, 700, 5000)))
    if found != expected:
        missing, extra = [row for row in expected if row not in found], [row for row in found if row not in expected]
        require(False, RULE, f"from {start} to {stable} committed records are missing: {missing}; aborted: {extra}")


def _check_aborted(log: PartitionLog, model: Model, known: list[Transaction], draw: random.Random) -> None:
    """The aborted transactions of a range, exactly; the first offset of what retention has cut may have moved."""
    start = draw.randint(model.start, model.end)
    upper = draw.randint(start, model.end)
    expected = {
        (found.producer, found.marker_offset)
        for found in known
        if found.is_aborted and found.first < upper and found.marker_offset >= start and found.first >= model.start
    }
    entries = log.aborted_between(start, upper)
    found = {(entry.producer_id, entry.last_offset) for entry in entries}
    require(len(found) == len(entries), RULE, f"from {start} to {upper} {entries} are listed, some of them twice")
    require(expected <= found, RULE, f"from {start} to {upper} {expected - found} were aborted, and are not listed")
    possible = {(entry.producer, entry.marker_offset): entry.batches for entry in known if entry.is_aborted}
    for entry in entries:
        batches = possible.get((entry.producer_id, entry.last_offset), ())
        is_true = entry.first_offset in batches and entry.first_offset < upper and entry.last_offset >= start
        require(is_true, RULE, f"from {start} to {upper} {entry} is listed, of {batches}")
