"""Laws of markers in a cleaned log: none goes before the records of its transaction, all others go in their time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.storage.batch.header import BatchHeader, iter_headers
from raylog.storage.batch.marker import is_marker
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.log.config import CompactionRules
from tests.property.storage import in_memory
from tests.property.storage.test_cleaner_properties import Killed, killed_after
from tests.property.storage.test_transaction_properties import (
    NOW_MS,
    Batch,
    Cut,
    End,
    Life,
    Send,
    World,
    calls,
    segment_sizes,
)
from tests.simulation.storage.transactions.reader import committed_rows

RETENTION_MS = 1_000
AT_ONCE = CompactionRules(min_cleanable_dirty_ratio=0.0, delete_retention_ms=RETENTION_MS)


class Cleaning(NamedTuple):
    """A cleaning, so many milliseconds after the one before, which ends with the process at that change of the disk."""

    later_ms: int
    steps: int


class CleanedWorld(World):
    """A log that is cleaned, with the clock of its cleaner."""

    now_ms = NOW_MS
    cleaned_to = 0
    watermark = 0

    def _cut(self, offset: int) -> None:
        super()._cut(max(offset, self.watermark))

    def clean(self, call: Cleaning) -> bool:
        """Clean whatever is stable; False if the process was killed."""
        self.now_ms += call.later_ms
        log = self.log
        if log.segments[-1].size:
            log.roll(self.now_ms)
        log.sync()
        log.cleaned_to = 0
        self.watermark = self.model.end
        order = LogCleaning(log).order_cleaning(self.model.end, self.now_ms, AT_ONCE)
        if order is None:
            return True
        try:
            with killed_after(call.steps):
                assert LogCleaning(log).take_cleaned(clean(order), self.now_ms)
        except Killed:
            self._begin_life(Life(is_clean=False, is_synced=False))
            return False
        self.cleaned_to = max(self.cleaned_to, order.next_offset)
        return True

    def without_snapshots(self) -> None:
        """The log is opened again, and knows its producers by its batches."""
        self.log.close()
        for path in self.log.folder.glob("*.snapshot"):
            path.unlink()
        self.log = self._open(self.log.folder)

    def headers(self) -> Iterator[BatchHeader]:
        offset = 0
        while offset < self.log.log_end_offset:
            for _, header in iter_headers(self.log.read(offset, 1000, self.log.log_end_offset)):
                assert header.base_offset == offset
                offset = header.next_offset
                yield header

    def check_markers(self) -> None:
        """The marker of every record's transaction is there, and no transaction is open that has ended."""
        held, markers = self.places()
        ended = [(marker.base, self.bases(first, marker)) for first, marker in self.model.transactions() if marker]
        assert [base for base, bases in ended if bases & held and base not in markers] == []
        assert set(self.log.producers.transactions.open) == {
            first.producer for first, marker in self.model.transactions() if marker is None
        }

    def places(self) -> tuple[set[int], set[int]]:
        """Where batches with records begin, and markers."""
        headers = list(self.headers())
        held = {header.base_offset for header in headers if header.record_count and not header.is_control}
        return held, {header.base_offset for header in headers if is_marker(header)}

    def bases(self, first: Batch, marker: Batch) -> set[int]:
        """The batches of a transaction."""
        return {
            batch.base
            for batch in self.model.batches
            if batch.producer == first.producer and first.base <= batch.base < marker.base
        }

    def check_readers(self) -> None:
        """Readers of committed records get the last one of each key, and the stable end is the model's."""
        log, model = self.log, self.model
        stable = model.stable(model.end)
        assert log.last_stable_offset(model.end) == stable
        committed = model.rows(stable)
        last = {row.key: row for row in committed}
        for start in {0, stable // 3, stable // 2, stable}:
            found = committed_rows(log, start, stable, 200)
            assert [row for row in found if row not in committed] == []
            assert {row.key: row for row in found} == {key: row for key, row in last.items() if row.offset >= start}

    def check_cleaned(self) -> None:
        """A cleaning has ended: of the records below its end exactly the last one of each key is left."""
        stable = self.model.stable(self.model.end)
        committed = self.model.rows(stable)
        last = {row.key: row.offset for row in committed if row.offset < self.cleaned_to}
        expected = [row for row in committed if row.offset >= self.cleaned_to or last[row.key] == row.offset]
        assert committed_rows(self.log, 0, stable, 1 << 20) == expected

    def needed(self) -> set[int]:
        """The last marker of each producer in what was cleaned: the producer is still known by it."""
        below = [batch for batch in self.model.batches if batch.base < self.cleaned_to]
        return set({batch.producer: batch.base for batch in below if batch.committed is not None}.values())


cleanings = st.builds(
    Cleaning, st.sampled_from((0, RETENTION_MS // 2, RETENTION_MS)), st.one_of(st.just(1000), st.integers(0, 60))
)
rounds = st.lists(st.tuples(calls.map(lambda drawn: drawn[:15]), cleanings), min_size=2, max_size=5)
Rounds = list[tuple[list[Send | End | Cut | Life], Cleaning]]


@settings(deadline=None, max_examples=60)
@given(rounds, segment_sizes)
def test_markers_of_records_stay_whatever_is_killed(drawn: Rounds, segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as root:
        world = CleanedWorld(Path(root), segment_bytes)
        for before, cleaning in drawn:
            for call in before:
                world.do(call)
            if world.clean(cleaning):
                world.check_cleaned()
            world.check_markers()
            world.check_readers()
        world.without_snapshots()
        world.check_markers()
        world.check_readers()
        world.log.close()


@settings(deadline=None, max_examples=60)
@given(rounds, segment_sizes)
def test_markers_without_records_go_after_their_time(drawn: Rounds, segment_bytes: int) -> None:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as root:
        world = CleanedWorld(Path(root), segment_bytes)
        for before, cleaning in drawn:
            for call in before:
                world.do(call)
            world.clean(cleaning)
        whole = Cleaning(0, 1_000_000)
        world.without_snapshots()
        assert world.clean(whole)
        world.without_snapshots()
        assert world.clean(whole._replace(later_ms=RETENTION_MS))
        held, markers = world.places()
        with_records = {
            marker.base
            for first, marker in world.model.transactions()
            if marker is not None and world.bases(first, marker) & held
        }
        below = {base for base in markers if base < world.cleaned_to}
        assert below == {base for base in with_records if base < world.cleaned_to} | world.needed()
        world.check_markers()
        world.check_readers()
        world.log.close()
