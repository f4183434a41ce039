"""Idempotent producers: duplicates answered, gaps refused, old epochs fenced, snapshots faithful."""

import pytest

from raylog.core.errors import InvalidProducerEpoch, OutOfOrderSequence
from raylog.storage.batch.header import BatchHeader, parse_header
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.errors import CorruptBatch
from raylog.storage.log.producer_state import Duplicate, ProducerState

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
    assert ProducerState.from_bytes(data, LATER) == filled()
    assert ProducerState.from_bytes(ProducerState().to_bytes(), LATER) == ProducerState()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(CorruptBatch):
            ProducerState.from_bytes(bytes(changed), LATER)
    with pytest.raises(CorruptBatch):
        ProducerState.from_bytes(b"", LATER)


def test_a_staged_copy_leaves_the_original_alone() -> None:
    state = filled()
    copy = state.staged({5})
    copy.apply(header(14, 2), NOW, None)
    assert state == filled()
