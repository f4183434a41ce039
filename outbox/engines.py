"""Engines with the settings that an outbox wants, and how its transactions begin. May touch: the user's database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError

SQLITE_WAIT_S = 30


def make_engine(url: str, **options: Any) -> Engine:
    """SQLAlchemy's `create_engine`, with the settings that an outbox wants; `options` are passed on.

    SQLite gets a write-ahead log, `BEGIN IMMEDIATE`, and a wait of 30 s for other writers: by default its transactions
    begin only at their first write, and what they read before may be out of date by then. For a database server
    `pool_pre_ping` is on unless it is given: a connection that a restart has ended is replaced before its use.
    """
    is_file = make_url(url).get_backend_name() == "sqlite"
    engine = create_engine(url, **({"pool_pre_ping": not is_file} | options))
    if is_file:
        event.listen(engine, "connect", _prepare)
        event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA busy_timeout={SQLITE_WAIT_S * 1000}")
        cursor.execute("PRAGMA synchronous=FULL")
    finally:
        cursor.close()


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def begin(engine: Engine) -> Iterator[Connection]:
    """A transaction, as `engine.begin()`; every error of the database itself is a SQLAlchemyError.

    SQLAlchemy does not wrap the driver's errors while it sets or resets a connection's isolation level, which takes a
    statement on MySQL. Here they are wrapped too, so an outage looks the same wherever it is noticed. What the block
    raises comes out as it is.
    """
    yield from _translated(engine, engine.begin)


@contextmanager
def connect(engine: Engine) -> Iterator[Connection]:
    """A connection to read with, as `engine.connect()`; raises as `begin`."""
    yield from _translated(engine, engine.connect)


def _translated(engine: Engine, opened: Callable[[], AbstractContextManager[Connection]]) -> Iterator[Connection]:
    of_block: BaseException | None = None
    try:
        with opened() as db:
            try:
                yield db
            except BaseException as error:
                of_block = error
                raise
    except Exception as error:  # which class the driver's errors have is known at run time only
        driver = engine.dialect.loaded_dbapi.Error
        if error is of_block or not isinstance(error, driver):
            raise
        is_disconnect = engine.dialect.is_disconnect(error, None, None)
        if is_disconnect:
            engine.dispose()  # its other connections have ended with this one
        translated = DBAPIError.instance(
            None, None, error, driver, connection_invalidated=is_disconnect, dialect=engine.dialect
        )
        raise translated from error
