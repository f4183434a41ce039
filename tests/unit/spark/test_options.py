"""The options of a batch read: Kafka's names, Kafka's rules, and errors that say what to change."""

import json
import pickle

import pytest

from raylog.base.errors import InvalidConfig
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.rpc import Grant, TopicGrant, mint
from raylog.rpc.auth.token_text import token_text
from raylog.rpc.auth.tokens import ranges_of
from raylog.spark.reading.options import COLUMNS, ReadOptions, parse_options
from raylog.spark.reading.stream_offsets import StreamOffsets
from raylog.spark.source import RaylogDataSource


def parsed(**given: str) -> ReadOptions:
    return parse_options({"subscribe": "orders", **given})


def refusal(given: dict[str, str]) -> str:
    with pytest.raises(InvalidConfig) as caught:
        parse_options(given)
    return caught.value.message


def test_a_batch_reads_from_the_earliest_to_the_latest_offset_by_default() -> None:
    found = parsed().wanted
    assert found.topics == ("orders",)
    assert (found.start.everywhere, found.end.everywhere) == (EARLIEST, LATEST)
    assert (found.fail_on_data_loss, parsed().columns) == (True, COLUMNS)
    assert (found.min_partitions, found.max_records_per_partition) == (None, None)


def test_the_case_of_names_does_not_count_because_spark_does_not_keep_it() -> None:
    found = parse_options({"subscribepattern": "a.*", "MINPARTITIONS": "7", "includeheaders": "TRUE"})
    assert (found.wanted.pattern, found.wanted.min_partitions, found.columns[-1]) == ("a.*", 7, "headers")


def test_several_topics_are_given_with_commas_and_each_counts_once() -> None:
    assert parse_options({"subscribe": " a, b ,a,"}).wanted.topics == ("a", "b")


def test_assign_names_partitions() -> None:
    found = parse_options({"assign": '{"b": [1, 0], "a": [2]}'})
    assert found.wanted.assigned == (TopicPartition("a", 2), TopicPartition("b", 0), TopicPartition("b", 1))


def test_exactly_one_option_says_what_to_read() -> None:
    assert "subscribe, assign, subscribePattern" in refusal({})
    assert "subscribe and assign were given" in refusal({"subscribe": "a", "assign": '{"a": [0]}'})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"a": 0}', '{"a": ["0"]}', '{"a": [-1]}', '{"a": [true]}', "a"])
def test_an_assignment_that_is_none_is_shown_how_it_should_look(text: str) -> None:
    assert '{"topic": [0, 1]}' in refusal({"assign": text})


def test_offsets_may_be_given_for_each_partition() -> None:
    found = parsed(startingOffsets='{"orders": {"0": 23, "1": -2}}', endingOffsets='{"orders": {"0": -1, "1": 50}}')
    assert found.wanted.start.each == {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): EARLIEST}
    assert found.wanted.end.each == {TopicPartition("orders", 0): LATEST, TopicPartition("orders", 1): 50}


@pytest.mark.parametrize(
    ("name", "text", "edge"),
    [
        ("startingOffsets", "latest", "latest"),
        ("startingOffsets", '{"orders": {"0": -1}}', "latest"),
        ("endingOffsets", "Earliest", "earliest"),
        ("endingOffsets", '{"orders": {"0": -2}}', "earliest"),
    ],
)
def test_a_batch_may_not_begin_at_the_end_nor_end_at_the_beginning(name: str, text: str, edge: str) -> None:
    assert f"{name} cannot be {edge}" in refusal({"subscribe": "orders", name: text})


@pytest.mark.parametrize(
    "text", ["yesterday", '{"a": 1}', '{"a": {"x": 1}}', '{"a": {"0": "1"}}', '{"a": {"0": -3}}', "{}"]
)
def test_offsets_that_are_none_are_refused_by_name(text: str) -> None:
    assert "startingOffsets" in refusal({"subscribe": "a", "startingOffsets": text})


