"""The outbox on a cluster: from the user's transaction into the topic and on into another database, each event once."""

from __future__ import annotations

import asyncio
import time

from sqlalchemy import select

from raylog import outbox
from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.outbox import bank
from tests.cluster.talk import Talk, in_cluster


async def make_topic(cluster: LocalCluster, name: str = "transfers", **config: str) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic(name, partitions=2, replication_factor=3, config=config)


@in_cluster()
async def test_money_leaves_one_database_and_reaches_another_once(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    payer, fund = bank.sqlite(cluster.root, "payer"), bank.sqlite(cluster.root, "fund")
    async with bank.relaying(cluster, payer):
        for number in range(60):
            await asyncio.to_thread(bank.pay, payer, number)
        await bank.finished(payer, 60)
    records = await bank.records_of(cluster, "transfers", 60)
    bank.assert_each_once_in_order(records, range(60))
    assert dict(records[0].headers)[outbox.TXID_HEADER] == f"t-{int(records[0].value)}".encode()
    inbox = outbox.Inbox(fund, "fund")
    handled = [bank.credit(fund, inbox, record) for record in [*records, *records]]
    assert handled == [True] * 60 + [False] * 60
    assert (bank.balance(payer, "payer"), bank.balance(fund, "fund")) == (1_000_000 - 60, 60)


@in_cluster()
async def test_an_event_with_a_time_waits_as_a_delayed_record(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    engine = bank.sqlite(cluster.root)
    due_ms = int(time.time() * 1000) + 2_500
    with engine.begin() as db:
        outbox.add(db, "transfers", b"0", key=b"k0", txid="late", deliver_at=due_ms)
        outbox.add(db, "transfers", b"1", key=b"k1", txid="past", deliver_at=1)
        outbox.add(db, "transfers", b"2", key=b"k2", txid="now")
    async with bank.relaying(cluster, engine):
        await bank.finished(engine, 3)
    with engine.connect() as db:
        lanes = dict(db.execute(select(bank.events.c.txid, bank.events.c.lane)).all())
    assert lanes == {"late": "__scheduled", "past": "transfers", "now": "transfers"}
    records = await bank.records_of(cluster, "transfers", 3)
    bank.assert_each_once_in_order(records, range(3), keys=3)
    late = next(record for record in records if record.value == b"0")
    assert dict(late.headers) == {outbox.TXID_HEADER: b"late"}
    assert late.timestamp_ms == due_ms
