"""The configuration of topics and of the cluster: validation, and settings as values.

Used by the controller to validate requests and by shells to read typed values. The keys are in
``core/configuration/config_keys.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.core.configuration.config_key import ConfigKey
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS

SLEEP_KEY: Final = "replica.sleep.after.ms"
DOZE_KEY: Final = "replica.doze.after.ms"
SLEEP_AFTER_MIN_MS: Final = 1_000
AS_PRODUCED: Final = "producer"
"""`compression.type` of a topic whose batches are stored as they come."""
UNCOMPRESSED: Final = "uncompressed"
LOG_APPEND_TIME: Final = "LogAppendTime"
"""`message.timestamp.type` of a topic whose leaders stamp each record with the time of its append."""


def unknown_key(kind: str, name: str, keys: Mapping[str, ConfigKey]) -> str:
    """Return the message for a name that is not among ``keys``, the keys of ``kind`` ("topic" or "cluster").

    If it is a key of the other kind, the message states where to set it; else it names the nearest of ``keys``.
    """
    other, theirs = ("the cluster", CLUSTER_KEYS) if kind == "topic" else ("topics", TOPIC_KEYS)
    if name in theirs:
        where = (
            "`raylog start --config` or `config alter`"
            if kind == "topic"
            else "`raylog topic create --config` or `topic alter`"
        )
        return f"{name} is a key of {other}: give it to {where}, not here."
    return did_you_mean(f"{kind} configuration", name, keys)


def _canonical(kind: str, keys: Mapping[str, ConfigKey], config: Mapping[str, object]) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name in sorted(config):
        key = keys.get(name)
        if key is None:
            raise InvalidConfig(unknown_key(kind, name, keys))
        checked[name] = key.read(config[name])
    return checked


def validate_topic_config(config: Mapping[str, object], *, defaults_only: bool = False) -> dict[str, str]:
    """Return a topic's settings in their written form; raises InvalidConfig for an unknown key or an illegal value.

    ``defaults_only``: check the names alone, for settings that are about to be removed; the result is then empty.
    """
    if defaults_only:
        for name in sorted(config):
            if name not in TOPIC_KEYS:
                raise InvalidConfig(unknown_key("topic", name, TOPIC_KEYS))
        return {}
    checked = _canonical("topic", TOPIC_KEYS, config)
    _check_sleep(checked)
    return checked


def validate_cluster_config(config: Mapping[str, object]) -> dict[str, str]:
    """Return the cluster's settings in their written form; raises InvalidConfig for an unknown key or a wrong value."""
    checked = _canonical("cluster", CLUSTER_KEYS, config)
    values = ClusterConfig.from_dict(checked)
    shortest, longest = values.group_min_session_timeout_ms, values.group_max_session_timeout_ms
    if shortest > longest:
        raise InvalidConfig(f"group.min.session.timeout.ms={shortest} is above group.max.session.timeout.ms={longest}.")
    _check_sleep(checked)
    beat, timeout = values.broker_heartbeat_interval_ms, values.broker_session_timeout_ms
    if beat * 2 > timeout:
        raise InvalidConfig(
            f"broker.session.timeout.ms={timeout} leaves no room for a late heartbeat; "
            f"it must be at least twice broker.heartbeat.interval.ms={beat}."
        )
    if values.metadata_voters_max % 2 == 0:
        raise InvalidConfig(
            f"metadata.voters.max is an odd number, not {values.metadata_voters_max}: an even one tolerates no more "
            "losses than the odd one below it."
        )
    return checked


def _check_sleep(config: Mapping[str, str]) -> None:
    after_ms = int(config.get(SLEEP_KEY) or -1)
    if 0 <= after_ms < SLEEP_AFTER_MIN_MS:
        raise InvalidConfig(
            f"{SLEEP_KEY}={after_ms} is about as short as the start of a replica; it is at least {SLEEP_AFTER_MIN_MS}, "
            "or -1 for never."
        )


def sleep_after_ms(topic: Mapping[str, str], cluster: Mapping[str, str]) -> int:
    """Return ``replica.sleep.after.ms`` of a topic with this configuration in this cluster; -1 = never."""
    return int(topic.get(SLEEP_KEY) or cluster.get(SLEEP_KEY) or CLUSTER_KEYS[SLEEP_KEY].default)


def doze_after_ms(topic: Mapping[str, str], cluster: Mapping[str, str]) -> int:
    """Return ``replica.doze.after.ms`` of a topic with this configuration in this cluster; -1 = never."""
    return int(topic.get(DOZE_KEY) or cluster.get(DOZE_KEY) or CLUSTER_KEYS[DOZE_KEY].default)


