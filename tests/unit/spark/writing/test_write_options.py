"""The options of a write: what they become, and the sentences for wrong ones."""

from __future__ import annotations

import pytest

from raylog.base.errors import InvalidConfig
from raylog.spark.writing.options import parse_write_options


def refused(given: dict[str, str], *, streaming: bool = False) -> str:
    with pytest.raises(InvalidConfig) as found:
        parse_write_options(given, streaming=streaming)
    return found.value.message


def test_names_without_case_become_settings_of_the_producer() -> None:
    found = parse_write_options(
        {"TOPIC": "t", "kafka.Linger.ms": "5", "KAFKA.bootstrap.servers": "h:1", "kafka.compression.type": "lz4"},
        streaming=False,
    )
    assert (found.topic, found.bootstrap, found.exactly_once, found.prefix) == ("t", "h:1", False, None)
    assert found.producer == {"linger_ms": 5, "compression_type": "lz4"}


def test_a_streams_prefix_comes_from_the_place_of_its_checkpoint() -> None:
    given = {"deliveryGuarantee": "exactly-once", "checkpointLocation": "/a/b"}
    one = parse_write_options(given, streaming=True)
    same = ["/a/b/", "/a//b", "file:/a/b", "file:///a/b/"]
    different = ["/a/c", "a/b", "s3://a/b", "hdfs://a:1/b"]
    again, other = (
        [parse_write_options({**given, "checkpointLocation": place}, streaming=True).prefix for place in places]
        for places in (same, different)
    )
    named = parse_write_options({**given, "transactionalIdPrefix": "mine"}, streaming=True)
    assert set(again) == {one.prefix}
    assert len({one.prefix, *other}) == 5
    assert (one.takes_over, named.takes_over, named.prefix) == (True, False, "mine")
    assert one.producer["transaction_timeout_ms"] == 900_000


def test_each_batch_job_has_a_prefix_of_its_own() -> None:
    given = {"deliveryGuarantee": "Exactly-Once"}
    found = {parse_write_options(given, streaming=False).prefix for _ in range(3)}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"topci": "t"}, "'topic'"),
        ({"deliveryGuarantee": "exactly"}, "exactly-once"),
        ({"deliveryGuarantee": "exactly-once"}, "checkpointLocation to this writer, or transactionalIdPrefix"),
        ({"transactionalIdPrefix": "p"}, "set deliveryGuarantee=exactly-once, or leave it out"),
        ({"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": ""}, "1 to 200 characters, not 0"),
        ({"topic": " "}, "'topic' is empty"),
        ({"kafka.key.serializer": "x"}, "keys are bytes or text; cast the column"),
        ({"kafka.value.serializer": "x"}, "values are bytes or text; cast the column"),
        ({"kafka.transactional.id": "x"}, "set deliveryGuarantee=exactly-once"),
        ({"kafka.partitioner.class": "x"}, "into the column 'partition'"),
        (
            {
                "deliveryGuarantee": "exactly-once",
                "transactionalIdPrefix": "p",
                "kafka.enable.idempotence": "false",
            },
            "needs enable_idempotence=True",
        ),
        ({"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": "p", "kafka.acks": "1"}, "needs acks='all'"),
        ({"kafka.lingr.ms": "5"}, "'kafka.linger.ms'"),
        ({"kafka.linger.ms": "soon"}, "An option that begins with 'kafka.' is wrong"),
        ({"raylog.bootstrap": "a:1", "kafka.bootstrap.servers": "b:1"}, "are the same option"),
        ({"raylog.tokenLifetimeMs": "1"}, "a whole number from 1000 on, not '1'"),
        ({"kafka.partitioner.ignore.keys": "true"}, "into the column 'partition'"),
        ({"includeHeaders": "maybe"}, "includeHeaders must be true or false"),
    ],
)
def test_a_wrong_option_is_one_sentence_on_what_to_change(given: dict[str, str], sentence: str) -> None:
    assert sentence in refused(given, streaming=True)
