"""Producing, consuming, measuring and topics, against a cluster in memory that is reached by address and secret."""

import itertools
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from raylog.base.ids import TopicPartition
from raylog.cli import topics
from raylog.cli.records.consume import compile_format
from raylog.cli.status import _draw, condition, judged
from raylog.client import progress
from raylog.client.admin.admin import Admin
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from raylog.client.types import Record
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS
from raylog.protocol.admin import CREATE_PARTITIONS, WAKE_PARTITIONS, WakePartitionsReply, WakePartitionsRequest
from raylog.protocol.broker import MetadataTopic
from raylog.rpc import Request
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.records import BatchMeta
from tests.unit.cli.support import Outcome, raylog, refusal
from tests.unit.cli.test_perf_stats import FINAL
from tests.unit.client.consumer_support import fill, with_coordinator
from tests.unit.client.toy_server import SECRET, ToyCluster


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster(brokers=2) as running:
        running.create_topic("flights", 2)
        yield running


def at(cluster: ToyCluster, *arguments: str, stdin: str | bytes = "") -> Outcome:
    """Run a command against this cluster."""
    return raylog(*arguments, "--bootstrap", cluster.bootstrap, stdin=stdin, RAYLOG_SECRET=SECRET.hex())


def test_lines_become_records_and_come_back(cluster: ToyCluster) -> None:
    outcome = at(cluster, "produce", "--topic", "flights", "--partition", "1", stdin="one\ntwo\r\n\nfour")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "4 records stored in flights.\n")
    assert cluster.records("flights", 1) == [(0, None, b"one"), (1, None, b"two"), (2, None, b""), (3, None, b"four")]
    read = at(cluster, "consume", "--topic", "flights", "--from-beginning", "--max-messages", "4")
    assert (read.code, read.out, read.err) == (0, "one\ntwo\n\nfour\n", "4 records read.\n")


def test_keys_stand_before_the_separator(cluster: ToyCluster) -> None:
    at(cluster, "produce", "--topic", "flights", "--partition", "0", "--key-separator", ":", stdin="UA:1:2\n:x\n")
    assert cluster.records("flights", 0) == [(0, b"UA", b"1:2"), (1, b"", b"x")]
    outcome = at(cluster, "produce", "--topic", "flights", "--key-separator", ":", stdin="UA:1\nnothing\n")
    assert "line 2 has no key separator ':'" in refusal(outcome, 2)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_line_that_is_too_large_is_named(cluster: ToyCluster, as_json: bool) -> None:
    lines = ["one", "two", "x" * 3000, "four"]
    stdin = "".join(f"{json.dumps({'value': line})}\n\n" if as_json else f"{line}\n" for line in lines)
    words = ["--topic", "flights", "--producer-props", "max.request.size=1000", *(["--json"] if as_json else [])]
    line = refusal(at(cluster, "produce", *words, stdin=stdin), 1)
    assert line.startswith(
        f"raylog: line {5 if as_json else 3} is too large; the lines before it were sent: The record"
    )
    read = at(cluster, "consume", "--topic", "flights", "--from-beginning", "--timeout-ms", "500").out
    assert sorted(read.split()) == ["one", "two"]


def test_a_file_is_sent_with_the_producers_keys(cluster: ToyCluster, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"\xff\n" * 100)
    options = ["--file", str(path), "--acks", "all", "--compression-type", "lz4", "--partition", "0", "--quiet"]
    outcome = at(
        cluster, "produce", "--topic", "flights", *options, "--producer-props", "linger.ms=1", "batch.size=500"
    )
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert [value for _, _, value in cluster.records("flights", 0)] == [b"\xff"] * 100
    wrong = at(cluster, "produce", "--topic", "flights", "--producer-props", "linger.msec=1")
    assert "did you mean 'linger.ms'?" in refusal(wrong, 1)


