"""A lane sends what is written, the first alone, and numbers again only what is certainly not stored."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raylog.base.errors import (
    ConnectionFailed,
    DuplicateSequence,
    InvalidProducerEpoch,
    OutOfOrderSequence,
    RaylogError,
    RecordTooLarge,
)
from raylog.base.ids import TopicPartition
from raylog.base.invariants import InvariantBroken
from raylog.client.producer.resumed import KnownSequence
from raylog.outbox.lane import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, OutboxLane
from raylog.outbox.model import PRODUCER_EPOCH_MAX, SEQUENCE_LIMIT, Changes, OutboxBatch, Position

WHERE = TopicPartition("transfers", 0)
TOPIC, PRODUCER = "id-1", 7


def batch(number: int, first: int, count: int = 2, epoch: int = 3) -> OutboxBatch:
    rows = tuple(range(100 * number, 100 * number + count))
    return OutboxBatch(WHERE, TOPIC, PRODUCER, epoch, number, first, rows)


def lane(*batches: OutboxBatch, known: KnownSequence | None = None, verified: bool = True) -> OutboxLane:
    """A lane with batches of two records from sequence 10 on."""
    behind = batches[-1].next_sequence if batches else 10
    number = batches[-1].number + 1 if batches else 5
    made = OutboxLane(WHERE, Position(TOPIC, PRODUCER, 3, number, behind))
    for each in batches:
        made.load(each)
    if verified:
        made.verify(known, 0)
    return made


def three() -> tuple[OutboxBatch, OutboxBatch, OutboxBatch]:
    return batch(5, 10), batch(6, 12), batch(7, 14)


def changes_of(one: OutboxLane) -> Changes:
    changes = Changes()
    one.take_changes(changes, TOPIC, PRODUCER)
    return changes


def numbers(batches: Sequence[OutboxBatch]) -> list[int]:
    return [each.number for each in batches]


def test_nothing_is_sent_before_the_leader_has_reported() -> None:
    one = lane(*three(), verified=False)
    assert one.wants_verification
    assert one.sendable(0) == []
    assert one.room(TOPIC, PRODUCER).batches == 0


def test_the_first_batch_goes_alone_and_the_others_behind_it() -> None:
    one = lane(*three())
    assert numbers(one.sendable(0)) == [5]
    assert one.sendable(0) == []
    one.stored(5, 200)
    assert numbers(one.sendable(0)) == [6, 7]
    one.stored(7, 204)
    assert changes_of(one).finished == [(three()[0], 200)]
    one.stored(6, 202)
    assert [offset for _, offset in changes_of(one).finished] == [202, 204]


def test_after_a_failure_the_first_goes_alone_once_all_are_answered() -> None:
    one = lane(*three())
    one.sendable(0)
    one.stored(5, 200)
    one.sendable(0)
    one.failed(6, ConnectionFailed(), 1_000)
    assert one.sendable(2_000) == []
    one.failed(7, OutOfOrderSequence(), 1_001)
    assert one.sendable(1_001) == []
    assert not one.wants_verification, "a gap behind a failed batch is expected"
    assert numbers(one.sendable(1_001 + 2 * FIRST_PAUSE_MS)) == [6]


def test_pauses_grow_to_a_limit_and_end_with_a_success() -> None:
    one = lane(batch(5, 10))
    now_ms = 0
    for _ in range(20):
        assert one.sendable(now_ms)
        one.failed(5, ConnectionFailed(), now_ms)
        due_ms = one.due_ms()
        assert due_ms is not None
        assert 0 < due_ms - now_ms <= LONGEST_PAUSE_MS
        now_ms = due_ms
    assert one.last_error is not None
    one.sendable(now_ms)
    one.stored(5, 1)
    assert one.last_error is None


def test_a_batch_stored_too_long_ago_is_finished_without_an_offset() -> None:
    one = lane(batch(5, 10))
    one.sendable(0)
    one.failed(5, DuplicateSequence(), 0)
    assert changes_of(one).finished == [(batch(5, 10), -1)]


@pytest.mark.parametrize("last", [9, 11, 13, 15])
def test_a_leader_that_has_stored_up_to_a_batch_boundary_is_believed(last: int) -> None:
    one = lane(*three(), known=KnownSequence(3, last))
    assert numbers(one.sendable(0)) == [5]
    assert not changes_of(one)


@pytest.mark.parametrize(
    "known",
    [KnownSequence(3, 10), KnownSequence(3, 40), KnownSequence(3, 8), KnownSequence(9, 0), KnownSequence(2, 99)],
)
def test_a_leader_that_knows_something_else_has_everything_numbered_again(known: KnownSequence) -> None:
    one = lane(*three(), known=known)
    assert one.sendable(0) == []
    changes = changes_of(one)
    assert [each for each, _ in changes.dissolved] == list(three())
    position = changes.positions[WHERE]
    assert position.producer_epoch == max(3, known.producer_epoch) + 1
    assert (position.next_batch, position.next_sequence) == (8, 0)
    assert one.room(TOPIC, PRODUCER).position == position


def test_a_lane_without_a_row_and_with_a_known_producer_is_renewed() -> None:
    one = OutboxLane(WHERE, None)
    one.verify(KnownSequence(4, 17), 0)
    assert one.room(TOPIC, PRODUCER).batches == 0
    assert changes_of(one).positions[WHERE] == Position(TOPIC, PRODUCER, 5, 0, 0)


def test_a_new_lane_begins_in_the_first_epoch() -> None:
    one = OutboxLane(WHERE, None)
    one.verify(None, 0)
    assert one.room(TOPIC, PRODUCER).position == Position(TOPIC, PRODUCER, 0, 0, 0)


@pytest.mark.parametrize("error", [OutOfOrderSequence(), InvalidProducerEpoch()])
def test_a_first_batch_that_does_not_follow_has_the_leader_report(error: RaylogError) -> None:
    one = lane(*three())
    one.sendable(0)
    one.failed(5, error, 0)
    assert one.wants_verification
    one.verify(KnownSequence(3, 99), 0)
    assert len(changes_of(one).dissolved) == 3


def test_a_refused_batch_is_taken_apart_and_those_behind_it_renumbered() -> None:
    one = lane(*three())
    one.sendable(0)
    one.failed(5, RecordTooLarge("too large"), 0)
    assert one.room(TOPIC, PRODUCER).batches == 0
    changes = changes_of(one)
    assert changes.dissolved == [(three()[0], True), (three()[1], False), (three()[2], False)]
    assert changes.failed == []
    assert changes.positions[WHERE].producer_epoch == 4


def test_a_row_that_is_refused_alone_has_failed() -> None:
    one = lane(batch(5, 10, count=1), batch(6, 11))
    one.sendable(0)
    one.failed(5, RecordTooLarge("too large"), 0)
    changes = changes_of(one)
    assert changes.failed == [(500, "RecordTooLarge: too large")]
    assert [each.number for each, _ in changes.dissolved] == [5, 6]


def test_a_refused_batch_waits_for_those_before_it_and_in_flight() -> None:
    one = lane(*three())
    one.sendable(0)
    one.stored(5, 1)
    one.sendable(0)
    one.failed(7, RecordTooLarge("too large"), 0)
    assert not changes_of(one).dissolved
    one.stored(6, 3)
    changes = changes_of(one)
    assert numbers([each for each, _ in changes.finished]) == [5, 6] or numbers(
        [each for each, _ in changes.finished]
    ) == [6]
    assert numbers([each for each, _ in changes.dissolved]) == [7]


def test_a_refused_batch_keeps_no_others_from_a_new_epoch() -> None:
    one = lane(*three())
    one.sendable(0)
    one.stored(5, 1)
    one.sendable(0)
    one.failed(6, OutOfOrderSequence(), 0)
    one.failed(7, RecordTooLarge("too large"), 0)
    one.verify(KnownSequence(3, 99), 0)
    changes = changes_of(one)
    assert numbers([each for each, _ in changes.dissolved]) == [6, 7]
    assert changes.positions[WHERE].producer_epoch == 4


def test_a_topic_made_again_gets_what_is_not_acknowledged_in_a_new_epoch() -> None:
    one = lane(*three())
    one.recreated()
    changes = Changes()
    one.take_changes(changes, "id-2", PRODUCER)
    assert changes.positions[WHERE] == Position("id-2", PRODUCER, 4, 8, 0)
    assert len(changes.dissolved) == 3


def test_an_empty_lane_of_a_topic_made_again_goes_on_in_a_new_epoch() -> None:
    found = lane().room("id-2", PRODUCER).position
    assert found == Position("id-2", PRODUCER, 4, 5, 0)


def test_sequences_never_wrap_around() -> None:
    one = OutboxLane(WHERE, Position(TOPIC, PRODUCER, 3, 5, SEQUENCE_LIMIT + 1))
    one.verify(None, 0)
    found = one.room(TOPIC, PRODUCER).position
    assert found == Position(TOPIC, PRODUCER, 4, 5, 0)


def test_the_last_epoch_is_followed_by_another_producer_id() -> None:
    one = OutboxLane(WHERE, Position(TOPIC, PRODUCER, PRODUCER_EPOCH_MAX, 5, SEQUENCE_LIMIT + 1))
    one.verify(None, 0)
    assert one.is_used_up(PRODUCER)
    assert one.room(TOPIC, PRODUCER).batches == 0
    assert not one.is_used_up(PRODUCER + 1)
    found = one.room(TOPIC, PRODUCER + 1).position
    assert found == Position(TOPIC, PRODUCER + 1, 0, 5, 0)


def test_more_batches_than_a_leader_recognises_are_a_bug() -> None:
    with pytest.raises(InvariantBroken, match="recognises"):
        lane(*[batch(number, 2 * number) for number in range(5, 11)])
