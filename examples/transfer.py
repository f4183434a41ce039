"""A transfer from one database to another, with crashes: ``python examples/transfer.py``.

A bank debits an account and writes an event, in one transaction of its database. A relay brings the events into a
topic, and a fund credits an account for each, in its own database. Relays and the fund are killed in the middle of
their work (SIGKILL); the next ones go on. At the end no event is lost or doubled, and the balances add up.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, insert, select, update

import raylog
from raylog import outbox

TOPIC = "transfers"
START, AMOUNT = 10_000, 10
metadata = MetaData()
accounts = Table(
    "accounts", metadata, Column("name", String(40), primary_key=True), Column("balance", Integer, nullable=False)
)


def database(path: Path, name: str, balance: int) -> Engine:
    """A database with an outbox, an inbox and an account."""
    engine = outbox.make_engine(f"sqlite:///{path}")
    outbox.init(engine)
    metadata.create_all(engine)
    with engine.begin() as db:
        db.execute(insert(accounts).values(name=name, balance=balance))
    return engine


def balance(engine: Engine) -> int:
    """What is in the account of a database."""
    with engine.connect() as db:
        found: int = db.execute(select(accounts.c.balance)).scalar_one()
        return found


def transfer(bank: Engine, number: int) -> None:
    """Debit and event, or neither: every seventh transaction rolls back."""
    with bank.connect() as db:
        db.execute(update(accounts).values(balance=accounts.c.balance - AMOUNT))
        outbox.add(db, TOPIC, str(AMOUNT).encode(), key=b"zhangsan", txid=f"t-{number}")
        if number % 7:
            db.commit()


def relay(path: Path, bootstrap: str, secret: str) -> None:
    """A relay, until it is killed."""
    engine = outbox.make_engine(f"sqlite:///{path}")
    outbox.OutboxRelay(engine, "bank", lease_ms=300, poll_max_ms=50, bootstrap=bootstrap, secret=secret).run()


def fund(path: Path, bootstrap: str, secret: str, dies: bool) -> None:
    """Credit for each event, from the first one on; dies after some of them, behind one transaction or within it."""
    engine = outbox.make_engine(f"sqlite:///{path}")
    inbox = outbox.Inbox(engine, "fund")
    left = random.randint(3, 15) if dies else -1
    with raylog.Consumer(
        TOPIC, bootstrap=bootstrap, secret=secret, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        for record in consumer:
            with inbox.transaction(record) as db:
                if db is not None:
                    db.execute(update(accounts).values(balance=accounts.c.balance + int(record.value)))
                    left -= 1
                    if left == 0:
                        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Transfer, kill, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transfers", type=int, default=200)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--data-dir", type=Path, help="where the broker keeps its files; default: a temporary folder")
    parser.add_argument("--address", help="Ray cluster to use; local = one of its own")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        bank_path, fund_path = Path(folder, "bank.db"), Path(folder, "fund.db")
        cluster = raylog.start(data_dir=options.data_dir or Path(folder, "raylog-data"), address=options.address)
        bank, saved = database(bank_path, "zhangsan", START), database(fund_path, "fund", 0)
        try:
            with raylog.Admin() as admin:
                admin.create_topic(TOPIC, partitions=2)
            place = (cluster.bootstrap(), cluster.secret())
            kills = options.kills
            for number in range(options.transfers):
                transfer(bank, number)
                if kills and number % max(1, options.transfers // options.kills) == 0:
                    kills -= 1
                    processes = [
                        spawn.Process(target=relay, args=(bank_path, *place)),
                        spawn.Process(target=fund, args=(fund_path, *place, True)),
                    ]
                    for process in processes:
                        process.start()
                    time.sleep(random.uniform(0.8, 1.6))
                    for process in processes:
                        process.kill()
                        process.join()
            committed = sum(number % 7 > 0 for number in range(options.transfers))
            last = [
                spawn.Process(target=relay, args=(bank_path, *place)),
                spawn.Process(target=fund, args=(fund_path, *place, False)),
            ]
            for process in last:
                process.start()
            deadline_s = time.monotonic() + 60
            while balance(saved) < committed * AMOUNT and time.monotonic() < deadline_s:
                time.sleep(0.1)
            for process in last:
                process.kill()
                process.join()
            print(f"{committed} transfers committed, {options.kills} relays and readers killed")
            print(f"events: {outbox.status(bank).counts}")
            print(f"bank {balance(bank)} + fund {balance(saved)} = {balance(bank) + balance(saved)} of {START}")
        finally:
            bank.dispose()
            saved.dispose()
            cluster.stop()


if __name__ == "__main__":
    main()
