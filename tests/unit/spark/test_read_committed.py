"""Spark reads with `kafka.isolation.level`: the end of the plan, and what tasks leave out."""

from collections.abc import Sequence

import pytest

from raylog.base.errors import InvalidConfig, OffsetOutOfRange
from raylog.rpc import Token
from raylog.spark.reading.options import parse_options
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.records import BatchMeta
from tests.unit.client import consumer_support
from tests.unit.client.toy_server import ToyCluster
from tests.unit.spark.support import options, plan, rows_of, spans

LEVEL = {"kafka.isolation.level": "read_committed"}


def write(cluster: ToyCluster, producer: int, epoch: int, values: Sequence[bytes]) -> None:
    meta = BatchMeta(producer, epoch, 0, attributes=TRANSACTIONAL_BIT)
    consumer_support.fill(cluster, "trips", 0, values, meta=meta)


@pytest.fixture
def trips(cluster: ToyCluster) -> ToyCluster:
    """Offsets 0 and 1 aborted with marker 2, 3 committed with marker 4, 5 open, 6 plain."""
    cluster.create_topic("trips")
    one = cluster.partitions["trips", 0]
    write(cluster, 1, 0, [b"lost", b"lost too"])
    cluster.do(lambda: one.end_transaction(1, 1, committed=False))
    write(cluster, 2, 0, [b"kept"])
    cluster.do(lambda: one.end_transaction(2, 1, committed=True))
    write(cluster, 1, 1, [b"open"])
    consumer_support.fill(cluster, "trips", 0, [b"plain"])
    return cluster


def test_the_level_is_kafkas_option_and_checked() -> None:
    chosen = parse_options({"subscribe": "trips", "kafka.isolation.level": "read_committed"})
    assert chosen.reading.isolation_level == "read_committed"
    assert parse_options({"subscribe": "trips"}).wanted.consumer.isolation_level == "read_uncommitted"
    with pytest.raises(InvalidConfig, match="read_committed"):
        parse_options({"subscribe": "trips", "kafka.isolation.level": "committed"})


def test_a_query_of_committed_records_ends_at_the_last_stable_offset(trips: ToyCluster) -> None:
    assert spans(plan(options(trips, subscribe="trips", **LEVEL))) == [("trips", 0, 0, 5)]
    assert spans(plan(options(trips, subscribe="trips"))) == [("trips", 0, 0, 7)]
    with pytest.raises(OffsetOutOfRange, match="holds 0 to 5"):
        plan(options(trips, subscribe="trips", endingOffsets='{"trips": {"0": 7}}', **LEVEL))


def test_tasks_leave_aborted_records_out(trips: ToyCluster) -> None:
    chosen = options(trips, subscribe="trips", **LEVEL)
    (wanted,) = plan(chosen)
    assert isinstance(wanted.secret, Token), "a task reads with a token"
    assert [row["value"] for row in rows_of(wanted, chosen)] == [b"kept"]


def test_each_part_of_a_partition_leaves_aborted_records_out(trips: ToyCluster) -> None:
    chosen = options(trips, subscribe="trips", maxRecordsPerPartition=1, **LEVEL)
    assert [row["value"] for wanted in plan(chosen) for row in rows_of(wanted, chosen)] == [b"kept"]


def test_a_query_of_everything_sees_aborted_records(trips: ToyCluster) -> None:
    chosen = options(trips, subscribe="trips")
    (wanted,) = plan(chosen)
    found = [row["value"] for row in rows_of(wanted, chosen)]
    assert found == [b"lost", b"lost too", b"kept", b"open", b"plain"]
