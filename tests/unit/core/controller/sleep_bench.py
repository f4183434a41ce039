"""Sleep on the bench: topics that sleep, and the vocabulary for them. Shared by the tests of sleep."""

from collections.abc import Mapping, Sequence
from typing import Any

from raylog.base.ids import (
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicPartition,
)
from raylog.core.controller import (
    DescribeClusterReceived,
    Reply,
    ResumeBrokerReceived,
    StopBrokerReceived,
)
from raylog.core.controller.events import (
    AlterTopicConfigReceived,
    SleepProposed,
    WakeRequested,
)
from raylog.core.partition import SleepPoint
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
        SleepProposed(
            cause="test",
            now_ms=bench.now,
            session=bench.sessions.get((partition, leader), 0),
            request=bench.number(),
            topic_id=state.topic_id,
            partition=partition,
            broker=BrokerId(leader),
            incarnation=Incarnation(bench.lives[partition, leader] if incarnation is None else incarnation),
            leader_epoch=state.leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch),
            partition_epoch=state.partition_epoch if partition_epoch is None else PartitionEpoch(partition_epoch),
            point=POINT.to_row(),
        )
    )


def wake(bench: Bench, topic: str = "flights", partitions: Sequence[int] | None = None) -> list[object]:
    return bench.call(
        WakeRequested(cause="test", now_ms=bench.now, request=bench.number(), topic=topic, partitions=partitions)
    )


def configure(bench: Bench, config: Mapping[str, str]) -> None:
    """Change the configuration of the topic."""
    number = bench.number()
    bench.call(
        AlterTopicConfigReceived(cause="test", now_ms=bench.now, request=number, topic=T0.topic, set=dict(config))
    )


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
    return bench.call(
        StopBrokerReceived(cause="test", now_ms=bench.now, request=bench.number(), broker=BrokerId(broker), force=True)
    )


def resume(bench: Bench, broker: int) -> None:
    bench.call(ResumeBrokerReceived(cause="test", now_ms=bench.now, request=bench.number(), broker=BrokerId(broker)))


def description(bench: Bench) -> dict[str, object]:
    [reply] = bench.step(DescribeClusterReceived(cause="test", now_ms=bench.now, request=bench.number()))
    assert isinstance(reply, Reply)
    assert isinstance(reply.result, dict)
    return reply.result
