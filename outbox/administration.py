"""What an administrator sees of an outbox, and does about failed events. May touch: the user's database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine, delete, func, select, update

from raylog.outbox.engines import begin, connect
from raylog.outbox.tables import FAILED, UNFINISHED, checked_settings, lanes, lease, now_ms, outbox

FAILED_SHOWN = 100
"""Most failed events that a status lists."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard: its relay ("" = none), how long its lease still runs (ms; 0 = no relay holds it), and its fence."""

    shard: int
    owner: str
    lease_left_ms: int
    fence: int


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """Where a shard continues in one partition: its producer there, and the sequence of the next record."""

    shard: int
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    next_sequence: int


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """An event that its topic refuses for good. ``waiting``: how many later events of its key it holds up."""

    row_id: int
    txid: str
    topic: str
    key: bytes | None
    reason: str
    waiting: int


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """One outbox. ``counts``: events by state. ``oldest_ms``: age of the oldest due, unfinished event; None = none."""

    settings: dict[str, str]
    counts: dict[str, int]
    delayed: int
    """Unfinished events that are not due yet."""
    oldest_ms: int | None
    shards: tuple[ShardStatus, ...]
    lanes: tuple[LaneStatus, ...]
    failed: tuple[FailedEvent, ...]


def status(engine: Engine) -> OutboxStatus:
    """Describe an outbox. Raises OutboxNotInitialized, OutboxVersionMismatch."""
    with connect(engine) as db:
        known = checked_settings(db)
        now = db.scalar(select(now_ms())) or 0
        counts = {row[0]: row[1] for row in db.execute(select(outbox.c.state, func.count()).group_by(outbox.c.state))}
        is_delayed = (outbox.c.state == UNFINISHED) & (outbox.c.deliver_at > now)
        delayed = db.scalar(select(func.count()).select_from(outbox).where(is_delayed)) or 0
        since = func.coalesce(outbox.c.deliver_at, outbox.c.created_at)
        oldest = db.scalar(select(func.min(since)).where(outbox.c.state == UNFINISHED, since <= now))
        shards = [
            ShardStatus(row.shard, row.owner, max(0, row.until - now) if row.owner else 0, row.fence)
            for row in db.execute(select(lease).order_by(lease.c.shard))
        ]
        places = [
            LaneStatus(row.shard, row.topic, row.partition_no, row.producer_id, row.producer_epoch, row.next_sequence)
            for row in db.execute(select(lanes).order_by(lanes.c.shard, lanes.c.topic, lanes.c.partition_no))
        ]
        rows = db.execute(select(outbox).where(outbox.c.state == FAILED).order_by(outbox.c.id).limit(FAILED_SHOWN))
        failed = [FailedEvent(row.id, row.txid, row.topic, row.msg_key, row.last_error or "", 0) for row in rows.all()]
        same = outbox.c.state == UNFINISHED
        found = [
            FailedEvent(
                event.row_id,
                event.txid,
                event.topic,
                event.key,
                event.reason,
                0
                if event.key is None
                else db.scalar(
                    select(func.count())
                    .select_from(outbox)
                    .where(same, outbox.c.topic == event.topic, outbox.c.msg_key == event.key)
                )
                or 0,
            )
            for event in failed
        ]
    age = None if oldest is None else max(0, now - oldest)
    return OutboxStatus(known, counts, delayed, age, tuple(shards), tuple(places), tuple(found))


def retry(engine: Engine, row_ids: Sequence[int] | None = None) -> int:
    """Let the relay send failed events again, once the reason is mended; returns how many. `row_ids` None: all.

    Raises OutboxNotInitialized, OutboxVersionMismatch.
    """
    return _decide(engine, row_ids, is_retried=True)


def discard(engine: Engine, row_ids: Sequence[int]) -> int:
    """Delete failed events for good, so that later events of their keys continue; returns how many.

    Raises OutboxNotInitialized, OutboxVersionMismatch.
    """
    return _decide(engine, row_ids, is_retried=False)


def _decide(engine: Engine, row_ids: Sequence[int] | None, *, is_retried: bool) -> int:
    which = [outbox.c.state == FAILED, *([] if row_ids is None else [outbox.c.id.in_(row_ids)])]
    with begin(engine) as db:
        checked_settings(db)
        if is_retried:
            return db.execute(update(outbox).where(*which).values(state=UNFINISHED, finished_at=None)).rowcount
        return db.execute(delete(outbox).where(*which)).rowcount
