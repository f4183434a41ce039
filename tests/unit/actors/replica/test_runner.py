"""Effects that a replica's runner can carry out. The simulator, which drives the runner, tests the decisions."""

from pathlib import Path
from typing import Any, cast, get_args

from raylog.actors import clock
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.ports import Keeper, ReplicaPorts, Sync
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.settings import topic_settings
from raylog.core.ids import TopicPartition
from raylog.core.replication.events import Effect
from raylog.storage.log.partition_log import PartitionLog


def test_every_effect_of_the_machine_is_carried_out(tmp_path: Path) -> None:
    def nothing(_: Any) -> None:
        pass

    config, flush = topic_settings({}, {})
    log = PartitionLog.open(tmp_path / "t-0", config, topic_id="t" * 32, topic="t", partition=0, now_ms=0)
    ports = ReplicaPorts(
        send_fetch=nothing,
        propose_isr=nothing,
        propose_sleep=nothing,
        resign=nothing,
        rebuild=nothing,
        verify=nothing,
        role_changed=nothing,
        fatal=nothing,
    )
    try:
        runner = ReplicaRunner(
            TopicPartition("t", 0),
            log,
            clock=clock,
            sync=cast(Sync, None),
            keeper=cast(Keeper, None),
            ports=ports,
            flush=flush,
            counters=ReplicaCounters(),
        )
        assert set(runner.effects) == set(get_args(Effect))
    finally:
        log.close()
