"""Connections of the database's driver, which the server may close: idle ones, and others amid a transaction.

All of them lead to one SQLite database in memory. What a connection has not committed when it ends is rolled back, and
from then on each of its calls fails, as the drivers of servers have it. Which rule was seen where: the table of
`tests/simulation/README.md`.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import QueuePool

LOST: Final = "Lost connection to the server"


class Server:
    """The database: closes connections that are idle for too long, and some in the middle of a transaction."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """``now_s`` is the world's clock."""
        self.now_s = now_s
        self.database = sqlite3.connect(":memory:", check_same_thread=False)
        self.database.isolation_level = None  # transactions begin as the engine's events have it
        self.database.create_function("julianday", 1, lambda _: 2_440_587.5 + now_s() / 86_400)
        self.idle_s = math.inf
        """How long a connection may be unused."""
        self.closed_idle = self.closed_amid = 0
        """How many connections were closed for each reason."""
        self._left = -1
        self.is_over = False
        """Whether the world has ended: what its garbage still holds is closed without an error."""

    def close(self) -> None:
        """End with the world. The pools of killed relays give their connections back when they are collected."""
        self.is_over = True
        self.database.close()

    def lose_after(self, statements: int) -> None:
        """Close the connection that is used when so many more statements have been executed."""
        self._left = statements

    def keep(self) -> None:
        """Close no connection amid a transaction any more."""
        self._left = -1

    def is_lost(self) -> bool:
        """Count a statement, and return whether the connection ends before it."""
        self._left -= self._left >= 0
        return self._left == 0

    def engine(self, *, is_closed: bool = True) -> Engine:
        """Return an engine of one process, with a pool of its own that trusts its connections.

        ``is_closed``: the server closes them; never those of what is not the relay's.
        """
        made = create_engine("sqlite://", creator=lambda: Wire(self, is_closed), poolclass=QueuePool, pool_size=2)
        made.dialect.is_disconnect = lambda error, *_: LOST in str(error)  # type: ignore[method-assign]
        made.dialect.set_isolation_level = _set_level  # type: ignore[method-assign, assignment]
        made.dialect.reset_isolation_level = lambda _: None  # type: ignore[method-assign, assignment]
        return made.execution_options(isolation_level="SERIALIZABLE")


def _set_level(connection: Any, _: Any) -> None:
    """A statement at each checkout, as on MySQL; its error is the driver's own."""
    connection.cursor().execute("SELECT 'SET SESSION TRANSACTION ISOLATION LEVEL'")


class Wire:
    """One connection."""

    def __init__(self, server: Server, may_end: bool) -> None:
        """Open: the server takes every connection. ``may_end``: it may close it."""
        self.server = server
        self._may_end = may_end
        self._used_s = server.now_s()
        self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.server.database, name)

    def check(self) -> None:
        """Raise the driver's error where the server has closed this connection."""
        server = self.server
        if self._may_end and not self._is_closed and server.now_s() - self._used_s > server.idle_s:
            self._is_closed = True
            server.closed_idle += 1
        if self._is_closed:
            raise sqlite3.OperationalError(LOST)
        self._used_s = server.now_s()

    def statement(self) -> None:
        """Go on to the next statement, unless the connection ends before it."""
        self.check()
        if self._may_end and self.server.is_lost():
            self.server.closed_amid += 1
            self._end()
            raise sqlite3.OperationalError(LOST)
        if not self.server.database.in_transaction:
            self.server.database.execute("BEGIN")

    def cursor(self, *_: Any) -> WireCursor:
        """Return a cursor, which needs no round trip."""
        return WireCursor(self)

    def commit(self) -> None:
        """Commit; the transaction counts if the server is reached."""
        self.check()
        if self.server.database.in_transaction:
            self.server.database.commit()

    def rollback(self) -> None:
        """Roll back."""
        if not self.server.is_over:
            self.check()
            self.server.database.rollback()

    def close(self) -> None:
        """End; no error, whatever has become of the connection."""
        if not self._is_closed:
            self._end()

    def _end(self) -> None:
        self._is_closed = True
        if not self.server.is_over:
            self.server.database.rollback()


class WireCursor:
    """A cursor, each of whose statements is a round trip."""

    def __init__(self, wire: Wire) -> None:
        """One of the database."""
        self._wire = wire
        self._cursor = wire.server.database.cursor()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, *args: Any) -> WireCursor:
        """One statement."""
        self._wire.statement()
        self._cursor.execute(*args)
        return self

    def executemany(self, *args: Any) -> WireCursor:
        """One statement with many rows."""
        self._wire.statement()
        self._cursor.executemany(*args)
        return self
