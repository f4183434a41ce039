"""Engines with the settings that an outbox wants. May touch: the user's database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, create_engine, event

SQLITE_WAIT_S = 30


def make_engine(url: str, **options: Any) -> Engine:
    """SQLAlchemy's `create_engine`; for SQLite with write-ahead log, `BEGIN IMMEDIATE`, and waits for other writers.

    Without that, SQLite begins a transaction at its first write only: what was read before it may be out of date.
    """
    engine = create_engine(url, **options)
    if engine.dialect.name == "sqlite":
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
