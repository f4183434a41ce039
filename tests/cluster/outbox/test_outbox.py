"""The outbox on a cluster: from the user's transaction into the topic and on into another database, each event once."""

from __future__ import annotations

import asyncio

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
