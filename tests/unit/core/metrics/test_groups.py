"""Lag of consumer groups in records and in seconds."""

from dataclasses import replace

from raylog.base.ids import ProducerId, TopicPartition
from raylog.core.metadata.image import Coordinator
from raylog.core.metrics.exposition import render
from raylog.core.metrics.groups import MARKS_MAX, EndHistory, GroupCensus, Lag, RestingGroups, group_families

T0 = TopicPartition("t", 0)
RUNS = Coordinator(kind="group", index=3, epoch=5, producer_id=ProducerId(1), host="host", port=7)
ENDED = replace(RUNS, host="", port=0)


def test_lag_in_seconds_is_the_age_of_the_first_uncommitted_record() -> None:
    ends = EndHistory()
    for now_ms, end in ((1_000, 10), (2_000, 20), (3_000, 20), (4_000, 35)):
        ends.saw(T0, "id", end, now_ms)
    assert ends.lag(T0, 35, 9_000) == Lag(0, 0.0)
    assert ends.lag(T0, 34, 9_000) == Lag(1, 5.0)
    assert ends.lag(T0, 20, 9_000) == Lag(15, 5.0)
    assert ends.lag(T0, 19, 9_000) == Lag(16, 7.0)
    assert ends.lag(T0, 0, 9_000) == Lag(35, 8.0)  # at least: it was there at the first reading
    assert ends.lag(T0, 99, 9_000) == Lag(0, 0.0)  # a commit beyond the end


def test_a_partition_that_was_never_seen_has_no_lag() -> None:
    ends = EndHistory()
    ends.saw(T0, "id", 1, 0)
    ends.forget([])
    assert ends.lag(T0, 0, 5) is None


def test_an_end_that_went_back_begins_a_new_history() -> None:
    ends = EndHistory()
    ends.saw(T0, "id", 100, 1_000)
    ends.saw(T0, "id", 3, 5_000)
    assert ends.lag(T0, 0, 6_000) == Lag(3, 1.0)


def test_a_topic_that_was_created_again_begins_a_new_history() -> None:
    ends = EndHistory()
    ends.saw(T0, "old", 100, 1_000, start=90)
    ends.saw(T0, "new", 150, 5_000)
    assert ends.lag(T0, 40, 6_000) == Lag(110, 1.0)


def test_what_retention_removed_is_no_lag() -> None:
    ends = EndHistory()
    ends.saw(T0, "id", 105, 1_000, start=0)
    assert ends.lag(T0, 10, 2_000) == Lag(95, 1.0)
    ends.saw(T0, "id", 105, 3_000, start=105)
    assert ends.lag(T0, 10, 4_000) == Lag(0, 0.0)
    ends.saw(T0, "id", 110, 5_000, start=105)
    assert ends.lag(T0, 10, 6_000) == Lag(5, 1.0)


def test_the_history_is_bounded_and_old_moments_stay_roughly_known() -> None:
    ends = EndHistory()
    for second in range(10 * MARKS_MAX):
        ends.saw(T0, "id", second, second * 1000)
    now_ms = 10 * MARKS_MAX * 1000
    assert len(ends._marks[T0]) <= MARKS_MAX
    for behind in (10, 1000, 9 * MARKS_MAX):
        lag = ends.lag(T0, 10 * MARKS_MAX - behind, now_ms)
        assert lag is not None
        assert 0.8 * behind - 2 <= lag.seconds <= behind


def test_a_group_has_its_members_offsets_and_lag() -> None:
    group = GroupCensus(name="board", state="Stable", members=2, offsets={T0: 5, TopicPartition("t", 1): 7})
    page = render(group_families([group], {("board", T0): Lag(4, 2.5)}))
    assert 'kafka_consumergroup_members{consumergroup="board"} 2\n' in page
    assert 'raylog_consumergroup_state{consumergroup="board",state="Stable"} 1\n' in page
    assert 'kafka_consumergroup_current_offset{consumergroup="board",topic="t",partition="1"} 7\n' in page
    assert 'kafka_consumergroup_lag{consumergroup="board",topic="t",partition="0"} 4\n' in page
    assert 'kafka_consumergroup_lag_sum{consumergroup="board",topic="t"} 4\n' in page
    assert 'raylog_consumergroup_lag_seconds{consumergroup="board",topic="t",partition="0"} 2.5\n' in page
    assert 'kafka_consumergroup_lag{consumergroup="board",topic="t",partition="1"}' not in page


def test_pending_offsets_are_shown_where_there_are_any() -> None:
    quiet = GroupCensus(name="board", state="Empty", members=0, offsets={})
    assert "pending" not in render(group_families([quiet], {}))
    page = render(group_families([quiet, replace(quiet, name="open", pending_offsets=3)], {}))
    assert 'raylog_consumergroup_pending_offsets{consumergroup="open"} 3\n' in page
    assert page.count("raylog_consumergroup_pending_offsets{") == 1


def test_the_groups_of_a_coordinator_that_has_ended_stay_without_members() -> None:
    resting = RestingGroups()
    resting.saw(RUNS, [GroupCensus(name="g", state="Stable", members=2, offsets={T0: 4})])
    assert resting.groups([RUNS]) == [], "it reports them itself"
    at_rest = [GroupCensus(name="g", state="Empty", members=0, offsets={T0: 4})]
    assert resting.groups([ENDED]) == at_rest
    assert resting.groups([ENDED]) == at_rest


def test_offsets_of_a_topic_that_does_not_exist_any_more_are_left_out() -> None:
    offsets = {T0: 4, TopicPartition("u", 0): 7}
    group = GroupCensus(name="g", state="Empty", members=0, offsets=offsets, topic_ids={"t": "1", "u": "2"})
    assert group.of_topics(lambda name, topic_id: (name, topic_id) != ("t", "1")) == replace(
        group, offsets={TopicPartition("u", 0): 7}, topic_ids={"u": "2"}
    )
    assert group.of_topics(lambda _name, _topic_id: True) == group


def test_the_groups_of_a_coordinator_that_started_elsewhere_are_forgotten() -> None:
    resting = RestingGroups()
    resting.saw(RUNS, [GroupCensus(name="g", state="Stable", members=2, offsets={T0: 4})])
    assert resting.groups([replace(RUNS, host="another", epoch=6)]) == []
    assert resting.groups([replace(ENDED, epoch=6)]) == []
    assert resting.groups([ENDED]) == []