def test_a_time_wins_over_times_and_times_win_over_offsets() -> None:
    times = '{"orders": {"0": 5}}'
    both = {"startingOffsetsByTimestamp": times, "startingOffsets": "earliest"}
    found = parsed(startingTimestamp="1700", **both)
    assert (found.wanted.start.everywhere, found.wanted.start.is_time, found.wanted.start.option) == (
        1700,
        True,
        "startingTimestamp",
    )
    found = parsed(**both)
    assert (found.wanted.start.each, found.wanted.start.is_time) == ({TopicPartition("orders", 0): 5}, True)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"startingTimestamp": "5", "startingOffsets": "earliest"},
            "startingTimestamp wins; startingOffsets is ignored.",
        ),
        (
            {"endingOffsetsByTimestamp": '{"orders": {"0": 5}}', "endingOffsets": "latest"},
            "endingOffsetsByTimestamp wins; endingOffsets is ignored.",
        ),
        (
            {"startingOffsetsByTimestampStrategy": "latest"},
            "startingOffsetsByTimestampStrategy is ignored: it needs startingTimestamp or startingOffsetsByTimestamp.",
        ),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay is ignored: it needs minOffsetsPerTrigger."),
    ],
)
def test_an_option_that_another_one_overrules_is_warned_of_once_a_load(
    caplog: pytest.LogCaptureFixture, given: dict[str, str], sentence: str
) -> None:
    RaylogDataSource({"subscribe": "orders", **given}).schema()
    assert [record.getMessage() for record in caplog.records] == [sentence]


def test_each_of_three_ways_to_say_a_beginning_is_named(caplog: pytest.LogCaptureFixture) -> None:
    times = '{"orders": {"0": 5}}'
    given = {"startingTimestamp": "5", "startingOffsetsByTimestamp": times, "startingOffsets": "earliest"}
    assert parsed(**given).ignored == (
        "startingTimestamp wins; startingOffsetsByTimestamp is ignored.",
        "startingTimestamp wins; startingOffsets is ignored.",
    )


def test_options_that_all_have_an_effect_are_silent() -> None:
    given = {"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest", "endingOffsets": "latest"}
    assert not parsed(**given, minOffsetsPerTrigger="5", maxTriggerDelay="5m").ignored


def test_the_offsets_of_a_streams_progress_may_be_pasted_back() -> None:
    places = {TopicPartition("orders", 0): 23, TopicPartition("orders", 1): 7}
    shown = json.dumps(StreamOffsets(places, {"orders": "id"}, began=places).to_json())
    assert "raylog/ids" in shown
    assert "raylog/began" in shown
    assert parsed(startingOffsets=shown, endingOffsets=shown).wanted.start.each == places
    assert "startingOffsets" in refusal({"subscribe": "orders", "startingOffsets": '{"raylog/ids": {"orders": "id"}}'})


def test_an_unknown_option_names_the_nearest_one_in_its_right_spelling() -> None:
    assert refusal({"subscribe": "a", "startingofsets": "earliest"}) == (
        "Unknown option 'startingofsets'; did you mean 'startingOffsets'?"
    )
    assert "'subscribe'" in refusal({"subscrbe": "a"})
    assert "'raylog.bootstrap'" in refusal({"subscribe": "a", "bootstrap": "h:1"})
    assert "'kafka.max.partition.fetch.bytes'" in refusal({"subscribe": "a", "kafka.max.partition.fetch.byte": "1"})


def test_options_that_kafkas_source_refuses_are_refused_with_a_way_out() -> None:
    assert "startingOffsets" in refusal({"subscribe": "a", "kafka.auto.offset.reset": "earliest"})
    assert "cast" in refusal({"subscribe": "a", "kafka.Value.Deserializer": "json"})


def test_options_of_kafkas_source_that_mean_nothing_here_do_no_harm() -> None:
    parsed(
        groupIdPrefix="x",
        path="",
        **{"fetchOffset.numRetries": "3", "maxOffsetsPerTrigger": "5", "kafka.group.id": "g"},
    )


