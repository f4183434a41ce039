"""The consumer when a leader stops answering: its process hangs, or its machine is down."""

from typing import Any

import pytest

from raylog.client.consumer.consumer import Consumer
from tests.unit.client.consumer_support import fill, numbers, offsets, read
from tests.unit.client.toy_replica import ToyReplica
from tests.unit.client.toy_server import ToyCluster


def test_a_leader_that_hangs_is_left_as_soon_as_another_is_elected(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 3))
    first_epoch = cluster.partitions["t", 0].leader_epoch
    answer = ToyReplica._fetch
    unanswered: list[Any] = []

    async def hang_in_the_first_epoch(replica: ToyReplica, request: Any) -> None:
        if replica.partition.leader_epoch == first_epoch:
            unanswered.append(request)
        else:
            await answer(replica, request)

    with Consumer("t", **cluster.options, auto_offset_reset="earliest", request_timeout_ms=60_000) as consumer:
        assert offsets(read(consumer, 3)) == [0, 1, 2]
        monkeypatch.setattr(ToyReplica, "_fetch", hang_in_the_first_epoch)
        while not unanswered:  # the fetch before is answered when its time is over
            consumer.poll(100)
        cluster.move_leader("t", 0, silently=True)
        fill(cluster, "t", 0, numbers(3, 5))
        assert offsets(read(consumer, 2, deadline_s=10)) == [3, 4]
