"""Every setting of the cluster that counts at once is read at each use, or its change reaches the copy that is made.

`READERS` names where each is read. Of replicas and coordinators, which keep settings in their machines, the copies are
replaced; everything else reads the metadata image at each use, and nothing of it may be read from what a process was
made with.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.broker.supervisor import instructions
from raylog.actors.groups.runner import GroupCoordinatorRunner
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.cleaner import Cleaner, Throttle
from raylog.actors.replica.scrubber import Scrubber
from raylog.actors.settings import (
    REPLICA_KEYS,
    CleanerPace,
    FlushPolicy,
    ScrubPace,
    group_settings,
    log_settings,
    paces_of,
    replication_settings,
    transaction_settings,
)
from raylog.actors.transactions.runner import TransactionRunner
from raylog.core.configuration.config_key import Change
from raylog.core.configuration.config_keys import CLUSTER_KEYS
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.transactions.coordinator import TransactionMachine
from tests.unit.actors.replica.test_consumer_reads import leading
from tests.unit.actors.replica.test_reconfigured import SETTINGS
from tests.unit.actors.specs import replica_spec
from tests.unit.core.controller.test_cluster_config import another_value

ROOT: Final = Path(__file__).parents[3]
AT_ONCE: Final = {name for name, key in CLUSTER_KEYS.items() if key.change in (Change.AT_ONCE, Change.UNTIL_CREATED)}
IMAGE: Final[Mapping[str, tuple[str, str]]] = {
    "auto.create.topics.enable": ("actors/controller/answers.py", 'image.config.get("auto.create.topics.enable")'),
    "auto.heal.after.ms": ("core/controller/healing.py", "decision.image.config.get(KEY"),
    "auto.leader.rebalance.enable": ("core/controller/elections.py", "auto_leader_rebalance_enable"),
    "default.replication.factor": ("core/controller/topics.py", "settings.default_replication_factor"),
    "follower.replication.throttled.rate": ("actors/broker/wanted.py", "catch_up_rate(image.config"),
    "leader.imbalance.check.interval.seconds": (
        "core/controller/elections.py",
        "leader_imbalance_check_interval_seconds",
    ),
    "leader.imbalance.per.broker.percentage": (
        "core/controller/elections.py",
        "leader_imbalance_per_broker_percentage",
    ),
    "metadata.log.max.record.bytes.between.snapshots": (
        "actors/controller/server.py",
        "settings.metadata_log_max_record_bytes_between_snapshots",
    ),
    "metadata.voters.max": ("core/controller/voters.py", "voters_max(decision.image.config)"),
    "metrics.listen": ("actors/broker/node_page.py", "config.metrics_listen"),
    "metrics.per.partition": ("actors/metrics/broker.py", "from_dict(image.config).metrics_per_partition"),
    "metrics.port": ("actors/broker/node_page.py", "config.metrics_port"),
    "num.partitions": ("core/controller/topics.py", "settings.num_partitions"),
    "offsets.topic.num.partitions": ("core/controller/coordinators.py", "settings.offsets_topic_num_partitions"),
    "offsets.topic.replication.factor": (
        "core/controller/internal_topics.py",
        "settings.offsets_topic_replication_factor",
    ),
    "replica.awake.max": ("core/metadata/entries.py", "config.get(AWAKE_KEY"),
    "replica.spares": ("actors/broker/server.py", "from_dict(self.image.config).replica_spares"),
    "scheduled.topic.num.partitions": ("core/controller/internal_topics.py", "settings.scheduled_topic_num_partitions"),
    "share.coordinator.state.topic.num.partitions": (
        "core/controller/internal_topics.py",
        "settings.share_coordinator_state_topic_num_partitions",
    ),
    "transaction.state.log.num.partitions": (
        "core/controller/coordinators.py",
        "settings.transaction_state_log_num_partitions",
    ),
    "transaction.state.log.replication.factor": (
        "core/controller/coordinators.py",
        "settings.transaction_state_log_replication_factor",
    ),
}
"""Settings that are read from the metadata image at each use: where, and how."""
MADE_WITH: Final = {
    "actors/coordinators/server.py": ("self._config =", "session_heartbeat_s(", "config=self.spec.cluster_config"),
    "actors/replica/server.py": ("vouching_pace(", "session_heartbeat_s(", "paces_of(", "KEPT_FILE", "replication_set"),
    "actors/controller/server.py": ("config_at_start(", "cluster_config=self.spec.cluster_config"),
    "actors/broker/supervisor.py": ("REPLICA_KEYS",),
    "actors/broker/node_watch.py": ("listeners_in(",),
    "actors/settings.py": ("topic_settings(",),
    "actors/replica/": ("dict(spec.cluster_config)",),
}
"""Uses of the settings that a process was made with: first copies of what is replaced, and what a start fixes."""


def spec(cluster: Mapping[str, str]) -> ReplicaSpec:
    return replica_spec(Path(), cluster_config=cluster)


def of_replica(cluster: Mapping[str, str]) -> object:
    return log_settings(spec(cluster)), replication_settings({}, cluster, 1), paces_of(cluster)


OF_PROCESSES: Final[Mapping[str, Callable[[Mapping[str, str]], object]]] = {
    "replica": of_replica,
    "group coordinator": lambda cluster: group_settings(cluster, {}),
    "transaction coordinator": lambda cluster: transaction_settings(cluster, {}),
}


def readers(name: str) -> set[str]:
    """The kinds of processes whose settings an alteration changes."""
    altered = {name: another_value(CLUSTER_KEYS[name])}
    return {kind for kind, settings in OF_PROCESSES.items() if settings(altered) != settings({})}


@pytest.mark.parametrize("name", sorted(AT_ONCE))
def test_every_setting_that_counts_at_once_has_its_readers(name: str) -> None:
    kinds = readers(name)
    assert bool(kinds) != (name in IMAGE), f"{name} is read from the image, or kept by {kinds or 'no process'}"
    assert ("replica" in kinds) == (name in REPLICA_KEYS), "a replica is sent what it goes by"
    if name in IMAGE:
        file, text = IMAGE[name]
        assert text in (ROOT / file).read_text()


def test_what_counts_from_a_start_on_is_kept_by_no_machine() -> None:
    for name in CLUSTER_KEYS.keys() - AT_ONCE:
        assert not readers(name), name


def test_what_a_process_was_made_with_is_not_read_later() -> None:
    for path in sorted((ROOT / "actors").rglob("*.py")):
        for line in path.read_text().splitlines():
            if re.search(r"\bspec\.cluster_config", line):
                where = path.relative_to(ROOT).as_posix()
                allowed = [text for part, texts in MADE_WITH.items() if where.startswith(part) for text in texts]
                assert any(text in line for text in allowed), f"{where}: {line.strip()}"


def test_a_replica_is_sent_what_it_goes_by_alone() -> None:
    plain = instructions(spec({}))
    for name in CLUSTER_KEYS:
        sent = instructions(spec({name: another_value(CLUSTER_KEYS[name])}))
        assert (sent != plain) == (name in REPLICA_KEYS), name


# ---------------------------------------------------------------- copies are replaced


def test_a_replica_works_at_the_pace_that_was_altered(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        log, counters = runner.log, ReplicaCounters()
        before = paces_of({})
        real: Any = log
        cleaner = runner.cleaner = Cleaner(real, tmp_path, "t-0", before.cleaner, counters)
        scrubber = runner.scrubber = Scrubber(real, tmp_path, "t-0", before.scrub, counters)
        cleaner._due_ms, cleaner._throttle = 20_000, Throttle(before.cleaner.bytes_per_s)
        due_ms = runner._retention_due_ms
        altered = paces_of(
            {
                "log.cleaner.backoff.ms": "1000",
                "log.cleaner.io.max.bytes.per.second": "5",
                "log.scrub.bytes.per.second": "0",
                "log.scrub.interval.ms": "7",
                "log.retention.check.interval.ms": "100000",
            }
        )
        assert (altered.cleaner, altered.scrub) == (CleanerPace(1000, 5), ScrubPace(0, 7))
        runner.reconfigure(log.config, FlushPolicy(messages=1, ms=1), SETTINGS, altered)
        assert (cleaner.pace, scrubber.pace) == (altered.cleaner, altered.scrub)
        assert cleaner._due_ms == 6_000, "14 s sooner, as the pause is shorter by"
        assert cleaner._throttle._from[0] == 5, "a cleaning that runs goes on at the new pace"
        assert runner._retention_due_ms == due_ms - 200_000
        runner.reconfigure(log.config, FlushPolicy(messages=1, ms=1), SETTINGS, before)
        assert runner._retention_due_ms == due_ms - 200_000, "a check that is awaited is not put off"


def test_what_was_read_before_does_not_count_at_the_altered_pace() -> None:
    throttle = Throttle(1 << 62)
    throttle.pace(1 << 40)
    throttle.change(1 << 30)
    throttle.pace(1)  # a terabyte at the new pace would take a quarter of an hour


def test_a_group_coordinator_goes_by_what_it_was_sent() -> None:
    machine = GroupCoordinatorMachine(settings=group_settings({}, {}), share=EVERY_KEY, new_member_id=lambda _: "m")
    runner: GroupCoordinatorRunner[Any, Any] = GroupCoordinatorRunner(machine, _Ports())
    machine.loaded(0)
    settings = replace(group_settings({"offsets.retention.check.interval.ms": "500"}, {}), group_max_size=3)
    runner.reconfigure(replace(settings, sleep_after_ms=77))
    assert machine._settings.group_max_size == machine._consumers._settings.group_max_size == 3
    assert (machine._next_expiry_ms, machine._idleness._sleep_after_ms) == (500, 77)


def test_a_transaction_coordinator_goes_by_what_it_was_sent() -> None:
    machine = TransactionMachine(settings=transaction_settings({}, {}), share=EVERY_KEY)
    runner: TransactionRunner[Any, Any] = TransactionRunner(machine, _Ports())
    machine.loaded(0)
    altered = {"transaction.remove.expired.transaction.cleanup.interval.ms": "500", "transactional.id.max": "3"}
    runner.reconfigure(replace(transaction_settings(altered, {}), sleep_after_ms=77))
    assert machine._settings.ids_max == machine._room._settings.ids_max == 3
    assert (machine._next_expiry_ms, machine._idleness._sleep_after_ms) == (500, 77)


class _Ports:
    """Ports that a runner without requests does not use."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: 0
