"""A leader that was paused, and replaced meanwhile, answers before it notices: its word moves no position."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from raylog import OffsetOutOfRange
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.types import OffsetAndMetadata
from tests.unit.client.consumer_support import fill, numbers, offsets, read, with_coordinator
from tests.unit.client.toy_server import ToyCluster

FLIGHTS = TopicPartition("flights", 0)


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster(brokers=3) as cluster:
        cluster.create_topic("flights", replication_factor=3)
        with_coordinator(cluster)
        fill(cluster, *FLIGHTS, numbers(0, 10))
        yield cluster


def options(cluster: ToyCluster) -> dict[str, object]:
    return {"group_id": "board", "enable_auto_commit": False, "auto_offset_reset": "earliest", **cluster.options}


def replace_unnoticed(cluster: ToyCluster) -> None:
    """Elect another leader; the one before goes on serving the log as it is now."""

    def elect() -> None:
        one = cluster.partitions[FLIGHTS]
        behind = replace(one, batches=list(one.batches), waiters=[])
        cluster.handlers[*FLIGHTS, one.leader].partition = behind
        cluster._move_leader(one, None, silently=True)

    cluster.do(elect)


def knowing_the_old_leader(cluster: ToyCluster) -> Consumer:
    """A consumer with metadata from before the election, in which the leader wrote ten more records."""
    consumer = Consumer(**options(cluster))  # type: ignore[arg-type]
    consumer.assign([FLIGHTS])
    assert consumer.end_offsets([FLIGHTS]) == {FLIGHTS: 10}
    replace_unnoticed(cluster)
    fill(cluster, *FLIGHTS, numbers(10, 20))
    return consumer


def commit(cluster: ToyCluster, offset: OffsetAndMetadata | int, read_first: int = 0) -> None:
    """Another consumer of the group commits."""
    with Consumer(**options(cluster)) as other:  # type: ignore[arg-type]
        other.assign([FLIGHTS])
        other.seek(FLIGHTS, 0)
        read(other, read_first)
        other.commit({FLIGHTS: offset})


@pytest.mark.parametrize("read_first", [0, 20], ids=["of which nothing is known", "that were read"])
def test_a_replaced_leader_does_not_reset_the_group_to_the_start(cluster: ToyCluster, read_first: int) -> None:
    with knowing_the_old_leader(cluster) as consumer:
        commit(cluster, 15, read_first)
        assert offsets(read(consumer, 5)) == list(range(15, 20))


def test_a_commit_by_hand_knows_the_epoch_of_what_was_read(cluster: ToyCluster) -> None:
    with knowing_the_old_leader(cluster) as consumer:
        commit(cluster, 15, read_first=20)
        assert consumer.committed(FLIGHTS, metadata=True) == OffsetAndMetadata(15, "", 1)
        commit(cluster, 5, read_first=20)
        assert consumer.committed(FLIGHTS, metadata=True) == OffsetAndMetadata(5, "", 0)
        commit(cluster, OffsetAndMetadata(15, "mine", 7), read_first=20)
        assert consumer.committed(FLIGHTS, metadata=True) == OffsetAndMetadata(15, "mine", 7)


def test_an_older_leader_than_the_position_is_not_requested(cluster: ToyCluster) -> None:
    with knowing_the_old_leader(cluster) as consumer:
        commit(cluster, OffsetAndMetadata(5, "", 1))
        found = read(consumer, 15)
    assert offsets(found) == list(range(5, 20)), "5 to 9 are in both logs, but the old leader may have had others"


def test_a_position_newer_than_its_leader_is_named_in_the_log(
    cluster: ToyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    commit(cluster, OffsetAndMetadata(5, "", 99))
    quick = {**options(cluster), "retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
    with Consumer(**quick) as consumer:  # type: ignore[arg-type]
        consumer.assign([FLIGHTS])
        deadline_s = time.monotonic() + 10
        while "position 5 is behind a record of leader epoch 99" not in caplog.text:
            assert time.monotonic() < deadline_s
            assert not consumer.poll(0.05)
        consumer.seek(FLIGHTS, 5)
        assert offsets(read(consumer, 5)) == list(range(5, 10))


def test_an_offset_beyond_the_end_is_still_an_error(cluster: ToyCluster) -> None:
    with Consumer(**{**options(cluster), "auto_offset_reset": "none"}) as consumer:  # type: ignore[arg-type]
        consumer.assign([FLIGHTS])
        consumer.seek(FLIGHTS, 500)
        with pytest.raises(OffsetOutOfRange, match="Position 500 of"):
            read(consumer, 1)
        consumer.seek(FLIGHTS, 400)
        with pytest.raises(OffsetOutOfRange, match="Position 400 of"):
            read(consumer, 1)
        consumer.seek(FLIGHTS, 8)
        assert offsets(read(consumer, 2)) == [8, 9]
