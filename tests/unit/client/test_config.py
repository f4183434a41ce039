"""Configuration keys: both spellings, text values, and errors that name the nearest key."""

from typing import Any

import pytest

from raylog.base.errors import InvalidConfig
from raylog.client.config import AdminConfig, ConsumerConfig, ProducerConfig, kafka_name, keys_of, load


def test_keywords_and_dotted_keys_mean_the_same() -> None:
    assert load(ProducerConfig, {"linger.ms": 7}, {}) == load(ProducerConfig, None, {"linger_ms": 7})


def test_a_keyword_wins_over_the_dictionary() -> None:
    assert load(ProducerConfig, {"linger.ms": 7}, {"linger_ms": 9}).linger_ms == 9


def test_a_dictionary_of_text_pastes_in_from_a_properties_file() -> None:
    config = load(ProducerConfig, {"linger.ms": "7", "enable.idempotence": "false", "acks": "1"}, {})
    assert (config.linger_ms, config.enable_idempotence, config.acks) == (7, False, 1)


def test_other_clients_names_are_understood() -> None:
    config = load(ProducerConfig, {"queue.buffering.max.ms": 3, "bootstrap.servers": "a:1"}, {})
    assert (config.linger_ms, config.bootstrap) == (3, "a:1")


def test_an_unknown_key_names_the_nearest_in_the_same_spelling() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean 'linger\.ms'"):
        load(ProducerConfig, {"lingr.ms": 7}, {})
    with pytest.raises(InvalidConfig, match="did you mean 'group_id'"):
        load(ConsumerConfig, None, {"groupid": "g"})


@pytest.mark.parametrize("config", ["linger.ms=7", ["linger.ms"], 7, {7: "linger.ms"}])
def test_a_configuration_that_is_no_mapping_of_keys_is_refused(config: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"must be a mapping of keys|key must be text"):
        load(ProducerConfig, config, {})


@pytest.mark.parametrize(
    ("key", "value"),
    [("linger_ms", "soon"), ("linger_ms", -1), ("batch_size", 0), ("acks", 2), ("compression_type", "lz5"),
     ("linger_ms", True), ("client_id", 5), ("enable_idempotence", 1)],
)  # fmt: skip
def test_a_value_of_a_wrong_kind_is_refused(key: str, value: object) -> None:
    with pytest.raises(InvalidConfig):
        load(ProducerConfig, None, {key: value})


def test_idempotence_follows_acks_unless_configured() -> None:
    assert load(ProducerConfig, None, {}).enable_idempotence is True
    assert load(ProducerConfig, None, {"acks": 1}).enable_idempotence is False
    with pytest.raises(InvalidConfig, match="needs acks='all'"):
        load(ProducerConfig, None, {"acks": 1, "enable_idempotence": True})


def test_idempotence_allows_five_requests_at_once() -> None:
    with pytest.raises(InvalidConfig, match="at most 5"):
        load(ProducerConfig, None, {"max_in_flight_requests_per_connection": 6})


def test_a_heartbeat_must_fit_into_the_session() -> None:
    with pytest.raises(InvalidConfig, match="must be below session_timeout_ms"):
        load(ConsumerConfig, None, {"heartbeat_interval_ms": 5_000, "session_timeout_ms": 5_000})


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"group_protocol": "consumer", "partition_assignment_strategy": "range"}, "with 'consumer' the coordinator"),
        ({"group_protocol": "classic", "group_remote_assignor": "range"}, "with 'classic' a member assigns"),
        ({"partition_assignment_strategy": "range", "group_remote_assignor": "range"}, "leave one of the two out"),
        ({"group_instance_id": ""}, "1 to 249 characters"),
        ({"group_instance_id": "i" * 250}, "1 to 249 characters"),
    ],
)
def test_settings_of_groups_that_mean_nothing_are_refused(keys: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        load(ConsumerConfig, None, keys)


@pytest.mark.parametrize("kind", [ProducerConfig, ConsumerConfig, AdminConfig])
def test_every_key_says_what_it_means_and_survives_kafkas_spelling(kind: type[ProducerConfig]) -> None:
    for name, key in keys_of(kind).items():
        assert key.metadata["doc"].endswith((".", "...")), name
        load(kind, {kafka_name(name): key.default}, {})


def test_a_configuration_does_not_show_its_secret() -> None:
    shown = repr(load(ConsumerConfig, None, {"secret": "c0ffee" * 8, "client_id": "c"}))
    assert "client_id='c'" in shown
    assert "c0ffee" not in shown


@pytest.mark.parametrize(
    ("kind", "key", "given"),
    [
        (ConsumerConfig, "max_poll_records", 500.0),
        (ConsumerConfig, "session_timeout_ms", 45e3),
        (ConsumerConfig, "retry_backoff_ms", 20.0),
        (ProducerConfig, "request_timeout_ms", 3e4),
    ],
)
def test_a_value_equal_to_its_default_is_converted_too(
    kind: type[ConsumerConfig | ProducerConfig], key: str, given: float
) -> None:
    found = getattr(load(kind, {key: given}, {}), key)
    assert found == given
    assert type(found) is int


def test_a_truth_value_is_no_number_and_none_is_the_default() -> None:
    with pytest.raises(InvalidConfig, match="whole number"):
        load(ConsumerConfig, {"fetch.min.bytes": True}, {})
    assert load(ConsumerConfig, {"fetch.min.bytes": None}, {}).fetch_min_bytes == 1


def test_records_that_would_fail_before_they_are_sent_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="linger_ms=5000 is no less than delivery_timeout_ms=1000"):
        load(ProducerConfig, {"linger.ms": 5_000, "delivery.timeout.ms": 1_000}, {})
