"""Every command with `--json`, beside a cluster in this process: what it prints are JSON documents, with these fields.

`raylog start` and `raylog stop` need Ray, and are in ``test_cli.py``.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from raylog import outbox
from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.half_messages.producer import HalfMessageProducer
from raylog.client.producer.producer import Producer
from raylog.client.queues.consumer import QueueConsumer
from raylog.client.runtime import Runtime
from raylog.outbox.administration import status
from raylog.outbox.tables import FAILED, UNFINISHED
from raylog.outbox.tables import outbox as events
from raylog.rpc.auth.secret_files import make_secrets
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.unit.cli.support import raylog
from tests.unit.cli.test_json_everywhere import LEAVES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

WAIT_S = 30.0
WITH_RAY = {("start",), ("stop",)}
SILENT = {("produce",)}
"""They print nothing on standard output."""


class Commands:
    """Runs commands with `--json`, and notes which."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._at = ("--bootstrap", cluster.bootstrap())
        self.seen: set[tuple[str, ...]] = set()

    def __call__(self, line: str, *, code: int = 0, stdin: str = "", here: bool = True) -> Any:
        """The document that a command prints; a list of them, where it prints one a line."""
        words = line.split()
        name = max((each for each in LEAVES if tuple(words[: len(each)]) == each), key=len)
        at = self._at if here else ()
        outcome = raylog(*words, "--json", *at, stdin=stdin, RAYLOG_SECRET=SECRET.hex())
        assert outcome.code == code, (line, outcome)
        assert "Traceback" not in outcome.err
        self.seen.add(name)
        if not outcome.out:
            assert name in SILENT
            return None
        try:
            return json.loads(outcome.out)
        except ValueError:
            return [json.loads(text) for text in outcome.out.splitlines()]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Brokers on a loop of their own, so that commands run in this thread, which has signal handlers."""
    runtime = Runtime()
    config = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}
    (tmp_path / "cluster").mkdir()
    made = LocalCluster(tmp_path / "cluster", brokers=2, config=config)
    runtime.run(made.start(), WAIT_S)
    yield made
    runtime.run(made.stop(), WAIT_S)
    runtime.stop()


def topics(run: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    made = run("topic create a --partitions 2 --replication-factor 2")
    assert made == {
        "topic": "a",
        "created": True,
        "partitions": 2,
        "replication_factor": 2,
        "asleep": False,
        "still_starting": 0,
    }
    assert list(run("topic create a --if-not-exists").items())[:2] == [("topic", "a"), ("created", False)]
    assert run("topic list") == ["a"]
    assert run("topic describe a")["a"]["replication_factor"] == 2
    altered = run("topic alter a --partitions 3 --config retention.ms=5")
    assert (altered["partitions"], altered["config"], altered["still_starting"]) == (3, {"retention.ms": "5"}, 0)
    run("topic alter a --delete-config retention.ms")
    assert {row["name"] for row in run("config describe a")} > {"retention.ms"}
    (row,) = run("config alter --config group.max.size=99")["settings"]
    assert (row["value"], row["origin"], row["change"]) == ("99", "altered", "at once")
    assert not run("config alter --delete-config group.max.size --dry-run")["altered"]
    run("produce --topic a", stdin='{"value": "x", "partition": 0}\n')
    assert run("consume --topic a --from-beginning --max-messages 1")["value"] == "x"
    assert [row["records"] for row in run("topic offsets a")] == [1, 0, 0]
    assert run("topic wake a") == {"topic": "a", "woken": 0}
    deleted = run("topic delete-records a --partition 0 --before 1")
    assert deleted == {"topic": "a", "partition": 0, "low_watermark": 1}
    assert [row["error"] for row in run("topic elect a")] == ["ElectionNotNeeded"] * 3
    assert run("topic reassign --list") == []
    assert run("topic reassign --cancel")["state"] == "none"
    assert run("topic reassign --throttle 1000000") == {
        "state": "throttled",
        "partitions": 0,
        "there": 0,
        "slowest": None,
        "throttle": 1_000_000,
    }
    moved = run("topic reassign a --partition 1 --replicas 1 --wait")
    assert [each["state"] for each in (moved[0], moved[-1])] == ["moving", "done"]
    assert set(run("balance")) == {"version", "partitions"}
    run("topic create b")
    deletions = run("topic delete a b nothing --if-exists")
    assert [(row["topic"], row["deleted"]) for row in deletions] == [("a", True), ("b", True), ("nothing", False)]


def the_cluster(run: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    assert [broker["broker"] for broker in run("status")["brokers"]] == [1, 2]
    level = run("features show")["level"]
    assert run("features upgrade") == {"level": level, "before": level}
    run("topic create dumped --replication-factor 1")
    token = run("token create --read dumped --lifetime 1h")
    assert token["read"] == ["dumped"]
    assert run(f"token show {token['token']}", here=False)["expires_s"] == token["expires_s"]
    (tmp_path / "secrets").mkdir()
    make_secrets(tmp_path / "secrets")
    for command, values in (("change", 2), ("finish", 1)):
        assert run(f"secret {command} --client --data-dir {tmp_path}/secrets", here=False) == {
            "file": str(tmp_path / "secrets" / "client-secret"),
            "client": True,
            "values": values,
        }
    assert run("metrics dashboard", here=False)["title"] == "Raylog"
    assert len(run("metrics alerts", here=False)["groups"][0]["rules"]) > 5
    run("produce --topic dumped", stdin='{"value": "x"}\n')
    assert run(f"logs --ray-dir {tmp_path}", here=False) == []
    (log,) = cluster.root.glob("broker-*/dumped-0")
    assert run(f"log dump {log}", here=False)["row"] == "batch"


def measurements(run: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    run("topic create load --replication-factor 1")
    rows = run("perf produce --topic load --num-records 100 --record-size 10 --throughput -1 --print-metrics")
    assert [row["row"] for row in rows] == ["total", "metrics"]
    assert (rows[0]["records"], rows[0]["bytes"], set(rows[0]["latency_ms"])) == (
        100,
        1000,
        {"50th", "95th", "99th", "99.9th"},
    )
    warm = "perf produce --topic load --num-records 100 --payload-monotonic --throughput -1 --warmup-records 10"
    assert [row["row"] for row in run(warm)] == ["total", "steady_state"]
    total = run("perf consume --topic load --messages 200 --timeout 30000")
    assert (total["row"], total["records"]) == ("total", 200)


def groups(run: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    run("topic create read --partitions 2 --replication-factor 1")
    run("produce --topic read", stdin='{"value": "x", "partition": 0}\n{"value": "y", "partition": 1}\n')
    with Consumer("read", **cluster.clients(), group_id="g", auto_offset_reset="earliest") as consumer:
        found = 0
        deadline_s = time.monotonic() + WAIT_S
        while found < 2 and time.monotonic() < deadline_s:
            found += sum(map(len, consumer.poll(1_000).values()))
        consumer.commit()
        assert [row["group"] for row in run("group list --state Stable")] == ["g"]
        assert run("group describe g")["state"] == "Stable"
        (removed,) = run("group remove-members g --all")
        assert (removed["removed"], removed["error"]) == (True, "")
    assert not run("group reset-offsets g --to earliest")["done"]
    assert run("group reset-offsets g --to earliest --execute")["done"]
    offset = {"group": "g", "topic": "read", "partition": 1, "offset": 1}
    assert run("group set-offset g read --partition 1 --offset 1") == offset
    assert run("group delete-offsets g read --partition 1") == {"group": "g", "topic": "read", "partitions": [1]}
    assert run("group delete g") == [{"group": "g", "deleted": True}]


def queues(run: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    run("topic create jobs --replication-factor 1")
    run("produce --topic jobs", stdin='{"value": "x"}\n')
    with QueueConsumer("jobs", **cluster.clients(), group_id="q") as queue:
        message = queue.getone(timeout_ms=WAIT_S * 1000)
        assert message is not None
        (row,) = run("queue peek q")
        assert row["state"]
        message.ack()
    assert [row["group_id"] for row in run("queue list")] == ["q"]
    run("topic create dlq.q --replication-factor 1")
    assert run("dlq list") == [{"topic": "dlq.q", "records": 0, "sources": ["jobs"]}]
    run("topic delete dlq.q")
    assert [row["backlog"] for row in run("queue describe q")] == [0]
    (moved,) = run("queue reset q jobs --to earliest")
    assert moved == {"group": "q", "topic": "jobs", "partition": 0, "offset": 0}
    assert run("queue delete q") == {"group": "q", "topic": None, "deleted": True}


def delays_and_dead_letters(run: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    run("topic create later --replication-factor 1")
    with Producer(**cluster.clients()) as producer:
        producer.send("later", b"x", key=b"k", delay="1h", schedule_id="one").result(WAIT_S)
    assert [row["schedule_id"] for row in run("schedule list")] == ["one"]
    assert run("schedule describe --topic later --id one")["key"] == "k"
    moved = run("schedule move --topic later --id one --delay 2h")
    assert (moved["outcome"], moved["schedule_id"]) == ("MOVED", "one")
    assert run(f"schedule cancel {moved['handle']}")["outcome"] == "CANCELLED"
    assert run("schedule deliver-now --topic later --id one", code=1)["outcome"] == "ALREADY_CANCELLED"

    run("topic create dead --replication-factor 1")
    run("topic create short --replication-factor 1 --config ttl.ms=50 dead.letter.topic=dead")
    run("produce --topic short", stdin='{"value": "late"}\n')
    deadline_s = time.monotonic() + WAIT_S
    while not (letters := run("dlq show dead")) and time.monotonic() < deadline_s:
        pass  # each command opens its own connections, and takes its time
    assert [row["reason"] for row in letters] == ["expired"]
    assert [row["topic"] for row in run("dlq list")] == ["dead"]
    done = run("dlq redrive dead --to later --wait")
    assert (done["state"], done["sent"]) == ("done", 1)
    assert [row["number"] for row in run("dlq redrives")] == [done["number"]]
    assert run(f"dlq cancel {done['number']}", code=1) == {"number": done["number"], "cancelled": False}
    assert run("dlq purge dead --yes") == {"topic": "dead", "partitions": [{"partition": 0, "low_watermark": 1}]}


def transactions_and_half_messages(run: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    run("topic create pay --replication-factor 1")
    with Producer(**cluster.clients(), transactional_id="tx") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("pay", b"x").result(WAIT_S)
        assert [row["transactional_id"] for row in run("transaction list")] == ["tx"]
        assert run("transaction describe tx")["partitions"] == ["pay-0"]
        assert run("transaction hanging") == []
        assert run("transaction abort tx")["aborted"]
    with HalfMessageProducer("halves", **cluster.clients()) as halves:
        names = [halves.prepare("pay", b"x", txid=name).txid for name in ("one", "two")]
        assert {row["txid"] for row in run("half list")} == set(names)
        for decision in ("commit", "rollback"):
            decided = run(f"half {decision} halves {names.pop()}")
            assert (decided["group"], decided["decision"]) == ("halves", decision)


def an_outbox(run: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    assert run(f"outbox init {url}", here=False) == {"shards": 1}
    engine = outbox.make_engine(url)
    with Admin(**cluster.clients()) as admin:
        admin.create_topic("events", 1, 1)
    with engine.begin() as db:
        outbox.add(db, "events", b"x")

    def end() -> None:
        deadline_s = time.monotonic() + WAIT_S
        while status(engine).counts.get(UNFINISHED) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)  # its handler is there: it has relayed

    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        watch = threading.Thread(target=end)
        watch.start()
        steps = run(f"outbox run {url} --name bank")
        watch.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [(row["state"], row["outbox"], row["finished"]) for row in steps] == [
        ("relaying", "bank", 0),
        ("ended", "bank", 1),
    ]
    assert run(f"outbox status {url}", here=False)["settings"]["producer_name"] == "bank"
    with engine.begin() as db:
        db.execute(update(events).values(state=FAILED))
    assert run(f"outbox retry {url}", here=False) == {"retried": 1}
    with engine.begin() as db:
        db.execute(update(events).values(state=FAILED))
    assert run(f"outbox discard {url} 1", here=False) == {"deleted": 1}
    engine.dispose()


def test_every_command_prints_json(cluster: LocalCluster, tmp_path: Path) -> None:
    run = Commands(cluster)
    for story in (
        topics,
        the_cluster,
        measurements,
        groups,
        queues,
        delays_and_dead_letters,
        transactions_and_half_messages,
        an_outbox,
    ):
        story(run, cluster, tmp_path)
    assert set(LEAVES) - run.seen == WITH_RAY
