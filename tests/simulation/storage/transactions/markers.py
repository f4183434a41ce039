"""Whether a cleaning leaves the markers that it must leave (rules S14 and S15), against the slow model."""

from __future__ import annotations

from raylog.storage.batch.cleaned import horizon_of
from raylog.storage.batch.header import parse_header
from raylog.storage.batch.marker import BY_ADMINISTRATOR
from raylog.storage.cleaner.cleaning import CleaningOrder
from tests.simulation.storage.checks import require
from tests.simulation.storage.model import Stored
from tests.simulation.storage.transactions.history import Transaction, marker_of


def check_markers(
    before: list[Stored], after: list[Stored], whole: list[Stored], known: list[Transaction], order: CleaningOrder
) -> None:
    """One cleaned segment: `after` in the place of `before`. `whole`: all batches that were cleaned together.

    A marker goes only when its time has come, no record of its transaction was there, and its producer does not need
    it. Its time is stated by the cleaning that leaves no record of its transaction, and by no other.
    """
    batches_of = {found.marker_offset: set(found.batches) for found in known}
    held = {batch.base for batch in whole if batch.rows()}
    left = _left(whole, known, order.now_ms)
    needed = _needed(whole, order.producers)
    markers = {batch.base: batch for batch in after if marker_of(batch) is not None}
    for batch in before:
        marker = marker_of(batch)
        if marker is None:
            continue
        horizon_ms, mine = _horizon(batch), batches_of.get(batch.base, set())
        found = markers.get(batch.base)
        if found is None:
            require(not mine & held, "S15", f"the marker at {batch.base} goes before the records at {mine & held}")
            is_past = horizon_ms is not None and order.now_ms >= horizon_ms
            require(is_past, "S14", f"the marker at {batch.base} goes before its time, {horizon_ms}")
            require(batch.base not in needed, "S15", f"the marker at {batch.base} goes, which its producer needs")
            continue
        require(marker_of(found) == marker, "S15", f"the marker at {batch.base} was {marker}")
        expected = horizon_ms
        if horizon_ms is None and not mine & left:
            expected = order.now_ms + order.delete_retention_ms
        stated = _horizon(found)
        require(stated == expected, "S14", f"the marker at {batch.base} is kept until {stated}, and not {expected}")


def _horizon(batch: Stored) -> int | None:
    return horizon_of(parse_header(batch.data))


def _left(whole: list[Stored], known: list[Transaction], now_ms: int) -> set[int]:
    """The batches of which records stay: the last committed one of each key, unless it is a removal that is past."""
    aborted = {offset for found in known if found.is_aborted for offset in found.batches}
    rows = [(batch, row) for batch in whole if batch.base not in aborted for row in batch.rows()]
    last = {row[2]: row[0] for _, row in rows}
    return {
        batch.base
        for batch, row in rows
        if (row[2] is None or last[row[2]] == row[0])
        and not (row[3] is None and (horizon_ms := _horizon(batch)) is not None and now_ms >= horizon_ms)
    }


def _needed(whole: list[Stored], producers: frozenset[int]) -> set[int]:
    """The last batch of each known producer, and its last marker with the epoch of a coordinator."""
    needed: dict[tuple[int, bool], int] = {}
    for batch in whole:
        if batch.producer in producers:
            needed[batch.producer, False] = batch.base
            marker = marker_of(batch)
            if marker is not None and marker.coordinator_epoch != BY_ADMINISTRATOR:
                needed[batch.producer, True] = batch.base
    return set(needed.values())
