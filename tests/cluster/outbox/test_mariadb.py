"""The outbox on a MariaDB that is restarted under it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, text

from raylog import outbox
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.types import Record
from raylog.outbox.tables import metadata
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.outbox import bank
from tests.cluster.outbox.mariadb import MariaDB, reason_to_skip
from tests.cluster.talk import Talk, in_cluster
from tests.unit.outbox.test_tables import TXIDS

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "-")]
SERVER: list[MariaDB] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """One server for the tests of this module."""
    made = MariaDB()
    try:
        made.start()
        SERVER.append(made)
        yield
    finally:
        SERVER.clear()
        made.stop()


@in_cluster()
async def test_a_relay_goes_on_over_restarts_of_the_server(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("transfers", partitions=2, replication_factor=3)
    # As a service makes its engine: nothing looks at a connection before its use.
    relays, own = (outbox.make_engine(SERVER[0].url, pool_pre_ping=False) for _ in range(2))
    bank.prepare(own)
    paid = 0
    async with bank.relaying(cluster, relays):
        for _ in range(3):
            for number in range(paid, paid + 10):
                await asyncio.to_thread(bank.pay, own, number)
            paid += 10
            await bank.finished(own, paid)
            await asyncio.to_thread(SERVER[0].end)
            own.dispose()
            await asyncio.to_thread(SERVER[0].start)
        await bank.finished(own, paid)
    bank.assert_each_once_in_order(await bank.records_of(cluster, "transfers", paid), range(paid))
    own.dispose()
    relays.dispose()


@contextmanager
def brief(own: Engine) -> Iterator[Engine]:
    """An engine whose connections are closed after a second without use, with a pool that trusts them."""
    with own.begin() as db:
        db.execute(text("SET GLOBAL wait_timeout = 1"))
    engine = outbox.make_engine(SERVER[0].url, pool_pre_ping=False)
    yield engine
    engine.dispose()
    with own.begin() as db:
        db.execute(text("SET GLOBAL wait_timeout = DEFAULT"))


def aborted(engine: Engine) -> int:
    """How many connections the server has closed itself."""
    with engine.connect() as db:
        return int(db.execute(text("SHOW GLOBAL STATUS LIKE 'Aborted_clients'")).one()[1])


@in_cluster()
async def test_a_relay_goes_on_where_the_server_closes_idle_connections(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("transfers", partitions=2, replication_factor=3)
    own = outbox.make_engine(SERVER[0].url)
    for tables in (metadata, bank.metadata):  # of the tests before
        tables.drop_all(own)
    bank.prepare(own)
    with brief(own) as relays:
        await bank.check_idle(cluster, own, relays, lambda: aborted(own))
    own.dispose()


def test_a_connection_that_ends_amid_a_transaction_has_committed_nothing() -> None:
    engine = outbox.make_engine(SERVER[0].url)
    bank.check_end_amid_a_transaction(engine, "SELECT CONNECTION_ID()", "KILL {}")
    engine.dispose()


@pytest.mark.parametrize("order", [TXIDS, TXIDS[::-1]])
def test_an_inbox_separates_what_the_server_takes_for_the_same(order: tuple[bytes, ...]) -> None:
    engine = outbox.make_engine(SERVER[0].url)
    outbox.init(engine)
    inbox = outbox.Inbox(engine, f"c-{order[0]!r}")
    handled = []
    for txid in [*order, *order]:
        with inbox.transaction(Record("t", 0, 0, 0, None, b"", ((outbox.TXID_HEADER, txid),))) as at:
            handled.append(at is not None)
    assert handled == [*[True] * len(order), *[False] * len(order)]
    engine.dispose()
