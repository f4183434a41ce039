"""Configuration as the settings of logs and machines: what is described is what counts."""

from pathlib import Path

import pytest

from raylog.actors.settings import log_settings, replication_settings, topic_settings
from raylog.core.configuration.config import TopicConfig
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS
from raylog.core.configuration.config_origins import CLUSTER, DEFAULT, INHERITED, TOPIC, describe_topic
from raylog.storage.batch.compression import COMPRESSIONS
from raylog.storage.batch.rewriting import Rewriting
from raylog.storage.log.config import DAY_MS, NO_LIMIT_MS
from tests.unit.actors.specs import replica_spec

FIELDS = {
    "message.timestamp.after.max.ms": "message_timestamp_after_max_ms",
    "message.timestamp.before.max.ms": "message_timestamp_before_max_ms",
    "replica.doze.after.ms": "doze_after_ms",
    "replica.sleep.after.ms": "sleep_after_ms",
}


def in_use(key: str, topic: dict[str, str], cluster: dict[str, str]) -> int:
    """The value by which a replica goes."""
    log, _ = topic_settings(topic, cluster)
    machine = replication_settings(topic, cluster, 3)
    value = getattr(log if hasattr(log, FIELDS[key]) else machine, FIELDS[key])
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("key", sorted(INHERITED))
def test_a_replica_goes_by_the_value_that_is_described(key: str) -> None:
    above = INHERITED[key]
    stages: list[tuple[dict[str, str], dict[str, str], str]] = [
        ({}, {}, DEFAULT),
        ({}, {above: "5000"}, CLUSTER),
        ({key: "7000"}, {above: "5000"}, TOPIC),
    ]
    for topic, cluster, origin in stages:
        found = {entry.name: entry for entry in describe_topic(topic, cluster, 3)}[key]
        assert (found.origin, found.default) == (origin, CLUSTER_KEYS[above].default)
        assert int(found.value) == in_use(key, topic, cluster)


def test_no_other_key_of_topics_is_a_key_of_the_cluster() -> None:
    assert TOPIC_KEYS.keys() & CLUSTER_KEYS.keys() == {key for key, above in INHERITED.items() if key == above}


@pytest.mark.parametrize("factor", [1, 2, 3, 5])
def test_the_minimum_that_is_described_is_the_one_in_use(factor: int) -> None:
    found = {entry.name: entry.value for entry in describe_topic({}, {}, factor)}
    assert int(found["min.insync.replicas"]) == TopicConfig.from_dict({}).min_insync(factor)
    assert int(found["min.insync.replicas"]) == replication_settings({}, {}, factor).min_insync_replicas


@pytest.mark.parametrize(
    ("topic", "rewriting"),
    [
        ({}, None),
        ({"compression.type": "producer", "message.timestamp.type": "CreateTime"}, None),
        ({"compression.type": "uncompressed"}, Rewriting(COMPRESSIONS["none"])),
        ({"compression.type": "zstd"}, Rewriting(COMPRESSIONS["zstd"])),
        ({"message.timestamp.type": "LogAppendTime"}, Rewriting(append_time=True)),
        (
            {"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"},
            Rewriting(COMPRESSIONS["lz4"], append_time=True),
        ),
    ],
)
def test_a_leader_changes_batches_only_where_the_topic_wants_it(
    topic: dict[str, str], rewriting: Rewriting | None
) -> None:
    assert topic_settings(topic, {})[0].rewriting == rewriting


def test_times_that_the_leader_gives_have_no_limits() -> None:
    limits = {"message.timestamp.after.max.ms": "5", "message.timestamp.before.max.ms": "6"}
    log, _ = topic_settings({**limits, "message.timestamp.type": "LogAppendTime"}, {})
    assert min(log.message_timestamp_after_max_ms, log.message_timestamp_before_max_ms) == 2**63 - 1
    log, _ = topic_settings(limits, {})
    assert (log.message_timestamp_after_max_ms, log.message_timestamp_before_max_ms) == (5, 6)


ENDS = {"bool": ("true", "false"), "ratio": ("0", "1"), "name": (), "text": ()}
"""Ends of the ranges of kinds that are no numbers; names and texts have none."""


def test_every_setting_of_topics_can_be_at_either_end_of_its_range() -> None:
    for key in TOPIC_KEYS.values():
        ends = (
            key.choices if key.kind in ("choice", "list") else ENDS.get(key.kind, (str(key.minimum), str(key.maximum)))
        )
        for value in ends:
            topic_settings({key.name: value}, {})


def test_coordinators_are_fenced_for_good_and_others_for_a_setting() -> None:
    def expiration_ms(topic: str, **cluster: str) -> int:
        spec = replica_spec(Path(), topic=topic, cluster_config=cluster)
        return log_settings(spec)[0].producer_id_expiration_ms

    assert expiration_ms("t") == DAY_MS
    assert expiration_ms("t", **{"producer.id.expiration.ms": "1000"}) == 1000
    for topic in ("__consumer_offsets", "__transaction_state"):
        assert expiration_ms(topic, **{"producer.id.expiration.ms": "1000"}) == NO_LIMIT_MS
    for topic in ("__scheduled", "__share_state", "__forwarding"):  # clients' producers write there, and leaders own it
        assert expiration_ms(topic, **{"producer.id.expiration.ms": "1000"}) == 1000
