"""What the planner of a stream answers to Spark, over real sockets, through growth, loss, and topics created again."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from raylog.base.errors import InvalidConfig, OffsetOutOfRange, UnknownTopicId, UnknownTopicOrPartition
from raylog.base.ids import LATEST
from raylog.client.ranges import cutting
from raylog.rpc import Connection
from raylog.spark.reading import live_logs
from raylog.spark.reading.admission import Limits
from raylog.spark.reading.columns import row_schema
from raylog.spark.reading.options import parse_options
from raylog.spark.reading.planning import StreamPlanner
from raylog.spark.reading.reader import RangePartition
from raylog.spark.reading.stream_reader import RaylogStreamReader
from raylog.spark.source import RaylogDataSource
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.records import BatchMeta
from tests.unit.client import consumer_support
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import START_MS, drop_before, fill, rows_of, spans

ALL = Limits()
Plan = Callable[..., StreamPlanner]


def options_of(cluster: ToyCluster, **given: object) -> Any:
    texts = {name: str(value) for name, value in given.items()}
    if not texts.keys() & {"assign", "subscribePattern"}:
        texts = {"subscribe": "orders", **texts}
    base = {"raylog.bootstrap": cluster.bootstrap, "raylog.secret": SECRET.hex(), "startingOffsets": "earliest"}
    return parse_options({**base, **texts}, is_stream=True)


def stream_reader_of(chosen: Any) -> RaylogStreamReader:
    return RaylogStreamReader(chosen, row_schema(chosen.columns))


@pytest.fixture
def plan(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plan]:
    """Makes planners; each is a new process to Spark. What is missing counts as lost sooner than in production."""
    monkeypatch.setattr(live_logs, "SETTLE_S", 0.2)
    monkeypatch.setattr(live_logs, "METADATA_AGE_S", 0.0)
    made: list[StreamPlanner] = []

    def make(**given: object) -> StreamPlanner:
        made.append(StreamPlanner(options_of(cluster, **given)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_stream_starts_at_the_latest_offsets_and_keeps_to_them(cluster: ToyCluster, plan: Plan) -> None:
    one = plan(startingOffsets="latest")
    start = one.initial()
    assert start["orders"] == {"0": 100, "1": 50}
    fill(cluster, "orders", 1, [5])
    assert one.initial() == start
    end = one.latest(start, ALL)
    assert end["orders"] == {"0": 100, "1": 55}
    assert spans(one.ranges(start, end)) == [("orders", 1, 50, 55)]


def test_a_repeated_first_batch_begins_where_it_began(cluster: ToyCluster, plan: Plan) -> None:
    one = plan(startingOffsets="latest")
    fill(cluster, "orders", 1, [5])
    end = one.latest(one.initial(), ALL)
    fill(cluster, "orders", 0, [9])
    later = plan(startingOffsets="latest")
    assert spans(later.ranges(later.initial(), end)) == spans(one.ranges(one.initial(), end))


def test_nothing_new_is_the_same_text(plan: Plan) -> None:
    one = plan()
    first = one.latest(one.initial(), ALL)
    for start in (first, {"orders": {"1": 50, "0": 100}}):  # the second as Spark's Kafka source writes it
        assert json.dumps(one.latest(start, ALL)) == json.dumps(start)
        assert one.ranges(start, start) == []


def test_offsets_of_the_options_are_kept_to(plan: Plan) -> None:
    one = plan(startingOffsets='{"orders": {"0": 99, "1": -1}}')
    assert one.initial()["orders"] == {"0": 99, "1": 50}
    assert plan(startingTimestamp=1_700_000_000_020).initial()["orders"] == {"0": 20, "1": 20}
    with pytest.raises(InvalidConfig, match="must name every partition"):
        plan(startingOffsets='{"orders": {"0": 99}}').initial()
    late, error = START_MS + 60, r"orders-1 has no record at or after .* startingOffsetsByTimestampStrategy"
    with pytest.raises(InvalidConfig, match=error):
        plan(startingTimestamp=late).initial()
    lenient = plan(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")
    assert lenient.initial()["orders"] == {"0": 60, "1": 50}


def test_ranges_are_cut_as_in_a_batch_read(plan: Plan) -> None:
    one = plan(maxRecordsPerPartition=40)
    found = spans(one.ranges(one.initial(), one.latest(one.initial(), ALL)))
    assert [(partition, end - start) for _, partition, start, end in found] == [
        (0, 33),
        (0, 33),
        (0, 34),
        (1, 25),
        (1, 25),
    ]
    assert len(plan(minPartitions=7).ranges(one.initial(), one.latest(one.initial(), ALL))) == 7


def test_a_large_backlog_is_cut_by_size(cluster: ToyCluster, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = cluster.do(lambda: sum(len(batch) for _, batch in cluster.partitions["orders", 0].batches))
    monkeypatch.setattr(cutting, "TASK_BYTES", stored * 6 // 10)
    one = plan()
    fill(cluster, "orders", 0, [100])
    first = one.latest(one.initial(), ALL)
    assert [end - start for *_, start, end in spans(one.ranges(one.initial(), first))] == [50] * 5
    assert len(spans(plan(minPartitions=1).ranges(one.initial(), first))) == 2


def test_a_partition_without_a_leader_is_waited_for(
    cluster: ToyCluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_logs, "ATTEMPT_TIMEOUT_S", 0.1)
    one = plan()
    start = one.initial()
    leader = cluster.partitions["orders", 0].leader
    cluster.move_leader("orders", 0, to=-1)
    back = threading.Timer(0.5, lambda: cluster.move_leader("orders", 0, to=leader, silently=True))
    back.start()
    try:
        one.fix_end()
        assert one.latest(start, ALL)["orders"] == {"0": 100, "1": 50}
    finally:
        back.join()


def test_available_now_ends_where_it_began_to_read(cluster: ToyCluster, plan: Plan) -> None:
    one = plan(minOffsetsPerTrigger=1_000)
    one.fix_end()
    fill(cluster, "orders", 0, [30])
    cluster.create_topic("orders2", 1)
    limits = Limits(max_offsets=100, min_offsets=1_000, max_delay_ms=10**9)
    first = one.latest(one.initial(), limits)
    second = one.latest(first, limits)
    assert sum(first["orders"].values()) == 99
    assert second["orders"] == {"0": 100, "1": 50}
    assert one.latest(second, limits) == second


def test_available_now_waits_for_what_an_election_hides(cluster: ToyCluster, plan: Plan) -> None:
    end = plan().latest(plan().initial(), ALL)
    again, log = plan(), cluster.partitions["orders", 0]
    cluster.do(lambda: setattr(log, "high_watermark", 30))  # as a new leader knows it at first
    again.fix_end()
    cluster.do(log.advance)
    assert again.latest(end, ALL) == end
    cluster.do(lambda: setattr(log, "high_watermark", 30))
    lossy = plan()
    lossy.fix_end()
    with pytest.raises(OffsetOutOfRange, match="orders-0 ends at offset 30, but the query has read it up to 100"):
        lossy.latest(end, ALL)


def test_a_minimum_holds_records_back_until_the_delay_is_over(cluster: ToyCluster) -> None:
    now_s = [1_000.0]
    one = StreamPlanner(options_of(cluster), clock_s=lambda: now_s[0])
    try:
        limits = Limits(min_offsets=20, max_delay_ms=60_000)
        first = one.latest(one.initial(), limits)
        fill(cluster, "orders", 0, [19])
        assert one.latest(first, limits) == first
        now_s[0] += 59.9
        assert one.latest(first, limits) == first
        now_s[0] += 0.2
        assert one.latest(first, limits)["orders"]["0"] == 119
        fill(cluster, "orders", 0, [20])
        assert one.latest(first, limits)["orders"]["0"] == 139
    finally:
        one.close()


def test_partitions_of_a_new_topic_begin_at_the_earliest(cluster: ToyCluster, plan: Plan) -> None:
    one = plan(subscribePattern="new.*", startingOffsets="latest")
    start = one.initial()
    assert start == {"raylog/ids": {}, "raylog/began": {}}
    assert one.latest(start, ALL) == start
    cluster.create_topic("new", 2)
    fill(cluster, "new", 1, [10])
    end = one.latest(start, ALL)
    assert end["new"] == {"0": 0, "1": 10}
    assert spans(one.ranges(start, end)) == [("new", 1, 0, 10)]


def test_a_new_partition_that_lacks_its_beginning_is_a_loss(cluster: ToyCluster, plan: Plan) -> None:
    start = {"orders": {"0": 100}}
    drop_before(cluster, "orders", 1, 50)
    fill(cluster, "orders", 1, [5])
    one, lenient = plan(), plan(failOnDataLoss=False)
    with pytest.raises(OffsetOutOfRange, match="begins at offset 50 instead of 0"):
        one.ranges(start, one.latest(start, ALL))
    assert spans(lenient.ranges(start, lenient.latest(start, ALL))) == [("orders", 1, 50, 55)]


def test_records_deleted_before_they_were_read_are_a_loss(
    cluster: ToyCluster, plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    start = {"orders": {"0": 10, "1": 50}}
    drop_before(cluster, "orders", 0, 60)
    for strict in (True, False):
        chosen = options_of(cluster, failOnDataLoss=strict)
        one = plan(failOnDataLoss=strict)
        (task,) = one.ranges(start, one.latest(start, ALL))
        assert (task.start, task.end) == (10, 100)
        if strict:
            with pytest.raises(OffsetOutOfRange, match=r"Offset 10 of orders-0.*failOnDataLoss"):
                rows_of(task, chosen)
        else:
            assert [row["offset"] for row in rows_of(task, chosen)] == list(range(60, 100))
    assert "Offsets 10 to 59 of orders-0 are lost" in caplog.text


def test_a_log_that_lost_its_end_is_a_loss(plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    start = {"orders": {"0": 100, "1": 60}}
    with pytest.raises(OffsetOutOfRange, match="orders-1 ends at offset 50, but the query has read it up to 60"):
        plan().latest(start, ALL)
    lenient = plan(failOnDataLoss=False)
    with caplog.at_level(logging.WARNING):
        end = lenient.latest(start, ALL)
        assert end["orders"] == {"0": 100, "1": 50}
        assert lenient.ranges(start, end) == []
        assert lenient.latest(end, ALL) == end
    assert caplog.text.count("failOnDataLoss is false") == 1


def test_a_deleted_topic_is_a_loss_or_left_out(cluster: ToyCluster, plan: Plan) -> None:
    cluster.create_topic("doomed", 1)
    fill(cluster, "doomed", 0, [3])
    strict, lenient = plan(subscribe="orders,doomed"), plan(subscribe="orders,doomed", failOnDataLoss=False)
    end = strict.latest(strict.initial(), ALL)
    assert lenient.latest(lenient.initial(), ALL) == end
    cluster.delete_topic("doomed")
    for step in (lambda: strict.latest(end, ALL), lambda: strict.ranges(strict.initial(), end)):
        with pytest.raises(UnknownTopicOrPartition, match=r"'doomed' was deleted.*failOnDataLoss"):
            step()
    left = lenient.latest(end, ALL)
    assert spans(lenient.ranges(lenient.initial(), end)) == [("orders", 0, 0, 100), ("orders", 1, 0, 50)]
    assert left.keys() == {"orders", "raylog/ids"}
    assert lenient.latest(left, ALL) == left


def test_a_topic_created_again_is_refused_or_read_whole(cluster: ToyCluster, plan: Plan) -> None:
    one = plan()
    end = one.latest(one.initial(), ALL)
    cluster.delete_topic("orders")
    cluster.create_topic("orders", 1)
    fill(cluster, "orders", 0, [200])
    for again in (one, plan()):  # in the same run, and from the checkpoint
        for step in (partial(again.latest, end, ALL), partial(again.ranges, end, end)):
            with pytest.raises(UnknownTopicId, match=r"created again.*new checkpointLocation.*failOnDataLoss"):
                step()
    lenient = plan(failOnDataLoss=False)
    assert lenient.ranges({"orders": {}}, end) == []
    new = lenient.latest(end, ALL)
    assert new["orders"] == {"0": 200}
    assert spans(lenient.ranges(end, new)) == [("orders", 0, 0, 200)]


def test_checkpoints_and_options_that_do_not_fit_are_refused(cluster: ToyCluster, plan: Plan) -> None:
    with pytest.raises(InvalidConfig, match="checkpoint is of 'payments', but the options of the query name 'orders'"):
        plan(failOnDataLoss=False).latest({"payments": {"0": 3}}, ALL)
    with pytest.raises(InvalidConfig, match=r"has payments-0.*do not name any more: they name 'orders'"):
        plan().latest({"payments": {"0": 3}, "orders": {"0": 3}}, ALL)
    with pytest.raises(InvalidConfig, match="belongs to another kind of source"):
        plan().latest({"logOffset": 3}, ALL)
    with pytest.raises(UnknownTopicOrPartition, match="did you mean 'orders'"):
        plan(subscribe="orders,ordesr").latest({"orders": {"0": 3}}, ALL)
    with pytest.raises(UnknownTopicOrPartition, match="orders-7 does not exist; change assign"):
        plan(assign='{"orders": [0, 7]}').latest({"orders": {"0": 3}}, ALL)


def test_a_stream_of_committed_records_ends_at_the_last_stable_offset(cluster: ToyCluster, plan: Plan) -> None:
    one, everything = plan(**{"kafka.isolation.level": "read_committed"}), plan()
    log = cluster.partitions["orders", 0]
    meta = BatchMeta(1, 0, 0, attributes=TRANSACTIONAL_BIT)
    consumer_support.fill(cluster, "orders", 0, [b"open"], meta=meta)
    assert one.latest(one.initial(), ALL)["orders"] == {"0": 100, "1": 50}
    assert everything.latest(everything.initial(), ALL)["orders"] == {"0": 101, "1": 50}
    cluster.do(lambda: log.end_transaction(1, 1, committed=True))
    assert one.latest(one.initial(), ALL)["orders"] == {"0": 102, "1": 50}


def test_a_trigger_costs_one_request_to_each_leader(
    cluster: ToyCluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    call = Connection.call

    def counted(connection: Connection, method: str, *args: Any, **more: Any) -> Any:
        sent.append(method)
        return call(connection, method, *args, **more)

    monkeypatch.setattr(live_logs, "METADATA_AGE_S", 60.0)
    one = plan()
    end = one.latest(one.initial(), Limits(max_offsets=30))
    monkeypatch.setattr(Connection, "call", counted)
    one.ranges(end, one.latest(end, Limits(max_offsets=30)))
    assert sent == ["list_offsets", "list_offsets"]


def test_a_leader_that_moves_is_found_again(cluster: ToyCluster, plan: Plan) -> None:
    one = plan()
    first = one.latest(one.initial(), ALL)
    cluster.move_leader("orders", 0)
    cluster.cut_connections()
    fill(cluster, "orders", 0, [1])
    end = one.latest(first, ALL)
    (found,) = one.ranges(first, end)
    assert (found.start, found.end, found.leader_epoch) == (100, 101, 1)


def test_a_trigger_waits_for_an_election(cluster: ToyCluster, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_logs, "ATTEMPT_TIMEOUT_S", 0.02)
    one, log = plan(), cluster.partitions["orders", 0]
    start, leader = one.initial(), log.leader
    with ThreadPoolExecutor() as threads:
        cluster.do(lambda: setattr(log, "leader", -1))
        waiting = threads.submit(one.latest, start, ALL)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        cluster.do(lambda: setattr(log, "leader", leader))
        assert waiting.result(30)["orders"] == {"0": 100, "1": 50}


def test_brokers_that_are_lost_are_looked_up_again(
    cluster: ToyCluster, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_logs, "BROKERS_TIMEOUT_S", 0.1)
    one = plan()
    start = one.initial()
    cluster.silent_brokers.update(cluster.broker_ids)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(one.latest, start, ALL)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        cluster.silent_brokers.clear()
        assert waiting.result(30)["orders"] == {"0": 100, "1": 50}


def test_a_reader_goes_to_the_tasks_without_the_secret(cluster: ToyCluster) -> None:
    source = RaylogDataSource(
        {"subscribe": "orders", "raylog.bootstrap": cluster.bootstrap, "raylog.secret": SECRET.hex()}
    )
    assert SECRET.hex().encode() in cloudpickle.dumps(source)  # type: ignore[no-untyped-call] # to be planned elsewhere
    source.streamReader(source.schema())
    assert SECRET.hex().encode() not in cloudpickle.dumps(source)  # type: ignore[no-untyped-call]
    reader = stream_reader_of(options_of(cluster, includeHeaders=True))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        carried = cloudpickle.dumps(reader)  # type: ignore[no-untyped-call]
        tasks = [pickle.dumps(task) for task in reader.partitions(start, end)]
        assert not any(secret in text for text in (carried, *tasks) for secret in (SECRET.hex().encode(), SECRET))
        worker = pickle.loads(carried)
        rows = [batch for task in tasks for batch in worker.read(pickle.loads(task))]
        assert sum(batch.num_rows for batch in rows) == 150
        assert isinstance(pickle.loads(tasks[0]), RangePartition)
        assert reader.reportLatestOffset() == {"orders": {"0": 100, "1": 50}}
    finally:
        reader.stop()


def test_limits_of_the_engine_win_over_those_of_the_options(cluster: ToyCluster) -> None:
    both = stream_reader_of(options_of(cluster, maxOffsetsPerTrigger=9, minOffsetsPerTrigger=5))
    least = stream_reader_of(options_of(cluster, minOffsetsPerTrigger=5))
    assert both.getDefaultReadLimit() == ReadMaxRows(9)
    assert least.getDefaultReadLimit() == ReadMinRows(5)
    assert stream_reader_of(options_of(cluster)).getDefaultReadLimit() == ReadAllAvailable()
    try:
        start = both.initialOffset()
        assert sum(both.latestOffset(start, ReadMaxRows(90))["orders"].values()) == 90
        assert sum(both.latestOffset(start, ReadAllAvailable())["orders"].values()) == 150
    finally:
        both.stop()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets has no meaning in a stream.*AvailableNow"),
        ({"maxOffsetsPerTrigger": 0}, "maxOffsetsPerTrigger must be at least 1"),
        ({"maxOffsetsPerTriger": 1}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"minOffsetsPerTrigger": 9, "maxOffsetsPerTrigger": 8}, r"minOffsetsPerTrigger \(9\) is above"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay must be a whole number and a unit"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "must be an offset, -2"),
    ],
)
def test_options_of_streams_are_checked(cluster: ToyCluster, given: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        options_of(cluster, **given)


def test_a_stream_with_wrong_options_is_refused_by_a_reader(cluster: ToyCluster) -> None:
    """Without a reader, PySpark fails once more while it ends, and the user sees that error last."""
    source = RaylogDataSource({"subscribe": "orders", "endingOffsets": "latest", "raylog.bootstrap": cluster.bootstrap})
    reader = source.streamReader(source.schema())
    for step in (reader.initialOffset, reader.prepareForTriggerAvailableNow):
        with pytest.raises(InvalidConfig, match="endingOffsets has no meaning in a stream"):
            step()
    with pytest.raises(InvalidConfig, match="endingOffsets has no meaning in a stream"):
        reader.latestOffset({}, ReadAllAvailable())
    reader.stop()


def test_kafkas_stream_options_are_taken(cluster: ToyCluster) -> None:
    found = options_of(cluster, startingOffsets="latest", maxOffsetsPerTrigger=5, maxTriggerDelay="2m")
    assert found.wanted.start.everywhere == LATEST
    assert found.limits == Limits(max_offsets=5, max_delay_ms=120_000)
