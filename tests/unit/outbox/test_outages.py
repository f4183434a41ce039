"""A database that goes away at any call of its driver: an outage for each caller, never an error of another kind."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from raylog import outbox
from raylog.cli import outbox as commands
from raylog.cli.app import cli
from raylog.cli.error_sentences import explain
from raylog.client.types import Record
from raylog.outbox.engines import begin, make_engine
from raylog.outbox.model import Changes, Full
from raylog.outbox.session import Session
from raylog.outbox.store import OutboxStore

LOST = "Lost connection to the server during query"


class Driver:
    """Counts the calls of a driver; from one of them on the server is away, as its own errors say."""

    def __init__(self) -> None:
        self.calls = 0
        self.lost_at: int | None = None

    def call(self) -> None:
        """One round trip to the server."""
        self.calls += 1
        if self.lost_at is not None and self.calls >= self.lost_at:
            raise sqlite3.OperationalError(LOST)


class Cursor(sqlite3.Cursor):
    """A cursor whose statements go to the server."""

    def execute(self, *args: Any) -> Cursor:
        """One statement."""
        self.connection.driver.call()  # type: ignore[attr-defined]
        super().execute(*args)
        return self


class Connected(sqlite3.Connection):
    """A connection whose ends of transactions are round trips."""

    driver: Driver

    def cursor(self, *_: Any) -> Cursor:  # type: ignore[override]
        """Return one that counts."""
        return super().cursor(Cursor)

    def commit(self) -> None:
        """End a transaction."""
        self.driver.call()
        super().commit()

    def rollback(self) -> None:
        """End a transaction."""
        self.driver.call()
        super().rollback()


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def engine(tmp_path: Path, driver: Driver) -> Iterator[Engine]:
    """SQLite that sets the isolation level by a statement at each checkout, and resets it, as MySQL does."""

    def opened() -> sqlite3.Connection:
        made = sqlite3.connect(tmp_path / "bank.db", factory=Connected, check_same_thread=False)
        made.driver = driver
        driver.call()
        return made

    made = create_engine(f"sqlite:///{tmp_path}/bank.db", creator=opened)

    def set_level(connection: Any, _: Any) -> None:
        connection.cursor().execute("SELECT 'SET SESSION TRANSACTION ISOLATION LEVEL'")

    made.dialect.set_isolation_level = set_level  # type: ignore[method-assign, assignment]
    made.dialect.reset_isolation_level = lambda connection: set_level(connection, None)  # type: ignore[method-assign, assignment]
    made.dialect.is_disconnect = lambda error, *_: LOST in str(error)  # type: ignore[method-assign]
    outbox.init(made)
    with made.begin() as db:
        for number in range(3):
            outbox.add(db, "t", b"", key=b"k", txid=str(number))
    yield made.execution_options(isolation_level="SERIALIZABLE")
    driver.lost_at = None
    made.dispose()


def record(offset: int) -> Record:
    return Record("t", 0, offset, 0, None, b"", ((outbox.TXID_HEADER, f"t-{offset}".encode()),))


def calls_of(engine: Engine) -> dict[str, Callable[[], object]]:
    """All that talks to the database, each to be called any number of times."""
    store = OutboxStore(engine, "me", lease_ms=50_000)

    def work() -> None:
        held = store.take(0)
        assert held is not None
        store.keep_producer_id(held, 7)
        session = Session(7)
        store.load(held, session)
        store.has_work(held, Full())
        store.turn(held, session, Changes())
        store.mark(held, Changes())
        store.clean(held, 1)
        store.renew(held)
        store.release(held)

    def handle(mode: str) -> None:
        inbox = outbox.Inbox(engine, "c", mode)
        with inbox.transaction(record(1)) as db:
            assert db is None or db.scalar(text("SELECT 1")) == 1
        inbox.positions()
        inbox.forget(10**9)

    return {
        "init": lambda: outbox.init(engine),
        "bind": lambda: store.bind("bank", "cluster"),
        "work": work,
        "status": lambda: outbox.status(engine),
        "retry": lambda: outbox.retry(engine),
        "discard": lambda: outbox.discard(engine, [10**6]),
        "table": lambda: handle("table"),
        "position": lambda: handle("position"),
    }


@pytest.mark.parametrize("name", ["init", "bind", "work", "status", "retry", "discard", "table", "position"])
def test_a_server_lost_at_any_call_of_the_driver_is_an_outage(engine: Engine, driver: Driver, name: str) -> None:
    call = calls_of(engine)[name]
    before = driver.calls
    call()
    assert driver.calls > before
    for step in range(driver.calls - before + 2):
        driver.lost_at = driver.calls + 1 + step
        shown = f"The database reports: {LOST}."
        try:
            call()
        except SQLAlchemyError as error:
            shown = explain(error)
        assert shown == f"The database reports: {LOST}."
        driver.lost_at = None
        call()  # the next one finds the server again


def test_what_the_handler_of_an_inbox_raises_comes_out_as_it_is(engine: Engine) -> None:
    inbox = outbox.Inbox(engine, "c")
    with pytest.raises(sqlite3.OperationalError, match="handler's own"), inbox.transaction(record(9)):
        raise sqlite3.OperationalError("the handler's own database")
    with inbox.transaction(record(9)) as db:
        assert db is not None


def test_other_connections_of_a_lost_server_are_not_tried_one_by_one(engine: Engine, driver: Driver) -> None:
    held = [engine.connect() for _ in range(3)]
    for each in held:
        each.close()
    driver.lost_at = driver.calls + 1
    with pytest.raises(SQLAlchemyError, match=LOST), begin(engine):
        pass
    driver.lost_at = None
    assert engine.pool.checkedin() == 0  # type: ignore[attr-defined]


def test_the_command_says_that_the_database_is_away(
    engine: Engine, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_engine", lambda _: engine)
    driver.lost_at = driver.calls + 1
    for command in (["status", "x"], ["retry", "x"], ["discard", "x", "1"], ["init", "x"]):
        found = CliRunner().invoke(cli, ["outbox", *command])
        assert found.exit_code == 1
        assert f"The database reports: {LOST}" in found.output


def test_engines_of_servers_look_at_a_connection_before_its_use() -> None:
    engine = make_engine("mysql+pymysql://bank@localhost/bank")
    assert engine.pool._pre_ping
    engine = make_engine("mysql+pymysql://bank@localhost/bank", pool_pre_ping=False)
    assert not engine.pool._pre_ping
