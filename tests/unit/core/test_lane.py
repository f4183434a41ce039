"""A lane sends in order, the first batch alone, pauses after failures, and stops at what its target never takes.

That each record is stored once is shown by ``tests/property/core/test_lane.py``.
"""

from __future__ import annotations

import pytest

from raylog.base.errors import (
    CorruptMessage,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequence,
    RaylogError,
    RecordTooLarge,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.base.invariants import InvariantBroken
from raylog.core.lane import BATCHES_MAX, SEQUENCES, Lane, Remedy, Trouble, trouble_of
from raylog.rpc import FrameTooLarge
from raylog.storage.log.producer_state import BATCHES_KEPT

FIRST_MS, MAX_MS = 10, 80


def lane(*batches: str, under_way_max: int = BATCHES_MAX) -> Lane[str]:
    """A lane with batches of as many records as their names have letters."""
    made = Lane[str](FIRST_MS, MAX_MS, under_way_max=under_way_max)
    for batch in batches:
        made.add(batch, len(batch))
    return made


def remote(error: RaylogError) -> RaylogError:
    error.is_remote = True
    return error


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (FrameTooLarge("by the own end"), Trouble.REFUSED),
        (remote(RecordTooLarge("by the target")), Trouble.REFUSED),
        (InvalidRecord("by the own end"), Trouble.REFUSED),
        (remote(InvalidTimestamp("too old")), Trouble.REFUSED),
        (remote(CorruptMessage("it does not open")), Trouble.REFUSED),
        (UnknownTopicOrPartition("deleted"), Trouble.DELETED),
        (remote(OutOfOrderSequence("it forgot")), Trouble.FORGOTTEN),
        (remote(InvalidProducerEpoch("it knows a higher one")), Trouble.FORGOTTEN),
        (remote(UnknownTopicOrPartition("the leader may not know it yet")), Trouble.UNREACHABLE),
        (remote(NotEnoughReplicas("now")), Trouble.UNREACHABLE),
        (remote(NotLeaderOrFollower("here")), Trouble.UNREACHABLE),
        (RequestTimedOut("on the way"), Trouble.UNREACHABLE),
        (CorruptMessage("of the own reading"), Trouble.UNREACHABLE),
        (OSError("no way"), Trouble.UNREACHABLE),
    ],
)
def test_each_error_means_one_trouble(error: Exception, trouble: Trouble) -> None:
    assert trouble_of(error) is trouble


def test_a_lane_has_as_many_open_batches_as_a_partition_remembers() -> None:
    assert BATCHES_MAX == BATCHES_KEPT
    with pytest.raises(InvariantBroken, match="recognises"):
        lane(*"abcdef")


def test_the_first_batch_goes_alone_and_the_others_behind_it() -> None:
    one = lane("aa", "b", "c")
    assert one.sendable(0) == ["aa"]
    assert one.sendable(0) == []
    one.stored(0)
    assert one.sendable(0) == ["b", "c"]
    one.stored(3)
    assert (one.unstored, one.forget_stored()) == (["b"], ["aa"])


def test_one_batch_at_a_time_is_under_way_where_the_owner_wants_it_so() -> None:
    one = lane("a", "b", "c", under_way_max=1)
    for number, batch in enumerate("abc"):
        assert one.sendable(0) == [batch]
        one.stored(number)


def test_after_a_failure_the_first_goes_alone_once_all_are_answered() -> None:
    one = lane("a", "b", "c")
    one.sendable(0)
    one.stored(0)
    one.sendable(0)
    one.failed(1, Trouble.UNREACHABLE, 0)
    assert one.sendable(FIRST_MS) == []
    one.failed(2, Trouble.FORGOTTEN, 0)
    assert one.remedy is None, "a gap behind a failed batch is expected"
    assert one.due_ms() == 2 * FIRST_MS
    assert one.sendable(2 * FIRST_MS) == ["b"]


def test_pauses_double_to_a_limit_and_end_with_a_success() -> None:
    one = lane("a", "b")
    pauses, now_ms = [], 0
    for _ in range(5):
        one.sendable(now_ms)
        one.failed(0, Trouble.UNREACHABLE, now_ms)
        due_ms = one.due_ms() or 0
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert pauses == [10, 20, 40, 80, 80]
    one.sendable(now_ms)
    one.stored(0)
    one.sendable(now_ms)
    one.failed(1, Trouble.UNREACHABLE, now_ms)
    assert one.due_ms() == now_ms + FIRST_MS


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    one = lane("a")
    one.sendable(1_000_000)
    one.failed(0, Trouble.UNREACHABLE, 1_000_000)
    assert one.sendable(0) == []
    assert one.sendable(MAX_MS) == ["a"]


@pytest.mark.parametrize(
    ("batch", "trouble", "remedy"),
    [
        ("aa", Trouble.REFUSED, Remedy.SPLIT),
        ("a", Trouble.REFUSED, Remedy.GIVE_UP),
        ("a", Trouble.FORGOTTEN, Remedy.REBASE),
        ("a", Trouble.DELETED, Remedy.REROUTE),
    ],
)
def test_a_batch_in_trouble_stops_the_lane(batch: str, trouble: Trouble, remedy: Remedy) -> None:
    one = lane(batch, "b")
    one.sendable(0)
    one.failed(0, trouble, 0)
    assert one.remedy is remedy
    assert (one.sendable(MAX_MS), one.due_ms()) == ([], None)
    assert one.take_back() == [batch, "b"]
    assert (one.next_sequence, one.room, one.is_stopped) == (0, BATCHES_MAX, False)


def test_a_refused_batch_waits_for_those_before_it() -> None:
    one = lane("a", "b", "c", "d")
    one.sendable(0)
    one.stored(0)
    one.sendable(0)
    one.failed(2, Trouble.REFUSED, 0)
    assert one.is_stopped
    assert one.remedy is None, "others are under way"
    one.failed(3, Trouble.FORGOTTEN, 0)
    one.failed(1, Trouble.UNREACHABLE, 0)
    assert one.remedy is None, "another comes before"
    assert one.sendable(MAX_MS) == ["b"]
    one.stored(1)
    assert one.sendable(MAX_MS) == []
    assert one.remedy is Remedy.GIVE_UP


def test_other_batches_than_the_refused_ones_need_no_pause() -> None:
    one = lane("a", "b")
    one.sendable(0)
    one.failed(0, Trouble.UNREACHABLE, 0)
    one.sendable(FIRST_MS)
    one.failed(0, Trouble.REFUSED, FIRST_MS)
    one.take_back()
    one.add("b", 1)
    assert one.sendable(FIRST_MS) == ["b"]


def test_what_was_forgotten_goes_again_where_the_last_sequence_fits() -> None:
    one = lane("a")
    one.sendable(0)
    one.failed(0, Trouble.FORGOTTEN, 0)
    one.go_on()
    assert one.sendable(MAX_MS) == ["a"]


def test_sequences_wrap_around() -> None:
    one = Lane[str](FIRST_MS, MAX_MS, next_sequence=SEQUENCES - 1)
    one.add("aa", 2)
    assert one.next_sequence == 1
    one.sendable(0)
    assert one.sent(SEQUENCES - 1) == "aa"
    assert one.sent(1) is None
