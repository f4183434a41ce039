"""Consumer without a group: positions, seeks, resets, pauses, errors, and what a leader's move does to it."""

import gc
import threading
import warnings
from datetime import UTC, datetime
from typing import Any

import pytest

from raylog.base.errors import (
    ClientClosed,
    CorruptMessage,
    InvalidConfig,
    InvalidGroupId,
    InvalidRequest,
    NoOffsetForPartition,
    OffsetOutOfRange,
    RecordDeserializationFailed,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.runtime import Signal
from raylog.client.types import EpochEndOffset, OffsetAndTimestamp, Record
from raylog.storage.batch.header import HEADER_BYTES, parse_header
from tests.unit.client.consumer_support import DEADLINE_S, fill, numbers, offsets, read
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

HERE = TopicPartition("flights", 0)


@pytest.fixture
def flights(cluster: ToyCluster) -> ToyCluster:
    """A topic of one partition with 100 records in batches of ten."""
    cluster.create_topic("flights")
    for first in range(0, 100, 10):
        fill(cluster, "flights", 0, numbers(first, first + 10))
    return cluster


def test_every_record_comes_once_in_order_with_all_its_parts(cluster: ToyCluster) -> None:
    cluster.create_topic("flights")
    fill(cluster, "flights", 0, [b"a", None], keys=[None, b"k"], headers=[[("source", b"csv")], None])
    fill(cluster, "flights", 0, [b"c"], timestamps=[77])
    with Consumer("flights", auto_offset_reset="earliest", **cluster.options) as consumer:
        assert read(consumer, 3) == [
            Record("flights", 0, 0, 0, None, b"a", (("source", b"csv"),)),
            Record("flights", 0, 1, 1, b"k", None, ()),
            Record("flights", 0, 2, 77, None, b"c", ()),
        ]


def test_without_a_group_all_partitions_are_read(cluster: ToyCluster) -> None:
    cluster.create_topic("flights", partitions=3)
    for partition in range(3):
        fill(cluster, "flights", partition, numbers(0, 50))
    with Consumer("flights", auto_offset_reset="earliest", max_poll_records=7, **cluster.options) as consumer:
        records = read(consumer, 150)
        assert consumer.assignment() == {TopicPartition("flights", number) for number in range(3)}
    for number in range(3):
        assert [record.offset for record in records if record.partition == number] == list(range(50))


def test_poll_returns_at_most_max_records(flights: ToyCluster) -> None:
    with Consumer("flights", auto_offset_reset="earliest", max_poll_records=7, **flights.options) as consumer:
        sizes = [len(consumer.poll(5_000)[HERE]) for _ in range(3)]
        assert sizes == [7, 7, 7]
        assert offsets(consumer.poll(5_000, max_records=2)[HERE]) == [21, 22]
        assert consumer.position(HERE) == 23
        assert offsets(consumer.consume(3, timeout=5)) == [23, 24, 25]


def test_latest_begins_behind_what_is_there(flights: ToyCluster) -> None:
    with Consumer("flights", **flights.options) as consumer:
        assert consumer.poll(0) == {}
        wait_for(lambda: consumer.poll(20) == {} and consumer.assignment(), "nothing was assigned")
        assert consumer.position(HERE) == 100
        fill(flights, "flights", 0, [b"new"])
        assert offsets(read(consumer, 1)) == [100]


def test_iteration_ends_when_nothing_comes_for_the_consumers_timeout(flights: ToyCluster) -> None:
    options = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 300, **flights.options}
    with Consumer("flights", **options) as consumer:
        assert offsets(consumer) == list(range(100))
        fill(flights, "flights", 0, [b"later"])
        assert next(consumer).offset == 100


def test_iteration_moves_the_position_record_by_record(flights: ToyCluster) -> None:
    with Consumer("flights", auto_offset_reset="earliest", **flights.options) as consumer:
        for record in consumer:
            assert consumer.position(HERE) == record.offset + 1
            if record.offset == 14:
                break
        assert offsets(consumer.poll(5_000, max_records=3)[HERE]) == [15, 16, 17]


