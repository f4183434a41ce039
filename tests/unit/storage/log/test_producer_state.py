"""Idempotent producers: duplicates answered, gaps refused, old epochs fenced, snapshots faithful."""

from pathlib import Path

import pytest

from raylog.base.errors import InvalidProducerEpoch, OutOfOrderSequence, TooManyProducers
from raylog.storage.batch.header import LASTING_PRODUCERS, BatchHeader, parse_header
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.errors import CorruptBatch
from raylog.storage.log import producer_state
from raylog.storage.log.producer_state import SPARED_MS, Duplicate, ProducerState
from tests.unit.storage.logs import NOW as WALL_MS
from tests.unit.storage.logs import batch, open_log

NOW, LATER = 1000, 9000


def header(sequence: int, count: int = 1, *, offset: int = 0, epoch: int = 0, producer: int = 5) -> BatchHeader:
    data = encode_batch(None, [b""] * count, [1] * count, None, BatchMeta(producer, epoch, sequence))
    return parse_header(data)._replace(base_offset=offset)


def filled(batches: int = 7) -> ProducerState:
    state = ProducerState()
    for number in range(batches):
        assert state.check(header(number * 2, 2)) is None
        state.apply(header(number * 2, 2, offset=100 + number * 2), NOW, None)
    return state


def test_each_of_the_last_five_batches_is_answered_with_its_old_offsets() -> None:
    state = filled()
    for number in range(2, 7):
        assert state.check(header(number * 2, 2)) == Duplicate(100 + number * 2, 102 + number * 2)


def test_an_older_duplicate_and_a_gap_are_out_of_order() -> None:
    state = filled()
    for sequence in (2, 15, 13):
        with pytest.raises(OutOfOrderSequence, match=f"sent sequence {sequence} where 14 must follow"):
            state.check(header(sequence, 2))


def test_a_batch_with_the_same_start_and_another_length_is_no_duplicate() -> None:
    with pytest.raises(OutOfOrderSequence):
        filled().check(header(12, 3))


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    state = filled()
    with pytest.raises(OutOfOrderSequence):
        state.check(header(14, epoch=1))
    assert state.check(header(0, epoch=1)) is None
    state.apply(header(0, epoch=1), NOW, None)
    with pytest.raises(InvalidProducerEpoch):
        state.check(header(14, 2))


def test_an_unknown_producer_starts_anywhere_and_none_is_always_accepted() -> None:
    state = filled()
    assert state.check(header(77, producer=9)) is None
    assert state.check(header(-1, producer=-1)) is None


def test_sequences_go_on_at_zero_after_the_largest() -> None:
    state = ProducerState()
    state.apply(header(2**31 - 2, 2), NOW, None)
    assert state.check(header(0)) is None
    state.apply(header(0), NOW, None)
    assert state.check(header(2**31 - 2, 2)) == Duplicate(0, 2)


def test_a_marker_raises_the_epoch_and_the_next_sequence_is_zero() -> None:
    state = filled()
    state.apply(header(-1, epoch=3), NOW, None)
    with pytest.raises(OutOfOrderSequence):
        state.check(header(5, epoch=3))
    assert state.check(header(0, epoch=3)) is None


def test_idle_producers_are_forgotten() -> None:
    state = ProducerState()
    state.apply(header(0, producer=1), 1000, None)
    state.apply(header(0, producer=2), 1500, None)
    assert state.expire(2000, idle_ms=1000) == [1]
    assert sorted(state.producers) == [2]


def test_a_snapshot_comes_back_and_a_changed_one_is_refused() -> None:
    data = filled().to_bytes()
    assert ProducerState.from_bytes(data) == filled()
    assert ProducerState.from_bytes(ProducerState().to_bytes()) == ProducerState()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(CorruptBatch):
            ProducerState.from_bytes(bytes(changed))
    with pytest.raises(CorruptBatch):
        ProducerState.from_bytes(b"")


def test_a_staged_copy_leaves_the_original_alone() -> None:
    state = filled()
    copy = state.staged({5})
    copy.apply(header(14, 2), NOW, None)
    assert state == filled()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition remembers ten producers, four of them lasting."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 10)
    monkeypatch.setattr(producer_state, "LASTING_MAX", 4)


def known(*producers: int, seen_ms: int = NOW) -> ProducerState:
    state = ProducerState()
    for producer in producers:
        state.apply(header(0, producer=producer), seen_ms, None)
    return state


@pytest.mark.usefixtures("few")
def test_a_full_partition_forgets_the_idlest_producer_for_a_new_one() -> None:
    state = known(*range(1, 10))
    state.apply(header(0, producer=10), NOW - 1, None)
    state.admit({3, 10}, NOW)  # these are known
    with pytest.raises(TooManyProducers, match="none of them was idle for 15 minutes"):
        state.admit({11}, NOW)
    later_ms = NOW - 1 + SPARED_MS
    state.admit({11}, later_ms)
    assert sorted(state.producers) == list(range(1, 10))
    state.apply(header(0, producer=11), later_ms, None)
    with pytest.raises(TooManyProducers):
        state.admit({12}, later_ms)
    state.admit({12}, later_ms + 1_000)


@pytest.mark.usefixtures("few")
def test_open_transactions_and_lasting_producers_make_no_room() -> None:
    state = known(*range(1, 7), *(LASTING_PRODUCERS + number for number in range(4)))
    for producer in range(1, 7):
        state.transactions.begin(producer, producer)
    long_after_ms = NOW + 1_000 * SPARED_MS
    with pytest.raises(TooManyProducers):
        state.admit({11}, long_after_ms)
    state.transactions.open.pop(4)
    state.admit({11}, long_after_ms + 1_000)
    assert 4 not in state.producers


@pytest.mark.usefixtures("few")
def test_lasting_producers_have_a_bound_of_their_own() -> None:
    state = known(*(LASTING_PRODUCERS + number for number in range(4)))
    state = ProducerState.from_bytes(state.to_bytes())
    assert len(state.producers) >= state.looked_at_from
    with pytest.raises(TooManyProducers, match="4 lasting producers"):
        state.admit({LASTING_PRODUCERS + 9}, NOW + 1_000 * SPARED_MS)
    state.admit({LASTING_PRODUCERS + 1, 5}, NOW)
    state.clear()
    state.admit({LASTING_PRODUCERS + 9}, NOW)


@pytest.mark.usefixtures("few")
def test_a_leader_refuses_a_producer_too_many_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    for producer in range(10):
        log.append_as_leader(batch(b"a", producer_id=producer, producer_epoch=0, base_sequence=0), 0, WALL_MS)
    end = log.log_end_offset
    with pytest.raises(TooManyProducers):
        log.append_as_leader(batch(b"a", producer_id=99, producer_epoch=0, base_sequence=0), 0, WALL_MS)
    assert log.log_end_offset == end
    log.append_as_leader(batch(b"b", producer_id=3, producer_epoch=0, base_sequence=1), 0, WALL_MS)
    log.append_as_leader(batch(b"a"), 0, WALL_MS)
    log.close()
