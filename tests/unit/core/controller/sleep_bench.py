"""Sleep on the bench: topics that sleep, and the vocabulary for them. Shared by the tests of sleep."""

from collections.abc import Mapping, Sequence
from typing import Any

from raylog.base.ids import (
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicPartition,
)
from raylog.core.partition import SleepPoint
from raylog.protocol.admin import (
    AlterTopicConfigRequest,
    ResumeBrokerRequest,
    StopBrokerRequest,
    WakePartitionsRequest,
)
from raylog.protocol.controller import SleepPartitionRequest
from tests.unit.core.controller.bench import T0, Bench, running_topic, three_brokers

POINT = SleepPoint(
    log_start_offset=Offset(3), end_offset=Offset(40), last_epoch=LeaderEpoch(1), oldest_ms=5, size_bytes=700
)
SLEEPS = {"replica.sleep.after.ms": "60000"}


def propose(
    bench: Bench,
    leader: int = 1,
    *,
    partition: TopicPartition = T0,
    leader_epoch: int | None = None,
    partition_epoch: int | None = None,
    incarnation: int | None = None,
) -> list[object]:
    """The leader proposes to sleep, with the current epochs by default."""
    state = bench.state(partition)
    return bench.call(
        SleepPartitionRequest(
            topic_id=state.topic_id,
            topic=partition.topic,
            partition=partition.partition,
            broker=leader,
            incarnation=bench.lives[partition, leader] if incarnation is None else incarnation,
            leader_epoch=state.leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch),
            partition_epoch=state.partition_epoch if partition_epoch is None else PartitionEpoch(partition_epoch),
            point=POINT.to_row(),
        ),
        bench.sessions.get((partition, leader), 0),
    )


def wake(bench: Bench, topic: str = "flights", partitions: Sequence[int] | None = None) -> list[object]:
    return bench.call(WakePartitionsRequest(topic=topic, partitions=partitions))


def configure(bench: Bench, config: Mapping[str, str]) -> None:
    """Change the configuration of the topic."""
    bench.call(AlterTopicConfigRequest(topic=T0.topic, set=dict(config), delete=()))


def end_processes(bench: Bench, *brokers: int) -> None:
    """The brokers end the processes of replicas."""
    for broker in brokers or (1, 2, 3):
        bench.lose_replica(broker)


def sleeping_topic(*, sleeps: bool = False) -> Bench:
    """One partition on brokers 1, 2, 3 that fell asleep under broker 1; its processes have ended.

    By default it is one that never sleeps but for a stop of the cluster.
    """
    bench = running_topic()
    if sleeps:
        configure(bench, SLEEPS)
    propose(bench)
    end_processes(bench)
    return bench


def born_asleep(**arguments: Any) -> Bench:
    """A topic of two partitions that sleep from their creation on."""
    bench = three_brokers()
    bench.create(**{"assignment": [[1, 2, 3], [2, 3, 1]], "config": SLEEPS, **arguments})
    return bench


def stop(bench: Bench, broker: int) -> list[object]:
    return bench.call(StopBrokerRequest(broker=broker, force=True))


def resume(bench: Bench, broker: int) -> None:
    bench.call(ResumeBrokerRequest(broker=broker))
