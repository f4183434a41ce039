"""What the driver plans: which offsets of which partitions, cut as configured, and how the leaders are reached."""

import pickle
import subprocess
import sys
import time

import pytest
from pyspark import cloudpickle

from raylog.base.errors import AuthenticationFailed, InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition
from raylog.client.ranges import cutting
from raylog.client.ranges.narrowing import Narrowing
from raylog.rpc import Token, TopicGrant
from raylog.spark.reading.reader import RangePartition
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import START_MS, drop_before, fill, options, plan, reader_of, spans


def test_a_topic_is_read_from_its_log_start_to_its_high_watermark(cluster: ToyCluster) -> None:
    drop_before(cluster, "orders", 0, 30)
    assert spans(plan(options(cluster, subscribe="orders"))) == [("orders", 0, 30, 100), ("orders", 1, 0, 50)]


def test_a_range_says_how_to_reach_the_leader_and_hides_the_secret(cluster: ToyCluster) -> None:
    cluster.move_leader("orders", 1)
    _, found = plan(options(cluster, subscribe="orders"))
    place = cluster.replicas["orders", 1, cluster.partitions["orders", 1].leader]
    assert found.leader == (place.host, place.port)
    assert (found.leader_epoch, len(found.brokers)) == (1, 2)
    task = RangePartition(found)
    carried = pickle.dumps(task)
    assert pickle.loads(carried) == task
    assert b"toy secret" not in carried
    assert "toy secret" not in repr(task)


def test_a_task_gets_a_token_for_its_partition_that_ends(cluster: ToyCluster) -> None:
    began_s = time.time()
    for found in plan(options(cluster, subscribe="orders", **{"raylog.tokenLifetimeMs": 60_000})):
        assert isinstance(found.secret, Token)
        grant = found.secret.grant
        of_task = TopicGrant(found.topic_id, "orders", (range(found.partition, found.partition + 1),))
        assert grant.topics == (of_task,)
        assert began_s + 60 <= grant.expires_s <= time.time() + 62


def test_a_reader_goes_to_the_tasks_without_the_secret(cluster: ToyCluster) -> None:
    reader = reader_of(options(cluster, subscribe="orders"))
    assert reader.options is not None
    assert reader.options.wanted.secret == SECRET.hex()
    carried = cloudpickle.dumps(reader)  # type: ignore[no-untyped-call]
    assert SECRET.hex().encode() not in carried
    assert SECRET not in carried
    assert pickle.loads(carried).options is None
    (first, *_) = reader.partitions()
    assert sum(table.num_rows for table in pickle.loads(carried).read(first)) == 100


def test_offsets_of_each_partition_are_kept_to(cluster: ToyCluster) -> None:
    chosen = options(
        cluster,
        subscribe="orders",
        startingOffsets='{"orders": {"0": 33, "1": -2}}',
        endingOffsets='{"orders": {"0": 35, "1": -1}}',
    )
    assert spans(plan(chosen)) == [("orders", 0, 33, 35), ("orders", 1, 0, 50)]


def test_offsets_must_name_every_partition_and_no_other(cluster: ToyCluster) -> None:
    with pytest.raises(InvalidConfig, match="missing: orders-1"):
        plan(options(cluster, subscribe="orders", startingOffsets='{"orders": {"0": 1}}'))
    with pytest.raises(InvalidConfig, match="not read: orders-2"):
        plan(options(cluster, subscribe="orders", endingOffsets='{"orders": {"0": 1, "1": 1, "2": 1}}'))


def test_offsets_that_are_not_there_are_an_error_unless_loss_is_accepted(
    cluster: ToyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    drop_before(cluster, "orders", 0, 30)
    given = {
        "assign": '{"orders": [0]}',
        "startingOffsets": '{"orders": {"0": 7}}',
        "endingOffsets": '{"orders": {"0": 999}}',
    }
    with pytest.raises(
        OffsetOutOfRange, match="startingOffsets names offset 7 of orders-0, but the log holds 30 to 100"
    ):
        plan(options(cluster, **given))
    assert spans(plan(options(cluster, **given, failOnDataLoss=False))) == [("orders", 0, 30, 100)]
    assert [record.getMessage() for record in caplog.records] == [
        "startingOffsets names offset 7 of orders-0, whose log begins at 30: it is read from there.",
        "endingOffsets names offset 999 of orders-0, whose log ends at 100: that offset is taken instead.",
    ]


def test_a_start_behind_its_end_is_a_mistake(cluster: ToyCluster) -> None:
    given = {"startingOffsets": '{"orders": {"0": 9}}', "endingOffsets": '{"orders": {"0": 8}}'}
    with pytest.raises(InvalidConfig, match="begins at offset 9, behind its end 8"):
        plan(options(cluster, assign='{"orders": [0]}', **given))


def test_times_choose_the_first_record_that_is_not_older(cluster: ToyCluster) -> None:
    chosen = options(cluster, subscribe="orders", startingTimestamp=START_MS + 20, endingTimestamp=START_MS + 70)
    assert spans(plan(chosen)) == [("orders", 0, 20, 70), ("orders", 1, 20, 50)]


def test_a_start_time_without_a_record_is_an_error_or_the_end(cluster: ToyCluster) -> None:
    given = {"subscribe": "orders", "startingTimestamp": START_MS + 60}
    with pytest.raises(InvalidConfig, match="orders-1 has no record at or after"):
        plan(options(cluster, **given))
    chosen = options(cluster, **given, startingOffsetsByTimestampStrategy="latest")
    assert spans(plan(chosen)) == [("orders", 0, 60, 100)]


def test_an_unknown_topic_is_answered_with_the_nearest_one(cluster: ToyCluster) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="did you mean 'orders'"):
        plan(options(cluster, subscribe="ordres"))


