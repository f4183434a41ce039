"""Whatever is fetched, sought and taken in whatever order: a session gives each record once, in order, without gaps."""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.errors import CorruptMessage
from raylog.base.ids import TopicPartition
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.reading.decode import BatchOpener
from raylog.client.reading.local_files import Place, SegmentFile
from raylog.client.types import Record
from raylog.storage.batch.header import CONTROL_BIT, iter_headers, parse_header
from raylog.storage.batch.records import BatchMeta, encode_batch

HERE = TopicPartition("flights", 0)


@dataclass(frozen=True)
class Log:
    """A partition's log: whole batches, some of them control batches, some behind gaps (as a cleaner leaves them)."""

    batches: tuple[bytes, ...]
    ends: tuple[int, ...]
    visible: tuple[int, ...]
    """Offsets of the records that a consumer sees."""

    def fetch(self, offset: int, max_bytes: int) -> memoryview:
        found = b""
        for batch, end in zip(self.batches, self.ends, strict=True):
            if end > offset:
                if found and len(found) + len(batch) > max_bytes:
                    break
                found += batch
        return memoryview(found)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    batches: list[bytes] = []
    ends: list[int] = []
    visible: list[int] = []
    offset = 0
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 6))
        is_control = draw(st.integers(0, 5)) == 0
        batches.append(
            encode_batch(
                None,
                [f"value {each}".encode() for each in range(offset, offset + count)],
                list(range(offset, offset + count)),
                meta=BatchMeta(base_offset=offset, attributes=CONTROL_BIT if is_control else 0),
                compression=draw(st.sampled_from([0, 0, 1])),
            )
        )
        if not is_control:
            visible += range(offset, offset + count)
        offset += count
        ends.append(offset)
    return Log(tuple(batches), tuple(ends), tuple(visible))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 400)),
        st.tuples(st.just("answer"), st.integers(0, 3)),
        st.tuples(st.just("take"), st.integers(1, 9)),
        st.tuples(st.just("take_one"), st.just(0)),
        st.tuples(st.just("columns"), st.integers(1, 9)),
        st.tuples(st.just("seek"), st.integers(0, 45)),
        st.tuples(st.just("pause"), st.integers(0, 1)),
    ),
    min_size=15,
    max_size=60,
)


def _added(state: PartitionState, session: int, payload: memoryview, *, near: bool) -> bool:
    """Give an answer as it is, or as a place in a file, behind some bytes that do not belong to it."""
    if not near or not payload:
        return state.add(session, payload)
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"before" + payload)
        file.flush()
        status = os.fstat(file.fileno())
        segment = SegmentFile(file.name, (status.st_dev, status.st_ino))
    # The name is deleted, as behind retention, and the file is there as long as it is read.
    next_offset = max(header.next_offset for _, header in iter_headers(payload))
    return state.add_places(session, [Place(segment, len(b"before"), len(payload))], next_offset)


@given(log=logs(), start=st.integers(0, 20), actions=ACTIONS, near=st.lists(st.booleans(), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_a_session_gives_each_record_once_and_in_order(
    log: Log, start: int, actions: list[tuple[str, int]], near: list[bool]
) -> None:
    state = PartitionState(HERE, BatchOpener(HERE), Start.POLICY, near_chunk_bytes=150)
    ways = cycle(near)
    state.move_to(start)
    sent: list[tuple[int, memoryview]] = []  # answers on the way, of whatever session
    expected = _from(log, start)

    def check(records: list[Record]) -> None:
        for record in records:
            wanted = expected.pop(0)
            assert record == Record("flights", 0, wanted, wanted, None, f"value {wanted}".encode(), ())

    for action, number in actions:
        if action == "ask" and len(sent) < 4:
            sent.append((state.session, log.fetch(state.fetch_offset, number)))
        elif action == "answer" and sent:
            session, payload = sent.pop(number % len(sent))
            # The fetcher has one request outstanding in a session; the others here come from earlier sessions.
            if session != state.session or payload[:8] == log.fetch(state.fetch_offset, 1)[:8]:
                assert _added(state, session, payload, near=next(ways)) is (session == state.session)
        elif action == "take":
            taken = state.take(number)
            assert len(taken) <= number
            check(taken)
        elif action == "take_one":
            record = state.take_one()
            check([] if record is None else [record])
        elif action == "columns":
            piece = state.take_columns(number, fail=True, may_read=number % 3 > 0)
            taken_columns = ColumnBatch([] if piece is None else [piece])
            assert len(taken_columns) <= number
            offsets = taken_columns.offsets
            assert [expected.pop(0) for _ in offsets] == offsets
            assert taken_columns.values == [f"value {offset}".encode() for offset in offsets]
        elif action == "seek":
            state.move_to(number)
            expected = _from(log, number)
        elif action == "pause":
            state.paused = bool(number)
        assert state.position is not None
        assert not expected or state.position <= expected[0], "the position never passes a record that was not given"

    state.paused = False
    while payload := log.fetch(state.fetch_offset, 100):
        _added(state, state.session, payload, near=next(ways))
        check(state.take(1_000))
    check(state.take(1_000))
    assert expected == [], "everything is given in the end"
    assert state.buffered_bytes == state.memory_bytes == 0
    assert not state.has_places
    assert state.position == max(state.fetch_offset, 0)


def _from(log: Log, offset: int) -> list[int]:
    return [each for each in log.visible if each >= offset]


@given(log=logs(), cut=st.integers(0, 2_000), damage=st.integers(0, 2_000))
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_are_reported_and_never_given(log: Log, cut: int, damage: int) -> None:
    """Whatever is cut off or flipped: the records given are a prefix of the log, and the rest waits or is refused."""
    data = bytearray(b"".join(log.batches))
    data = data[: max(1, len(data) - cut % len(data))]
    place = damage % len(data)
    data[place] ^= 0xFF
    state = PartitionState(HERE, BatchOpener(HERE), Start.POLICY)
    state.move_to(0)
    state.add(state.session, memoryview(data))
    given_offsets: list[int] = []
    with suppress(CorruptMessage):
        while records := state.take(4):
            given_offsets += [record.offset for record in records]
    if not _in_header_before_crc(log, place):
        assert given_offsets == list(log.visible[: len(given_offsets)])


def _in_header_before_crc(log: Log, place: int) -> bool:
    """Base offset and epoch lie outside the checksum: damage there is the disk's to notice, not the client's."""
    start = 0
    for batch in log.batches:
        if start <= place < start + parse_header(batch).size:
            return place - start < 21
        start += len(batch)
    return False
