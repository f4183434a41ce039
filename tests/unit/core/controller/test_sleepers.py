"""Partitions that sleep are led by brokers; new ones are born asleep."""

import pytest

from raylog.base.ids import (
    NO_LEADER,
    TopicPartition,
)
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import PartitionsBornAsleep, record_from_wire
from raylog.core.partition import NEVER_WRITTEN
from raylog.protocol.admin import AlterTopicConfigRequest, DeleteTopicRequest, ElectLeadersRequest
from raylog.protocol.message import Setting
from tests.unit.core.controller.bench import AWAKE, GRACE_MS, Bench, three_brokers
from tests.unit.core.controller.sleep_bench import (
    POINT,
    SLEEPS,
    born_asleep,
    resume,
    sleeping_topic,
    stop,
    wake,
)


@pytest.fixture
def bench() -> Bench:
    return sleeping_topic()


def test_another_broker_leads_in_the_next_epoch_when_the_leader_s_is_lost(bench: Bench) -> None:
    bench.lose(("broker", 1))
    assert bench.summary() == (2, 2, (1, 2, 3))
    assert bench.state().asleep == POINT
    bench.broker(1)
    assert bench.summary() == (2, 2, (1, 2, 3)), "it stays where it is when the broker returns"


def test_a_broker_that_does_not_lead_may_be_lost_without_a_change(bench: Bench) -> None:
    before = bench.state()
    bench.lose(("broker", 3))
    assert bench.state() == before


def test_without_any_broker_it_keeps_its_leader_until_one_is_back(bench: Bench) -> None:
    bench.lose(("broker", 2))
    bench.lose(("broker", 3))
    bench.lose(("broker", 1))
    assert bench.summary() == (1, 1, (1, 2, 3))
    assert bench.described()["leaderless_partitions"] == ["flights-0"]
    bench.broker(3)
    assert bench.summary() == (3, 2, (1, 2, 3))
    assert bench.described()["leaderless_partitions"] == []


