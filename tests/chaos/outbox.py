"""The part `outbox`: kill -9 at every step of relays, of the database and of leaders, and judge what the topic holds.

Relays are processes that die of SIGKILL at a step (`tests/cluster/outbox/kills.py`). The database is PostgreSQL, whose
backends and postmaster die of SIGKILL while relays run; without PostgreSQL it is SQLite. Leaders are torn from their
partitions in the middle of what they do. At the end each event has to be in the topic once, in the order of its key,
and the balances of payer and fund have to add up.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from raylog import outbox
from raylog.client.admin.admin import AsyncAdmin
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.outbox import bank
from tests.cluster.outbox.kills import STEPS
from tests.cluster.outbox.postgres import Postgres, reason_to_skip

PART: Final = "outbox"
TOPIC: Final = "transfers"
PARTITIONS: Final = 3
EVENTS_A_KILL: Final = 8
POSTMASTER_EVERY: Final = 100
BACKEND_EVERY: Final = 10
LEADER_EVERY: Final = 15


class OutboxChaos:
    """One run: `kills` deaths of relays, and those of backends, postmasters and leaders between them."""

    def __init__(self, kills: int, seed: int, minutes: float) -> None:
        self.kills = kills
        self.draw = random.Random(seed)
        self.end_s = time.monotonic() + 60 * minutes
        self.counts: Counter[str] = Counter()
        self.paid = 0
        self.postgres: Postgres | None = None

    async def run(self, root: Path) -> None:
        """Raises AssertionError for a lost, doubled or misplaced event."""
        reason = reason_to_skip()
        if reason:
            print(f"{PART}: {reason}; the database is SQLite", flush=True)
            engine = bank.sqlite(root)
            url = str(engine.url)
        else:
            self.postgres = Postgres()
            await asyncio.to_thread(self.postgres.start)
            url = self.postgres.url
            engine = outbox.make_engine(url, pool_pre_ping=True)
            bank.prepare(engine)
        try:
            async with LocalCluster(root / "cluster") as cluster:
                await self._play(cluster, engine, url)
        finally:
            engine.dispose()
            if self.postgres is not None:
                self.postgres.stop()

    async def _play(self, cluster: LocalCluster, engine: Engine, url: str) -> None:
        async with AsyncAdmin(**cluster.clients()) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        async with bank.Killer(url, cluster.clients()) as killer:
            number = 0
            while self.counts["relay"] < self.kills and time.monotonic() < self.end_s:
                number += 1
                await self._pay(engine)
                injury = asyncio.ensure_future(self._injure(cluster, engine, number))
                step = STEPS[number % len(STEPS)]
                outcome = await killer.relay(step, self.draw.choice((1, 1, 2, 4)))
                assert outcome != "failed", f"a relay failed at {step}"
                if outcome == "killed":
                    self.counts["relay"] += 1
                    self.counts[step] += 1
                await injury
            assert await killer.relay("never") == "ended"
        await bank.finished(engine, self.paid)
        await self._judge(cluster, engine)

    async def _pay(self, engine: Engine) -> None:
        for _ in range(EVENTS_A_KILL):
            await asyncio.to_thread(bank.pay, engine, self.paid)
            self.paid += 1

    async def _injure(self, cluster: LocalCluster, engine: Engine, number: int) -> None:
        await asyncio.sleep(self.draw.uniform(0.0, 0.1))
        if self.postgres is not None and number % POSTMASTER_EVERY == 0:
            self.counts["postmaster"] += 1
            self.postgres.kill()
            await asyncio.to_thread(self.postgres.start)
        elif self.postgres is not None and number % BACKEND_EVERY == 0:
            self.counts["backend"] += 1
            await asyncio.to_thread(self._kill_backends, engine)
        elif number % LEADER_EVERY == 0:
            self.counts["leader"] += 1
            partition = self.draw.randrange(PARTITIONS)
            leader = cluster.running().image.topics[TOPIC].partitions[partition].leader
            if leader >= 0:
                spec = await cluster.crash_replica(TOPIC, partition, leader)
                await cluster.ensure(spec)

    def _kill_backends(self, engine: Engine) -> None:
        try:
            with engine.begin() as db:
                others = "pid <> pg_backend_pid() AND usename = 'raylog'"
                db.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        except SQLAlchemyError as error:
            print(f"{PART}: no backend was ended: {error}", flush=True)

    async def _judge(self, cluster: LocalCluster, engine: Engine) -> None:
        records = await bank.records_of(cluster, TOPIC, self.paid)
        bank.assert_each_once_in_order(records, range(self.paid))
        inbox = outbox.Inbox(engine, "fund")
        for record in [*records, *records[: self.paid // 3]]:
            await asyncio.to_thread(bank.credit, engine, inbox, record)
        assert bank.balance(engine, "payer") + bank.balance(engine, "fund") == 1_000_000
        assert bank.balance(engine, "fund") == self.paid


def run_part(kills: int, seed: int, minutes: float) -> int:
    """Run the part; 0 when it passed."""
    folder = Path(tempfile.mkdtemp(prefix="rlo"))
    chaos = OutboxChaos(kills, seed, minutes)
    began_s = time.monotonic()
    try:
        asyncio.run(chaos.run(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found = ", ".join(f"{name} {count}" for name, count in sorted(chaos.counts.items()))
    print(f"{PART}: PASSED: {chaos.paid} events, each once, in {time.monotonic() - began_s:.0f} s; killed: {found}")
    return 0