def test_the_address_has_kafkas_name_too_but_not_two_values() -> None:
    assert parsed(**{"kafka.bootstrap.servers": "h:1"}).wanted.bootstrap == "h:1"
    message = refusal({"subscribe": "a", "kafka.bootstrap.servers": "h:1", "raylog.bootstrap": "h:2"})
    assert "give one of them" in message


def test_keys_of_the_consumer_pass_through_and_are_checked() -> None:
    assert parsed().reading.fetch_max_bytes is None
    found = parsed(**{"kafka.max.partition.fetch.bytes": "1000", "kafkaConsumer.pollTimeoutMs": "500"})
    assert (found.reading.fetch_max_bytes, found.reading.stall_timeout_s) == (1000, 0.5)
    assert "whole number" in refusal({"subscribe": "a", "kafka.max.partition.fetch.bytes": "many"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("minPartitions", "0"),
        ("minPartitions", "x"),
        ("maxRecordsPerPartition", "-1"),
        ("failOnDataLoss", "maybe"),
        ("raylog.timestampLatenessMs", "-1"),
        ("fetchOffset.numRetries", "many"),
        ("fetchOffset.retryIntervalMs", "-1"),
    ],
)
def test_numbers_and_truths_are_checked_by_name(name: str, text: str) -> None:
    assert name in refusal({"subscribe": "a", name: text})


def test_a_pattern_must_be_a_regular_expression() -> None:
    assert "regular expression" in refusal({"subscribePattern": "("})


def test_options_travel_to_the_workers_and_never_show_the_secret() -> None:
    found = parsed(**{"raylog.secret": "c0ffee" * 6, "raylog.bootstrap": "h:1"})
    assert pickle.loads(pickle.dumps(found)) == found
    assert "c0ffee" not in repr(found)


def test_columns_are_chosen_by_name_and_come_in_kafkas_order() -> None:
    assert parsed(columns=" offset, VALUE,offset").columns == ("value", "offset")
    assert parsed(columns="timestamptype,headers").columns == ("timestampType", "headers")
    assert parsed(columns="headers", includeHeaders="true").columns == ("headers",)


def test_columns_that_do_not_exist_or_contradict_are_refused() -> None:
    assert "did you mean 'value'" in refusal({"subscribe": "a", "columns": "valeu"})
    assert "at least one of key, value" in refusal({"subscribe": "a", "columns": " ,"})
    given = {"subscribe": "a", "columns": "value", "includeHeaders": "true"}
    assert "includeHeaders=true contradicts columns=value" in refusal(given)
    assert "leave includeHeaders out" in refusal({**given, "columns": "headers", "includeHeaders": "false"})


def test_a_token_stands_beside_a_secret_but_not_with_it() -> None:
    token = mint(bytes(32), Grant(2**31, (TopicGrant("id", "orders", reads=ranges_of((0,))),)))
    found = parsed(**{"raylog.token": token_text(token)})
    assert found.wanted.secret == token
    assert token_text(token) not in repr(found)
    both = {"subscribe": "a", "raylog.token": token_text(token), "raylog.secret": "00" * 16}
    assert "raylog.secret and raylog.token are both given" in refusal(both)
    assert "give it as token" in refusal({"subscribe": "a", "raylog.secret": token_text(token)})
    for wrong in ("", "xyz", token_text(token)[:-4]):
        assert "token" in refusal({"subscribe": "a", "raylog.token": wrong})
    assert "hexadecimal" in refusal({"subscribe": "a", "raylog.secret": "my secret"})


def test_large_partitions_are_cut_by_size_unless_an_option_cuts_them() -> None:
    assert parsed().wanted.cuts_by_size
    assert not parsed(minPartitions="1").wanted.cuts_by_size
    assert not parsed(maxRecordsPerPartition="10").wanted.cuts_by_size