def test_a_topic_that_does_not_exist_is_an_error_that_names_the_nearest(cluster: ToyCluster) -> None:
    for words in (["produce"], ["consume"], ["schedule", "list"]):
        outcome = refusal(at(cluster, *words, "--topic", "flihgts", stdin="x\n"), 1)
        assert "did you mean 'flights'?" in outcome
    assert "flights has the partitions 0 to 1, not 7" in refusal(
        at(cluster, "consume", "--topic", "flights", "--partition", "7"), 1
    )


def test_a_refused_record_fails_the_command(cluster: ToyCluster) -> None:
    cluster.set_faults("flights", 0, [87])
    outcome = at(cluster, "produce", "--topic", "flights", "--partition", "0", stdin="x\n")
    assert "The toy is set to refuse this." in refusal(outcome, 1)


def test_reading_begins_at_the_requested_offset(cluster: ToyCluster) -> None:
    at(cluster, "produce", "--topic", "flights", "--partition", "0", stdin="a\nb\nc\n")
    place = ["consume", "--topic", "flights", "--partition", "0"]
    assert at(cluster, *place, "--offset", "1", "--max-messages", "1").out == "b\n"
    assert at(cluster, *place, "--offset", "earliest", "--max-messages", "2").out == "a\nb\n"
    assert at(cluster, *place, "--offset", "latest", "--timeout-ms", "300").out == ""
    assert at(cluster, *place, "--from-beginning", "--timeout-ms", "300").out == "a\nb\nc\n"


def test_aborted_records_are_left_out_for_committed_reads(cluster: ToyCluster) -> None:
    fill(cluster, "flights", 0, [b"lost"], meta=BatchMeta(1, 0, 0, attributes=TRANSACTIONAL_BIT))
    cluster.do(lambda: cluster.partitions["flights", 0].end_transaction(1, committed=False))
    fill(cluster, "flights", 0, [b"kept"])
    reading = ["consume", "--topic", "flights", "--partition", "0", "--from-beginning", "--timeout-ms", "300"]
    assert at(cluster, *reading).out == "lost\nkept\n"
    assert at(cluster, *reading, "--isolation-level", "read_committed").out == "kept\n"


def test_records_are_printed_as_json_lines(cluster: ToyCluster) -> None:
    at(cluster, "produce", "--topic", "flights", "--partition", "0", "--key-separator", ":", stdin=b"k:\xff\n")
    read = at(cluster, "consume", "--topic", "flights", "--from-beginning", "--max-messages", "1", "--json")
    row = json.loads(read.out)
    assert row.pop("timestamp_ms") > 0
    assert row == {
        "topic": "flights",
        "partition": 0,
        "offset": 0,
        "key": "k",
        "value_base64": "/w==",
        "headers": [],
    }


def test_a_null_header_is_shown_as_null(cluster: ToyCluster) -> None:
    with Producer(**cluster.options) as producer:
        producer.send("flights", b"x", headers={"gone": None, "here": b""}, partition=0)
    read = at(cluster, "consume", "--topic", "flights", "--from-beginning", "--max-messages", "1", "--json")
    assert json.loads(read.out)["headers"] == [{"name": "gone", "value": None}, {"name": "here", "value": ""}]


def test_a_format_gives_every_field() -> None:
    record = Record("t", 2, 7, 99, b"k", None, (("a", b"1"), ("b", None)))
    assert compile_format(r"%t-%p@%o %T %k=%v [%h] 100%%\n\t\\x")(record) == b"t-2@7 99 k=null [a=1,b=null] 100%\n\t\\x"
    assert compile_format("é%v")(Record("t", 0, 0, 0, None, b"\xff", ())) == "é".encode() + b"\xff"


def test_settings_are_shown_with_their_origins(cluster: ToyCluster) -> None:
    at(cluster, "topic", "create", "tests", "--config", "retention.ms=5")
    lines = [line.split() for line in at(cluster, "config", "describe", "tests", "--set").out.splitlines()]
    assert lines == [
        ["settings", "of", "tests"],
        ["key", "value", "origin", "default"],
        ["replica.sleep.after.ms", "9000", "cluster", CLUSTER_KEYS["replica.sleep.after.ms"].default],
        ["retention.ms", "5", "topic", "604800000"],
    ]
    (entry,) = json.loads(at(cluster, "config", "describe", "--set", "--json").out)
    assert (entry["name"], entry["value"], entry["origin"]) == ("num.partitions", "4", "start")

    everything = at(cluster, "config", "describe", "tests").out
    assert all(key in everything for key in TOPIC_KEYS)
    assert "did you mean 'tests'" in refusal(at(cluster, "config", "describe", "test"), 1)


