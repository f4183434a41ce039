"""The same readers in one process, thousands of trials a minute: the shipped tasks and planners, run as Ray and Spark
run theirs, against a cluster in memory.

Ray gives out the blocks of a task as they come. It repeats a task whose worker was lost, drops as many blocks of it as
had arrived, and loses an error that it raises before that (`data/attempts.py`). Spark gives out what a task has read
once it has ended, and repeats one that failed. Both are modelled here; what they run is not.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

from raylog.base.errors import CorruptMessage, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumer import Consumer
from raylog.client.ranges.offsets import split_ranges
from raylog.client.ranges.planning import RangesWanted, plan_read
from raylog.client.ranges.reading import RangeReading
from raylog.data.attempts import REPETITIONS
from raylog.data.datasource import RangesTask
from raylog.data.following import FollowingTask
from raylog.data.offsets import end_of, start_of
from raylog.data.reads import in_groups, shared_out
from raylog.rpc import Request
from raylog.rpc.permissions import token_expired
from raylog.spark.reading.columns import row_schema
from raylog.spark.reading.options import parse_options
from raylog.spark.reading.reader import RaylogReader
from raylog.spark.reading.stream_reader import RaylogStreamReader
from raylog.storage.batch.cleaned import filler, thinned
from raylog.storage.batch.header import PLAIN, TRANSACTIONAL_BIT, BatchHeader, BatchMeta, parse_header
from raylog.storage.batch.records import decode_batch, encode_batch
from tests.readers.promises import Outcome, Promise, judge
from tests.readers.topics import KEYS, TRANSACTIONS, Rows, level_of, rows_of, values_of
from tests.readers.trials import Fault, Trial
from tests.unit.client.toy_partition import ToyPartition
from tests.unit.client.toy_replica import ToyReplica
from tests.unit.client.toy_server import SECRET, ToyCluster

COLUMNS = ("partition", "offset", "value")
STALL_S = 4.0
GRACE_S = 0.05
"""How long a topic may be unknown here before it counts as deleted; the toy's brokers know at once."""
SPARK_ATTEMPTS = 4
BLOCK_ROWS = 64
FETCH_BYTES = 3_000
HANGS_S = 20.0


class WorkerLost(Exception):
    """The worker that ran a task was killed, or has ended itself."""


class Ended(BaseException):
    """Stands for the end of the process of a worker."""


class WorkerCrashedError(Exception):
    """What Ray raises when a task was lost too often."""


@contextmanager
def small_steps() -> Iterator[None]:
    """Small blocks, no waiting for topics that are deleted, and ends of processes as exceptions."""

    def end(code: int) -> None:
        raise Ended(code)

    with ExitStack() as stack:
        for name, value in (
            ("raylog.client.ranges.arrow.ROWS", BLOCK_ROWS),
            ("raylog.client.reading.range_fetcher.TOPIC_GRACE_S", GRACE_S),
            ("raylog.spark.reading.live_logs.SETTLE_S", GRACE_S),
            ("raylog.spark.reading.live_logs.METADATA_AGE_S", 0.0),
            ("raylog.data.attempts.os._exit", end),
        ):
            stack.enter_context(mock.patch(name, value))
        yield