def test_an_assigned_partition_must_exist(cluster: ToyCluster) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 1, not 5"):
        plan(options(cluster, assign='{"orders": [0, 5]}'))


def test_a_pattern_takes_the_topics_whose_whole_name_matches(cluster: ToyCluster) -> None:
    for name in ("orders-eu", "old-orders"):
        cluster.create_topic(name, 1)
        fill(cluster, name, 0, [1])
    assert spans(plan(options(cluster, subscribePattern="orders-.."))) == [("orders-eu", 0, 0, 1)]
    assert plan(options(cluster, subscribePattern="nothing.*")) == []


def test_partitions_without_records_get_no_task(cluster: ToyCluster) -> None:
    cluster.create_topic("quiet", 3)
    fill(cluster, "quiet", 1, [2])
    assert spans(plan(options(cluster, subscribe="quiet"))) == [("quiet", 1, 0, 2)]


def test_large_partitions_are_cut_as_configured(cluster: ToyCluster) -> None:
    found = plan(options(cluster, subscribe="orders", minPartitions=3))
    assert spans(found) == [("orders", 0, 0, 50), ("orders", 0, 50, 100), ("orders", 1, 0, 50)]
    found = plan(options(cluster, subscribe="orders", maxRecordsPerPartition=40))
    assert [(entry.start, entry.end) for entry in found] == [(0, 33), (33, 66), (66, 100), (0, 25), (25, 50)]


def test_what_the_query_cannot_match_is_not_planned(cluster: ToyCluster) -> None:
    chosen = options(cluster, subscribe="orders")
    assert spans(plan(chosen, Narrowing(partitions=frozenset({1})))) == [("orders", 1, 0, 50)]
    assert spans(plan(chosen, Narrowing(offset_low=60, offset_end=70))) == [("orders", 0, 60, 70)]
    assert spans(plan(chosen, Narrowing(time_low_ms=START_MS + 75))) == [("orders", 0, 75, 100)]
    assert plan(chosen, Narrowing(topics=frozenset({"other"}))) == []


def test_a_wrong_secret_fails_at_once(cluster: ToyCluster) -> None:
    with pytest.raises(AuthenticationFailed):
        plan(options(cluster, subscribe="orders", **{"raylog.secret": "00" * 16}))


def test_a_large_partition_is_several_tasks_without_an_option(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "TASK_BYTES", 600)
    monkeypatch.setattr(cutting, "SMALL", 10)
    found = plan(options(cluster, subscribe="orders"))
    assert len(found) > 4
    assert max(item.end - item.start for item in found) - min(item.end - item.start for item in found) <= 10
    offsets = [(item.partition, offset) for item in found for offset in range(item.start, item.end)]
    assert offsets == [(0, offset) for offset in range(100)] + [(1, offset) for offset in range(50)]
    assert len(plan(options(cluster, subscribe="orders", minPartitions=1))) == 2


def test_records_of_a_task_follow_from_their_size() -> None:
    assert cutting.records_of_a_task(10.0) == cutting.TASK_RECORDS_MAX
    assert cutting.records_of_a_task(1024.0) == 262_144
    assert cutting.records_of_a_task(1 << 30) == 1
    assert cutting.records_of_a_task(None) == cutting.TASK_RECORDS_MAX


def test_an_end_of_time_ends_the_read_where_lateness_is_known(cluster: ToyCluster) -> None:
    bounds = Narrowing(time_low_ms=START_MS + 20, time_end_ms=START_MS + 30)
    assert spans(plan(options(cluster, subscribe="orders"), bounds)) == [("orders", 0, 20, 100), ("orders", 1, 20, 50)]
    chosen = options(cluster, subscribe="orders", **{"raylog.timestampLatenessMs": 0})
    assert spans(plan(chosen, bounds)) == [("orders", 0, 20, 30), ("orders", 1, 20, 30)]
    chosen = options(cluster, subscribe="orders", **{"raylog.timestampLatenessMs": 25})
    assert spans(plan(chosen, bounds)) == [("orders", 0, 20, 55), ("orders", 1, 20, 50)]


def test_a_process_that_plans_a_read_loads_no_producer_and_no_admin() -> None:
    """Spark starts one where none waits for work, and its user waits for what it loads."""
    code = "import sys, raylog.spark.source, raylog.client.ranges.planning; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    others = {"raylog.client.producer.producer", "raylog.client.admin.admin", "raylog.spark.writing.writers"}
    assert not (others | {"pyarrow.compute", "ray"}) & set(done.stdout.split())


def test_a_task_loads_no_pandas() -> None:
    """Spark's workers collect garbage after each task, and walk through all that is loaded: pandas is most of it."""
    code = (
        "import sys\n"
        "from tests.unit.spark import test_arrow\n"
        "assert 'pandas' not in sys.modules, 'the test loads it itself'\n"
        "test_arrow.make_every_column()\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "pandas" not in done.stdout.split()
