"""The tables of the outbox and the inbox, their version, and the database's own clock.

All times are milliseconds since 1970, so that every database compares them alike. Whatever decides by time (leases,
due rows) uses the database's clock: it is one for all relays.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
)
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from raylog.base.errors import InvalidRequest, OutboxNotInitialized, OutboxVersionMismatch
from raylog.outbox.engines import begin

VERSION: Final = 1
"""Version of the tables. A release that changes them raises it, and explains in its notes how to migrate."""
SHARDS_MAX: Final = 64
UNFINISHED: Final = "UNFINISHED"
FINISHED: Final = "FINISHED"
FAILED: Final = "FAILED"
TXID_LENGTH: Final = 200
PAYLOAD_BYTES_MAX: Final = 2**24 - 1

metadata = MetaData()
_Id = BigInteger().with_variant(Integer(), "sqlite")  # SQLite numbers rows by itself only in an INTEGER column


def _name(length: int) -> Any:
    """A text column that compares byte by byte; MySQL's default takes 'a' and 'A' for the same."""
    exact = String(length, collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql").with_variant(exact, "mariadb")


meta = Table(
    "raylog_outbox_meta",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", String(400), nullable=False),
)
"""``version``, ``shards``, and, once a relay has run, ``producer_name`` and ``cluster_id``."""

outbox = Table(
    "raylog_outbox",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("txid", _name(TXID_LENGTH), nullable=False, unique=True),
    Column("topic", _name(249), nullable=False),
    Column("msg_key", LargeBinary(65_535)),
    Column("payload", LargeBinary(PAYLOAD_BYTES_MAX)),
    Column("headers", LargeBinary(65_535)),
    Column("deliver_at", BigInteger),
    Column("state", String(10), nullable=False, default=UNFINISHED),
    Column("route", Integer, nullable=False),
    Column("shard", SmallInteger),
    Column("lane", _name(249)),
    Column("target_id", String(64)),
    Column("partition_no", Integer),
    Column("batch_no", BigInteger),
    Column("sequence", BigInteger),
    Column("offset_no", BigInteger),
    Column("attempts", Integer, nullable=False, default=0),
    Column("last_error", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    mysql_engine="InnoDB",
)
"""Events. ``route``: a hash of the key (of the txid without a key), which decides the shard. ``shard`` to ``sequence``
are written before the event is sent, ``offset_no`` after. ``attempts``: how often the event was in a refused batch.

``lane`` is the topic that the event is sent to: its own, or, before it is due, ``__scheduled``, where every delayed
record waits. Partition and offset are then those in ``__scheduled``, and ``target_id`` is the id of its own topic."""


def _partial(name: str, *columns: Any, where: Any) -> Index:
    """A partial index; MySQL has none, so the state is the first column."""
    return Index(name, outbox.c.state, *columns, postgresql_where=where, sqlite_where=where)


_partial("raylog_outbox_unfinished", outbox.c.id, where=outbox.c.state == UNFINISHED)
_partial("raylog_outbox_failed", outbox.c.topic, outbox.c.route, where=outbox.c.state == FAILED)
_partial(
    "raylog_outbox_due",
    outbox.c.deliver_at,
    where=(outbox.c.state == UNFINISHED) & outbox.c.deliver_at.is_not(None),
)

lease = Table(
    "raylog_outbox_lease",
    metadata,
    Column("shard", SmallInteger, primary_key=True, autoincrement=False),
    Column("owner", String(200), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("producer_id", BigInteger),
    mysql_engine="InnoDB",
)
"""The relay of each shard. ``fence`` rises with every holder; each transaction of a relay begins with a check of it."""

lanes = Table(
    "raylog_outbox_lane",
    metadata,
    Column("shard", SmallInteger, primary_key=True, autoincrement=False),
    Column("topic", _name(249), primary_key=True),
    Column("partition_no", Integer, primary_key=True, autoincrement=False),
    Column("topic_id", String(64), nullable=False),
    Column("producer_id", BigInteger, nullable=False),
    Column("producer_epoch", Integer, nullable=False),
    Column("next_batch", BigInteger, nullable=False),
    Column("next_sequence", BigInteger, nullable=False),
    mysql_engine="InnoDB",
)
"""Where each shard continues in each partition."""

processed = Table(
    "raylog_processed",
    metadata,
    Column("consumer", _name(100), primary_key=True),
    Column("txid", _name(TXID_LENGTH), primary_key=True),
    Column("at", BigInteger, nullable=False),
    mysql_engine="InnoDB",
)
"""The txids that each consumer of an inbox in mode `table` has handled."""

positions = Table(
    "raylog_position",
    metadata,
    Column("consumer", _name(100), primary_key=True),
    Column("topic", _name(249), primary_key=True),
    Column("partition_no", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    mysql_engine="InnoDB",
)
"""The next offset of each consumer of an inbox in mode `position`."""

position_topics = Table(
    "raylog_position_topic",
    metadata,
    Column("consumer", _name(100), primary_key=True),
    Column("topic", _name(249), primary_key=True),
    Column("partition_no", Integer, primary_key=True, autoincrement=False),
    Column("topic_id", String(64), nullable=False),
    mysql_engine="InnoDB",
)
"""The id of the topic that an offset in ``raylog_position`` belongs to: a topic that was deleted and created again has
another id."""


class now_ms(FunctionElement[int]):  # spelt as a function of SQL
    """The database's clock at this statement (not at the transaction's start), in milliseconds since 1970."""

    type = BigInteger()
    name = "now_ms"
    inherit_cache = True


@compiles(now_ms, "sqlite")
def _of_sqlite(*_: Any, **__: Any) -> str:
    return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"


@compiles(now_ms, "postgresql")
def _of_postgresql(*_: Any, **__: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "mysql")
@compiles(now_ms, "mariadb")
def _of_mysql(*_: Any, **__: Any) -> str:
    return "CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)"


def init(engine: Engine, *, shards: int = 1) -> None:
    """Create the missing tables of the outbox and the inbox; idempotent.

    `shards`: how many relays may work side by side, 1 to 64; all events of a key are in one shard. The first call fixes
    the number. Raises InvalidRequest for another number than the database has, OutboxVersionMismatch.
    """
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidRequest(f"An outbox has 1 to {SHARDS_MAX} shards, not {shards}.")
    known: dict[str, str] = {}
    for attempt in range(3):
        try:
            with begin(engine) as db:
                if not inspect(db).has_table(meta.name) and inspect(db).has_table(outbox.name):
                    raise OutboxVersionMismatch(
                        f"The database has a table {outbox.name!r} that Raylog did not make; rename it first."
                    )
                metadata.create_all(db)
                known = settings(db)
                if not known:
                    rows = {"version": str(VERSION), "shards": str(shards)}
                    db.execute(insert(meta), [{"name": name, "value": value} for name, value in rows.items()])
                    none = {"owner": "", "fence": 0, "until": 0, "producer_id": None}
                    db.execute(insert(lease), [{"shard": number, **none} for number in range(shards)])
                    return
            break
        except (IntegrityError, OperationalError, ProgrammingError):  # another process makes them at this moment
            if attempt == 2:
                raise
    check_version(known)
    if int(known["shards"]) != shards:
        raise InvalidRequest(
            f"The outbox has {known['shards']} shards, which is fixed by its first initialisation; give that number "
            "instead, or drain it and drop its tables."
        )


def settings(db: Connection) -> dict[str, str]:
    """The outbox's settings by name; empty before `init` has written them."""
    return {row.name: row.value for row in db.execute(select(meta.c.name, meta.c.value))}


def check_version(known: dict[str, str]) -> None:
    """Raise OutboxVersionMismatch unless the tables are of this release's version."""
    found = known.get("version", "none")
    if found != str(VERSION):
        newer = found.isdecimal() and int(found) > VERSION
        step = "install the newer release of Raylog here" if newer else "migrate it as the release notes say"
        raise OutboxVersionMismatch(
            f"The outbox's tables have version {found}, and this release of Raylog uses {VERSION}: {step}."
        )


def checked_settings(db: Connection) -> dict[str, str]:
    """The outbox's settings. Raises OutboxNotInitialized, OutboxVersionMismatch."""
    if not inspect(db).has_table(meta.name):
        raise OutboxNotInitialized()
    known = settings(db)
    check_version(known)
    return known
