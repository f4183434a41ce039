"""The lag of a group, in records and in seconds; and a consumer's metrics."""

import time
from typing import Any

import pytest

from raylog.base.errors import InvalidRequest
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin
from raylog.client.admin.lag import timestamp_at
from raylog.client.consumer.consumer import Consumer
from raylog.storage.batch.header import CONTROL_BIT, TIMESTAMP_TYPE_BIT, stamp
from raylog.storage.batch.records import BatchMeta, encode_batch, encode_kafka_batch
from tests.unit.client.consumer_support import fill, numbers, read, with_coordinator
from tests.unit.client.toy_server import ToyCluster

HERE = TopicPartition("flights", 0)


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.fixture
def reader(cluster: ToyCluster) -> dict[str, Any]:
    """A group `board` that commits `flights` manually."""
    with_coordinator(cluster)
    cluster.create_topic("flights", partitions=3)
    return {**cluster.options, "group_id": "board", "enable_auto_commit": False}


def test_lag_is_known_in_records_and_in_seconds(cluster: ToyCluster, reader: dict[str, Any]) -> None:
    began_ms = now_ms()
    made = [began_ms - 60_000 + 10_000 * number for number in range(4)]
    for number in range(2):
        fill(cluster, "flights", number, numbers(0, 4), timestamps=made)
    one, two, nothing = (TopicPartition("flights", number) for number in range(3))
    with Consumer(**reader) as consumer:
        consumer.commit({one: 1, two: 4, nothing: 0})
    with Admin(**cluster.options) as admin:
        lags = admin.group_lag("board")
    assert [(lags[each].committed, lags[each].end, lags[each].records) for each in (one, two, nothing)] == [
        (1, 4, 3),
        (4, 4, 0),
        (0, 0, 0),
    ]
    assert 50 <= (lags[one].seconds or 0) <= 50 + (now_ms() - began_ms) / 1000
    assert (lags[two].seconds, lags[nothing].seconds) == (0, 0)


def test_what_retention_removed_is_no_lag_and_the_age_is_of_what_is_left(
    cluster: ToyCluster, reader: dict[str, Any]
) -> None:
    fill(cluster, "flights", 0, numbers(0, 4), timestamps=[now_ms() - 3_600_000] * 4)
    fill(cluster, "flights", 0, numbers(4, 8), timestamps=[now_ms() - 60_000] * 4)
    with Consumer(**reader) as consumer:
        consumer.commit({HERE: 1})
    cluster.do(lambda: cluster.partitions["flights", 0].delete_records(4))
    with Admin(**cluster.options) as admin:
        lag = admin.group_lag("board")[HERE]
    assert (lag.records, lag.error) == (4, None)
    assert 60 <= (lag.seconds or 0) < 120


def test_a_record_of_the_future_is_no_negative_lag(cluster: ToyCluster, reader: dict[str, Any]) -> None:
    fill(cluster, "flights", 0, [b"x"], timestamps=[now_ms() + 3_600_000])
    with Consumer(**reader) as consumer:
        consumer.commit({HERE: 0})
    with Admin(**cluster.options) as admin:
        lag = admin.group_lag("board")[HERE]
    assert (lag.records, lag.seconds) == (1, 0)


def test_a_log_that_is_empty_after_retention_has_no_lag(cluster: ToyCluster, reader: dict[str, Any]) -> None:
    fill(cluster, "flights", 0, numbers(0, 8), timestamps=[now_ms()] * 8)
    with Consumer(**reader) as consumer:
        consumer.commit({HERE: 1})
    cluster.do(lambda: cluster.partitions["flights", 0].delete_records(8))
    with Admin(**cluster.options) as admin:
        lag = admin.group_lag("board")[HERE]
    assert (lag.committed, lag.end, lag.records, lag.seconds, lag.error) == (1, 8, 0, 0.0, None)


def test_offsets_of_a_deleted_topic_are_no_offsets_of_one_created_again(
    cluster: ToyCluster, reader: dict[str, Any]
) -> None:
    cluster.create_topic("again")
    place = TopicPartition("again", 0)
    fill(cluster, "again", 0, numbers(0, 50), timestamps=[now_ms()] * 50)
    with Consumer(**reader) as consumer:
        consumer.commit({place: 50})
    cluster.delete_topic("again")
    with Admin(**cluster.options) as admin:
        before = admin.describe_group("board")
        assert (before.offsets, [each.offset for each in before.deleted_offsets]) == ({}, [50])
        cluster.create_topic("again")
        fill(cluster, "again", 0, numbers(0, 30), timestamps=[now_ms()] * 30)
        assert place not in admin.describe_group("board").offsets
        with Consumer(**reader) as consumer:
            consumer.commit({place: 10})
        found = admin.describe_group("board")
        lag = admin.group_lag(found)[place]
    assert (found.offsets, [each.offset for each in found.deleted_offsets]) == ({place: 10}, [50])
    assert (lag.committed, lag.end, lag.records) == (10, 30, 20)


def test_offsets_of_a_deleted_topic_have_no_lag_and_the_others_theirs(
    cluster: ToyCluster, reader: dict[str, Any]
) -> None:
    cluster.create_topic("deleted")
    deleted = TopicPartition("deleted", 0)
    fill(cluster, "flights", 0, [b"x"], timestamps=[now_ms()])
    with Consumer(**reader) as consumer:
        consumer.commit({HERE: 0, deleted: 0})
    cluster.delete_topic("deleted")
    with Admin(**cluster.options) as admin:
        lags = admin.group_lag("board")
    assert deleted not in lags
    assert lags[HERE].records == 1


def test_the_time_of_a_record_is_found_in_every_kind_of_batch() -> None:
    moments = [50, 10, 90]
    plain = bytearray(encode_batch(None, [b"a", b"b", b"c"], moments))
    kafkas = bytearray(encode_kafka_batch(None, [b"a", b"b", b"c"], moments))
    for batch in (plain, kafkas, bytearray(encode_batch(None, [b"a", b"b", b"c"], moments, compression=4))):
        stamp(batch, 0, 7, 0)
        assert [timestamp_at(batch, offset) for offset in (3, 7, 8, 9, 10)] == [50, 50, 10, 90, None]
    appended = bytearray(encode_batch(None, [b"a", b"b"], [5, 9], None, BatchMeta(attributes=TIMESTAMP_TYPE_BIT)))
    assert timestamp_at(appended, 1) == 9
    marker = encode_batch(None, [b"m"], [1], None, BatchMeta(attributes=CONTROL_BIT))
    behind = bytearray(encode_batch(None, [b"a"], [2]))
    stamp(behind, 0, 1, 0)
    assert timestamp_at(marker + bytes(behind), 0) == 2
    assert timestamp_at(b"", 0) is None


def test_a_consumer_reports_its_lag(cluster: ToyCluster) -> None:
    cluster.create_topic("flights", partitions=2)
    for number in range(2):
        fill(cluster, "flights", number, numbers(0, 10))
    other = TopicPartition("flights", 1)
    with Consumer(**cluster.options, auto_offset_reset="earliest") as consumer:
        assert consumer.metrics()["assigned-partitions"] == 0
        consumer.assign([HERE, other])
        assert consumer.current_lag(HERE) is None
        consumer.pause(other)
        consumer.poll(5_000, max_records=3)
        assert consumer.current_lag(HERE) == 7
        assert consumer.metrics()["records-lag-max"] == 7
        assert consumer.metrics()["records-lead-min"] == 3
        read(consumer, 7)
        assert consumer.metrics()["records-lag-max"] == 0
        with pytest.raises(InvalidRequest):
            consumer.current_lag(TopicPartition("flights", 9))