def test_a_seek_throws_away_what_was_fetched_ahead(flights: ToyCluster) -> None:
    with Consumer("flights", auto_offset_reset="earliest", **flights.options) as consumer:
        assert offsets(consumer.poll(5_000, max_records=3)[HERE]) == [0, 1, 2]
        consumer.seek(HERE, 95)
        assert consumer.position(HERE) == 95
        assert offsets(read(consumer, 5)) == [95, 96, 97, 98, 99]
        consumer.seek(HERE, 13)
        assert offsets(consumer.poll(5_000, max_records=2)[HERE]) == [13, 14]
        consumer.seek_to_end()
        fill(flights, "flights", 0, [b"new"])
        assert offsets(read(consumer, 1)) == [100]
        consumer.seek_to_beginning(HERE)
        assert offsets(consumer.poll(5_000, max_records=1)[HERE]) == [0]


def test_a_seek_in_the_middle_of_an_iteration_takes_effect_at_once(flights: ToyCluster) -> None:
    with Consumer("flights", auto_offset_reset="earliest", **flights.options) as consumer:
        seen: list[int] = []
        for record in consumer:
            seen.append(record.offset)
            if seen == [0, 1, 2]:
                consumer.seek(HERE, 50)
            if len(seen) == 5:
                break
        assert seen == [0, 1, 2, 50, 51]


def test_assigned_partitions_can_be_sought_before_the_first_poll(flights: ToyCluster) -> None:
    with Consumer(**flights.options) as consumer:
        consumer.assign([HERE])
        consumer.seek(HERE, 42)
        assert read(consumer, 1)[0].offset == 42
        with pytest.raises(InvalidRequest, match="flights-5 is not assigned"):
            consumer.seek(TopicPartition("flights", 5), 0)
        with pytest.raises(InvalidRequest, match="negative"):
            consumer.seek(HERE, -1)


def test_a_paused_partition_keeps_what_is_buffered(cluster: ToyCluster) -> None:
    cluster.create_topic("flights", partitions=2)
    for partition in range(2):
        fill(cluster, "flights", partition, numbers(0, 30))
    there = TopicPartition("flights", 1)
    with Consumer("flights", auto_offset_reset="earliest", max_poll_records=5, **cluster.options) as consumer:
        first = read(consumer, 1)
        taken = {HERE: 0, there: 0}
        for record in first:
            taken[TopicPartition(record.topic, record.partition)] += 1
        consumer.pause(HERE)
        assert consumer.paused() == {HERE}
        others = read(consumer, 30 - taken[there])
        assert {record.partition for record in others} == {1}
        assert consumer.poll(50) == {}
        consumer.resume(HERE)
        assert offsets(read(consumer, 30 - taken[HERE])) == list(range(taken[HERE], 30))


def test_an_offset_out_of_range_is_reset_by_the_policy(flights: ToyCluster) -> None:
    with Consumer(auto_offset_reset="earliest", **flights.options) as consumer:
        consumer.assign([HERE])
        consumer.seek(HERE, 5_000)
        assert offsets(consumer.poll(60_000)[HERE])[0] == 0, "one poll is enough"
    with Consumer(auto_offset_reset="none", **flights.options) as consumer:
        consumer.assign([HERE])
        consumer.seek(HERE, 5_000)
        with pytest.raises(OffsetOutOfRange):
            read(consumer, 1)
        with pytest.raises(OffsetOutOfRange, match=r"Position 5000 of .* 0 to 100: .* seek") as caught:
            read(consumer, 1)  # again, until the position is changed
        assert caught.value.details == {"topic": "flights", "partition": 0, "position": 5_000, "start": 0, "end": 100}
        consumer.seek(HERE, 99)
        assert offsets(read(consumer, 1)) == [99]


