"""kill -9 of a relay at each of its steps: each event is in the topic once, and balances are equal."""

from __future__ import annotations

import asyncio

from raylog import outbox
from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.outbox import bank
from tests.cluster.outbox.kills import STEPS
from tests.cluster.talk import Talk, in_cluster

EVENTS = 30


@in_cluster()
async def test_a_relay_killed_at_every_step_stores_each_event_once(cluster: LocalCluster, talk: Talk) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("transfers", partitions=2, replication_factor=3)
    engine = bank.sqlite(cluster.root)
    paid, killed = 0, 0
    async with bank.Killer(str(engine.url), cluster.clients()) as killer:
        for count in (1, 3):
            for step in STEPS:
                for number in range(paid, paid + EVENTS):
                    await asyncio.to_thread(bank.pay, engine, number)
                paid += EVENTS
                # A step that a relay does not reach so often ends it by itself, when nothing is left.
                killed += await killer.relay(step, count) == "killed"
        assert killed >= len(STEPS)
        assert await killer.relay("never") == "ended"
    assert bank.all_finished(engine, paid)
    records = await bank.records_of(cluster, "transfers", paid)
    bank.assert_each_once_in_order(records, range(paid))
    inbox = outbox.Inbox(engine, "fund")
    for record in records:
        bank.credit(engine, inbox, record)
    assert bank.balance(engine, "payer") + bank.balance(engine, "fund") == 1_000_000