class World:
    """A cluster in memory, for many trials one after the other."""

    def __init__(self, cluster: ToyCluster) -> None:
        self.cluster = cluster
        self._refused: set[str] = set()
        """Ids of topics whose tokens have ended."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Have every replica made meanwhile refuse the tokens that have ended."""
        handle, refused = ToyReplica.handle, self._refused

        def guard(replica: ToyReplica, request: Request) -> None:
            if replica.partition.topic_id in refused:
                request.fail(token_expired())
            else:
                handle(replica, request)

        with mock.patch.object(ToyReplica, "handle", guard):
            yield

    def run(self, trial: Trial) -> Outcome:
        """Run one trial."""
        topic = f"trial-{trial.seed}"
        promise = self._make(trial, topic)
        faults, found = list(trial.faults), []
        count = 0
        began_s = time.monotonic()
        lost = False

        def due(arrived: int) -> None:
            """Carry out the faults that are due; raise WorkerLost where the worker is among their victims."""
            nonlocal count, lost
            count += arrived
            while faults and count >= faults[0].after * len(promise.rows):
                fault = faults.pop(0)
                promise.happened.add(fault.kind)
                if fault.kind == "worker":
                    lost = True
                else:
                    self._injure(trial, topic, promise, fault)
            if lost:
                lost = False
                raise WorkerLost

        error: BaseException | None = None
        try:
            for rows in _READERS[trial.reader](self, trial, topic, promise, due):
                found += rows
        except (Exception, Ended) as failure:
            error = failure
        outcome = judge(promise, found, error)
        self._forget(topic)
        if time.monotonic() - began_s > HANGS_S:
            return Outcome("hangs", f"it took {time.monotonic() - began_s:.0f} s, and ended with {error!r}")
        return outcome

    # The topic

    def _make(self, trial: Trial, topic: str, mark: str = "r") -> Promise:
        config = {"cleanup.policy": "compact"} if trial.kind == "compacted" else {}
        self.cluster.create_topic(topic, trial.partitions, trial.replicas if trial.replicas == 1 else None, config)
        self.cluster.do(lambda: self._fill(trial, topic, mark))
        return self.cluster.do(lambda: self._promise(trial, topic))

    def _fill(self, trial: Trial, topic: str, mark: str) -> None:
        dice = random.Random(trial.seed)
        own = trial.kind == "transactional"
        for piece in range(TRANSACTIONS if own else 1):
            is_aborted = own and dice.random() < 0.4
            for partition in range(trial.partitions):
                one = self.cluster.partitions[topic, partition]
                count = max(1, trial.rows // TRANSACTIONS) if own else trial.rows
                values = values_of(trial, partition, count, f"{mark}{piece}{'x' if is_aborted else ''}")
                for first in range(0, count, trial.batch_rows):
                    chosen = values[first : first + trial.batch_rows]
                    keys: list[bytes | None] = [b"k%d" % ((first + row) % KEYS) for row in range(len(chosen))]
                    batch = encode_batch(
                        keys,
                        list(chosen),
                        [1_000 + first] * len(chosen),
                        None,
                        _meta(partition, piece, first) if own else PLAIN,
                    )
                    one.append(memoryview(batch))
                one.advance()
                if own:
                    one.end_transaction(7 + partition, piece + 1, committed=not is_aborted)

    def _promise(self, trial: Trial, topic: str) -> Promise:
        rows: dict[tuple[int, int], bytes] = {}
        latest: dict[tuple[int, bytes], tuple[int, int]] = {}
        hides = trial.kind == "transactional" and trial.committed
        for partition in range(trial.partitions):
            for _, found in self.cluster.partitions[topic, partition].columns():
                assert found.keys is not None
                assert found.values is not None
                for offset, key, value in zip(found.offsets, found.keys, found.values, strict=True):
                    assert key is not None
                    assert value is not None
                    if hides and b"x-" in value:
                        continue
                    rows[partition, offset] = value
                    if b"x-" not in value:
                        latest[partition, key] = (partition, offset)
        return Promise(trial, rows, frozenset(latest.values()))

    def _forget(self, topic: str) -> None:
        if topic in self.cluster.topics:
            self.cluster.delete_topic(topic)
        self._refused.clear()

    # Faults

    def _injure(self, trial: Trial, topic: str, promise: Promise, fault: Fault) -> None:
        if promise.is_deleted and fault.kind not in ("cut", "expire"):
            return
        dice = random.Random(trial.seed + len(promise.happened))
        ones = [
            self.cluster.partitions[topic, partition] for partition in range(trial.partitions) if not promise.is_deleted
        ]
        match fault.kind:
            case "leader" | "damage":  # one replica's damage is given up for another leader
                for log in ones:
                    self.cluster.move_leader(topic, log.partition)
            case "cut":
                self.cluster.cut_connections()
            case "delete" | "retention":
                self.cluster.do(lambda: _delete(ones, fault, promise))
            case "compact":
                self.cluster.do(lambda: _compact(ones, promise))
            case "ruin":
                self.cluster.do(lambda: _ruin(dice.choice(ones), dice))
            case "expire":
                self._refused |= {log.topic_id for log in ones} | {self.cluster.topics[topic][0]}
            case "recreate":
                promise.is_deleted = True
                self.cluster.delete_topic(topic)
                self._make(trial, topic, "new")


# What faults do to a partition of the toy, on its loop


def _meta(partition: int, epoch: int, sequence: int) -> BatchMeta:
    """A batch of a transaction of the partition's one producer; the marker before has raised its epoch."""
    return BatchMeta(7 + partition, epoch, sequence, attributes=TRANSACTIONAL_BIT)


def _delete(ones: Sequence[ToyPartition], fault: Fault, promise: Promise) -> None:
    """Move the log starts; retention goes by whole batches, whose bytes go at once."""
    for log in ones:
        start = int(fault.upto * log.high_watermark)
        if fault.kind == "retention":
            start = max((header.next_offset for header, _ in log.batches if header.next_offset <= start), default=0)
        log.log_start = max(log.log_start, start)
        log.batches = [(header, batch) for header, batch in log.batches if header.next_offset > log.log_start]
        promise.log_starts[log.partition] = log.log_start


def _compact(ones: Sequence[ToyPartition], promise: Promise) -> None:
    """Do what a cleaning does, by the same functions: keep the last record of each key."""
    promise.is_compacted = True
    for log in ones:
        log.batches = [_cleaned(header, batch, log.partition, promise) for header, batch in log.batches]


def _cleaned(header: BatchHeader, batch: bytes, partition: int, promise: Promise) -> tuple[BatchHeader, bytes]:
    if header.is_control:
        return header, batch
    try:
        columns = decode_batch(batch, 0, header)
    except CorruptMessage:
        return header, batch  # as the cleaner keeps it
    chosen = [(partition, offset) in promise.latest for offset in columns.offsets]
    if all(chosen):
        return header, batch
    if any(chosen):
        changed = thinned(header, columns, chosen, None)
    else:
        changed = filler(header.base_offset, header.next_offset, header.partition_leader_epoch)
    return parse_header(changed), changed


def _ruin(one: ToyPartition, dice: random.Random) -> None:
    """Flip one bit of a batch; half of the time in its header."""
    if not one.batches:
        return
    at = dice.randrange(len(one.batches))
    header, batch = one.batches[at]
    changed = bytearray(batch)
    changed[dice.randrange(min(len(batch), 61) if dice.random() < 0.5 else len(batch))] ^= 1 << dice.randrange(8)
    one.batches[at] = header, bytes(changed)


# Readers

Due = Callable[[int], None]


def _wanted(world: World, trial: Trial, topic: str, **more: Any) -> RangesWanted:
    """What `raylog.data.read` plans."""
    given: dict[str, Any] = {"start": start_of("earliest"), "end": end_of("latest"), **more}
    return RangesWanted(
        topics=(topic,),
        latest_without_match=True,
        fail_on_data_loss=False,
        may_lie_ahead=True,
        refuses_start_behind_end=True,
        bootstrap=world.cluster.bootstrap,
        secret=SECRET.hex(),
        consumer=ConsumerConfig(isolation_level=level_of(trial)),
        **given,
    )


def _ray(world: World, trial: Trial, topic: str, promise: Promise, due: Due) -> Iterator[Rows]:
    reading = RangeReading(
        fail_on_data_loss=trial.fails_on_loss,
        stall_timeout_s=STALL_S,
        fetch_max_bytes=FETCH_BYTES,
        isolation_level=level_of(trial),
        short_circuit_reads=trial.near,
    )
    ranges = plan_read(_wanted(world, trial, topic))
    pieces = split_ranges([(item.start, item.end) for item in ranges], min_partitions=trial.tasks, max_records=None)
    cut = [replace(ranges[index], start=start, end=end) for index, start, end in pieces]
    for group in in_groups(cut, trial.tasks):
        yield from _as_ray(
            pickle.loads(pickle.dumps(RangesTask(tuple(group), reading, COLUMNS, None))), due, REPETITIONS
        )


def _follow(world: World, trial: Trial, topic: str, promise: Promise, due: Due) -> Iterator[Rows]:
    ends = {topic: {p: world.cluster.partitions[topic, p].last_stable_offset for p in range(trial.partitions)}}
    ranges = plan_read(_wanted(world, trial, topic, end=end_of(ends), follows=True))
    settings = ConsumerConfig(
        isolation_level=level_of(trial),
        auto_offset_reset="none" if trial.fails_on_loss else "earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    for group in shared_out(ranges, trial.tasks):
        yield from _as_ray(FollowingTask(tuple(group), settings, COLUMNS, None), due, 0)


def _as_ray(task: Callable[[], Iterator[Any]], due: Due, repetitions: int) -> Iterator[Rows]:
    """What the reader of a dataset gets of one read task."""
    arrived = 0
    for attempt in range(repetitions + 1):
        position = 0
        with (
            mock.patch("raylog.data.datasource.attempt_number", lambda number=attempt: number),
            mock.patch("raylog.data.following.attempt_number", lambda number=attempt: number),
        ):
            try:
                due(0)
                for block in task():
                    position += 1
                    if position > arrived:
                        arrived += 1
                        rows = rows_of(block)
                        yield rows
                        due(len(rows))
                return
            except (WorkerLost, Ended):
                continue
            except RaylogError:
                if position < arrived:
                    return  # Ray stores it under a number that the reader has passed
                raise
    raise WorkerCrashedError


def _as_spark(read: Callable[[], Iterator[Any]], due: Due) -> Rows:
    """What a stage of Spark has of one task."""
    for attempt in range(1, SPARK_ATTEMPTS + 1):
        found: Rows = []
        try:
            due(0)
            for batch in read():
                rows = rows_of(batch)
                found += rows
                due(len(rows))
            return found
        except WorkerLost:
            continue
        except RaylogError:
            if attempt == SPARK_ATTEMPTS:
                raise
    raise WorkerCrashedError


def _spark_options(world: World, trial: Trial, topic: str) -> dict[str, str]:
    found = {
        "raylog.bootstrap": world.cluster.bootstrap,
        "raylog.secret": SECRET.hex(),
        "subscribe": topic,
        "columns": ",".join(COLUMNS),
        "startingOffsets": "earliest",
        "kafka.isolation.level": level_of(trial),
        "kafka.max.partition.fetch.bytes": str(FETCH_BYTES),
        "failOnDataLoss": str(trial.fails_on_loss).lower(),
        "kafkaConsumer.pollTimeoutMs": str(int(STALL_S * 1000)),
    }
    return found if trial.tasks == 1 else {**found, "minPartitions": str(trial.tasks)}


def _spark(world: World, trial: Trial, topic: str, promise: Promise, due: Due) -> Iterator[Rows]:
    options = parse_options(_spark_options(world, trial, topic))
    reader = RaylogReader(options, row_schema(options.columns))
    partitions = reader.partitions()
    shipped = pickle.loads(pickle.dumps(reader))
    for partition in partitions:
        yield _as_spark(partial(shipped.read, pickle.loads(pickle.dumps(partition))), due)


def _stream(world: World, trial: Trial, topic: str, promise: Promise, due: Due) -> Iterator[Rows]:
    given = _spark_options(world, trial, topic) | {"maxOffsetsPerTrigger": str(max(1, len(promise.rows) // 3))}
    options = parse_options(given, is_stream=True)
    reader = RaylogStreamReader(options, row_schema(options.columns))
    shipped = pickle.loads(pickle.dumps(reader))
    try:
        begin = reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        while (end := reader.latestOffset(begin, reader.getDefaultReadLimit())) != begin:
            found: Rows = []
            for partition in reader.partitions(begin, end):
                found += _as_spark(partial(shipped.read, pickle.loads(pickle.dumps(partition))), due)
            yield found
            reader.commit(end)
            begin = end
    finally:
        reader.stop()


def _columns(world: World, trial: Trial, topic: str, promise: Promise, due: Due) -> Iterator[Rows]:
    places = [TopicPartition(topic, partition) for partition in range(trial.partitions)]
    with Consumer(
        bootstrap=world.cluster.bootstrap,
        secret=SECRET,
        isolation_level=level_of(trial),
        auto_offset_reset="none" if trial.fails_on_loss else "earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=FETCH_BYTES,
    ) as consumer:
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        consumer.seek_to_beginning()
        deadline_s = time.monotonic() + HANGS_S
        while any(consumer.position(place) < end for place, end in ends.items()):
            due(0)
            rows = rows_of(consumer.consume_batch(BLOCK_ROWS, timeout=0.2))
            yield rows
            due(len(rows))
            if time.monotonic() > deadline_s:
                raise TimeoutError("the consumer stands still")


_READERS: dict[str, Callable[[World, Trial, str, Promise, Due], Iterator[Rows]]] = {
    "ray": _ray,
    "follow": _follow,
    "spark": _spark,
    "stream": _stream,
    "columns": _columns,
}
