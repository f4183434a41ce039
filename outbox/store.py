"""What the relay does with the tables: leases, and the one transaction of a turn. Blocking; for one thread at a time.

Every transaction that writes for a shard begins with a check of the fence, which also renews the lease and locks its
row. So a relay that has lost its shard changes nothing, however late it notices. May touch: the user's database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    and_,
    bindparam,
    delete,
    exists,
    false,
    func,
    insert,
    or_,
    select,
    update,
)

from raylog.base.errors import OutboxBoundElsewhere, OutboxLeaseLost, OutboxVersionMismatch
from raylog.base.ids import TopicPartition
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.outbox.encoding import EventRow, encoded
from raylog.outbox.engines import begin, connect
from raylog.outbox.model import Candidate, Changes, Full, OutboxBatch, Position
from raylog.outbox.planning import Plan, Planner
from raylog.outbox.session import Session
from raylog.outbox.tables import FAILED, FINISHED, UNFINISHED, checked_settings, lanes, lease, meta, now_ms, outbox

CLEANED_AT_ONCE = 1_000
ERROR_LENGTH = 1_000
SHARE_OF_LATER = 4
"""One in so many of a turn's rows is reserved for delayed rows, which would otherwise wait for the end of a backlog."""
_PAGE = 2_000


class Kind(Enum):
    """Which rows to read: those that are due, or those that are delayed."""

    NOW = "now"
    LATER = "later"


