"""A replica's runner that gets other settings while it runs."""

from dataclasses import replace
from pathlib import Path

from raylog.actors import clock
from raylog.actors.replica.runner import RETENTION_SOON_MS, ReplicaRunner
from raylog.actors.replica.server import ReplicaServer
from raylog.actors.settings import FlushPolicy, paces_of, topic_settings
from raylog.base.errors import ConnectionFailed
from raylog.core.replication.replica import ReplicationSettings
from tests.unit.actors.replica.test_consumer_reads import leading, produce
from tests.unit.actors.specs import replica_spec

FAR_MS = 1 << 50
PACES = paces_of({})
SETTINGS = ReplicationSettings(min_insync_replicas=1)


def reconfigured(runner: ReplicaRunner, *, flush: FlushPolicy | None = None, **topic: str) -> None:
    config, policy = topic_settings({key.replace("_", "."): value for key, value in topic.items()}, {})
    runner.reconfigure(config, flush or policy, SETTINGS, PACES)


def test_records_that_wait_by_a_longer_time_do_not_hold_up_a_shorter_one(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        reconfigured(runner, flush=FlushPolicy(messages=1 << 60, ms=1 << 60))
        produce(runner, b"waits for ever")
        assert runner.flush_due_ms(FAR_MS) == FAR_MS
        reconfigured(runner, flush=FlushPolicy(messages=1 << 60, ms=20))
        produce(runner, b"waits for 20 ms")
        assert runner.flush_due_ms(FAR_MS) <= clock.monotonic_ms() + 20


def test_retention_is_looked_at_soon_after_a_change(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        due_ms = runner._retention_due_ms
        runner.reconfigure(runner.log.config, FlushPolicy(messages=1, ms=1), SETTINGS, PACES)
        assert runner._retention_due_ms == due_ms
        reconfigured(runner, retention_ms="5")
        assert runner._retention_due_ms <= clock.monotonic_ms() + RETENTION_SOON_MS


async def nowhere() -> tuple[str, int]:
    raise ConnectionFailed("There is no controller.")


async def test_settings_of_earlier_metadata_do_not_replace_later_ones(tmp_path: Path) -> None:
    first = replica_spec(tmp_path, topic_config={"retention.ms": "3"}, as_of=3)
    server = ReplicaServer(first, find_controller=nowhere, on_fatal=lambda _: None)
    fourth, fifth, sixth = (
        replace(first, topic_config={"retention.ms": str(number)}, as_of=number) for number in (4, 5, 6)
    )
    server.reconfigure(fifth)
    server.reconfigure(fourth)  # it was overtaken
    assert server.spec == fifth
    server.reconfigure(replace(fifth, as_of=6))
    server.reconfigure(replace(fourth, as_of=5))
    assert server.spec == replace(fifth, as_of=6)
    server.reconfigure(sixth)
    assert server.spec == sixth
