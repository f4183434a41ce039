"""Effects that a replica's runner can carry out. The simulator, which drives the runner, tests the decisions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from raylog.actors import clock
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.ports import Keeper, ReplicaPorts, Sync
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.settings import topic_settings
from raylog.base.ids import TopicPartition
from raylog.core.replication.events import Effect
from raylog.storage.log.partition_log import PartitionLog


def nothing(_: Any) -> None:
    """Take whatever comes."""


@contextmanager
def runner_of(folder: Path, is_busy: Callable[[], bool] = lambda: False) -> Iterator[ReplicaRunner]:
    """Return the runner of a new log, which has no part in its partition yet."""
    config, flush = topic_settings({}, {})
    log = PartitionLog.open(folder / "t-0", config, topic_id="t" * 32, topic="t", partition=0, now_ms=0)
    ports = ReplicaPorts(
        send_fetch=nothing,
        propose_isr=nothing,
        propose_sleep=nothing,
        resign=nothing,
        rebuild=nothing,
        verify=nothing,
        role_changed=nothing,
        soon=nothing,
        fatal=nothing,
        is_busy=is_busy,
    )
    try:
        yield ReplicaRunner(
            TopicPartition("t", 0),
            log,
            clock=clock,
            sync=cast(Sync, SimpleNamespace(busy_since_ms=None)),
            keeper=cast(Keeper, None),
            ports=ports,
            flush=flush,
            counters=ReplicaCounters(),
        )
    finally:
        log.close()


def test_work_that_has_ended_is_news_until_the_next_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped with such news would not let its partition sleep when that is due."""
    work = [True]
    with runner_of(tmp_path, lambda: bool(work)) as runner:
        monkeypatch.setattr(runner, "feed", nothing)
        seen = [runner.is_up_to_date]
        runner.tick()
        seen.append(runner.is_up_to_date)
        work.clear()
        seen.append(runner.is_up_to_date)
        runner.tick()
        seen.append(runner.is_up_to_date)
    assert seen == [False, True, False, True]


def test_every_effect_of_the_machine_is_carried_out(tmp_path: Path) -> None:
    with runner_of(tmp_path) as runner:
        assert set(runner.effects) == set(get_args(Effect))
