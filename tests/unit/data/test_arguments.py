"""Arguments of read and write: their forms, and one sentence for each that is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raylog
from raylog.base.errors import InvalidConfig
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.data.arguments import consumer_of
from raylog.data.offsets import end_of, start_of
from raylog.data.reads import by_node, in_groups, shared_out, shares
from tests.unit.data.ranges import piece

MOMENT = datetime(2026, 1, 2, 3)


def test_offsets_come_in_every_form_of_rays() -> None:
    assert start_of("earliest").everywhere == EARLIEST
    assert end_of(None).everywhere == LATEST
    assert start_of(7).everywhere == 7
    spec = end_of({"t": {0: 5, 1: "latest"}})
    assert [spec.of(TopicPartition("t", number)) for number in range(3)] == [5, LATEST, LATEST]


def test_datetimes_without_a_zone_are_utc_and_rounded_up() -> None:
    utc_ms = int(MOMENT.replace(tzinfo=UTC).timestamp() * 1000)
    assert start_of(MOMENT).everywhere == utc_ms
    assert start_of(MOMENT.replace(tzinfo=timezone(timedelta(hours=2)))).everywhere == utc_ms - 7_200_000
    assert start_of(MOMENT + timedelta(microseconds=1)).everywhere == utc_ms + 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topics": []}, "topics must be the name of a topic"),
        ({"trigger": "continous"}, "did you mean 'continuous'"),
        ({"start_offset": "latest"}, "start_offset cannot be 'latest': nothing would be read"),
        ({"start_offset": "earlyest"}, "did you mean 'earliest'"),
        ({"start_offset": -3}, "start_offset must be at least 0"),
        ({"start_offset": 1.5}, "start_offset must be 'earliest', an offset, a datetime"),
        ({"end_offset": "earliest"}, "end_offset cannot be 'earliest'"),
        ({"start_offset": 9, "end_offset": 3}, "start_offset .offset 9. lies behind end_offset .3."),
        ({"start_offset": {"t": [1]}}, "start_offset as a mapping must be"),
        ({"start_offset": {"t": {"0": 1}}}, "must have partitions as its keys"),
        ({"columns": ["valeu"]}, "did you mean 'value'"),
        ({"columns": ["headers"], "include_headers": False}, "columns names headers"),
        ({"override_num_blocks": 0}, "override_num_blocks must be a whole number from 1 on"),
        ({"timeout_ms": "soon"}, "timeout_ms must be a whole number from 1 on"),
        ({"trigger": "continuous", "end_offset": MOMENT}, "cannot be a time"),
        ({"consumer_config": {"group.id": "g"}}, "may not have 'group.id': a dataset belongs to no group"),
        ({"consumer_config": {"fetch.max.byte": 1}}, "did you mean 'fetch.max.bytes'"),
        ({"isolation_level": "commited"}, "did you mean 'read_committed'"),
        ({"secret": "00", "token": "t"}, "give one of them"),
        ({"start_ofset": 5}, "Unknown argument 'start_ofset'; did you mean 'start_offset'"),
        ({"kafka_auth_config": {}}, "kafka_auth_config is of Kafka: give secret or token"),
        ({"bootstrap_servers": 9092}, "bootstrap_servers must be 'host:port'"),
    ],
)
def test_a_wrong_argument_is_one_sentence_before_anything_starts(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        raylog.data.read(**{"topics": "t", **given})


@pytest.mark.parametrize("ds", [[1, 2], None, "flights"])
def test_only_a_dataset_can_be_written(ds: Any) -> None:
    with pytest.raises(InvalidConfig, match="takes a Ray Dataset, not "):
        raylog.data.write(ds, "t")


def test_reads_are_committed_unless_configured_otherwise() -> None:
    assert consumer_of(None, None).isolation_level == "read_committed"
    assert consumer_of({"isolation.level": "read_uncommitted"}, None).isolation_level == "read_uncommitted"
    assert consumer_of({"isolation.level": "read_uncommitted"}, "read_committed").isolation_level == "read_committed"


def test_a_level_beside_the_configuration_wins_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert consumer_of({"isolation_level": "read_committed"}, "read_committed").isolation_level == "read_committed"
    assert not caplog.messages
    assert consumer_of({"isolation.level": "read_uncommitted"}, "read_committed").isolation_level == "read_committed"
    assert caplog.messages == [
        "isolation_level=read_committed wins; isolation.level=read_uncommitted in consumer_config is ignored."
    ]


def test_tasks_are_placed_by_the_node_of_the_leader() -> None:
    found = [piece(0, node="a"), piece(1, node="b"), piece(2, node="gone")]
    assert by_node(found, {"a", "b"}) == {"a": [found[0]], "b": [found[1]], "": [found[2]]}
    assert by_node(found, {"a"}) == {"": found}
    assert by_node([], {"a", "b"}) == {}


@given(numbers=st.lists(st.integers(0, 50), min_size=1, max_size=6), total=st.integers(1, 60))
def test_shares_add_up_and_leave_no_node_without_a_task(numbers: list[int], total: int) -> None:
    found = shares(numbers, total)
    assert min(found) >= 1
    assert sum(found) == max(total, len(numbers)) or sum(numbers) == 0


def test_ranges_are_shared_out_completely() -> None:
    found = [piece(number) for number in range(7)]
    for count in range(1, 9):
        assert sorted(item.partition for group in shared_out(found, count) for item in group) == list(range(7))
        groups = in_groups(found, count)
        assert [item for group in groups for item in group] == found
        assert len(groups) == min(count, 7)
        assert all(groups)
