"""Configuration keys: legal values, defaults and suggestions."""

from dataclasses import fields

import pytest

from raylog.base.errors import InvalidConfig
from raylog.core.configuration.config import (
    ClusterConfig,
    TopicConfig,
    majority,
    validate_cluster_config,
    validate_topic_config,
)
from raylog.core.configuration.config_key import ConfigKey
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS


def test_every_default_is_legal_and_in_its_written_form() -> None:
    for key in (*TOPIC_KEYS.values(), *CLUSTER_KEYS.values()):
        assert key.doc.endswith("."), key.name
        assert bool(key.default) != bool(key.computed), key.name
        if key.default:
            assert key.read(key.default) == key.default


def test_every_cluster_key_is_a_field_and_the_other_way_round() -> None:
    assert {name.replace(".", "_") for name in CLUSTER_KEYS} == {field.name for field in fields(ClusterConfig)}


def test_values_get_one_written_form() -> None:
    given = {"retention.ms": 5, "segment.bytes": " 4096 ", "unclean.leader.election.enable": True}
    assert validate_topic_config(given) == {
        "retention.ms": "5",
        "segment.bytes": "4096",
        "unclean.leader.election.enable": "true",
    }
    words = {"cleanup.policy": "Delete", "compression.type": "None", "message.timestamp.type": "logappendtime"}
    assert validate_topic_config(words) == {
        "cleanup.policy": "delete",
        "compression.type": "uncompressed",
        "message.timestamp.type": "LogAppendTime",
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"retention.sm": 1}, r"did you mean 'retention\.ms'"),
        ({"retention.ms": "soon"}, "whole number"),
        ({"retention.ms": True}, "whole number"),
        ({"retention.ms": 1.5}, "whole number"),
        ({"retention.ms": -2}, "at least -1"),
        ({"min.insync.replicas": 0}, "at least 1"),
        ({"unclean.leader.election.enable": "maybe"}, "true or false"),
        ({"cleanup.policy": "compacted"}, "did you mean 'compact'"),
        ({"min.cleanable.dirty.ratio": 1.5}, "0 to 1"),
        ({"min.cleanable.dirty.ratio": "half"}, "0 to 1"),
        ({"cleanup.policy": ","}, "needs a value"),
        ({"compression.type": "zstandard"}, "one of producer, uncompressed, gzip, snappy, lz4, zstd"),
        ({"message.timestamp.type": "AppendTime"}, "did you mean 'LogAppendTime'"),
    ],
)
def test_an_illegal_topic_setting_is_refused_with_the_way_out(config: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        validate_topic_config(config)


def illegal_values(key: ConfigKey) -> list[object]:
    """Values of every kind that a user may write by mistake."""
    wrong: list[object] = ["", "what?", None, [1]]
    if key.kind in ("int", "ratio"):
        wrong += [True, "1e", key.minimum - 1 if key.kind == "int" else -0.1, 2**63 if key.kind == "int" else 1.1]
    if key.kind in ("choice", "list"):
        wrong += [f"{key.choices[0]}s", f"{key.choices[0]} {key.choices[-1]}"]
    return wrong


@pytest.mark.parametrize("key", [*TOPIC_KEYS.values(), *CLUSTER_KEYS.values()], ids=lambda key: key.name)
def test_each_illegal_value_of_each_key_gets_one_sentence(key: ConfigKey) -> None:
    validate = validate_topic_config if TOPIC_KEYS.get(key.name) is key else validate_cluster_config
    for value in illegal_values(key):
        with pytest.raises(InvalidConfig) as caught:
            validate({key.name: value})
        sentence = caught.value.message
        assert sentence.startswith(key.name), (value, sentence)
        assert sentence[-1] in ".?", (value, sentence)
        assert "\n" not in sentence, (value, sentence)


@pytest.mark.parametrize(
    "config",
    [
        {"num.partition": 1},
        {"num.partitions": 0},
        {"num.partitions": 10_001},
        {"group.min.session.timeout.ms": 10, "group.max.session.timeout.ms": 9},
        {"broker.heartbeat.interval.ms": 2_000, "broker.session.timeout.ms": 3_000},
    ],
)
def test_an_illegal_cluster_setting_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        validate_cluster_config(config)


def test_a_topic_without_settings_has_the_safe_defaults() -> None:
    config = TopicConfig.from_dict({})
    assert config.flush_messages == 1
    assert config.retention_ms == 7 * 86_400_000
    assert not config.unclean_leader_election_enable
    assert [config.min_insync(factor) for factor in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_a_topics_own_minimum_replaces_the_majority() -> None:
    config = TopicConfig.from_dict({"min.insync.replicas": "1"})
    assert config.min_insync(3) == 1


def test_two_majorities_always_meet() -> None:
    for factor in range(1, 20):
        assert factor < 2 * majority(factor) <= factor + 2


def test_a_cluster_without_settings_has_the_defaults() -> None:
    config = ClusterConfig.from_dict({"num.partitions": "4"})
    assert (config.num_partitions, config.broker_session_timeout_ms) == (4, 2_500)
