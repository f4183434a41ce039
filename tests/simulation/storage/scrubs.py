"""Passes of the scrub over a log on a virtual disk, and what they have to find.

`scrubbed` and `check_found` need nothing but a log, and serve other worlds as well.
"""

from __future__ import annotations

from raylog.storage.batch.header import iter_headers
from raylog.storage.errors import LogDamaged
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.scrub.log_scrub import LogScrub
from raylog.storage.scrub.plan import Passes, behind
from raylog.storage.scrub.slices import NO_TIMESTAMP, Scrubbed, scrub
from tests.simulation.storage.checks import require


def scrubbed(log: PartitionLog, slice_bytes: int) -> list[Scrubbed]:
    """One pass; behind damage the next segment follows, as in a replica."""
    scrub_of_log, newest, found = LogScrub(log), NO_TIMESTAMP, list[Scrubbed]()
    passes = Passes()
    while (place := passes.next_place(scrub_of_log.stretches())) is not None:
        order = scrub_of_log.order_scrub(place, slice_bytes, newest if place.position else NO_TIMESTAMP)
        require(order is not None, "S16", f"nothing is to be read at {place}")
        assert order is not None
        found.append(scrub(order))
        newest = found[-1].newest
        passes = passes.read_to(
            found[-1].place if found[-1].damage is None else behind(place, scrub_of_log.stretches())
        )
    return found


def check_whole(log: PartitionLog, slice_bytes: int, *, may_lack_indexes: bool) -> None:
    """A scrub of an undamaged log finds no damage, and indexes that are not there at most, which it makes again."""
    found = scrubbed(log, slice_bytes)
    for done in found:
        require(done.damage is None, "S16", f"an undamaged log has damage: {done.damage}")
        require(not done.wrong_aborted, "S16", "the aborted transactions of an undamaged log cannot be read")
        if done.wrong_index:
            require(done.wrong_index == "a file is missing", "S16", f"an index is wrong: {done.wrong_index}")
            LogScrub(log).remake_indexes(done.place, done.wrong_index)
    if any(done.wrong_index for done in found) and not may_lack_indexes:
        again = [done.wrong_index for done in scrubbed(log, slice_bytes) if done.wrong_index]
        require(not again, "S16", f"indexes that were made again are wrong: {again}")


def check_found(log: PartitionLog, slice_bytes: int) -> None:
    """Where a reader meets damage, a scrub finds the first of it, in each segment; and what it finds a reader meets."""
    met = _met(log)
    end = log.synced_end_offset
    found = [done.damage for done in scrubbed(log, slice_bytes) if done.damage is not None]
    confirmed = [damage for damage in map(LogScrub(log).confirm_damage, found) if damage is not None]
    paths = {damage.path for damage in confirmed}
    for damage in met:
        is_found = damage.path in paths or damage.offset >= end
        require(is_found, "S16", f"a scrub has not found what readers meet: {damage}")
    for damage in confirmed:
        require(any(damage.path == other.path for other in met), "S16", f"readers do not meet {damage}")


def _met(log: PartitionLog) -> list[LogDamaged]:
    """The damage that a reader meets, which seeks behind each."""
    found: list[LogDamaged] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            data = log.read(offset, 1 << 20, log.log_end_offset)
        except LogDamaged as damage:
            found.append(damage)
            if damage.next_offset <= offset:
                break
            offset = damage.next_offset
        else:
            offset = [header for _, header in iter_headers(data)][-1].next_offset
    return found
