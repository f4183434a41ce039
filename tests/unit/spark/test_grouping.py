"""Small ranges of a micro-batch share tasks; every range is read once, in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raylog.client.reading.range_fetcher import PartitionRange
from raylog.spark.reading.stream_reader import grouped


def range_of(partition: int, count: int) -> PartitionRange:
    return PartitionRange(
        topic="orders",
        topic_id="id",
        partition=partition,
        leader_epoch=0,
        leader=None,
        start=5,
        end=5 + count,
        brokers=(),
        secret=b"",
    )


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 60))
def test_all_ranges_come_once_in_order_and_tasks_stay_small(counts: list[int], most: int) -> None:
    ranges = [range_of(number, count) for number, count in enumerate(counts)]
    found = grouped(ranges, most)
    assert [item for group in found for item in group] == ranges
    assert all(len(group) == 1 or sum(item.end - item.start for item in group) <= most for group in found)


def test_few_records_of_many_partitions_are_one_task() -> None:
    assert len(grouped([range_of(number, 100) for number in range(50)])) == 1
    assert len(grouped([range_of(number, 5_000) for number in range(4)])) == 4
    assert grouped([]) == []