def majority(replication_factor: int) -> int:
    """Return the smallest number of replicas that is more than half of them."""
    return replication_factor // 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings as values: milliseconds, bytes, counts."""

    cleanup_policy: frozenset[str]
    """`delete`, `compact`, or both."""
    compression_type: str
    """`producer`, or what the leader compresses batches to."""
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int | None
    """None = not set: a majority of the replication factor, see :meth:`min_insync`."""
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int
    unclean_leader_election_enable: bool

    @classmethod
    def from_dict(cls, config: Mapping[str, object]) -> TopicConfig:
        """Read a topic's own settings, with defaults for the others; raises InvalidConfig as the validation does."""
        own = validate_topic_config(config)

        def text(name: str) -> str:
            return own.get(name, TOPIC_KEYS[name].default)

        own_minimum = text("min.insync.replicas")
        return cls(
            cleanup_policy=frozenset(text("cleanup.policy").split(",")),
            compression_type=text("compression.type"),
            delete_retention_ms=int(text("delete.retention.ms")),
            file_delete_delay_ms=int(text("file.delete.delay.ms")),
            flush_messages=int(text("flush.messages")),
            flush_ms=int(text("flush.ms")),
            index_interval_bytes=int(text("index.interval.bytes")),
            max_compaction_lag_ms=int(text("max.compaction.lag.ms")),
            max_message_bytes=int(text("max.message.bytes")),
            message_timestamp_after_max_ms=int(text("message.timestamp.after.max.ms")),
            message_timestamp_before_max_ms=int(text("message.timestamp.before.max.ms")),
            message_timestamp_type=text("message.timestamp.type"),
            min_cleanable_dirty_ratio=float(text("min.cleanable.dirty.ratio")),
            min_compaction_lag_ms=int(text("min.compaction.lag.ms")),
            min_insync_replicas=int(own_minimum) if own_minimum else None,
            retention_bytes=int(text("retention.bytes")),
            retention_ms=int(text("retention.ms")),
            segment_bytes=int(text("segment.bytes")),
            segment_ms=int(text("segment.ms")),
            unclean_leader_election_enable=text("unclean.leader.election.enable") == "true",
        )

    @property
    def deletes(self) -> bool:
        """Whether `retention_ms` and `retention_bytes` apply."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether compaction keeps the last record of each key and removes the older ones."""
        return "compact" in self.cleanup_policy

    def min_insync(self, replication_factor: int) -> int:
        """Return how many replicas have to be in sync for a write with ``acks=all``."""
        return self.min_insync_replicas if self.min_insync_replicas is not None else majority(replication_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The cluster's settings as values: milliseconds, seconds, minutes, counts."""

    advertised_listeners: str
    auto_create_topics_enable: bool
    auto_heal_after_ms: int
    auto_leader_rebalance_enable: bool
    broker_heartbeat_interval_ms: int
    broker_session_timeout_ms: int
    default_replication_factor: int
    follower_replication_throttled_rate: int
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_groups: int
    group_max_size: int
    group_min_session_timeout_ms: int
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    listeners: str
    log_message_timestamp_after_max_ms: int
    log_message_timestamp_before_max_ms: int
    log_cleaner_backoff_ms: int
    log_cleaner_io_max_bytes_per_second: int
    log_retention_check_interval_ms: int
    log_scrub_bytes_per_second: int
    log_scrub_interval_ms: int
    metadata_log_max_record_bytes_between_snapshots: int
    metadata_voters_max: int
    metrics_listen: str
    metrics_per_partition: bool
    metrics_port: int
    num_partitions: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    producer_id_expiration_ms: int
    replica_awake_max: int
    replica_lag_time_max_ms: int
    replica_sleep_after_ms: int
    replica_doze_after_ms: int
    replica_spares: int
    replica_sync_time_max_ms: int
    scheduled_topic_num_partitions: int
    share_coordinator_state_topic_num_partitions: int
    transaction_max_timeout_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_two_phase_commit_enable: bool
    transactional_id_expiration_ms: int
    transactional_id_max: int
    transactional_id_prefix_max: int
    transactional_id_prefix_partitions_max: int

    @classmethod
    def from_dict(cls, config: Mapping[str, object]) -> ClusterConfig:
        """Read the cluster's settings, with defaults for the others; raises InvalidConfig for an illegal one."""
        own = _canonical("cluster", CLUSTER_KEYS, config)
        values: dict[str, Any] = {}
        for name, key in CLUSTER_KEYS.items():
            text = own.get(name, key.default)
            is_text = key.kind in ("choice", "listeners")
            value: object = text == "true" if key.kind == "bool" else text if is_text else int(text)
            values[name.replace(".", "_")] = value
        return cls(**values)
