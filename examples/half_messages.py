"""A payment and its event, without an outbox table: ``python examples/half_messages.py``.

The event is stored first, and visible to no consumer. Then the payment is made in the bank's own database, and the
event is committed. A teller that stops between the two leaves a half message: a checker looks into the database and
decides. It forbids the payment before it reports that there is none, so a slow teller cannot pay afterwards.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import raylog
from raylog import HalfVerdict

TRANSFERS = "transfers"
GROUP = "tellers"


@dataclass
class Bank:
    """A database of payments; a forbidden one is refused."""

    path: Path

    def open(self) -> None:
        """Create the table."""
        with sqlite3.connect(self.path) as db:
            db.execute("CREATE TABLE IF NOT EXISTS payments (txid TEXT PRIMARY KEY, cents INTEGER)")

    def pay(self, txid: str, cents: int) -> None:
        """Make a payment; raises sqlite3.IntegrityError for one that is forbidden."""
        with sqlite3.connect(self.path) as db:
            db.execute("INSERT INTO payments VALUES (?, ?)", (txid, cents))

    def check(self, half: raylog.UndecidedHalf) -> HalfVerdict:
        """Return whether a payment was made; from now on one that was not cannot be."""
        with sqlite3.connect(self.path) as db:
            db.execute("INSERT OR IGNORE INTO payments VALUES (?, NULL)", (half.txid,))
            ((cents,),) = db.execute("SELECT cents FROM payments WHERE txid = ?", (half.txid,))
        return HalfVerdict.ROLLBACK if cents is None else HalfVerdict.COMMIT


def transfers(count: int, timeout_s: float) -> list[str]:
    """Wait for the events."""
    found: list[str] = []
    until = time.monotonic() + timeout_s
    with raylog.Consumer(TRANSFERS, auto_offset_reset="earliest") as consumer:
        while len(found) < count and time.monotonic() < until:
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value.decode() for record in records]
    return found


def main() -> int:
    """Make one payment as planned; leave two to the checker, one of them paid."""
    arguments = _arguments()
    bank = Bank(arguments.database)
    bank.open()
    with raylog.start(arguments.data_dir, address=arguments.address), raylog.Admin() as admin:
        if TRANSFERS not in admin.list_topics():
            admin.create_topic(TRANSFERS, partitions=1)
        run = f"{time.time():.0f}"
        with raylog.HalfMessageProducer(GROUP, check_after="1s") as teller:
            with teller.prepare(TRANSFERS, b"rent", txid=f"rent-{run}") as half:
                bank.pay(half.txid, 80_000)
            half = teller.prepare(TRANSFERS, b"lunch", txid=f"lunch-{run}")
            bank.pay(half.txid, 1_200)  # and the teller goes home without a word
            teller.prepare(TRANSFERS, b"yacht", txid=f"yacht-{run}")
        with raylog.HalfMessageProducer(GROUP, bank.check):
            print("committed:", " ".join(transfers(2, arguments.seconds)))
            until = time.monotonic() + arguments.seconds
            while admin.list_half_messages(GROUP) and time.monotonic() < until:
                time.sleep(0.1)
        print("without decision:", len(admin.list_half_messages(GROUP)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", type=Path, default=Path("payments.db"), help="file of the bank's database")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to wait for the events")
    parser.add_argument("--data-dir", default="raylog-data", help="folder of the records")
    parser.add_argument("--address", help="address of a Ray cluster; 'local' starts one for this run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