def test_settings_of_the_cluster_are_altered(cluster: ToyCluster) -> None:
    altered = at(cluster, "config", "alter", "--config", "group.max.size=7", "broker.session.timeout.ms=9000")
    assert altered.out.splitlines() == [
        "broker.session.timeout.ms has 9000 at the next start of the cluster; until then it has 2500.",
        "group.max.size has 7 now (altered).",
    ]
    lines = at(cluster, "config", "describe", "--set").out.splitlines()
    assert [line.rstrip().split(maxsplit=4) for line in lines][2:] == [
        ["broker.session.timeout.ms", "2500", "default", "2500", "at the next start: 9000"],
        ["group.max.size", "7", "altered", "10000", "at once"],
        ["num.partitions", "4", "start", "1", "at once"],
    ]
    checked = at(cluster, "config", "alter", "--delete-config", "group.max.size", "--dry-run")
    assert checked.out == "group.max.size would have 10000 now (default).\n"
    ended = json.loads(at(cluster, "config", "alter", "--delete-config", "group.max.size", "--json").out)
    assert ended["altered"]
    assert [(row["name"], row["value"], row["origin"]) for row in ended["settings"]] == [
        ("group.max.size", "10000", "default")
    ]
    assert "did you mean 'num.partitions'" in refusal(at(cluster, "config", "alter", "--config", "num.partition=2"), 1)
    assert "nothing to alter" in refusal(at(cluster, "config", "alter"), 2)


def test_topics_are_made_listed_altered_described_and_deleted(cluster: ToyCluster) -> None:
    made = at(cluster, "topic", "create", "tests", "--partitions", "3", "--config", "retention.ms=5", "flush.ms=6")
    assert made.out == "Topic tests created: 3 partitions, replication factor 2.\n"
    assert at(cluster, "topic", "list").out == "flights\ntests\n"
    assert json.loads(at(cluster, "topic", "list", "--json").out) == ["flights", "tests"]
    assert "--if-not-exists" in refusal(at(cluster, "topic", "create", "tests"), 1)
    assert at(cluster, "topic", "create", "tests", "--if-not-exists").code == 0
    assert at(cluster, "topic", "alter", "tests", "--config", "a=1", "--delete-config", "flush.ms").code == 0
    described = json.loads(at(cluster, "topic", "describe", "tests", "--json").out)["tests"]
    assert described["config"] == {"retention.ms": "5", "a": "1"}
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    shown = at(cluster, "topic", "describe", "tests").out.splitlines()
    assert shown[0].startswith("tests  (id ")
    assert shown[1].split() == ["partition", "leader", "epoch", "replicas", "in", "sync", "state"]
    assert shown[2].split() == ["0", "0", "0", "0,1", "0,1", "ok"]
    assert at(cluster, "topic", "delete", "tests").out == "Topic tests deleted.\n"
    assert at(cluster, "topic", "delete", "tests", "--if-exists").code == 0
    refusal(at(cluster, "topic", "delete", "tests"), 1)


