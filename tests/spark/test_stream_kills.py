"""A stream from a real Raylog on Ray; its leaders are killed between micro-batches and during them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import raylog
from raylog.base.errors import GroupIdNotFound
from tests.cluster.ray_support import AWAKE, kill_leaders, own_ray
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

CONFIG = {
    **AWAKE,
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}
ROUNDS, RECORDS, PARTITIONS = 3, 200, 2
TOPIC, GROUP = "rides", "rides-to-list"
WAIT_S = 90


@pytest.fixture(scope="module")
def raylog_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[raylog.Cluster]:
    with own_ray():
        running = raylog.start(tmp_path_factory.mktemp("data"), brokers=3, config=CONFIG)
        yield running
        running.stop()


def lags(admin: raylog.Admin) -> list[int | None]:
    """Of the group's partitions; none while the first commit waits for the coordinator that was killed."""
    try:
        return [lag.records for lag in admin.group_lag(GROUP).values()]
    except GroupIdNotFound:
        return []


def test_every_committed_record_arrives_once_whatever_is_killed(
    spark: SparkSession, raylog_here: raylog.Cluster, tmp_path: Path
) -> None:
    seen: Counter[bytes] = Counter()
    kills_left = [2]

    with raylog.Admin() as admin, raylog.Producer(transactional_id="rides") as producer:
        admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        producer.init_transactions()

        def take(frame: DataFrame, batch: int) -> None:
            if kills_left[0] and batch:
                kills_left[0] -= 1
                kill_leaders(admin, TOPIC)  # the batch is planned, and its tasks have not begun
            seen.update(bytes(row.value) for row in frame.collect())

        options = {
            "raylog.bootstrap": raylog_here.bootstrap(),
            "raylog.secret": raylog_here.secret(),
            "subscribe": TOPIC,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            "kafka.group.id": GROUP,
        }
        writer = spark.readStream.format("raylog").options(**options).load().writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            for turn in range(ROUNDS):
                values = [b"%d" % number for number in range(turn * RECORDS, (turn + 1) * RECORDS)]
                producer.begin_transaction()
                for number, value in enumerate(values):
                    producer.send(TOPIC, value, partition=number % (PARTITIONS + (turn == 2)))
                producer.flush(60)
                if turn == ROUNDS - 1:  # what is open is not seen
                    assert set(seen) == {b"%d" % number for number in range(turn * RECORDS)}
                producer.commit_transaction()
                wait_for(partial(seen.keys().__ge__, set(values)), f"round {turn} was read", WAIT_S)
                assert query.exception() is None
                # Those that a batch has killed a moment ago may not be back yet.
                wait_for(lambda: kill_leaders(admin, TOPIC) > 0, "a leader was killed", WAIT_S)
                if turn == 1:
                    admin.create_partitions(TOPIC, PARTITIONS + 1)
            assert kills_left == [0]
            assert set(seen.values()) == {1}
            assert len(seen) == ROUNDS * RECORDS
            # The new partition may be in a batch of its own, whose offsets are committed later.
            wait_for(lambda: lags(admin) == [0] * (PARTITIONS + 1), "no lag is left", WAIT_S)
        finally:
            query.stop()