def test_a_record_ends_a_wait_without_a_deadline(flights: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Record] = []
    waits, wait = threading.Event(), Signal.wait

    def noted_wait(signal: Signal, timeout_s: float) -> None:
        waits.set()
        wait(signal, timeout_s)

    with Consumer("flights", auto_offset_reset="earliest", **flights.options) as consumer:
        read(consumer, 100)
        monkeypatch.setattr(Signal, "wait", noted_wait)
        reader = threading.Thread(target=lambda: found.extend(consumer.consume()))
        reader.start()
        assert waits.wait(DEADLINE_S)
        fill(flights, "flights", 0, [b"new"])
        reader.join(DEADLINE_S)
        assert not reader.is_alive()
    assert offsets(found) == [100]


def test_records_fetched_before_retention_took_them_are_still_given(flights: ToyCluster) -> None:
    with Consumer("flights", auto_offset_reset="earliest", max_partition_fetch_bytes=1, **flights.options) as consumer:
        assert offsets(consumer.poll(5_000, max_records=1)[HERE]) == [0]

        def retention() -> None:
            one = flights.partitions["flights", 0]
            one.log_start = 80
            one.batches = one.batches[8:]

        flights.do(retention)
        records: list[int] = []
        while records[-1:] != [99]:
            records += offsets(read(consumer, 1))
        assert records == sorted(set(records)), "nothing comes twice or out of order"
        assert records[-20:] == list(range(80, 100))


def test_without_a_policy_and_without_an_offset_the_user_has_to_say(flights: ToyCluster) -> None:
    with (
        Consumer("flights", auto_offset_reset="none", **flights.options) as consumer,
        pytest.raises(NoOffsetForPartition, match="flights-0"),
    ):
        read(consumer, 1)


def test_an_unknown_topic_names_the_nearest(flights: ToyCluster) -> None:
    with Consumer("fligths", **flights.options) as consumer:
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
            read(consumer, 1)
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
            consumer.partitions_for_topic("flight")
    with Consumer(auto_offset_reset="earliest", **flights.options) as consumer:
        consumer.assign([TopicPartition("flights", 7)])
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0"):
            read(consumer, 1)


def test_an_unknown_keyword_names_the_nearest(flights: ToyCluster) -> None:
    with pytest.raises(InvalidConfig, match="max_poll_records"):
        Consumer("flights", max_pol_records=1, **flights.options)  # type: ignore[call-arg]


def test_offsets_are_found_by_time_and_at_both_ends(flights: ToyCluster) -> None:
    with Consumer(**flights.options) as consumer:
        assert consumer.beginning_offsets([HERE]) == {HERE: 0}
        assert consumer.end_offsets([HERE]) == {HERE: 100}
        assert consumer.offsets_for_times({HERE: 33}) == {HERE: OffsetAndTimestamp(33, 33, 0)}
        assert consumer.offsets_for_times({HERE: 1_000}) == {HERE: None}
        early = datetime(1970, 1, 1, 0, 0, 0, 33_000, UTC)
        assert consumer.offsets_for_times({HERE: early}) == {HERE: OffsetAndTimestamp(33, 33, 0)}
        with pytest.raises(ValueError, match="has no zone"):
            consumer.offsets_for_times({HERE: datetime(2030, 1, 1)})
        assert consumer.topics() == {"flights"}
        assert consumer.partitions_for_topic("flights") == {0}


def test_deserializers_are_applied_and_nulls_pass(cluster: ToyCluster) -> None:
    cluster.create_topic("flights")
    fill(cluster, "flights", 0, [b'{"delay":3}', None], keys=[b"UA", None])
    options = {"auto_offset_reset": "earliest", "value_deserializer": "json", **cluster.options}
    with Consumer("flights", key_deserializer=bytes.decode, **options) as consumer:
        assert [(record.key, record.value) for record in read(consumer, 2)] == [("UA", {"delay": 3}), (None, None)]


