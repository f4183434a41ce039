"""`raylog group describe` of a group of the consumer protocol: epochs and targets, as Kafka's tool shows them."""

from __future__ import annotations

import json

from raylog.protocol.groups import DescribedMember, DescribeGroupReply, TopicPartitions
from tests.unit.cli.test_client_commands import at
from tests.unit.client.toy_server import ToyCluster

MEMBERS = ("m1", "m2", "m3")


def test_a_group_of_the_consumer_protocol_is_described_with_its_epochs(cluster: ToyCluster) -> None:
    def member(
        name: str, epoch: int, state: str, *, assigned: list[int], target: list[int], revoking: list[int]
    ) -> DescribedMember:
        return DescribedMember(
            member_id=name,
            instance_id=None,
            client_id="anna",
            session_timeout_ms=1,
            rebalance_timeout_ms=1,
            metadata=b"",
            assignment=b"",
            member_epoch=epoch,
            member_state=state,
            topics=["flights"],
            assigned=[TopicPartitions("id", "flights", assigned)],
            revoking=[TopicPartitions("id", "flights", revoking)],
            target=[TopicPartitions("id", "flights", target)],
        )

    reply = DescribeGroupReply(
        group="board",
        state="Reconciling",
        protocol_type="consumer",
        protocol="uniform",
        generation=7,
        leader="",
        members=[
            member("m1", 6, "UnrevokedPartitions", assigned=[0], revoking=[1], target=[0]),
            member("m2", 7, "UnreleasedPartitions", assigned=[], revoking=[], target=[1]),
            member("m3", -2, "Stable", assigned=[], revoking=[], target=[]),
        ],
        offsets=[],
        group_type="consumer",
        target_epoch=7,
    )
    cluster.extra_methods["describe_group"] = lambda request: request.reply(reply)
    assert (
        "Reconciling, consumer protocol, epoch 7, target epoch 7, 3 members, uniform"
        in at(cluster, "group", "describe", "board", "--state").out
    )
    shown = at(cluster, "group", "describe", "board", "--members").out
    first, second, third = (next(line.split() for line in shown.splitlines() if name in line) for name in MEMBERS)
    assert first[-5:] == ["flights:0", "6", "UnrevokedPartitions", "7", "flights:0"]
    assert second[-5:] == ["-", "7", "UnreleasedPartitions", "7", "flights:1"]
    assert third[-5:] == ["-", "away", "Stable", "7", "-"]
    assert "m1 has to give up flights:1." in shown
    found = json.loads(at(cluster, "group", "describe", "board", "--json").out)
    assert (found["type"], found["generation"], found["target_epoch"]) == ("consumer", 7, 7)
    assert [each["epoch"] for each in found["members"]] == [6, 7, -2]
