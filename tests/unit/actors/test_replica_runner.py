"""What a replica's runner can carry out."""

from pathlib import Path
from typing import Any, get_args

from raylog.actors.replica_runner import Hands, ReplicaRunner
from raylog.actors.settings import topic_settings
from raylog.core.ids import TopicPartition
from raylog.core.replication.events import Effect
from raylog.storage.log import PartitionLog


def test_every_effect_of_the_machine_has_somebody_who_carries_it_out(tmp_path: Path) -> None:
    def nothing(_: Any) -> None:
        pass

    config, flush = topic_settings({}, {})
    log = PartitionLog.open(tmp_path / "t-0", config, topic_id="t" * 32, topic="t", partition=0, now_ms=0)
    hands = Hands(send_fetch=nothing, propose_isr=nothing, resign=nothing, role_changed=nothing, fatal=nothing)
    try:
        runner = ReplicaRunner(TopicPartition("t", 0), log, flush=flush, hands=hands)
        assert set(runner.carried_out) == set(get_args(Effect))
    finally:
        log.close()