def test_a_controller_that_starts_waits_before_it_moves_sleepers() -> None:
    bench = sleeping_topic(sleeps=True)
    bench.start()
    bench.broker(2)
    bench.broker(3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.wait(GRACE_MS)
    assert bench.summary() == (2, 2, (1, 2, 3))


def test_the_sleepers_of_a_broker_that_stops_move(bench: Bench) -> None:
    assert stop(bench, 1) == [1, [], []]
    assert bench.summary() == (2, 2, (1, 2, 3))
    resume(bench, 1)
    assert bench.summary() == (2, 2, (1, 2, 3))


def test_it_wakes_on_a_stopped_broker_only_once_that_is_resumed(bench: Bench) -> None:
    stop(bench, 2)
    wake(bench)
    bench.replica(1)
    bench.replica(3)
    assert bench.summary() == (1, 2, (1, 3))


def test_the_last_broker_that_is_resumed_leads_what_slept_without_one(bench: Bench) -> None:
    for broker in (2, 3, 1):
        stop(bench, broker)
    assert bench.summary()[0] == 1
    assert bench.described()["leaderless_partitions"] == ["flights-0"]
    resume(bench, 3)
    assert bench.summary() == (3, 2, (1, 2, 3))


def test_a_broker_that_lost_its_directory_wakes_what_slept_on_it(bench: Bench) -> None:
    bench.lose(("broker", 1))
    bench.wait(GRACE_MS)
    bench.broker(1, directory="another")
    state = bench.state()
    assert (state.asleep, state.leader) == (POINT, 2), "it has not lost the log"
    bench.wait(500)
    assert bench.state().asleep is None
    assert bench.state().isr == (2, 3), "the others have the records"
    for broker in (1, 2, 3):
        bench.replica(broker, log_lost=broker == 1)
    assert bench.summary()[0] == 2
    assert 1 not in bench.state().isr


def test_a_reassignment_wakes_it_and_an_order_of_preference_does_not(bench: Bench) -> None:
    bench.broker(4)
    bench.reassign([2, 1, 3])
    assert bench.state().asleep == POINT
    assert bench.state().replicas == (2, 1, 3)
    bench.reassign([2, 1, 4])
    state = bench.state()
    assert state.asleep is None
    assert (state.adding, state.removing) == ((4,), (3,))
    for broker in (2, 3, 1):
        bench.replica(broker)
        assert (bench.summary()[0] == NO_LEADER) == (broker != 1), "the leader that it had is waited for"
    bench.replica(4)
    bench.isr(bench.summary()[0], [1, 2, 3, 4])
    assert set(bench.state().replicas) == {1, 2, 4}


def test_a_configuration_wakes_nothing_and_a_deleted_topic_counts_not(bench: Bench) -> None:
    bench.call(AlterTopicConfigRequest("flights", {"retention.ms": "5"}, ()))
    assert bench.state().asleep == POINT
    bench.call(DeleteTopicRequest("flights"))
    assert bench.described()["asleep_partitions"] == 0


@pytest.mark.parametrize(
    ("change", "wakes"),
    [
        ({"cleanup.policy": "compact"}, True),
        ({"cleanup.policy": "compact,delete"}, True),
        ({"retention.bytes": POINT.size_bytes - 1}, True),
        ({"retention.bytes": POINT.size_bytes}, False),
        ({"cleanup.policy": "delete"}, False),
        ({"message.timestamp.type": "LogAppendTime"}, False),
    ],
)
def test_a_topic_wakes_for_a_configuration_that_removes_records(
    bench: Bench, change: dict[str, Setting], wakes: bool
) -> None:
    bench.call(AlterTopicConfigRequest("flights", change, ()))
    assert (bench.state().asleep is None) == wakes


def test_leadership_returns_to_the_preferred_broker_asleep(bench: Bench) -> None:
    bench.lose(("broker", 1))
    bench.broker(1)
    bench.call(ElectLeadersRequest(partitions=None, unclean=False))
    assert bench.summary() == (1, 3, (1, 2, 3))
    assert bench.state().asleep == POINT


# ---------------------------------------------------------------- born asleep


def test_a_topic_is_born_asleep_with_its_preferred_leaders() -> None:
    bench = born_asleep()
    states = list(bench.image.partitions())
    assert [state.asleep for state in states] == [NEVER_WRITTEN, NEVER_WRITTEN]
    assert [state.leader for state in states] == [1, 2]
    assert [state.leader_epoch for state in states] == [0, 0]
    assert [record for record in bench.log if isinstance(record, PartitionsBornAsleep)] == [
        PartitionsBornAsleep(topic="flights", first=0, end=2)
    ], "one record for all of them"


def test_it_is_led_in_the_first_epoch_once_it_was_woken() -> None:
    bench = born_asleep()
    wake(bench, partitions=[0])
    for broker in (3, 2, 1):
        bench.replica(broker)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_it_is_born_under_another_broker_than_one_that_is_offline() -> None:
    bench = three_brokers()
    bench.lose(("broker", 1))
    bench.create(assignment=[[1, 2, 3], [2, 3, 1]], config=SLEEPS)
    assert [state.leader for state in bench.image.partitions()] == [2, 2]
    assert bench.summary() == (2, 1, (1, 2, 3))


def test_partitions_that_are_added_are_born_asleep() -> None:
    bench = born_asleep()
    bench.grow(3, assignment=[[3, 1, 2]])
    state = bench.state(TopicPartition("flights", 2))
    assert (state.leader, state.asleep) == (3, NEVER_WRITTEN)


def test_a_topic_that_never_sleeps_is_born_awake() -> None:
    bench = born_asleep(config=AWAKE)
    assert all(state.asleep is None for state in bench.image.partitions())
    bench = Bench().start(SLEEPS)
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.create(assignment=[[1, 2, 3]], config=AWAKE)
    assert bench.state().asleep is None


# ---------------------------------------------------------------- snapshots


def test_a_snapshot_has_what_sleeps_and_where() -> None:
    bench = born_asleep(assignment=[[1, 2, 3]] * 5)
    wake(bench, partitions=[2])
    bench.create("other", assignment=[[1, 2, 3]])
    rows = [record.to_wire() for record in bench.image.to_records()]
    image = MetadataImage.restore(bench.image.version, map(record_from_wire, rows))
    assert image == bench.image
    assert [state.asleep is None for state in image.topics["flights"].partitions] == [False, False, True, False, False]
    assert sum(row[0] == "PartitionsBornAsleep" for row in rows) == 2


def test_a_controller_that_starts_finds_asleep_what_slept() -> None:
    bench = sleeping_topic(sleeps=True)
    before = bench.state()
    bench.start()
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.wait(2 * GRACE_MS)
    assert bench.state() == before
