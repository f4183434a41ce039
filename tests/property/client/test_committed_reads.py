"""Whatever transactions interleave, and however it is fetched: a reader of committed records sees exactly those."""

import os
import tempfile
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.ids import TopicPartition
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.reading.decode import BatchOpener
from raylog.client.reading.isolation import aborted_batches
from raylog.client.reading.local_files import Place, SegmentFile
from raylog.protocol.replica import AbortedTxn
from raylog.storage.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, iter_headers
from raylog.storage.batch.records import BatchMeta, encode_batch

HERE = TopicPartition("flights", 0)


@dataclass
class Log:
    """A log with transactions, and what becomes of them."""

    batches: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    records: list[tuple[int, int | None]] = field(default_factory=list)
    """Offset of each record, and its producer if it is of a transaction."""
    spans: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Producer, first offset, offset of the marker, and whether it commits: one for each transaction that ended."""
    open: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.ends[-1] if self.ends else 0

    def append(self, producer: int, kind: int, count: int) -> None:
        offset = self.end
        meta = BatchMeta(producer, 0, base_offset=offset, attributes=kind)
        self.batches.append(encode_batch(None, [b"v"] * count, [0] * count, meta=meta))
        self.ends.append(offset + count)

    def last_stable_offset(self) -> int:
        return min([self.end, *self.open.values()])

    def visible(self) -> list[int]:
        """The offsets of all that is committed, below the last stable offset."""
        shown = []
        for offset, producer in self.records:
            is_aborted = any(
                first <= offset < marker and producer == of
                for of, first, marker, committed in self.spans
                if not committed
            )
            if offset < self.last_stable_offset() and not is_aborted:
                shown.append(offset)
        return shown

    def fetch(self, offset: int, max_bytes: int) -> tuple[memoryview, list[AbortedTxn]]:
        """What a leader answers: batches below the last stable offset, and the aborted transactions in them."""
        found, end = b"", offset
        for batch, after in zip(self.batches, self.ends, strict=True):
            if offset < after <= self.last_stable_offset():
                if found and len(found) + len(batch) > max_bytes:
                    break
                found, end = found + batch, after
        rows = [
            AbortedTxn(producer, first)
            for producer, first, marker, committed in self.spans
            if not committed and first < end and marker >= offset
        ]
        return memoryview(found), rows


@st.composite
def logs(draw: st.DrawFn) -> Log:
    log = Log()
    for _ in range(draw(st.integers(1, 25))):
        producer = draw(st.integers(1, 3))
        action = draw(st.sampled_from(["write", "write", "commit", "abort", "plain"]))
        offset, count = log.end, draw(st.integers(1, 3))
        if action == "write":
            log.open.setdefault(producer, offset)
            log.records += [(each, producer) for each in range(offset, offset + count)]
            log.append(producer, TRANSACTIONAL_BIT, count)
        elif action == "plain":
            log.records += [(each, None) for each in range(offset, offset + count)]
            log.append(-1, 0, count)
        elif producer in log.open:
            log.spans.append((producer, log.open.pop(producer), offset, action == "commit"))
            log.append(producer, TRANSACTIONAL_BIT | CONTROL_BIT, 1)
    return log


def _add(state: PartitionState, payload: memoryview, rows: list[AbortedTxn], *, cut: int) -> None:
    """Give an answer as it is, or as two places in a file."""
    aborted = aborted_batches(rows)
    if not cut:
        assert state.add(state.session, payload, aborted)
        return
    with tempfile.NamedTemporaryFile() as file:
        file.write(payload)
        file.flush()
        status = os.fstat(file.fileno())
        segment = SegmentFile(file.name, (status.st_dev, status.st_ino))
    headers = [header for _, header in iter_headers(payload)]
    middle = sum(header.size for header in headers[:cut])
    places = [Place(segment, 0, middle, aborted), Place(segment, middle, len(payload) - middle, aborted)]
    filled = [place for place in places if place.length]
    assert state.add_places(state.session, filled, headers[-1].next_offset)


@given(
    log=logs(),
    start=st.integers(0, 10),
    sizes=st.lists(st.integers(1, 600), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    ways=st.lists(st.sampled_from(["take", "take_one", "columns"]), min_size=1, max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_a_reader_sees_exactly_what_is_committed(
    log: Log, start: int, sizes: list[int], cuts: list[int], ways: list[str]
) -> None:
    state = PartitionState(HERE, BatchOpener(HERE), Start.POLICY, near_chunk_bytes=150)
    state.move_to(min(start, log.last_stable_offset()))
    first = state.fetch_offset
    seen: list[int] = []
    number = 0
    while True:
        payload, rows = log.fetch(state.fetch_offset, sizes[number % len(sizes)])
        if not payload:
            break
        _add(state, payload, rows, cut=cuts[number % len(cuts)])
        while state.has_records:
            way = ways[len(seen) % len(ways)]
            if way == "take":
                seen += [record.offset for record in state.take(2)]
            elif way == "take_one":
                record = state.take_one()
                seen += [] if record is None else [record.offset]
            else:
                piece = state.take_columns(2, fail=True)
                seen += ColumnBatch([] if piece is None else [piece]).offsets
        number += 1
    assert seen == [offset for offset in log.visible() if offset >= first]
    assert state.position == log.last_stable_offset()
