"""An outbox in SQLite: transactions that commit or roll back, and relays, which are killed at their steps.

May touch: threads, processes that it starts, a database in the run's folder, the network.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

import raylog
from raylog import outbox
from tests.chaos.everything.claims.outbox import FEATURE, TOPIC
from tests.chaos.everything.guests.base import Guest, Scene
from tests.chaos.everything.guests.watcher import Watcher
from tests.chaos.everything.journal import Sent, Withdrawn, now_ms
from tests.chaos.workload import in_words
from tests.cluster.outbox.bank import Killer
from tests.cluster.outbox.kills import STEPS

KEYS: Final = 4
ROLLED_BACK_SHARE: Final = 0.1
RATE_SHARE: Final = 0.3
"""Of the rate of the others: each transaction syncs the database's file."""
COUNTS: Final = (1, 30)
"""At which time of its step a relay is killed."""
PAUSE_S: Final = (0.2, 2.0)
RELAYS_S: Final = 120.0
END_S: Final = 20.0


class RolledBack(Exception):
    """Ends a transaction."""


class Outbox(Guest):
    """The service that writes rows, and what runs the relays."""

    def __init__(
        self, scene: Scene, watcher: Watcher, *, bootstrap: Callable[[], str], secret: Callable[[], str], kills: bool
    ) -> None:
        """``kills``: kill relays at their steps; otherwise one works for the whole run."""
        super().__init__(scene)
        self._bootstrap, self._secret, self._kills = bootstrap, secret, kills
        self._url = f"sqlite:///{scene.folder / 'outbox.db'}"
        self._engine = outbox.make_engine(self._url)
        self.ends: Counter[str] = Counter()
        """How relays ended."""
        self.relay_pid: int | None = None
        watcher.watch(TOPIC, self.awaited.came, scene.partitions)
        self.sends("payer", self._pay)
        self.reads("relays", self._run_relays)

    def prepare(self, admin: raylog.Admin) -> None:
        """Create the topic, and the tables."""
        self.scene.create(admin, TOPIC, self.scene.partitions)
        outbox.init(self._engine)

    def _pay(self, rng: random.Random) -> None:
        number = 0
        while not self.scene.no_more.is_set():
            self._transaction(f"{FEATURE}/{number}", f"k{rng.randrange(KEYS)}", rng)
            number += 1
            self.scene.no_more.wait(rng.uniform(0.2, 1.8) / (RATE_SHARE * self.scene.rate))

    def _transaction(self, name: str, key: str, rng: random.Random) -> None:
        sent = Sent(FEATURE, name, "ok", key=key, at_ms=now_ms())
        try:
            with self._engine.begin() as db:
                outbox.add(db, TOPIC, name.encode(), key=key.encode(), txid=name)
                if rng.random() < ROLLED_BACK_SHARE:
                    raise RolledBack
        except RolledBack:
            self.journal.add(Withdrawn(FEATURE, name))
            return
        except SQLAlchemyError as error:
            self.scene.remark(f"{name} may have been committed: {in_words(error)}")
            self.journal.add(Sent(FEATURE, name, "unknown", key=key, error=in_words(error)))
            return
        self.journal.add(sent)
        self.awaited.expect(name)

    # Relays

    def _run_relays(self, rng: random.Random) -> None:
        if self._kills:
            asyncio.run(self._kill_relays(rng))
        else:
            self._keep_relay()

    async def _kill_relays(self, rng: random.Random) -> None:
        async with Killer(self._url, {"bootstrap": self._bootstrap(), "secret": self._secret()}) as killer:
            while not self.scene.over.is_set():
                step = "never" if self.scene.no_more.is_set() else rng.choice(STEPS)
                try:
                    ended = await killer.relay(step, rng.randint(*COUNTS))
                except TimeoutError:
                    self.scene.late.append(f"a relay that was to die at {step} did not end")
                    return
                self.ends[ended] += 1
                if ended == "failed":
                    self.scene.errors.append(f"a relay failed before its step {step}")
                await asyncio.sleep(rng.uniform(*PAUSE_S))

    def _keep_relay(self) -> None:
        """Run the command that users run, in a process of its own."""
        with (self.scene.folder / "relay.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "raylog", "outbox", "run", self._url, "--name", "bank"],
                env={**os.environ, "RAYLOG_BOOTSTRAP": self._bootstrap(), "RAYLOG_SECRET": self._secret()},
                stdout=log,
                stderr=log,
            )
            self.relay_pid = process.pid
            try:
                while not self.scene.over.wait(1.0):
                    if process.poll() is not None:
                        self.scene.errors.append(f"the relay ended with code {process.returncode}")
                        return
            finally:
                process.terminate()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
