"""Laws of transactions in a log: after any calls, cuts and crashes it knows the stable end and what was aborted."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import LogConfig, PartitionLog
from tests.property.storage import in_memory
from tests.simulation.storage.transactions.reader import Row, committed_rows

NOW_MS = 1_700_000_000_000
PRODUCERS = (5, 6, 7)
KEYS = (b"a", b"b", b"c")
AT_ONCE = CompactionRules(min_cleanable_dirty_ratio=0.0)


class Send(NamedTuple):
    """A batch with these keys; producer -1 has no transactions."""

    producer: int
    keys: list[bytes]


class End(NamedTuple):
    """The end of a producer's transaction, if it has begun one."""

    producer: int
    committed: bool


class Cut(NamedTuple):
    """The log is cut at a place between the lowest possible high watermark and its end, 0 to 1."""

    place: float


class Life(NamedTuple):
    """The process ends, with a sync before it or not, and the log is opened again."""

    is_clean: bool
    is_synced: bool


class Batch(NamedTuple):
    """One batch in the model; `committed` is for markers only."""

    base: int
    end: int
    producer: int
    keys: tuple[bytes, ...]
    committed: bool | None = None


sends = st.builds(
    Send, st.sampled_from((*PRODUCERS, *PRODUCERS, -1)), st.lists(st.sampled_from(KEYS), min_size=1, max_size=3)
)
ends = st.builds(End, st.sampled_from(PRODUCERS), st.booleans())
cuts = st.builds(Cut, st.floats(0, 1))
lives = st.builds(Life, st.booleans(), st.booleans())
calls = st.lists(st.one_of(sends, sends, ends, ends, cuts, lives, lives), min_size=12, max_size=40)
segment_sizes = st.sampled_from((1, 250, 600, 100_000))