def test_a_topic_that_takes_long_to_create_shows_how_far_it_is(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe, views = cluster._describe, itertools.count(1)

    def slowly(name: str) -> MetadataTopic:
        """One leader more in each view."""
        found, led = describe(name), next(views)
        rows = [structs.replace(row, leader_port=row.leader_port * (row.partition < led)) for row in found.partitions]
        return structs.replace(found, partitions=rows)

    monkeypatch.setattr(cluster, "_describe", slowly)
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    made = at(cluster, "topic", "create", "tests", "--partitions", "20")
    assert made.out == "Topic tests created: 20 partitions, replication factor 2.\n"
    counts = [int(line.split()[0]) for line in made.err.splitlines()]
    assert counts == sorted(set(counts))
    assert made.err.splitlines()[0] == f"{counts[0]} of 20 partitions have a leader"


def without_leaders(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, led: int) -> None:
    """Only the first partitions get a leader."""
    describe = cluster._describe

    def described(name: str) -> MetadataTopic:
        found = describe(name)
        rows = [structs.replace(row, leader_port=row.leader_port * (row.partition < led)) for row in found.partitions]
        return structs.replace(found, partitions=rows)

    monkeypatch.setattr(cluster, "_describe", described)
    monkeypatch.setattr(topics, "LEADERS_WAIT_S", 0.3)


def test_a_topic_whose_leaders_take_longer_is_created_all_the_same(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_leaders(cluster, monkeypatch, led=7)
    made = at(cluster, "topic", "create", "tests", "--partitions", "20")
    assert made.code == 0
    assert made.out == (
        "Topic tests created: 20 partitions, of which 7 have a leader. The others still start; follow with "
        "`raylog status`.\n"
    )
    cluster.extra_methods[CREATE_PARTITIONS.name] = lambda request: request.reply([])
    more = at(cluster, "topic", "alter", "tests", "--partitions", "30", "--config", "a=1")
    assert (more.code, more.out.split(".")[:2]) == (
        0,
        ["Topic tests altered", " It has 30 partitions, of which 7 have a leader"],
    )
    assert json.loads(at(cluster, "topic", "describe", "tests", "--json").out)["tests"]["config"] == {"a": "1"}


def test_a_topic_that_is_created_soon_shows_nothing_on_the_way(cluster: ToyCluster) -> None:
    assert at(cluster, "topic", "create", "tests", "--partitions", "20").err == ""


def test_a_topic_with_one_copy_is_pointed_out_where_there_are_brokers(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        (first, *_) = admin.describe_topic("flights").partitions
        made = replace(admin.describe_topic("flights"), partitions=(replace(first, replicas=(1,), isr=(1,)),))
        assert "--replication-factor 2 keeps more" in topics._alone(admin, made)
        two = replace(made, partitions=(replace(first, replicas=(1, 2), isr=(1, 2)),))
        assert topics._alone(admin, two) == ""


def test_a_topic_that_is_born_asleep_says_so(cluster: ToyCluster) -> None:
    cluster.asleep |= {("tests", 0), ("tests", 1)}
    made = at(cluster, "topic", "create", "tests", "--partitions", "2")
    assert made.out == "Topic tests created: 2 partitions, replication factor 2, asleep until used.\n"


def test_partitions_that_sleep_are_woken(cluster: ToyCluster) -> None:
    wanted: list[WakePartitionsRequest] = []

    def wake(request: Request) -> None:
        wanted.append(WAKE_PARTITIONS.read_request(request.args))
        request.reply(WakePartitionsReply(len(wanted[-1].partitions or (0, 1))))

    cluster.extra_methods["wake_partitions"] = wake
    assert at(cluster, "topic", "wake", "flights").out == "Topic flights: 2 partitions slept and wake now.\n"
    woken = at(cluster, "topic", "wake", "flights", "--partition", "1")
    assert (woken.code, woken.out) == (0, "Topic flights: 1 partition slept and wake now.\n")
    assert wanted == [WakePartitionsRequest("flights", None), WakePartitionsRequest("flights", [1])]


def test_records_are_deleted_up_to_an_offset(cluster: ToyCluster) -> None:
    at(cluster, "produce", "--topic", "flights", "--partition", "1", stdin="a\nb\nc\n")
    words = ["topic", "delete-records", "flights", "--partition", "1", "--before"]
    assert at(cluster, *words, "2").out == "flights-1 begins at offset 2 on every replica.\n"
    read = at(cluster, "consume", "--topic", "flights", "--from-beginning", "--max-messages", "1")
    assert read.out == "c\n"
    assert "to `3` can be deleted" in refusal(at(cluster, *words, "4"), 1)
    assert json.loads(at(cluster, *words, "-1", "--json").out) == {
        "topic": "flights",
        "partition": 1,
        "low_watermark": 3,
    }
    assert "Missing option '--before'" in refusal(at(cluster, *words[:-1]), 2)
    assert "did you mean 'flights'?" in refusal(at(cluster, *words[:2], "flihgts", *words[3:], "1"), 1)


def test_status_shows_brokers_and_partitions(cluster: ToyCluster) -> None:
    shown = at(cluster, "status")
    assert shown.code == 0
    assert "flights  1          1       0      1,0       1,0      ok" in shown.out
    found = json.loads(at(cluster, "status", "--json").out)
    assert [broker["broker"] for broker in found["brokers"]] == [0, 1]
    assert (found["offline_brokers"], found["offline_partitions"]) == ([], [])


def test_what_is_wrong_is_named_in_the_status() -> None:
    healthy = {"partition": 0, "leader": 1, "leader_epoch": 1, "replicas": [1, 2], "isr": [1, 2]}
    behind, offline = {**healthy, "partition": 1, "isr": [1]}, {**healthy, "partition": 2, "leader": -1}
    assert [condition(item) for item in (healthy, behind, offline)] == ["ok", "under-replicated", "offline"]
    found = judged({"brokers": [{"broker": 2, "online": False}], "topics": {"t": [healthy, behind, offline]}})
    assert found["offline_brokers"] == [2]
    assert found["offline_partitions"] == ["t-2"]
    assert found["under_replicated_partitions"] == ["t-1"]


def test_perf_produce_sends_every_record_and_reports_as_kafka_does(cluster: ToyCluster) -> None:
    line = "perf produce --topic flights --num-records 5000 --record-size 100 --throughput -1 --print-metrics"
    outcome = at(cluster, *line.split(), "--producer-props", "acks=all", "linger.ms=1", "--warmup-records", "1000")
    assert outcome.code == 0, outcome
    lines = outcome.out.splitlines()
    assert lines[0].startswith("Warmup first 1000 records.")
    final = FINAL.match(lines[1])
    assert final is not None, lines
    assert final[1] == "5000"
    assert lines[2].startswith("4000 steady state records sent, ")
    assert any(line.startswith("producer-metrics:record-send-total:{client-id=perf-producer-client}") for line in lines)
    values = [value for partition in (0, 1) for _, _, value in cluster.records("flights", partition)]
    assert len(values) == 5000
    assert all(value is not None and len(value) == 100 and value.isalpha() and value.isupper() for value in values)


def test_perf_produce_keeps_its_rate_and_counts_latency_from_the_schedule(cluster: ToyCluster) -> None:
    line = "perf produce --topic flights --num-records 200 --payload-monotonic --throughput 400 --latency-digits 2"
    outcome = at(cluster, *line.split())
    fields = outcome.out.split()
    assert fields[0] == "200"
    assert float(fields[3]) <= 405, "never faster than requested"


def test_perf_produce_takes_payloads_from_a_file_and_keys_from_another(cluster: ToyCluster, tmp_path: Path) -> None:
    payloads, config = tmp_path / "payloads", tmp_path / "producer.properties"
    payloads.write_bytes(b"a|bb|ccc|")
    config.write_text("linger.ms=1\nkey.serializer=org.apache.kafka.common.serialization.ByteArraySerializer\n")
    line = "perf produce --topic flights --num-records 300 --throughput -1 --payload-delimiter |"
    files = ["--payload-file", str(payloads), "--producer.config", str(config)]
    outcome = at(cluster, *line.split(), *files)
    assert outcome.code == 0, outcome
    assert "Number of messages read: 3" in outcome.out
    values = {value for partition in (0, 1) for _, _, value in cluster.records("flights", partition)}
    assert values == {b"a", b"bb", b"ccc"}
    payloads.write_bytes(b"")
    assert "is empty" in at(cluster, *line.split(), *files).err


def test_perf_produce_fails_when_records_were_refused(cluster: ToyCluster) -> None:
    cluster.set_faults("flights", 0, [87] * 50)
    cluster.set_faults("flights", 1, [87] * 50)
    line = "perf produce --topic flights --num-records 10 --record-size 10 --throughput -1"
    outcome = at(cluster, *line.split())
    assert outcome.code == 1
    assert "10 records were not stored; the first error was: The toy is set to refuse this." in outcome.err


def test_preferred_replicas_are_elected_by_command(cluster: ToyCluster) -> None:
    assert at(cluster, "topic", "elect", "--all").out == "Every partition is led by its preferred replica.\n"
    outcome = at(cluster, "topic", "elect", "flights", "--partition", "1")
    assert (outcome.code, outcome.out) == (0, "flights-1 is led as it should be.\n")
    cluster.create_topic("strayed", 1)
    [row] = json.loads(at(cluster, "topic", "elect", "strayed", "--json").out)
    assert (row["topic"], row["partition"], row["error"]) == ("strayed", 0, "")
    assert at(cluster, "topic", "elect", "--all").out.startswith("strayed-0 is led by broker ")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name a topic, or give --all alone"),
        (["flights", "--all"], "name a topic, or give --all alone"),
        (["--all", "--unclean"], "name a topic, or give --all alone"),
        (["flights", "--unclean"], "name the partitions with --partition"),
    ],
)
def test_an_election_says_what_it_is_for(cluster: ToyCluster, words: list[str], reason: str) -> None:
    assert reason in refusal(at(cluster, "topic", "elect", *words), 2)


def test_a_disk_that_hangs_is_named_in_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    healthy = {"partition": 0, "leader": 1, "leader_epoch": 4, "replicas": [1, 2], "isr": [1, 2]}
    found = judged(
        {"cluster_id": "c", "brokers": [], "topics": {"t": [healthy]}, "hanging_disks": [["t-0", 2, 12_400]]}
    )
    _draw(found)
    assert "t-0 on broker 2: the disk has not finished a sync for 12 s." in capsys.readouterr().out


def test_status_names_stopped_brokers_and_unclean_elections() -> None:
    healthy = {"partition": 0, "leader": 1, "leader_epoch": 4, "replicas": [1, 2], "isr": [1, 2]}
    brokers = [{"broker": 1, "online": True, "stopped": False}, {"broker": 2, "online": False, "stopped": True}]
    found = judged({"brokers": brokers, "topics": {"t": [{**healthy, "unclean_leader_epoch": 3}]}})
    assert (found["offline_brokers"], found["stopped_brokers"]) == ([], [2])
    assert found["unclean_partitions"] == [["t-0", 3]]


def test_a_group_is_described_with_its_lag_in_records_and_seconds(cluster: ToyCluster) -> None:
    with_coordinator(cluster)
    with Producer(**cluster.options) as producer:
        for _ in range(3):
            producer.send("flights", b"x", partition=0, timestamp_ms=int(time.time() * 1000) - 90_000)
    with Consumer(**cluster.options, group_id="board", enable_auto_commit=False) as consumer:
        consumer.commit({TopicPartition("flights", 0): 1})
    (row,) = json.loads(at(cluster, "group", "describe", "board", "--json").out)["partitions"]
    assert 90 <= row.pop("lag_seconds") < 150
    assert row == {"topic": "flights", "partition": 0, "committed": 1, "end": 3, "lag": 2, "member": None}
    shown = at(cluster, "group", "describe", "board").out
    assert "lag (s)" in shown


def test_a_command_is_fast_where_the_address_is_known(cluster: ToyCluster) -> None:
    program = (
        f"import sys; sys.argv[1:] = ['topic', 'list', '--json', '--bootstrap', {cluster.bootstrap!r}]\n"
        "import raylog.cli\n"
        "try: raylog.cli.main()\n"
        "except SystemExit as end: code = end.code\n"
        "loaded = {name.split('.')[0] for name in sys.modules} & {'ray', 'numpy', 'pandas', 'pyarrow', 'sqlalchemy'}\n"
        "assert (code, loaded) == (0, set()), (code, loaded)\n"
    )
    took_s = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        variables = {**os.environ, "RAYLOG_SECRET": SECRET.hex()}
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60, env=variables)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took_s) < 0.8, "a quarter of a second of processor time on an idle machine; this one may be busy"
