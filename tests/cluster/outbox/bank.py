"""What the tests of the outbox share: a bank with accounts, a relay in the background, and what a topic holds."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, func, insert, select, text, update
from sqlalchemy.exc import OperationalError, PendingRollbackError

from raylog import outbox
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.types import Record
from raylog.outbox.tables import FINISHED
from raylog.outbox.tables import outbox as events
from tests.cluster.local_cluster import LocalCluster
from tests.unit.style.sources import ROOT
from tests.waiting import eventually

metadata = MetaData()
accounts = Table(
    "accounts", metadata, Column("name", String(40), primary_key=True), Column("balance", Integer, nullable=False)
)
WAIT_S = 30.0


def sqlite(folder: Path, name: str = "bank") -> Engine:
    """A database file with an empty outbox and two accounts."""
    engine = outbox.make_engine(f"sqlite:///{folder / name}.db")
    prepare(engine)
    return engine


def prepare(engine: Engine, shards: int = 1) -> None:
    """Make the tables, and two accounts."""
    outbox.init(engine, shards=shards)
    metadata.create_all(engine)
    with engine.begin() as db:
        db.execute(insert(accounts), [{"name": "payer", "balance": 1_000_000}, {"name": "fund", "balance": 0}])


def pay(engine: Engine, number: int, topic: str = "transfers", *, keys: int = 4, amount: int = 1) -> None:
    """Debit the payer and write the event, in one transaction."""
    with engine.begin() as db:
        db.execute(update(accounts).where(accounts.c.name == "payer").values(balance=accounts.c.balance - amount))
        outbox.add(db, topic, str(number).encode(), key=f"k{number % keys}".encode(), txid=f"t-{number}")


def balance(engine: Engine, name: str) -> int:
    """What is in an account."""
    with engine.connect() as db:
        found: int = db.execute(select(accounts.c.balance).where(accounts.c.name == name)).scalar_one()
        return found


def credit(engine: Engine, inbox: outbox.Inbox, record: Record, amount: int = 1) -> bool:
    """Credit the fund for an event, once."""
    with inbox.transaction(record) as db:
        if db is None:
            return False
        db.execute(update(accounts).where(accounts.c.name == "fund").values(balance=accounts.c.balance + amount))
        return True


def states(engine: Engine) -> Counter[str]:
    """How many events are in which state."""
    with engine.connect() as db:
        rows = db.execute(select(events.c.state, func.count()).group_by(events.c.state))
        return Counter({row[0]: row[1] for row in rows})


def all_finished(engine: Engine, count: int) -> bool:
    """Whether exactly so many events are there, all finished."""
    return states(engine) == Counter({FINISHED: count})


@asynccontextmanager
async def relaying(cluster: LocalCluster, engine: Engine, **options: Any) -> AsyncIterator[outbox.OutboxRelay]:
    """A relay in the background."""
    wanted: dict[str, Any] = {"lease_ms": 1_000, "poll_ms": 5, "poll_max_ms": 50, "request_timeout_ms": 5_000}
    relay = outbox.OutboxRelay(engine, "bank", **{**wanted, **options}, **cluster.clients())
    task = asyncio.ensure_future(relay.run_async())
    try:
        yield relay
        relay.stop()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def finished(engine: Engine, count: int) -> None:
    """Wait until so many events are there, all finished."""
    await eventually(lambda: all_finished(engine, count), WAIT_S, "all events are finished")


async def records_of(cluster: LocalCluster, topic: str, at_least: int) -> list[Record]:
    """All records of a topic, in order within each partition; waits until there are so many."""
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "group_id": None}
    found: list[Record] = []
    async with AsyncConsumer(topic, **options, **cluster.clients()) as consumer, asyncio.timeout(WAIT_S):
        while True:
            more = [each for rows in (await consumer.getmany(timeout_ms=300)).values() for each in rows]
            found += more
            if not more and len(found) >= at_least:
                return found


def assert_each_once_in_order(records: Iterable[Record], numbers: Iterable[int], keys: int = 4) -> None:
    """Each event is there once, and those of a key in their order."""
    values = [int(record.value) for record in records]
    assert Counter(values) == Counter(numbers)
    for key in range(keys):
        of_key = [value for value in values if value % keys == key]
        assert of_key == sorted(of_key), f"key {key} is out of order"


async def check_idle(cluster: LocalCluster, own: Engine, relays: Engine, closed: Callable[[], int]) -> None:
    """A relay whose connection is closed between two looks for events relays each event once.

    `closed` returns how many connections the server has closed itself; those of `relays` soon.
    """
    async with relaying(cluster, relays, lease_ms=20_000, poll_max_ms=4_000) as relay:
        for number in range(3):
            before = closed()
            await asyncio.to_thread(pay, own, number)
            await finished(own, number + 1)
            await eventually(partial(_is_more, closed, before), WAIT_S, "a connection is closed")
        assert relay.counters["sessions"] > 1, "the relay has met a closed connection, and begun again"
    assert_each_once_in_order(await records_of(cluster, "transfers", 3), range(3))


def _is_more(count: Callable[[], int], before: int) -> bool:
    return count() > before


def check_end_amid_a_transaction(engine: Engine, whose: str, end: str) -> None:
    """What a transaction of a driver is worth whose connection the server has ended: nothing, and it does not go on.

    `whose` selects a connection's number, and `end` ends it.
    """
    rows = Table("amid", MetaData(), Column("number", Integer))
    rows.drop(engine, checkfirst=True)
    rows.create(engine)
    with engine.connect() as db:
        transaction = db.begin()
        db.execute(insert(rows), {"number": 1})
        number = db.execute(text(whose)).scalar_one()
        with engine.begin() as other:
            other.execute(text(end.format(number)))
        with pytest.raises(OperationalError) as lost:
            db.execute(insert(rows), {"number": 2})
        assert lost.value.connection_invalidated
        with pytest.raises(PendingRollbackError):
            db.execute(insert(rows), {"number": 3})
        transaction.rollback()
    with engine.connect() as db:
        assert db.execute(select(func.count()).select_from(rows)).scalar_one() == 0


class Killer:
    """A process that runs relays and kills each at a step (`tests/cluster/outbox/kills.py`)."""

    def __init__(self, url: str, cluster: dict[str, Any]) -> None:
        secret = cluster["secret"]
        self._arguments = [url, cluster["bootstrap"], secret if isinstance(secret, str) else secret.hex()]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.cluster.outbox.kills",
            *self._arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(WAIT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def relay(self, step: str, count: int = 1) -> str:
        """Run a relay until a step; returns how it has ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{step} {count}\n".encode())
        async with asyncio.timeout(2 * WAIT_S):
            return (await process.stdout.readline()).decode().strip()


def record_of(number: int) -> Record:
    """A record as a consumer gets it from an outbox."""
    return Record("transfers", 0, number, 0, None, b"", ((outbox.TXID_HEADER, f"t-{number}".encode()),))