@dataclass(frozen=True, slots=True)
class Lease:
    """A shard that this relay holds, until another one takes a higher fence."""

    shard: int
    fence: int
    producer_id: int | None


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of one transaction: its plan, and the new batches encoded."""

    plan: Plan
    batches: Mapping[OutboxBatch, bytes]


class OutboxStore:
    """The tables of one database, as one relay uses them."""

    def __init__(self, engine: Engine, owner: str, *, lease_ms: int, compression_type: str = "none") -> None:
        """`owner`: a name that no other relay has."""
        level = {} if engine.dialect.name == "sqlite" else {"isolation_level": "READ COMMITTED"}
        self._engine = engine.execution_options(**level)
        self._owner = owner
        self._lease_ms = lease_ms
        self._compression_type = compression_type
        self.shards = 1
        """Number of shards, as the table has it; read with every lease."""

    # ------------------------------------------------------------ leases

    def bind(self, producer_name: str, cluster_id: str, *, rebind: bool = False) -> None:
        """Bind the outbox to a producer name and a cluster; the first relay decides.

        `rebind` replaces another name or cluster; for another cluster, batches on their way are dissolved and the
        shards get new producer ids. Raises OutboxNotInitialized, OutboxVersionMismatch, and OutboxBoundElsewhere for
        another name or cluster without `rebind`.
        """
        with begin(self._engine) as db:
            known = checked_settings(db)
            self.shards = int(known["shards"])
            wanted = {"producer_name": producer_name, "cluster_id": cluster_id}
            if all(known.get(name) == value for name, value in wanted.items()):
                return
            others = {name: known[name] for name in wanted if name in known and known[name] != wanted[name]}
            if others and not rebind:
                raise OutboxBoundElsewhere(_bound_elsewhere(others, wanted))
            db.execute(delete(meta).where(meta.c.name.in_(wanted)))
            db.execute(insert(meta), [{"name": name, "value": value} for name, value in wanted.items()])
            if "cluster_id" in others:  # producer ids and sequences mean nothing there; a new fence stops older relays
                db.execute(update(lease).values(producer_id=None, owner="", until=0, fence=lease.c.fence + 1))
                db.execute(_freed(outbox.c.batch_no.is_not(None)))
                db.execute(delete(lanes))

    def take(self, shard: int) -> Lease | None:
        """Take a shard whose lease is free or has run out; None while another relay holds it.

        Raises OutboxNotInitialized, OutboxVersionMismatch.
        """
        with begin(self._engine) as db:
            self.shards = int(checked_settings(db)["shards"])
            taken = db.execute(
                update(lease)
                .where(lease.c.shard == shard)
                .where(or_(lease.c.owner == "", lease.c.owner == self._owner, lease.c.until < now_ms()))
                .values(owner=self._owner, fence=lease.c.fence + 1, until=now_ms() + self._lease_ms)
            )
            if taken.rowcount != 1:
                return None
            row = db.execute(select(lease.c.fence, lease.c.producer_id).where(lease.c.shard == shard)).one()
            return Lease(shard, row.fence, row.producer_id)

    def renew(self, held: Lease) -> None:
        """Hold the lease for longer. Raises OutboxLeaseLost."""
        with self._fenced(held):
            pass

    def release(self, held: Lease) -> None:
        """Let the next relay take the shard at once."""
        with begin(self._engine) as db:
            db.execute(update(lease).where(_is_held(held, self._owner)).values(owner="", until=0))

    def keep_producer_id(self, held: Lease, producer_id: int) -> None:
        """Note the producer id of a shard, before anything is sent with it. Raises OutboxLeaseLost."""
        with self._fenced(held) as db:
            db.execute(update(lease).where(lease.c.shard == held.shard).values(producer_id=producer_id))

    # ------------------------------------------------------------ a session

    def load(self, held: Lease, session: Session) -> dict[OutboxBatch, bytes]:
        """Load what earlier relays left into the session; returns its unmarked batches, encoded.

        Raises OutboxLeaseLost, and OutboxVersionMismatch where a batch in the table is incomplete.
        """
        with self._fenced(held) as db:
            known = {
                TopicPartition(row.topic, row.partition_no): Position(
                    row.topic_id, row.producer_id, row.producer_epoch, row.next_batch, row.next_sequence
                )
                for row in db.execute(select(lanes).where(lanes.c.shard == held.shard))
            }
            batches = list(_unmarked(db, held.shard, known))
            session.load(batches, known)
            return self._encoded(db, batches)

    def has_work(self, held: Lease, full: Full) -> bool:
        """Whether a row could go into a batch now, given what is full; reads only."""
        with connect(self._engine) as db:
            return any(db.execute(self._candidates(held, full, kind).limit(1)).first() is not None for kind in Kind)

    def turn(self, held: Lease, session: Session, changes: Changes) -> Turn:
        """Write the changes, and put waiting rows into new batches, in one transaction. Raises OutboxLeaseLost.

        After any failure the session must be thrown away.
        """
        with self._fenced(held) as db:
            self._write(db, held, changes)
            planner = session.planner()
            self._read(db, held, planner, session)
            plan = planner.finish()
            self._write(db, held, Changes(failed=plan.refused, positions=plan.positions))
            params = [
                {
                    "row_id": row_id,
                    "to_lane": batch.where.topic,
                    "to_target": plan.targets.get(row_id),
                    "to_partition": batch.where.partition,
                    "to_batch": batch.number,
                    "to_sequence": batch.first_sequence + index,
                }
                for batch in plan.batches
                for index, row_id in enumerate(batch.rows)
            ]
            if params:
                db.execute(_ASSIGN.values(shard=held.shard), params)
            encoded_batches = self._encoded(db, plan.batches)
        session.planned(plan)
        return Turn(plan, encoded_batches)

    def mark(self, held: Lease, changes: Changes) -> None:
        """Write changes without planning new batches, as at the end of a session. Raises OutboxLeaseLost."""
        with self._fenced(held) as db:
            self._write(db, held, changes)

    def clean(self, held: Lease, older_than_ms: int) -> int:
        """Delete up to 1,000 events that were finished more than `older_than_ms` ago; returns how many.

        Raises OutboxLeaseLost.
        """
        with self._fenced(held) as db:
            old = and_(outbox.c.state == FINISHED, outbox.c.finished_at < now_ms() - older_than_ms)
            ids = db.scalars(select(outbox.c.id).where(old).order_by(outbox.c.id).limit(CLEANED_AT_ONCE)).all()
            if ids:
                db.execute(delete(outbox).where(outbox.c.id.in_(ids)))
            return len(ids)

    # ------------------------------------------------------------ inside

    @contextmanager
    def _fenced(self, held: Lease) -> Iterator[Connection]:
        """A transaction that only the holder of the lease gets; it renews the lease. Raises OutboxLeaseLost."""
        with begin(self._engine) as db:
            renewed = update(lease).where(_is_held(held, self._owner)).values(until=now_ms() + self._lease_ms)
            if db.execute(renewed).rowcount != 1:
                raise OutboxLeaseLost(f"Another relay has taken shard {held.shard} over; this one waits behind it.")
            yield db

    def _candidates(self, held: Lease, full: Full, kind: Kind, behind: Row[Any] | None = None) -> Any:
        """A query of rows that are in no batch: those that are due, by id, or the delayed ones, by due time.

        Delayed rows are sent to ``__scheduled``; where that topic does not exist, they wait here until they are due.
        `behind`: only rows that come after this one.
        """
        other = outbox.alias("other")
        behind_failed = exists().where(
            other.c.state == FAILED,
            other.c.id < outbox.c.id,
            other.c.topic == outbox.c.topic,
            other.c.route == outbox.c.route,
            other.c.msg_key == outbox.c.msg_key,
        )
        waiting = [outbox.c.state == UNFINISHED, outbox.c.batch_no.is_(None), ~behind_failed, *_not_full(full, kind)]
        if self.shards > 1:
            waiting.append(outbox.c.route % self.shards == held.shard)
        size = sum(
            (func.coalesce(func.length(column), 0) for column in (outbox.c.payload, outbox.c.headers)),
            func.coalesce(func.length(outbox.c.msg_key), 0),
        )
        chosen = select(
            outbox.c.id,
            outbox.c.topic,
            outbox.c.msg_key,
            size.label("size"),
            outbox.c.attempts,
            outbox.c.deliver_at,
            (outbox.c.deliver_at - now_ms()).label("delay"),
        ).where(*waiting)
        if kind is Kind.NOW:  # whatever is due has its place among the others of its key
            chosen = chosen.where(or_(outbox.c.deliver_at.is_(None), outbox.c.deliver_at <= now_ms()))
            after = None if behind is None else outbox.c.id > behind.id
            order = [outbox.c.id]
        else:
            chosen = chosen.where(outbox.c.deliver_at > now_ms())
            after = None if behind is None else _is_behind(behind)
            order = [outbox.c.deliver_at, outbox.c.id]
        return (chosen if after is None else chosen.where(after)).order_by(*order)

    def _read(self, db: Connection, held: Lease, planner: Planner, session: Session) -> None:
        """Show the planner waiting rows, page by page, until it has enough.

        A share of delayed rows comes first: otherwise they would wait for the end of a backlog.
        """
        full, share = session.full(), max(1, session.limits.rows // SHARE_OF_LATER)
        later = self._page(db, held, full, Kind.LATER, planner, None, share)
        behind, scanned = None, 0
        while not planner.is_full and scanned < session.limits.scanned_rows:
            page = self._page(db, held, full, Kind.NOW, planner, behind, _PAGE)
            scanned += len(page)
            if len(page) < _PAGE:
                break
            behind = page[-1]
        most = share
        while len(later) == most and not planner.is_full and scanned < session.limits.scanned_rows:
            later, most = self._page(db, held, full, Kind.LATER, planner, later[-1], _PAGE), _PAGE
            scanned += len(later)

    def _page(
        self, db: Connection, held: Lease, full: Full, kind: Kind, planner: Planner, behind: Row[Any] | None, most: int
    ) -> Sequence[Row[Any]]:
        """Show the planner the next rows, then note what is full, so that the next page leaves those rows out."""
        page = db.execute(self._candidates(held, full, kind, behind).limit(most)).all()
        planner.take([_candidate(row) for row in page])
        planner.note_full(full)
        return page

    def _write(self, db: Connection, held: Lease, changes: Changes) -> None:
        for batch, offset in changes.finished:
            at = None if offset < 0 else outbox.c.sequence - batch.first_sequence + offset
            marked = {"state": FINISHED, "offset_no": at, "finished_at": now_ms(), "last_error": None}
            db.execute(update(outbox).where(outbox.c.id.in_(batch.rows)).values(**marked))
        for batch, is_refused in changes.dissolved:
            free = _freed(outbox.c.id.in_(batch.rows))
            db.execute(free.values(attempts=outbox.c.attempts + 1) if is_refused else free)
        for row_id, reason in changes.failed:
            failed = {"state": FAILED, "last_error": reason[:ERROR_LENGTH], "finished_at": now_ms()}
            db.execute(update(outbox).where(outbox.c.id == row_id).values(**failed))
        for where, position in changes.positions.items():
            _keep_position(db, held.shard, where, position)

    def _encoded(self, db: Connection, batches: Sequence[OutboxBatch]) -> dict[OutboxBatch, bytes]:
        found: dict[OutboxBatch, bytes] = {}
        columns = (
            outbox.c.id,
            outbox.c.txid,
            outbox.c.topic,
            outbox.c.msg_key,
            outbox.c.payload,
            outbox.c.headers,
            outbox.c.created_at,
            outbox.c.deliver_at,
            outbox.c.target_id,
        )
        for batch in batches:
            chosen = select(*columns).where(outbox.c.id.in_(batch.rows))
            rows = {row.id: EventRow(*row[1:]) for row in db.execute(chosen)}
            found[batch] = encoded(batch, [rows[row_id] for row_id in batch.rows], self._compression_type)
        return found


_ASSIGN = (
    update(outbox)
    .where(outbox.c.id == bindparam("row_id"))
    .values(
        lane=bindparam("to_lane"),
        target_id=bindparam("to_target"),
        partition_no=bindparam("to_partition"),
        batch_no=bindparam("to_batch"),
        sequence=bindparam("to_sequence"),
    )
)


def _not_full(full: Full, kind: Kind) -> Iterator[ColumnElement[bool]]:
    """Conditions that leave out rows which full topics and partitions could not take."""
    topics = full.topics | full.targets if kind is Kind.LATER else full.topics
    if topics:
        yield outbox.c.topic.not_in(sorted(topics))
    if kind is Kind.LATER:
        if SCHEDULED_TOPIC in full.topics:
            yield false()
        return
    for topic, (count, numbers) in sorted(full.partitions.items()):
        if topic not in full.topics:  # a row without key goes where there is room
            of_it = and_(outbox.c.topic == topic, outbox.c.msg_key.is_not(None))
            yield ~and_(of_it, (outbox.c.route % count).in_(sorted(numbers)))


def _is_behind(row: Row[Any]) -> ColumnElement[bool]:
    """The condition for rows after this one in the order of delayed rows: due later, or then with a higher id."""
    at = outbox.c.deliver_at
    return or_(at > row.deliver_at, and_(at == row.deliver_at, outbox.c.id > row.id))


def _is_held(held: Lease, owner: str) -> ColumnElement[bool]:
    return and_(lease.c.shard == held.shard, lease.c.owner == owner, lease.c.fence == held.fence)


def _candidate(row: Row[Any]) -> Candidate:
    delay_ms = row.delay if row.delay is not None and row.delay > 0 else None
    return Candidate(row.id, row.topic, row.msg_key, row.size, delay_ms, row.attempts > 0)


def _freed(which: ColumnElement[bool]) -> Any:
    """Take unfinished rows out of their batches."""
    none = {"shard": None, "lane": None, "target_id": None, "partition_no": None, "batch_no": None, "sequence": None}
    return update(outbox).where(outbox.c.state == UNFINISHED, which).values(**none)


def _unmarked(db: Connection, shard: int, known: Mapping[TopicPartition, Position]) -> Iterator[OutboxBatch]:
    """The unmarked batches of a shard, by lane and number. Raises OutboxVersionMismatch where one is incomplete."""
    order = (outbox.c.lane, outbox.c.partition_no, outbox.c.batch_no, outbox.c.sequence)
    rows = db.execute(
        select(outbox.c.id, *order)
        .where(outbox.c.state == UNFINISHED, outbox.c.batch_no.is_not(None), outbox.c.shard == shard)
        .order_by(*order)
    ).all()
    for (topic, partition, number), group in groupby(rows, lambda row: tuple(row[1:4])):
        where, members = TopicPartition(topic, partition), list(group)
        position = known.get(where)
        first = members[0].sequence
        if position is None or [row.sequence for row in members] != list(range(first, first + len(members))):
            raise OutboxVersionMismatch(
                f"Batch {number} of {topic}-{partition} in the outbox lacks rows, or its lane: the tables were changed "
                "by hand. Restore them from a backup, or set batch_no to NULL in these rows: then they are sent again."
            )
        yield OutboxBatch(
            where,
            position.topic_id,
            position.producer_id,
            position.producer_epoch,
            number,
            first,
            tuple(row.id for row in members),
        )


def _keep_position(db: Connection, shard: int, where: TopicPartition, position: Position) -> None:
    values = {
        "topic_id": position.topic_id,
        "producer_id": position.producer_id,
        "producer_epoch": position.producer_epoch,
        "next_batch": position.next_batch,
        "next_sequence": position.next_sequence,
    }
    place = and_(lanes.c.shard == shard, lanes.c.topic == where.topic, lanes.c.partition_no == where.partition)
    if db.execute(update(lanes).where(place).values(**values)).rowcount == 0:
        db.execute(insert(lanes).values(shard=shard, topic=where.topic, partition_no=where.partition, **values))


def _bound_elsewhere(others: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    found = " and ".join(f"{name.replace('_', ' ')} {value!r}" for name, value in others.items())
    given = " and ".join(f"{wanted[name]!r}" for name in others)
    return (
        f"The outbox is relayed with the {found}, and this relay has {given}. Use the same, or, if it has moved for "
        "good, stop the other relay and start this one once with rebind (`raylog outbox run --rebind`): after another "
        "cluster, events that were on their way are sent again."
    )
