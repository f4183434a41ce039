"""Topic and cluster configuration turned into the settings of logs and machines. Pure; used by the shells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.naming import FENCED_TOPICS, INTERNAL_PREFIX
from raylog.core.configuration.config import (
    AS_PRODUCED,
    LOG_APPEND_TIME,
    UNCOMPRESSED,
    ClusterConfig,
    TopicConfig,
    doze_after_ms,
    sleep_after_ms,
)
from raylog.core.configuration.config_key import LONG_MAX
from raylog.core.replication.replica import ReplicationSettings
from raylog.core.vouching import Pace
from raylog.storage.batch.compression import COMPRESSIONS
from raylog.storage.batch.rewriting import Rewriting
from raylog.storage.log.config import NO_LIMIT_MS, CompactionRules, LogConfig

if TYPE_CHECKING:  # so that a replica's process does not load the modules of the controller and the coordinators
    from raylog.core.controller.decision import ControllerSettings
    from raylog.core.groups.settings import GroupSettings
    from raylog.core.transactions.settings import TxnSettings

INITIAL_LEADER_WAIT_MS: Final = 30_000
"""How long a new partition waits for its preferred leader. Starting a process takes up to a second of CPU, so the
replicas of a topic start one after the other. Without the wait, all leaders would be on the first few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushPolicy:
    """When appended records are synced to disk: Kafka's ``flush.messages`` and ``flush.ms``."""

    messages: int
    ms: int

    @property
    def before_acknowledging(self) -> bool:
        """Whether records are acknowledged only when they are on disk."""
        return self.messages == 1


def topic_settings(
    topic: Mapping[str, str], cluster: Mapping[str, str], *, internal: bool = False
) -> tuple[LogConfig, FlushPolicy]:
    """Return how a topic's segments are written, kept and synced to disk.

    ``internal``: one of Raylog's own topics, which an actor on another machine may write. Its timestamps have no
    limits, because clocks that differ must not stop a coordinator. Timestamps that the leader sets have no limits
    either.
    """
    config = TopicConfig.from_dict({**_timestamp_limits(cluster), **topic})
    rewriting = _rewriting(config)
    has_limits = not internal and (rewriting is None or not rewriting.append_time)
    log = LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        max_message_bytes=config.max_message_bytes,
        message_timestamp_before_max_ms=config.message_timestamp_before_max_ms if has_limits else LONG_MAX,
        message_timestamp_after_max_ms=config.message_timestamp_after_max_ms if has_limits else LONG_MAX,
        compaction=_compaction(config),
        rewriting=rewriting,
        deletes=config.deletes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
        producer_id_expiration_ms=ClusterConfig.from_dict(cluster).producer_id_expiration_ms,
    )
    return log, FlushPolicy(messages=config.flush_messages, ms=config.flush_ms)


def _compaction(config: TopicConfig) -> CompactionRules | None:
    if not config.compacts:
        return None
    return CompactionRules(
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
    )


def _rewriting(config: TopicConfig) -> Rewriting | None:
    kind = config.compression_type
    codec = None if kind == AS_PRODUCED else COMPRESSIONS["none" if kind == UNCOMPRESSED else kind]
    append_time = config.message_timestamp_type == LOG_APPEND_TIME
    return Rewriting(codec, append_time) if append_time or codec is not None else None


@dataclass(frozen=True, slots=True)
class CleanerPace:
    """How often a replica checks whether its log has to be cleaned, and how many bytes per second cleaning may use."""

    backoff_ms: int
    bytes_per_s: int


def cleaner_pace(cluster: Mapping[str, str]) -> CleanerPace:
    """Return how often a replica checks whether its log has to be cleaned, and how fast it cleans."""
    found = ClusterConfig.from_dict(cluster)
    return CleanerPace(found.log_cleaner_backoff_ms, found.log_cleaner_io_max_bytes_per_second)


@dataclass(frozen=True, slots=True)
class ScrubPace:
    """How often a log is read again to find damage, and the bytes per second that a broker uses for it."""

    bytes_per_s: int
    interval_ms: int

    @property
    def is_on(self) -> bool:
        """Whether logs are scrubbed at all."""
        return self.bytes_per_s > 0


def scrub_pace(cluster: Mapping[str, str]) -> ScrubPace:
    """Return how often a log is scrubbed, and how fast."""
    found = ClusterConfig.from_dict(cluster)
    return ScrubPace(found.log_scrub_bytes_per_second, found.log_scrub_interval_ms)


REPLICA_KEYS: Final = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.io.max.bytes.per.second",
        "log.message.timestamp.after.max.ms",
        "log.message.timestamp.before.max.ms",
        "log.retention.check.interval.ms",
        "log.scrub.bytes.per.second",
        "log.scrub.interval.ms",
        "producer.id.expiration.ms",
        "replica.doze.after.ms",
        "replica.lag.time.max.ms",
        "replica.sleep.after.ms",
        "replica.sync.time.max.ms",
    }
)
"""The cluster's settings that a replica uses and that take effect at once: their changes are sent to its process."""


def log_settings(spec: ReplicaSpec) -> tuple[LogConfig, FlushPolicy]:
    """Return how the log of a replica is written, kept and synced to disk."""
    log, flush = topic_settings(spec.topic_config, spec.cluster_config, internal=spec.topic.startswith(INTERNAL_PREFIX))
    if spec.topic in FENCED_TOPICS:  # only the producer epoch fences earlier coordinators, so it must never expire
        log = replace(log, producer_id_expiration_ms=NO_LIMIT_MS)
    return log, flush


