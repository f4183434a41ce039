"""The outbox on PostgreSQL: killed relays, backends and postmasters; transactions that commit out of their order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, text

from raylog import outbox
from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.outbox import bank
from tests.cluster.outbox.kills import STEPS
from tests.cluster.outbox.postgres import Postgres, reason_to_skip
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "-")
SERVER: list[Postgres] = []


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """One server for the tests of this module."""
    made = Postgres()
    try:
        made.start()
        SERVER.append(made)
        yield
    finally:
        SERVER.clear()
        made.stop()


def fresh(shards: int = 1) -> Engine:
    """An engine of the server, with an empty bank."""
    engine = outbox.make_engine(SERVER[0].url, pool_pre_ping=True)
    with engine.begin() as db:
        db.execute(text("DROP SCHEMA public CASCADE"))
        db.execute(text("CREATE SCHEMA public"))
    bank.prepare(engine, shards)
    return engine


async def make_topic(cluster: LocalCluster) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("transfers", partitions=2, replication_factor=3)


async def check(cluster: LocalCluster, engine: Engine, paid: int, keys: int = 4) -> None:
    """Each event is in the topic once, in the order of its key, and balances are equal."""
    records = await bank.records_of(cluster, "transfers", paid)
    bank.assert_each_once_in_order(records, range(paid), keys)
    inbox = outbox.Inbox(engine, "fund")
    for record in [*records, *records[:20]]:
        await asyncio.to_thread(bank.credit, engine, inbox, record)
    assert bank.balance(engine, "payer") + bank.balance(engine, "fund") == 1_000_000


@in_cluster()
async def test_killed_relays_store_each_event_once(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    engine, paid = fresh(), 0
    async with bank.Killer(SERVER[0].url, cluster.clients()) as killer:
        for step in STEPS:
            for number in range(paid, paid + 30):
                await asyncio.to_thread(bank.pay, engine, number)
            paid += 30
            assert await killer.relay(step) == "killed"
        assert await killer.relay("never") == "ended"
    assert bank.all_finished(engine, paid)
    await check(cluster, engine, paid)
    engine.dispose()


@in_cluster()
async def test_killed_backends_and_postmasters_lose_and_double_nothing(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    engine, paid = fresh(), 0
    async with bank.relaying(cluster, engine):
        for turn in range(6):
            for number in range(paid, paid + 40):
                await asyncio.to_thread(bank.pay, engine, number)
            paid += 40
            if turn % 3 == 2:
                SERVER[0].kill()
                await asyncio.to_thread(SERVER[0].start)
            else:
                with engine.begin() as db:
                    others = "pid <> pg_backend_pid() AND usename = 'raylog'"
                    db.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        await bank.finished(engine, paid)
    await check(cluster, engine, paid)
    engine.dispose()


@contextmanager
def brief(own: Engine) -> Iterator[Engine]:
    """An engine whose connections are closed after half a second without use, with a pool that trusts them."""
    with own.begin() as db:
        db.execute(text("ALTER ROLE raylog SET idle_session_timeout = '500ms'"))
    engine = outbox.make_engine(SERVER[0].url, pool_pre_ping=False)
    yield engine
    engine.dispose()
    with own.begin() as db:
        db.execute(text("ALTER ROLE raylog RESET idle_session_timeout"))


def closed(engine: Engine) -> int:
    """How many sessions the server has ended itself."""
    with engine.connect() as db:
        found = db.execute(text("SELECT sessions_fatal FROM pg_stat_database WHERE datname = 'postgres'"))
        return int(found.scalar_one())


@in_cluster()
async def test_a_relay_goes_on_where_the_server_closes_idle_connections(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    own = fresh()
    with brief(own) as relays:
        await bank.check_idle(cluster, own, relays, lambda: closed(own))
    own.dispose()


def test_a_connection_that_ends_amid_a_transaction_has_committed_nothing() -> None:
    engine = outbox.make_engine(SERVER[0].url)
    bank.check_end_amid_a_transaction(engine, "SELECT pg_backend_pid()", "SELECT pg_terminate_backend({}, 10000)")
    engine.dispose()


@in_cluster()
async def test_a_row_that_commits_behind_a_later_one_is_relayed(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    engine = fresh()
    async with bank.relaying(cluster, engine):
        with engine.begin() as slow:
            outbox.add(slow, "transfers", b"0", key=b"k0", txid="slow")
            await asyncio.to_thread(bank.pay, engine, 1)
            await eventually(lambda: bank.states(engine)["FINISHED"] == 1, bank.WAIT_S)
        await bank.finished(engine, 2)
    bank.assert_each_once_in_order(await bank.records_of(cluster, "transfers", 2), range(2))
    engine.dispose()


@in_cluster()
async def test_an_event_that_is_being_handled_is_waited_for_and_skipped(cluster: LocalCluster, talk: Talk) -> None:
    engine = fresh()
    inbox = outbox.Inbox(engine, "fund")
    record = bank.record_of(0)
    outcomes: list[bool] = []
    twin = threading.Thread(target=lambda: outcomes.append(bank.credit(engine, inbox, record)))
    with inbox.transaction(record) as db:
        assert db is not None
        twin.start()
        with engine.connect() as other:
            waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            await eventually(lambda: other.execute(waiting).scalar_one() > 0, what="the twin waits")
        assert outcomes == []
    await asyncio.to_thread(twin.join, bank.WAIT_S)
    assert outcomes == [False]
    engine.dispose()


@in_cluster()
async def test_relays_share_the_shards_and_keep_the_order_of_keys(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    engine = fresh(shards=2)
    async with bank.relaying(cluster, engine, shards=[0]) as one, bank.relaying(cluster, engine, shards=[1]) as two:
        for number in range(120):
            await asyncio.to_thread(bank.pay, engine, number, keys=20)
        await bank.finished(engine, 120)
        assert one.counters["finished"] > 0
        assert two.counters["finished"] > 0
    await check(cluster, engine, 120, keys=20)
    engine.dispose()
