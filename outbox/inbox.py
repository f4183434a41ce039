"""`Inbox`: run a handler once per event, in the handler's own database transaction.

Mode `table`: the handler's transaction inserts the event's txid. A second insert of it conflicts, and the event is
skipped; one in a concurrent transaction waits for the first, then conflicts. Mode `position`: the handler's transaction
updates the offset of the next record. It needs no table of txids, and is for consumers that own their partitions.
Offsets committed to Raylog come later, and do not decide what counts as handled. May touch: the user's database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from sqlalchemy import Connection, Engine, delete, insert, inspect, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from raylog.base.errors import InvalidRecord, InvalidRequest, OutboxNotInitialized, did_you_mean
from raylog.base.ids import TopicPartition
from raylog.client.guard import NotPickled
from raylog.client.types import Record
from raylog.outbox.encoding import TXID_HEADER
from raylog.outbox.engines import begin, connect
from raylog.outbox.tables import TXID_LENGTH, checked_settings, now_ms, position_topics, positions, processed

if TYPE_CHECKING:
    from sqlalchemy.orm import Session as OrmSession

TABLE: Final = "table"
POSITION: Final = "position"
CONSUMER_LENGTH: Final = 100
HASHED: Final = "raylog-sha256:"
"""Prefix of a txid that is stored as its hash."""
DUPLICATE_KEY: Final = 1062


class Seeking(Protocol):
    """What `seek` needs of a consumer."""

    def assignment(self) -> Iterable[TopicPartition]:
        """The partitions it reads."""

    def seek(self, partition: Any, offset: int) -> object:
        """Go on at an offset."""

    def topic_id(self, topic: str) -> str:
        """The id of a topic; "" = not known now."""


class Inbox(NotPickled):
    """Remembers in the user's database which events one consumer has handled.

    `consumer` names the consumer for good. `mode`: `table` (by txid, whatever topic or partition an event comes from,
    and however often) or `position` (by offset; the consumer has to own its partitions, and to begin with `seek`).
    `engine` is the database that the handler writes to: the handler's work and the inbox's note commit together, or not
    at all.
    """

    def __init__(self, engine: Engine, consumer: str, mode: str = TABLE) -> None:
        """Raises InvalidRequest."""
        if mode not in (TABLE, POSITION):
            raise InvalidRequest(did_you_mean("mode of an inbox", mode, [TABLE, POSITION]))
        if not 0 < len(consumer) <= CONSUMER_LENGTH:
            raise InvalidRequest(f"The name of an inbox's consumer has 1 to {CONSUMER_LENGTH} characters.")
        if consumer.endswith(" "):
            raise InvalidRequest(
                f"The name {consumer!r} of an inbox's consumer ends in a blank, which MySQL does not compare: it would "
                "be the same as the name without it. Leave the blank out."
            )
        self.consumer = consumer
        self.mode = mode
        self._engine = engine
        self._checked: WeakSet[Engine] = WeakSet()
        self._source: Seeking | None = None
        """The consumer given to `seek`, which knows the topics' ids."""
        self._ids: dict[TopicPartition, str] = {}
        """By partition: the id of the topic that its position in the database belongs to, once that is committed."""

    @contextmanager
    def transaction(self, record: Record, txid: str | None = None) -> Iterator[Connection | None]:
        """Begin the transaction for the handler of a record; gives None when the record was handled before.

        Commits at the end of the block, rolls back when it raises. `txid`: by default that of the record's header
        `raylog-txid`, which the outbox writes. Raises InvalidRecord for a record without one, OutboxNotInitialized,
        OutboxVersionMismatch.
        """
        with begin(self._engine) as db:
            yield db if self.begin(db, record, txid) else None

    def begin(self, db: Connection | OrmSession, record: Record, txid: str | None = None) -> bool:
        """Note a record as handled in a transaction of the caller; False when it was handled before.

        For a transaction that does more than handle this record, or one of SQLAlchemy's ORM. Call it before any other
        write of the transaction. `txid` and errors: as for `transaction`.
        """
        connection = db if isinstance(db, Connection) else db.connection()
        self._check(connection)
        if self.mode == POSITION:
            return self._advance(connection, record)
        name = _txid_of(record) if txid is None else _bytes_of(txid)
        return self._note(connection, name)

    def positions(self) -> dict[TopicPartition, int]:
        """Mode `position`: the next offset of each partition in which this consumer has handled a record."""
        with connect(self._engine) as db:
            self._check(db)
            rows = db.execute(select(positions).where(positions.c.consumer == self.consumer))
            return {TopicPartition(row.topic, row.partition_no): row.next_offset for row in rows}

    def seek(self, consumer: Seeking) -> None:
        """Mode `position`: move a consumer to this inbox's offset in each assigned partition.

        Call it after each change of the assignment. A topic that was deleted and created again since is read from its
        first record.
        """
        self._source = consumer
        known = self.positions()
        for where in consumer.assignment():
            if where in known:
                with begin(self._engine) as db:
                    is_same = self._is_same_topic(db, where)
                consumer.seek(where, known[where] if is_same else 0)

    def forget(self, older_than_ms: int) -> int:
        """Mode `table`: delete the txids that were noted more than `older_than_ms` ago; returns how many.

        Only events that cannot come again may be forgotten: those older than the topic's retention.
        """
        with begin(self._engine) as db:
            self._check(db)
            old = processed.c.at < now_ms() - older_than_ms
            return db.execute(delete(processed).where(processed.c.consumer == self.consumer, old)).rowcount

    def _check(self, db: Connection) -> None:
        if db.engine not in self._checked:
            checked_settings(db)
            if not inspect(db).has_table(position_topics.name):  # `init` adds tables that are missing
                raise OutboxNotInitialized()
            self._checked.add(db.engine)

    def _note(self, db: Connection, name: bytes) -> bool:
        """Note a txid; False when it is noted already."""
        return _insert_new(db, processed, {"consumer": self.consumer, "at": now_ms(), "txid": stored_txid(name)})

    def _advance(self, db: Connection, record: Record) -> bool:
        self._is_same_topic(db, TopicPartition(record.topic, record.partition), record.offset)
        place = {"consumer": self.consumer, "topic": record.topic, "partition_no": record.partition}
        after = record.offset + 1
        if _insert_new(db, positions, {**place, "next_offset": after}):
            return True
        moved = (
            update(positions)
            .where(
                positions.c.consumer == self.consumer,
                positions.c.topic == record.topic,
                positions.c.partition_no == record.partition,
                positions.c.next_offset <= record.offset,
            )
            .values(next_offset=after)
        )
        return db.execute(moved).rowcount == 1

    def _is_same_topic(self, db: Connection, where: TopicPartition, offset: int | None = None) -> bool:
        """Whether a partition's position belongs to the topic that exists now; if not, the position is deleted.

        It does not after the topic was deleted and created again. `offset`: of the record to be handled. One at or
        behind the position may be a record of the old topic that was fetched before: it counts for the old topic, so
        that its offset does not become a position of the new one.
        """
        found = "" if self._source is None else self._source.topic_id(where.topic)
        if not found or self._ids.get(where) == found:
            return True
        row = {"consumer": self.consumer, "topic": where.topic, "partition_no": where.partition}
        before = db.scalar(select(position_topics.c.topic_id).where(*_at(position_topics, row)))
        if before == found:
            self._ids[where] = found  # committed, so it need not be read again
            return True
        if before is None:  # noted by name alone up to now
            _insert_new(db, position_topics, {**row, "topic_id": found})
            return True
        noted = db.scalar(select(positions.c.next_offset).where(*_at(positions, row)))
        if offset is not None and noted is not None and offset >= noted:
            return True
        db.execute(update(position_topics).where(*_at(position_topics, row)).values(topic_id=found))
        db.execute(delete(positions).where(*_at(positions, row)))
        return False


