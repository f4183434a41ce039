"""The outbox on MySQL or MariaDB, where RAYLOG_TEST_MYSQL_URL names an empty database (mysql+pymysql://...)."""

from __future__ import annotations

import asyncio
import os

import pytest
from sqlalchemy import inspect, text

from raylog import outbox
from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.outbox import bank
from tests.cluster.outbox.kills import STEPS
from tests.cluster.talk import Talk, in_cluster

URL = os.environ.get("RAYLOG_TEST_MYSQL_URL", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not URL, reason="RAYLOG_TEST_MYSQL_URL names no empty database of MySQL or MariaDB"),
]


@in_cluster()
async def test_killed_relays_on_mysql_store_each_event_once(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("transfers", partitions=2, replication_factor=3)
    engine = outbox.make_engine(URL, pool_pre_ping=True)
    with engine.begin() as db:
        for table in inspect(db).get_table_names():
            db.execute(text(f"DROP TABLE {table}"))
    bank.prepare(engine)
    paid = 0
    async with bank.Killer(URL, cluster.clients()) as killer:
        for step in STEPS:
            for number in range(paid, paid + 30):
                await asyncio.to_thread(bank.pay, engine, number)
            paid += 30
            assert await killer.relay(step) == "killed"
        assert await killer.relay("never") == "ended"
    assert bank.all_finished(engine, paid)
    records = await bank.records_of(cluster, "transfers", paid)
    bank.assert_each_once_in_order(records, range(paid))
    for mode in ("table", "position"):
        inbox = outbox.Inbox(engine, f"fund-{mode}", mode)
        ordered = sorted(records, key=lambda record: (record.partition, record.offset))
        handled = [bank.credit(engine, inbox, record) for record in [*ordered, *ordered]]
        assert handled == [True] * paid + [False] * paid
    assert bank.balance(engine, "fund") == 2 * paid
    engine.dispose()
