"""Whatever rows wait and however full the lanes are: keys keep their order, sequences have no gap, limits hold."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from raylog.base.ids import TopicPartition
from raylog.client.producer.partitioner import partition_for_key
from raylog.core.lane import BATCHES_MAX
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.outbox.model import Candidate, Limits, Position, TopicView
from raylog.outbox.planning import Plan, Planner, Room

TOPICS = {
    "a": TopicView("id-a", 3, 2_000, is_confirmed=True),
    "b": TopicView("id-b", 1, 400, delay_max_ms=-1, is_confirmed=True),
    SCHEDULED_TOPIC: TopicView("id-s", 2, 100_000),
}
ROWS: st.SearchStrategy[list[dict[str, object]]] = st.lists(
    st.builds(
        dict,
        topic=st.sampled_from(["a", "b", "gone"]),
        key=st.none() | st.sampled_from([b"k1", b"k2", b"k3"]),
        size=st.integers(0, 500) | st.sampled_from([339, 340, 3_000]),
        delay_ms=st.none() | st.none() | st.sampled_from([1, 10**12]),
        is_alone=st.booleans(),
    ),
    max_size=60,
)
ROOMS = st.dictionaries(
    st.sampled_from([TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]),
    st.integers(0, BATCHES_MAX),
)
LIMITS = st.builds(Limits, rows=st.integers(1, 60), batch_rows=st.integers(1, 9), batch_bytes=st.integers(50, 2_000))


def planned(
    rows: list[dict[str, object]], rooms: dict[TopicPartition, int], limits: Limits, turn: int
) -> tuple[list[Candidate], Plan]:
    candidates = [Candidate(number, **row) for number, row in enumerate(rows)]  # type: ignore[arg-type]

    def room(where: TopicPartition) -> Room:
        return Room(rooms.get(where, BATCHES_MAX), Position(TOPICS[where.topic].topic_id, 7, 2, 10, 100))

    planner = Planner(TOPICS, room, limits, turn)
    planner.take(candidates)
    return candidates, planner.finish()


@given(ROWS, ROOMS, LIMITS, st.integers(0, 9))
def test_a_plan_keeps_order_sequences_and_limits(
    rows: list[dict[str, object]], rooms: dict[TopicPartition, int], limits: Limits, turn: int
) -> None:
    candidates, plan = planned(rows, rooms, limits, turn)
    by_id = {row.row_id: row for row in candidates}
    chosen = [row_id for batch in plan.batches for row_id in batch.rows]
    assert len(chosen) == len(set(chosen)) == plan.rows <= limits.rows
    by_lane = defaultdict(list)
    for batch in plan.batches:
        by_lane[batch.where].append(batch)
    for where, batches in by_lane.items():
        assert len(batches) <= rooms.get(where, BATCHES_MAX)
        number, sequence = 10, 100
        for batch in batches:
            assert (batch.number, batch.first_sequence) == (number, sequence)
            number, sequence = number + 1, batch.next_sequence
            assert 1 <= len(batch.rows) <= limits.batch_rows
            assert len(batch.rows) == 1 or not any(by_id[row_id].is_alone for row_id in batch.rows[1:])
            assert list(batch.rows) == sorted(batch.rows)
        assert (plan.positions[where].next_batch, plan.positions[where].next_sequence) == (number, sequence)
    for row_id in chosen:
        row = by_id[row_id]
        assert row.topic in TOPICS
        assert row.delay_ms is None or row_id in plan.targets


@given(ROWS, ROOMS, LIMITS, st.integers(0, 9))
def test_rows_of_a_key_never_overtake_one_another(
    rows: list[dict[str, object]], rooms: dict[TopicPartition, int], limits: Limits, turn: int
) -> None:
    candidates, plan = planned(rows, rooms, limits, turn)
    place = {
        row_id: (batch.number, batch.first_sequence + index)
        for batch in plan.batches
        for index, row_id in enumerate(batch.rows)
    }
    refused = {row_id for row_id, _ in plan.refused}
    left: set[tuple[str, bytes]] = set()
    before: dict[tuple[str, bytes], tuple[int, int]] = {}
    for row in candidates:
        if row.key is None or row.delay_ms is not None:
            if row.key is not None and row.row_id in refused:
                left.add((row.topic, row.key))
            continue
        key = (row.topic, row.key)
        at = place.get(row.row_id)
        if at is None:
            left.add(key)
            continue
        assert key not in left, "a later row of a key went before one that waits"
        assert at > before.get(key, (0, 0))
        before[key] = at
        topic = TOPICS[row.topic]
        (batch,) = (each for each in plan.batches if row.row_id in each.rows)
        assert batch.where == TopicPartition(row.topic, partition_for_key(row.key, topic.partitions))


@given(ROWS, LIMITS)
def test_only_what_no_batch_can_hold_or_no_topic_allows_is_refused(
    rows: list[dict[str, object]], limits: Limits
) -> None:
    candidates, plan = planned(rows, {}, limits, 0)
    refused = dict(plan.refused)
    waiting: set[tuple[str, bytes]] = set()
    for row in candidates:
        if row.topic not in TOPICS or row.row_id not in refused:
            continue
        topic = TOPICS[row.topic]
        is_too_large = 61 + row.size > topic.message_bytes
        is_too_late = row.delay_ms is not None and row.delay_ms > topic.delay_max_ms
        assert is_too_large or is_too_late
        if row.key is not None:
            assert (row.topic, row.key) not in waiting, "the key's later rows wait, they are not refused"
            waiting.add((row.topic, row.key))
    assert plan.unknown_topics <= {"gone"}


def test_no_row_fails_by_a_limit_that_may_be_out_of_date() -> None:
    planner = Planner({"a": TopicView("id-a", 1, 100)}, lambda _: Room(5, Position("id-a", 7, 0, 0, 0)), Limits())
    planner.take([Candidate(1, "a", b"k", 200), Candidate(2, "a", b"k", 1), Candidate(3, "a", b"other", 1)])
    plan = planner.finish()
    assert plan.refused == []
    assert plan.doubted_topics == {"a"}
    assert [batch.rows for batch in plan.batches] == [(3,)], "the key waits until the limit is known"