def _timestamp_limits(cluster: Mapping[str, str]) -> dict[str, str]:
    values = ClusterConfig.from_dict(cluster)
    return {
        "message.timestamp.after.max.ms": str(values.log_message_timestamp_after_max_ms),
        "message.timestamp.before.max.ms": str(values.log_message_timestamp_before_max_ms),
    }


def retention_check_ms(cluster: Mapping[str, str]) -> int:
    """Return how often a replica looks for segments to delete, in milliseconds."""
    return ClusterConfig.from_dict(cluster).log_retention_check_interval_ms


@dataclass(frozen=True, slots=True)
class Paces:
    """How often and how fast a replica cleans, scrubs and deletes from its log."""

    cleaner: CleanerPace
    scrub: ScrubPace
    retention_check_ms: int


def paces_of(cluster: Mapping[str, str]) -> Paces:
    """Return how often and how fast a replica cleans, scrubs and deletes from its log."""
    return Paces(cleaner_pace(cluster), scrub_pace(cluster), retention_check_ms(cluster))


def replication_settings(
    topic: Mapping[str, str], cluster: Mapping[str, str], replication_factor: int, catch_up_bytes_per_s: int = 0
) -> ReplicationSettings:
    """Return the settings of one replica's machine."""
    config = TopicConfig.from_dict(topic)
    return ReplicationSettings(
        min_insync_replicas=config.min_insync(replication_factor),
        majority=config.min_insync_replicas is None,
        replica_lag_time_max_ms=ClusterConfig.from_dict(cluster).replica_lag_time_max_ms,
        sleep_after_ms=sleep_after_ms(topic, cluster),
        doze_after_ms=doze_after_ms(topic, cluster),
        sync_time_max_ms=ClusterConfig.from_dict(cluster).replica_sync_time_max_ms,
        catch_up_bytes_per_s=catch_up_bytes_per_s,
    )


def catch_up_rate(cluster: Mapping[str, str], replicas: int) -> int:
    """Return the bytes per second that each of a broker's ``replicas`` being added may fetch; 0 = no limit."""
    rate = ClusterConfig.from_dict(cluster).follower_replication_throttled_rate
    return 0 if rate >= LONG_MAX or not replicas else max(1, rate // replicas)


def session_heartbeat_s(cluster: Mapping[str, str]) -> float:
    """Return an actor's interval between heartbeats to the controller, in seconds."""
    return ClusterConfig.from_dict(cluster).broker_heartbeat_interval_ms / 1000


def vouching_pace(cluster: Mapping[str, str]) -> Pace:
    """Return the intervals and timeouts by which brokers vouch for their replicas."""
    values = ClusterConfig.from_dict(cluster)
    return Pace.of(values.broker_heartbeat_interval_ms, values.broker_session_timeout_ms)


def controller_settings(
    cluster: Mapping[str, str], *, cluster_id: str, new_topic_id: Callable[[], str]
) -> ControllerSettings:
    """Return the settings of the controller's machine that stay while it runs."""
    from raylog.core.controller.decision import ControllerSettings

    timeout_ms = ClusterConfig.from_dict(cluster).broker_session_timeout_ms  # a change takes effect at the next start
    return ControllerSettings(
        new_topic_id=new_topic_id,
        cluster_id=cluster_id,
        session_timeout_ms=timeout_ms,
        registration_grace_ms=2 * timeout_ms,
        initial_leader_wait_ms=INITIAL_LEADER_WAIT_MS,
    )


def group_settings(cluster: Mapping[str, str], topic: Mapping[str, str]) -> GroupSettings:
    """Return the settings of a group coordinator's machine; ``topic`` is the configuration of the offsets topic."""
    from raylog.core.groups.settings import GroupSettings

    return GroupSettings(
        initial_rebalance_delay_ms=ClusterConfig.from_dict(cluster).group_initial_rebalance_delay_ms,
        min_session_timeout_ms=ClusterConfig.from_dict(cluster).group_min_session_timeout_ms,
        max_session_timeout_ms=ClusterConfig.from_dict(cluster).group_max_session_timeout_ms,
        group_max_size=ClusterConfig.from_dict(cluster).group_max_size,
        groups_max=ClusterConfig.from_dict(cluster).group_max_groups,
        offsets_retention_ms=ClusterConfig.from_dict(cluster).offsets_retention_minutes * 60_000,
        offsets_retention_check_ms=ClusterConfig.from_dict(cluster).offsets_retention_check_interval_ms,
        sleep_after_ms=sleep_after_ms(topic, cluster),
    )


def transaction_settings(cluster: Mapping[str, str], topic: Mapping[str, str]) -> TxnSettings:
    """Return the settings of a transaction coordinator's machine; ``topic``: the configuration of its topic."""
    from raylog.core.transactions.settings import TxnSettings

    values = ClusterConfig.from_dict(cluster)
    return TxnSettings(
        max_timeout_ms=values.transaction_max_timeout_ms,
        two_phase_commit=values.transaction_two_phase_commit_enable,
        id_expiration_ms=values.transactional_id_expiration_ms,
        expiration_check_ms=values.transaction_remove_expired_transaction_cleanup_interval_ms,
        ids_max=values.transactional_id_max,
        prefix_ids_max=values.transactional_id_prefix_max,
        prefix_participants_max=values.transactional_id_prefix_partitions_max,
        sleep_after_ms=sleep_after_ms(topic, cluster),
    )
