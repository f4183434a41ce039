"""The outbox on a cluster: from the user's transaction into the topic and on into another database, each event once."""

from __future__ import annotations

import asyncio
import time

import pytest
from sqlalchemy import select

from raylog import outbox
from raylog.base.errors import OutboxBoundElsewhere
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.outbox.tables import outbox as events
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.outbox import bank
from tests.cluster.talk import Talk, in_cluster
from tests.waiting import eventually


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
        lanes = dict(db.execute(select(events.c.txid, events.c.lane)).all())
    assert lanes == {"late": "__scheduled", "past": "transfers", "now": "transfers"}
    records = await bank.records_of(cluster, "transfers", 3)
    bank.assert_each_once_in_order(records, range(3), keys=3)
    late = next(record for record in records if record.value == b"0")
    assert dict(late.headers) == {outbox.TXID_HEADER: b"late"}
    assert late.timestamp_ms == due_ms


@in_cluster()
async def test_an_event_that_its_topic_refuses_fails_and_holds_up_its_key_alone(
    cluster: LocalCluster, talk: Talk
) -> None:
    await make_topic(cluster, **{"max.message.bytes": "2000"})
    engine = bank.sqlite(cluster.root)
    with engine.begin() as db:
        outbox.add(db, "transfers", b"0", key=b"k0")
        outbox.add(db, "transfers", b"x" * 3_000, key=b"k0", txid="large")
        outbox.add(db, "transfers", b"4", key=b"k0")
        outbox.add(db, "transfers", b"1", key=b"k1")
    alarms: list[str] = []
    async with bank.relaying(cluster, engine, on_failed=alarms.append):
        await eventually(lambda: bank.states(engine) == {"FINISHED": 2, "FAILED": 1, "UNFINISHED": 1}, bank.WAIT_S)
        assert len(alarms) == 1
        assert "RecordTooLarge" in alarms[0]
        found = outbox.status(engine)
        assert [(event.txid, event.waiting) for event in found.failed] == [("large", 1)]
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.alter_topic_config("transfers", {"max.message.bytes": "10000"})
        await eventually(lambda: outbox.retry(engine) == 0 and bank.all_finished(engine, 4), bank.WAIT_S)
    values = [record.value for record in await bank.records_of(cluster, "transfers", 4) if record.key == b"k0"]
    assert values == [b"0", b"x" * 3_000, b"4"]


@in_cluster()
async def test_the_second_relay_waits_and_takes_over(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    engine = bank.sqlite(cluster.root)
    async with bank.relaying(cluster, engine) as first, bank.relaying(cluster, engine) as second:
        for number in range(10):
            await asyncio.to_thread(bank.pay, engine, number)
        await bank.finished(engine, 10)
        await eventually(lambda: sorted(each.counters["finished"] for each in (first, second)) == [0, 10], bank.WAIT_S)
        holder, other = (first, second) if first.counters["finished"] else (second, first)
        holder.stop()
        await eventually(lambda: not holder.holders, bank.WAIT_S, "the first relay has given the shard back")
        for number in range(10, 20):
            await asyncio.to_thread(bank.pay, engine, number)
        await bank.finished(engine, 20)
        await eventually(lambda: other.counters["finished"] == 10, bank.WAIT_S)
    bank.assert_each_once_in_order(await bank.records_of(cluster, "transfers", 20), range(20))


@in_cluster()
async def test_a_topic_that_comes_later_and_one_made_again_get_their_events(cluster: LocalCluster, talk: Talk) -> None:
    engine = bank.sqlite(cluster.root)
    await make_topic(cluster, "others")
    async with bank.relaying(cluster, engine):
        await asyncio.to_thread(bank.pay, engine, 0)
        await asyncio.to_thread(bank.pay, engine, 1, "others")
        await eventually(lambda: bank.states(engine)["FINISHED"] == 1, bank.WAIT_S, "the other topic is not held up")
        await make_topic(cluster)
        await bank.finished(engine, 2)
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.delete_topic("transfers")
        await make_topic(cluster)
        await asyncio.to_thread(bank.pay, engine, 2)
        await bank.finished(engine, 3)
    assert [record.value for record in await bank.records_of(cluster, "transfers", 1)] == [b"2"]


@in_cluster()
async def test_a_leader_that_ends_in_the_middle_loses_and_doubles_nothing(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    engine = bank.sqlite(cluster.root)
    async with bank.relaying(cluster, engine):
        for turn in range(4):
            for number in range(turn * 30, turn * 30 + 30):
                await asyncio.to_thread(bank.pay, engine, number)
            leader = cluster.running().image.topics["transfers"].partitions[turn % 2].leader
            spec = await cluster.crash_replica("transfers", turn % 2, leader)
            await cluster.ensure(spec)
        await bank.finished(engine, 120)
    bank.assert_each_once_in_order(await bank.records_of(cluster, "transfers", 120), range(120))


@in_cluster()
async def test_a_relay_with_another_name_is_refused_until_it_is_stated(cluster: LocalCluster, talk: Talk) -> None:
    await make_topic(cluster)
    engine = bank.sqlite(cluster.root)
    async with bank.relaying(cluster, engine):
        await asyncio.to_thread(bank.pay, engine, 0)
        await bank.finished(engine, 1)
    with pytest.raises(OutboxBoundElsewhere, match="rebind"):
        await outbox.OutboxRelay(engine, "shop", **cluster.clients()).run_async()
    other = outbox.OutboxRelay(engine, "shop", rebind=True, **cluster.clients())
    task = asyncio.ensure_future(other.run_async())
    await asyncio.to_thread(bank.pay, engine, 1)
    await bank.finished(engine, 2)
    other.stop()
    await task
    assert len(await bank.records_of(cluster, "transfers", 2)) == 2


@in_cluster()
async def test_an_inbox_by_position_reads_a_topic_made_again_from_its_start(cluster: LocalCluster, talk: Talk) -> None:
    engine = bank.sqlite(cluster.root)
    inbox = outbox.Inbox(engine, "reader", "position")
    found: dict[str, list[bool]] = {}
    for name, count in (("old", 5), ("new", 7)):
        async with AsyncAdmin(**cluster.clients()) as admin:
            if name == "new":
                await admin.delete_topic("plain")
            await admin.create_topic("plain", 1, 3)
        async with AsyncProducer(**cluster.clients()) as producer:
            for number in range(count):
                await (await producer.send("plain", f"{name}-{number}".encode()))
        async with AsyncConsumer("plain", group_id=None, auto_offset_reset="earliest", **cluster.clients()) as consumer:
            inbox.seek(consumer)
            handled = found.setdefault(name, [])
            async with asyncio.timeout(bank.WAIT_S):
                while len(handled) < count:
                    for records in (await consumer.getmany(timeout_ms=300)).values():
                        for record in records:
                            with inbox.transaction(record) as db:
                                handled.append(db is not None)
    assert found == {"old": [True] * 5, "new": [True] * 7}
