"""What one relay brings from PostgreSQL into a topic with three replicas.

`backlog`: events that wait in the table, until all are marked as finished. `steady`: transactions that commit evenly;
late is the time from `add` until the relay has marked the event.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, func, select

import raylog
from benchmarks.options import Parser, one_of
from benchmarks.report.stats import percentile
from benchmarks.scratch import three_brokers
from raylog import outbox
from raylog.outbox.tables import FINISHED
from raylog.outbox.tables import outbox as events
from tests.cluster.outbox.postgres import Postgres, reason_to_skip

TOPIC = "events"
SIZE = 100
PARTITIONS = 3
DEADLINE_S = 300.0


def main(given: Sequence[str]) -> int:
    """Run the case that is named."""
    parser = Parser("outbox", __doc__)
    parser.add_argument("case", type=one_of(("backlog", "steady")), help="backlog or steady")
    parser.add_argument("--events", type=int, default=40_000)
    parser.add_argument("--per-second", type=int, default=500, help="of a steady load")
    parser.add_data()
    chosen = parser.parse_args(given)
    if reason_to_skip():
        print(reason_to_skip(), file=sys.stderr)
        return 1
    postgres = Postgres()
    try:
        postgres.start()
        engine = outbox.make_engine(postgres.url)
        outbox.init(engine)
        with three_brokers(chosen.data) as cluster:
            with raylog.Admin() as admin:
                admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
            place: dict[str, Any] = {"bootstrap": cluster.bootstrap(), "secret": cluster.secret()}
            if chosen.case == "backlog":
                found = backlog(engine, chosen.events, place)
            else:
                found = steady(engine, chosen.events, chosen.per_second, place)
        engine.dispose()
    finally:
        postgres.stop()
    print(json.dumps(found, indent=2))
    return 0


def add(engine: Engine, numbers: range) -> None:
    """Commit events in one transaction."""
    with engine.begin() as db:
        for number in numbers:
            outbox.add(db, TOPIC, bytes(SIZE), key=str(number % 1_000).encode())


def finished(engine: Engine) -> int:
    """How many events are finished."""
    with engine.connect() as db:
        return db.scalar(select(func.count()).select_from(events).where(events.c.state == FINISHED)) or 0


def relaying(engine: Engine, place: dict[str, Any]) -> tuple[outbox.OutboxRelay, threading.Thread]:
    """A relay in a thread."""
    relay = outbox.OutboxRelay(engine, "bench", config=place)
    thread = threading.Thread(target=relay.run)
    thread.start()
    return relay, thread


def wait(engine: Engine, count: int) -> None:
    """Wait until so many events are finished."""
    deadline_s = time.monotonic() + DEADLINE_S
    while finished(engine) < count:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"only {finished(engine)} of {count} events were relayed within {DEADLINE_S} s")
        time.sleep(0.1)


def backlog(engine: Engine, count: int, place: dict[str, Any]) -> dict[str, Any]:
    """Events a second, of a table that is full."""
    add(engine, range(500))
    relay, thread = relaying(engine, place)
    wait(engine, 500)
    relay.stop()
    thread.join()
    for first in range(500, count + 500, 1_000):
        add(engine, range(first, min(first + 1_000, count + 500)))
    began_s = time.monotonic()
    relay, thread = relaying(engine, place)
    wait(engine, count + 500)
    took_s = time.monotonic() - began_s
    relay.stop()
    thread.join()
    return {"events": count, "seconds": round(took_s, 2), "events_per_s": round(count / took_s)}


def steady(engine: Engine, count: int, per_second: int, place: dict[str, Any]) -> dict[str, Any]:
    """How late events are marked, each in a transaction of its own."""
    relay, thread = relaying(engine, place)
    add(engine, range(1))
    wait(engine, 1)
    began_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began_s + number / per_second - time.monotonic()))
        add(engine, range(number, number + 1))
    took_s = time.monotonic() - began_s
    wait(engine, count + 1)
    relay.stop()
    thread.join()
    with engine.connect() as db:
        late = sorted(db.scalars(select(events.c.finished_at - events.c.created_at)).all())
    return {
        "events": count,
        "committed_per_s": round(count / took_s),
        "late_ms": {f"p{share}": percentile(late, share) for share in (50, 99)},
    }
