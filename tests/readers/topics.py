"""The topics that trials read on a real cluster: their records, and what a reader has to see of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any, Final

import raylog
from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.accepted import IsolationLevel
from raylog.client.reading.column_batch import ColumnBatch
from tests.readers.promises import Promise
from tests.readers.trials import Trial

Rows = list[tuple[int, int, bytes]]
"""Partition, offset and value."""

KEYS: Final = 50
SEGMENT_BYTES: Final = 1 << 20
CONFIG: Final = {"segment.bytes": SEGMENT_BYTES, "file.delete.delay.ms": 200, "min.cleanable.dirty.ratio": "0.0"}
UNCLEANED: Final = {"min.compaction.lag.ms": 3_600_000}
TRANSACTIONS: Final = 5


def values_of(trial: Trial, partition: int, count: int, mark: str) -> list[bytes]:
    """Values that are like no other's; `mark` distinguishes topics of one name, and what was aborted."""
    room = trial.value_bytes
    return [(b"%d-%s-%d-%d" % (trial.seed, mark.encode(), partition, row)).ljust(room, b".") for row in range(count)]


def make(admin: raylog.Admin, trial: Trial, topic: str, mark: str = "r") -> None:
    """Create the topic of a trial, and fill it."""
    config: dict[str, Any] = {**CONFIG, **UNCLEANED}
    if trial.kind == "compacted":
        config["cleanup.policy"] = "compact"
    admin.create_topic(topic, partitions=trial.partitions, replication_factor=trial.replicas, config=config)
    own = {"transactional_id": f"{topic}-writer"} if trial.kind == "transactional" else {}
    with raylog.Producer(**own, batch_size=200_000) as producer:  # type: ignore[arg-type]
        if own:
            producer.init_transactions()
        pieces = TRANSACTIONS if own else 1
        dice = random.Random(trial.seed)
        for piece in range(pieces):
            if own:
                producer.begin_transaction()
            is_aborted = bool(own) and dice.random() < 0.4
            for partition in range(trial.partitions):
                count = max(1, trial.rows // pieces)
                values = values_of(trial, partition, count, f"{mark}{piece}{'x' if is_aborted else ''}")
                keys = [b"k%d" % (row % KEYS) for row in range(count)]
                producer.send_batch(topic, values, keys, partition=partition)
            producer.flush(60)
            if is_aborted:
                producer.abort_transaction()
            elif own:
                producer.commit_transaction()


def places_of(trial: Trial, topic: str) -> list[TopicPartition]:
    """Its partitions."""
    return [TopicPartition(topic, partition) for partition in range(trial.partitions)]


def level_of(trial: Trial) -> IsolationLevel:
    """The isolation level of its reader."""
    return "read_committed" if trial.committed else "read_uncommitted"


def rows_of(batch: Any) -> Rows:
    """The rows of a table, or of a batch of columns."""
    table = batch.to_arrow() if isinstance(batch, ColumnBatch) else batch
    columns = [table.column(name).to_pylist() for name in ("partition", "offset", "value")]
    return list(zip(*columns, strict=True))


def columns_of(trial: Trial, topic: str, ends: dict[TopicPartition, int], **more: Any) -> Iterator[Rows]:
    """Read the topic to these ends with a consumer's columns."""
    wanted = {"isolation_level": level_of(trial), "auto_offset_reset": "none", "enable_auto_commit": False}
    with raylog.Consumer(**{**wanted, **more}) as consumer:
        consumer.assign(list(ends))
        consumer.seek_to_beginning()
        while any(consumer.position(place) < end for place, end in ends.items()):
            yield rows_of(consumer.consume_batch(2_000, timeout=0.5))


def ends_of(trial: Trial, topic: str) -> dict[TopicPartition, int]:
    """Where a reader's view ends; waits for the markers of all transactions."""
    places = places_of(trial, topic)
    plain: dict[str, Any] = {"enable_auto_commit": False}
    deadline_s = time.monotonic() + 30
    with (
        raylog.Consumer(**plain, isolation_level="read_committed") as committed,
        raylog.Consumer(**plain, isolation_level="read_uncommitted") as every,
    ):
        while (found := committed.end_offsets(places)) != every.end_offsets(places):
            assert time.monotonic() < deadline_s, "all transactions end"
            time.sleep(0.02)
    return found


def promise_of(trial: Trial, topic: str) -> tuple[Promise, dict[TopicPartition, int]]:
    """What a reader that begins now has to see, read while nothing fails; and where the logs end."""
    ends = ends_of(trial, topic)
    rows: dict[tuple[int, int], bytes] = {}
    for piece in columns_of(trial, topic, ends):
        rows.update(((partition, offset), value) for partition, offset, value in piece)
    sent = trial.partitions * trial.rows
    assert len(rows) == sent or trial.kind == "transactional", f"{len(rows)} of {sent} rows can be read"
    per_key: dict[tuple[int, bytes], tuple[int, int]] = {}
    for (partition, offset), value in rows.items():
        row = int(value.rstrip(b".").rpartition(b"-")[2])
        per_key[partition, b"%d" % (row % KEYS)] = (partition, offset)
    return Promise(trial, rows, frozenset(per_key.values())), ends


def note_log_starts(promise: Promise, topic: str) -> None:
    """Read where the logs begin now into the promise."""
    try:
        with raylog.Consumer(enable_auto_commit=False) as consumer:
            found = consumer.beginning_offsets(places_of(promise.trial, topic))
    except RaylogError:
        return
    for place, offset in found.items():
        promise.log_starts[place.partition] = max(offset, promise.log_starts.get(place.partition, 0))
