"""What `raylog consume` writes, `raylog produce` reads; and the other ways into and out of a topic."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raylog.base.ids import TopicPartition
from raylog.cli.records.json_lines import Line, read_line, write_line
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from raylog.client.types import Record
from tests.unit.cli.support import Outcome, raylog, refusal
from tests.unit.client.consumer_support import fill, numbers, with_coordinator
from tests.unit.client.toy_server import SECRET, ToyCluster

HEADERS = [("plain", b"text"), ("plain", b"again"), ("bytes", b"\xff\x00"), ("none", None), ("empty", b"")]


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster(brokers=2) as running:
        with_coordinator(running)
        for topic in ("from", "to"):
            running.create_topic(topic, 2)
        yield running


def at(cluster: ToyCluster, *arguments: str, stdin: str | bytes = "") -> Outcome:
    """Run a command against this cluster."""
    return raylog(*arguments, "--bootstrap", cluster.bootstrap, stdin=stdin, RAYLOG_SECRET=SECRET.hex())


def everything(cluster: ToyCluster, topic: str) -> list[dict[str, Any]]:
    """All records of a topic as JSON, without its name, by partition and offset."""
    read = at(cluster, "consume", "--topic", topic, "--from-beginning", "--timeout-ms", "500", "--json")
    rows = [{key: value for key, value in json.loads(line).items() if key != "topic"} for line in read.out.splitlines()]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def test_a_topic_is_copied_with_keys_headers_times_and_partitions(cluster: ToyCluster) -> None:
    with Producer(**cluster.options) as producer:
        producer.send("from", b"text", key=b"k", headers=HEADERS, partition=1, timestamp_ms=1_700_000_000_000)
        producer.send("from", b"\xfe\xff", key=b"\x80", partition=0, timestamp_ms=5)
        producer.send("from", None, key=b"tombstone", partition=1)
        producer.send("from", b"", key=b"", partition=0)
        producer.send("from", "é ☃ \n".encode(), partition=0)
    read = at(cluster, "consume", "--topic", "from", "--from-beginning", "--max-messages", "5", "--json")
    written = at(cluster, "produce", "--topic", "to", "--json", stdin=read.out)
    assert (written.code, written.err) == (0, "5 records stored in to.\n")
    assert everything(cluster, "to") == everything(cluster, "from")


def test_without_a_topic_lines_go_to_those_that_they_name(cluster: ToyCluster) -> None:
    lines = b'{"topic": "to", "value": "a", "partition": 1}\n\n{"topic": "from", "value": "b", "partition": 0}\n'
    assert at(cluster, "produce", "--json", stdin=lines).err == "2 records stored in their topics.\n"
    assert [row["value"] for row in (*everything(cluster, "to"), *everything(cluster, "from"))] == ["a", "b"]
    assert "line 1 names no topic" in refusal(at(cluster, "produce", "--json", stdin=b'{"value": "a"}\n'), 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "it is no JSON object"),
        ("{", "it is no JSON ("),
        ("{}", 'it has neither "value" nor "value_base64"'),
        ('{"value": {"a": 1}}', '"value" must be text or null'),
        ('{"valeu": "a", "value": "b"}', "'valeu' is no field of a record"),
        ('{"value_base64": "?"}', '"value_base64" is no base64'),
        ('{"value_base64": 7}', '"value_base64" is no base64'),
        ('{"value": "a", "value_base64": "YQ=="}', '"value" and "value_base64" are both given'),
        ('{"value": "a", "partition": "0"}', '"partition" must be a whole number'),
        ('{"value": "a", "partition": true}', '"partition" must be a whole number'),
        ('{"value": "a", "headers": {"a": "b"}}', '"headers" must be a list'),
        ('{"value": "a", "headers": [["a", "b"]]}', "a header must be an object"),
        ('{"value": "\\ud800"}', '"value" has half a pair of surrogates'),
        ('{"value": "a", "topic": 5}', '"topic" must be text'),
    ],
)
def test_a_line_that_is_no_record_is_named(cluster: ToyCluster, text: str, reason: str) -> None:
    outcome = at(cluster, "produce", "--topic", "to", "--json", stdin='{"value": "first"}\n' + text + "\n")
    assert f"line 2 is no record as `raylog consume --json` writes it: {reason}" in refusal(outcome, 2)
    assert len(everything(cluster, "to")) == 1, "the line before it was sent"


def test_what_no_producer_sends_is_left_to_the_producer() -> None:
    line = read_line(write_line(Record("t", 3, 9, -1, None, b"v", ())))
    assert line == Line(b"v", partition=3, topic="t")


def test_a_key_headers_and_tombstones_come_from_options(cluster: ToyCluster) -> None:
    options = ["--key", "k", "--header", "a=1", "--header", "b=", "--null-marker", "NULL", "--partition", "0"]
    assert at(cluster, "produce", "--topic", "to", *options, stdin="v\nNULL\n").code == 0
    rows = everything(cluster, "to")
    assert [(row["key"], row["value"]) for row in rows] == [("k", "v"), ("k", None)]
    assert all(row["headers"] == [{"name": "a", "value": "1"}, {"name": "b", "value": ""}] for row in rows)


def test_an_unknown_topic_is_an_error_without_a_line_too(cluster: ToyCluster) -> None:
    assert "did you mean" in refusal(at(cluster, "produce", "--topic", "form"), 1)


def test_the_last_records_of_each_partition_are_shown(cluster: ToyCluster) -> None:
    fill(cluster, "from", 0, numbers(0, 20))
    fill(cluster, "from", 1, numbers(20, 23))
    read = at(cluster, "consume", "--topic", "from", "--offset", "-5", "--timeout-ms", "300", "--format", "%p@%o\\n")
    assert sorted(read.out.split()) == sorted([f"0@{each}" for each in range(15, 20)] + ["1@0", "1@1", "1@2"])


def test_reading_begins_at_a_time(cluster: ToyCluster) -> None:
    with Producer(**cluster.options) as producer:
        for second in range(10):
            producer.send("from", b"%d" % second, partition=second % 2, timestamp_ms=1_700_000_000_000 + second * 1000)
    words = ["consume", "--topic", "from", "--timeout-ms", "300", "--from-time"]
    assert sorted(at(cluster, *words, "2023-11-14T22:13:26Z").out.split()) == ["6", "7", "8", "9"]
    assert sorted(at(cluster, *words, "1700000008000").out.split()) == ["8", "9"]
    assert at(cluster, *words, "2030-01-01T00:00:00Z").out == ""


def test_several_topics_are_read_together(cluster: ToyCluster) -> None:
    fill(cluster, "from", 0, [b"a"])
    fill(cluster, "to", 0, [b"b"])
    reading = ["--from-beginning", "--timeout-ms", "500"]
    assert sorted(at(cluster, "consume", "--topic", "from", "--topic", "to", *reading).out.split()) == ["a", "b"]
    assert sorted(at(cluster, "consume", "--pattern", "from|t.", *reading).out.split()) == ["a", "b"]
    assert at(cluster, "consume", "--pattern", "fr.*", *reading).out.split() == ["a"]
    assert "No topic matches" in refusal(at(cluster, "consume", "--pattern", "x", "--offset", "earliest"), 1)


def test_the_bounds_of_topics_are_shown(cluster: ToyCluster) -> None:
    fill(cluster, "from", 1, numbers(0, 7))
    rows = json.loads(at(cluster, "topic", "offsets", "from", "--json").out)
    assert rows == [
        {"topic": "from", "partition": 0, "start": 0, "end": 0, "records": 0},
        {"topic": "from", "partition": 1, "start": 0, "end": 7, "records": 7},
    ]
    assert at(cluster, "topic", "offsets").out.splitlines()[-1] == "2 topics, 7 records."
    assert "did you mean 'from'" in refusal(at(cluster, "topic", "offsets", "form"), 1)


def committed(cluster: ToyCluster) -> int | None:
    """What group g has committed for the first partition."""
    with Consumer(**cluster.options, group_id="g") as consumer:
        return consumer.committed(TopicPartition("from", 0))


def test_a_reset_shows_its_plan_until_it_is_executed(cluster: ToyCluster) -> None:
    fill(cluster, "from", 0, numbers(0, 20))
    at(cluster, "consume", "--topic", "from", "--group", "g", "--from-beginning", "--max-messages", "20")
    reset = ["group", "reset-offsets", "g", "--to", "earliest", "--topic", "from:0"]
    for words in ([], ["--dry-run"]):
        assert "Nothing was changed; the same command with --execute does it." in at(cluster, *reset, *words).out
        assert committed(cluster) == 20
    assert "Group g continues there." in at(cluster, *reset, "--execute").out
    assert committed(cluster) == 0


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=20) | st.text(max_size=9).map(str.encode),
            st.none() | st.binary(max_size=20) | st.text(max_size=9).map(str.encode),
            st.lists(st.tuples(st.text(min_size=1, max_size=3), st.none() | st.binary(max_size=5)), max_size=4),
            st.integers(0, 2**43),
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_any_records_are_copied_as_they_are(cluster: ToyCluster, rows: list[Any]) -> None:
    names = [f"{name}{len(cluster.topics)}" for name in ("a", "b")]
    for name in names:
        cluster.create_topic(name, 2)
    with Producer(**cluster.options) as producer:
        for key, value, headers, timestamp_ms, partition in rows:
            producer.send(names[0], value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
    reading = ["--from-beginning", "--max-messages", str(len(rows)), "--json"]
    read = at(cluster, "consume", "--topic", names[0], *reading)
    assert at(cluster, "produce", "--topic", names[1], "--json", stdin=read.out).code == 0
    again = at(cluster, "consume", "--topic", names[1], *reading)

    def by_place(text: str) -> list[dict[str, Any]]:
        found = [{**json.loads(line), "topic": ""} for line in text.splitlines()]
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    assert by_place(again.out) == by_place(read.out)
    assert len(by_place(read.out)) == len(rows)