def test_a_record_that_cannot_be_deserialized_is_named_and_can_be_passed(cluster: ToyCluster) -> None:
    cluster.create_topic("flights")
    fill(cluster, "flights", 0, [b"1", b"2", b"oops", b"4"])
    options = {"auto_offset_reset": "earliest", "value_deserializer": int, **cluster.options}
    with Consumer("flights", **options) as consumer:
        assert [record.value for record in read(consumer, 2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(RecordDeserializationFailed, match="offset 2 of flights-0") as caught:
                read(consumer, 1)
            assert caught.value.details["offset"] == 2
            assert caught.value.details["origin"] == "value"
            assert caught.value.details["record"] == Record("flights", 0, 2, 2, None, b"oops", ())
        assert consumer.position(HERE) == 2
        consumer.seek(HERE, 3)
        assert [record.value for record in read(consumer, 1)] == [4]


def test_the_key_may_be_what_cannot_be_deserialized(cluster: ToyCluster) -> None:
    cluster.create_topic("flights")
    fill(cluster, "flights", 0, [b"1"], keys=[b"\xff"])
    options: dict[str, Any] = {
        "auto_offset_reset": "earliest",
        "key_deserializer": "string",
        "value_deserializer": "json",
    }
    with Consumer("flights", **options, **cluster.options) as consumer:
        with pytest.raises(RecordDeserializationFailed, match="The key of the record at offset 0") as caught:
            read(consumer, 1)
        found = caught.value.details["record"]
        assert isinstance(found, Record)
        assert (caught.value.details["origin"], found.key, found.value) == ("key", b"\xff", b"1")


def test_the_end_of_a_leader_epoch_is_what_the_leader_has(flights: ToyCluster) -> None:
    with Consumer(**flights.options) as consumer:
        first = flights.partitions["flights", 0].leader_epoch
        flights.move_leader("flights", 0)
        fill(flights, "flights", 0, numbers(100, 110))
        found = consumer.offsets_for_leader_epoch({HERE: first})
        assert found == {HERE: EpochEndOffset(first, 100)}
        assert consumer.offsets_for_leader_epoch({HERE: first + 1}) == {HERE: EpochEndOffset(first + 1, 110)}
        with pytest.raises(InvalidRequest, match="may not be negative"):
            consumer.offsets_for_leader_epoch({HERE: -1})
        with pytest.raises(UnknownTopicOrPartition):
            consumer.offsets_for_leader_epoch({TopicPartition("none", 0): 1})


def test_a_damaged_batch_is_refused_and_fetched_again(flights: ToyCluster) -> None:
    one = flights.partitions["flights", 0]
    good = one.batches[3][1]
    bad = bytearray(good)
    bad[HEADER_BYTES + 4] ^= 1
    flights.do(lambda: one.batches.__setitem__(3, (parse_header(bad), bytes(bad))))
    with Consumer("flights", auto_offset_reset="earliest", **flights.options) as consumer:
        assert offsets(read(consumer, 30)) == list(range(30))
        with pytest.raises(CorruptMessage, match="offset 30 of flights-0"):
            read(consumer, 1)
        assert consumer.position(HERE) == 30
        flights.do(lambda: one.batches.__setitem__(3, (parse_header(good), good)))
        records: list[int] = []
        while len(records) < 70:
            try:
                records += offsets(read(consumer, 1))
            except CorruptMessage:
                continue  # what was fetched before the repair
        assert records == list(range(30, 100))


def test_reading_goes_on_over_leader_moves_and_broken_connections(cluster: ToyCluster) -> None:
    cluster.create_topic("flights", partitions=2)
    seen: list[Record] = []
    with Consumer("flights", auto_offset_reset="earliest", **cluster.options) as consumer:
        for round_number in range(6):
            for partition in range(2):
                fill(cluster, "flights", partition, numbers(round_number * 20, round_number * 20 + 20))
            if round_number % 3 == 0:
                cluster.move_leader("flights", 0, silently=round_number == 3)
            elif round_number % 3 == 1:
                cluster.cut_connections()
            seen += read(consumer, 40)
    for partition in range(2):
        assert [record.offset for record in seen if record.partition == partition] == list(range(120))


def test_a_topic_created_again_is_read_from_its_own_beginning(flights: ToyCluster) -> None:
    with Consumer(auto_offset_reset="earliest", **flights.options) as consumer:
        consumer.assign([HERE])
        assert len(read(consumer, 100)) == 100
        consumer.pause(HERE)  # so that it first looks when the new topic is complete
        flights.delete_topic("flights")
        flights.create_topic("flights")
        fill(flights, "flights", 0, numbers(0, 150))  # longer than the old one: the old position would fit into it
        consumer.resume(HERE)
        found: list[Record] = []

        def has_come() -> bool:
            try:
                found.extend(record for records in consumer.poll(50).values() for record in records)
            except UnknownTopicOrPartition:
                pass  # it was away for a moment
            return bool(found) and found[-1].offset == 149

        wait_for(has_come, "the new topic was not read")
        assert offsets(found) == list(range(150))


def test_a_pattern_takes_in_the_topics_that_match(cluster: ToyCluster) -> None:
    for topic in ("flights-ua", "flights-aa", "trips"):
        cluster.create_topic(topic)
        fill(cluster, topic, 0, [topic.encode()])
    with Consumer(auto_offset_reset="earliest", metadata_max_age_ms=50, **cluster.options) as consumer:
        consumer.subscribe(pattern="flights-.*")
        assert sorted(record.topic for record in read(consumer, 2)) == ["flights-aa", "flights-ua"]
        cluster.create_topic("flights-dl")
        fill(cluster, "flights-dl", 0, [b"new"])
        assert [record.topic for record in read(consumer, 1)] == ["flights-dl"]


def test_columns_are_given_without_records(flights: ToyCluster) -> None:
    with Consumer("flights", auto_offset_reset="earliest", **flights.options) as consumer:
        offsets: list[int] = []
        while len(offsets) < 100:
            offsets += consumer.consume_batch(timeout=5).offsets
        assert offsets == list(range(100))
        assert consumer.position(HERE) == 100


def test_what_makes_no_sense_is_refused_with_the_way_out(flights: ToyCluster) -> None:
    with Consumer(**flights.options) as consumer:
        with pytest.raises(InvalidRequest, match=r"call subscribe\(\) or assign\(\)"):
            consumer.poll(0)
        consumer.subscribe(["flights"])
        with pytest.raises(InvalidRequest, match=r"call unsubscribe\(\)"):
            consumer.assign([HERE])
        consumer.unsubscribe()
        consumer.assign([HERE])
        with pytest.raises(InvalidGroupId, match="group_id"):
            consumer.commit()
    with pytest.raises(ClientClosed):
        consumer.poll(0)
    consumer.close()


def test_a_second_thread_is_refused_while_one_polls(flights: ToyCluster) -> None:
    with Consumer("flights", **flights.options) as consumer:
        ended = threading.Event()

        def wait() -> None:
            consumer.poll(1_500)
            ended.set()

        thread = threading.Thread(target=wait)
        thread.start()
        wait_for(lambda: not hasattr(consumer._one_poll, "free"), "the first poll did not begin")
        with pytest.raises(InvalidRequest, match="one thread at a time"):
            consumer.poll(0)
        thread.join(10)
        assert ended.is_set()


def test_a_consumer_that_was_not_closed_warns_and_does_not_hang(flights: ToyCluster) -> None:
    consumer = Consumer("flights", **flights.options)
    consumer.poll(10)
    engine = consumer._engine
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del consumer
        gc.collect()
    assert [warning.category for warning in caught] == [ResourceWarning]
    wait_for(lambda: engine.is_closed, "its tasks were not ended")