class Model:
    """Batches in a list; each answer is found by a walk over all of them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def transactions(self) -> list[tuple[Batch, Batch | None]]:
        """The first batch of each transaction, and its marker."""
        opened: dict[int, Batch] = {}
        found: list[tuple[Batch, Batch | None]] = []
        for batch in self.batches:
            if batch.committed is None and batch.producer >= 0:
                opened.setdefault(batch.producer, batch)
            elif batch.producer in opened:
                found.append((opened.pop(batch.producer), batch))
        return [*found, *((first, None) for first in opened.values())]

    def epoch(self, producer: int) -> int:
        return sum(batch.producer == producer and batch.committed is not None for batch in self.batches)

    def sequence(self, producer: int) -> int:
        """The next one: each transaction begins at 0."""
        number = 0
        for batch in self.batches:
            if batch.producer == producer:
                number = 0 if batch.committed is not None else number + len(batch.keys)
        return number

    def lowest_watermark(self) -> int:
        """A transaction begins when the marker before it is below the high watermark."""
        first = [first.base for first, _ in self.transactions()]
        markers = [batch for batch in self.batches if batch.committed is not None]
        later = [m for m in markers if any(b.producer == m.producer and b.base > m.base for b in self.batches)]
        return max((marker.end for marker in later if first), default=0)

    def stable(self, watermark: int) -> int:
        firsts = [first.base for first, end in self.transactions() if end is None or end.base >= watermark]
        return min([watermark, *firsts])

    def aborted(self, start: int, upper: int) -> list[tuple[int, int]]:
        found = [
            (first.base, first.producer)
            for first, end in self.transactions()
            if end is not None and not end.committed and first.base < upper and end.base >= start
        ]
        return [(producer, base) for base, producer in sorted(found)]

    def rows(self, upper: int) -> list[Row]:
        """The committed records below `upper`; the value of each is its own offset."""
        bad = {
            batch.base
            for first, end in self.transactions()
            for batch in self.batches
            if end is not None
            and not end.committed
            and batch.producer == first.producer
            and first.base <= batch.base < end.base
        }
        return [
            Row(batch.base + place, key, b"%d" % (batch.base + place))
            for batch in self.batches
            if batch.end <= upper and batch.committed is None and batch.base not in bad
            for place, key in enumerate(batch.keys)
        ]


class World:
    """A log in a folder of its own, and its model."""

    def __init__(self, root: Path, segment_bytes: int) -> None:
        self.root = root
        self.segment_bytes = segment_bytes
        self.lives = 0
        self.model = Model()
        self.log = self._open(root / "0")

    def _open(self, folder: Path) -> PartitionLog:
        config = LogConfig(segment_bytes=self.segment_bytes, index_interval_bytes=100, file_delete_delay_ms=0)
        return PartitionLog.open(folder, config, topic_id="id", topic="t", partition=0, now_ms=NOW_MS)

    def do(self, call: Send | End | Cut | Life) -> None:
        if isinstance(call, Send):
            self._send(call)
        elif isinstance(call, End):
            self._end(call)
        elif isinstance(call, Cut):
            low = self.model.lowest_watermark()
            self._cut(low + round(call.place * (self.model.end - low)))
        else:
            self._begin_life(call)

    def _send(self, call: Send) -> None:
        model, base, meta = self.model, self.model.end, BatchMeta()
        if call.producer >= 0:
            epoch, sequence = model.epoch(call.producer), model.sequence(call.producer)
            meta = BatchMeta(call.producer, epoch, sequence, attributes=TRANSACTIONAL_BIT)
        values: list[bytes | None] = [b"%d" % (base + place) for place in range(len(call.keys))]
        payload = encode_batch(list(call.keys), values, [NOW_MS] * len(values), None, meta)
        done = self.log.append_as_leader(payload, 1, NOW_MS)
        model.batches.append(Batch(base, base + len(values), call.producer, tuple(call.keys)))
        assert done[:3] == (base, model.end, False)

    def _end(self, call: End) -> None:
        model, base = self.model, self.model.end
        epoch = model.epoch(call.producer) + 1
        before = self.log.producers.to_bytes()
        if epoch > 1:  # the marker before comes again, whatever it says
            again = self.log.append_marker(TxnMarker(call.producer, epoch - 1, 1, not call.committed), 1, NOW_MS)
            assert again[:3] == (base, base, True)
            assert self.log.producers.to_bytes() == before
        self.log.append_marker(TxnMarker(call.producer, epoch, 1, call.committed), 1, NOW_MS)
        model.batches.append(Batch(base, base + 1, call.producer, (), call.committed))

    def _cut(self, offset: int) -> None:
        self.log.truncate_to(offset, NOW_MS)
        self.model.batches = [batch for batch in self.model.batches if batch.end <= offset]

    def _begin_life(self, call: Life) -> None:
        if call.is_synced:
            self.log.sync()
            self.log._write_recovery_point(self.log.synced_end_offset)
        self.lives += 1
        folder = self.root / str(self.lives)
        if call.is_clean:
            self.log.close()
            self.log.folder.rename(folder)
        else:
            shutil.copytree(self.log.folder, folder)
            self.log.close()
        self.log = self._open(folder)

    def check(self) -> None:
        log, model = self.log, self.model
        assert log.log_end_offset == model.end
        for watermark in {model.lowest_watermark(), (model.lowest_watermark() + model.end) // 2, model.end}:
            assert log.last_stable_offset(watermark) == model.stable(watermark)
        assert log.has_open_transactions == any(end is None for _, end in model.transactions())
        offsets = sorted({0, model.end, *(batch.base for batch in model.batches[-6:])})
        for start in offsets:
            for upper in [offset for offset in offsets if offset >= start]:
                assert log.aborted_transactions(start, upper) == model.aborted(start, upper)


@settings(deadline=None, max_examples=60)
@given(calls, segment_sizes)
def test_the_stable_end_and_the_aborted_transactions_are_the_models(
    drawn: list[Send | End | Cut | Life], segment_bytes: int
) -> None:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as root:
        world = World(Path(root), segment_bytes)
        for call in drawn:
            world.do(call)
            world.check()
        stable = world.model.stable(world.model.end)
        for max_bytes in (1, 200, 1 << 20):
            assert committed_rows(world.log, 0, stable, max_bytes) == world.model.rows(stable)
        world.log.close()


@settings(deadline=None, max_examples=60)
@given(calls, segment_sizes, lives)
def test_a_cleaner_leaves_the_last_committed_record_of_each_key(
    drawn: list[Send | End | Cut | Life], segment_bytes: int, life: Life
) -> None:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as root:
        world = World(Path(root), segment_bytes)
        for call in drawn:
            world.do(call)
        log, model = world.log, world.model
        stable = model.stable(model.end)
        log.sync()
        order = LogCleaning(log).order_cleaning(model.end, NOW_MS, AT_ONCE)
        if order is not None:
            assert order.next_offset <= stable
            assert LogCleaning(log).take_cleaned(clean(order), NOW_MS)
        world.do(life)
        cleaned_to = 0 if order is None else order.next_offset
        committed = model.rows(stable)
        last = {row.key: row.offset for row in committed if row.offset < cleaned_to}
        expected = [row for row in committed if row.offset >= cleaned_to or last[row.key] == row.offset]
        assert world.log.last_stable_offset(model.end) == stable
        for max_bytes in (1, 200, 1 << 20):
            assert committed_rows(world.log, 0, stable, max_bytes) == expected
        world.log.close()