def _at(table: Any, row: dict[str, Any]) -> list[Any]:
    """The conditions that select one row by its columns."""
    return [table.c[name] == value for name, value in row.items()]


def _insert_new(db: Connection, table: Any, values: dict[str, Any]) -> bool:
    """Insert a row unless its key exists; True when inserted. Waits for a transaction that inserts the same key."""
    match db.dialect.name:
        case "postgresql":
            statement: Any = postgresql.insert(table).values(**values).on_conflict_do_nothing()
        case "sqlite":
            statement = sqlite.insert(table).values(**values).on_conflict_do_nothing()
        case "mysql" | "mariadb":
            return _inserted_on_mysql(db, table, values)
        case _:
            statement = insert(table).values(**values)
    # Without the option the number of inserted rows is not kept for every driver.
    return db.execute(statement, execution_options={"preserve_rowcount": True}).rowcount == 1


def _inserted_on_mysql(db: Connection, table: Any, values: dict[str, Any]) -> bool:
    """As `_insert_new`. INSERT IGNORE would also ignore other errors of the row, and truncate values that are too long.

    A statement that fails on a duplicate key undoes only itself, and the transaction continues.
    """
    try:
        db.execute(insert(table).values(**values))
        return True
    except IntegrityError as error:
        reason = error.orig
        code = getattr(reason, "errno", None) or (reason.args[0] if reason is not None and reason.args else None)
        if code != DUPLICATE_KEY:
            raise
        return False


def stored_txid(name: bytes) -> str:
    """A txid as the table stores it: unchanged, or hashed where a column cannot hold it (too long, no UTF-8, a NUL).

    One that ends in a blank is hashed as well: MySQL pads the shorter text before it compares two, so "a" equals "a ".
    """
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return hashed(name)
    is_storable = len(text) <= TXID_LENGTH and not ("\0" in text or text.startswith(HASHED) or text.endswith(" "))
    return text if is_storable else hashed(name)


def hashed(name: bytes) -> str:
    """A stand-in for a txid of any bytes that every database stores and compares exactly."""
    return HASHED + sha256(name).hexdigest()


def _bytes_of(txid: str) -> bytes:
    if not isinstance(txid, str):
        raise TypeError(f"A txid is text, not {type(txid).__name__}.")
    if not txid:
        raise ValueError("A txid has a character at least.")
    return txid.encode(errors="surrogatepass")


def _txid_of(record: Record) -> bytes:
    for name, content in reversed(record.headers):  # the last: one that was passed on stands before it
        if name == TXID_HEADER and content:
            return bytes(content)
    raise InvalidRecord(
        f"The record at offset {record.offset} of {record.topic}-{record.partition} has no header {TXID_HEADER!r}: it "
        "did not come from an outbox. Give transaction() a txid, or use mode='position'."
    )
