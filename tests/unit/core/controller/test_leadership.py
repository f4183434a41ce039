"""Requested and periodic elections: preferred leaders and unclean elections."""

import pytest

from raylog.base.errors import InvalidRequest, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.protocol.admin import ElectedPartition, ElectLeadersRequest
from tests.unit.core.controller.bench import CHECK_MS, T0, Bench, running_topic, three_brokers


def elect(bench: Bench, *partitions: TopicPartition, unclean: bool = False) -> list[list[object]]:
    named = [ElectedPartition(*partition) for partition in partitions]
    rows = bench.call(ElectLeadersRequest(named or None, unclean))
    return [list(row) for row in rows if isinstance(row, list)]


def strayed() -> Bench:
    """Broker 2 leads, broker 1 is preferred; both are in sync."""
    bench = running_topic()
    bench.lose_replica(1)
    bench.replica(1)
    bench.isr(2, [1, 2, 3])
    assert bench.summary() == (2, 2, (1, 2, 3))
    return bench


def test_the_preferred_replica_leads_by_command_in_a_new_epoch() -> None:
    bench = strayed()
    assert elect(bench, T0) == [["flights", 0, 0, "", 1, 3]]
    assert bench.summary() == (1, 3, (1, 2, 3))
    assert len(bench.sent_states()) == 3, "all replicas receive the state"


def test_an_election_that_is_not_needed_is_reported_so_or_left_out() -> None:
    bench = running_topic()
    [[_, _, code, message, leader, epoch]] = elect(bench, T0)
    assert (code, leader, epoch) == (84, 1, 1)
    assert "already" in str(message)
    assert elect(bench) == []


def test_an_election_for_all_partitions_restores_preferred_leaders() -> None:
    bench = strayed()
    assert elect(bench) == [["flights", 0, 0, "", 1, 3]]


@pytest.mark.parametrize("why", ["does not run", "not in the ISR"])
def test_a_preferred_replica_that_cannot_lead_is_refused_with_the_cause(why: str) -> None:
    bench = running_topic()
    bench.lose_replica(1)
    if why == "not in the ISR":
        bench.replica(1)
    [[_, _, code, message, leader, _]] = elect(bench, T0)
    assert (code, leader) == (80, 2)
    assert why in str(message)
    assert "broker 2 goes on leading" in str(message)


def test_an_unknown_partition_or_topic_is_refused_and_nothing_is_changed() -> None:
    bench = strayed()
    with pytest.raises(UnknownTopicOrPartition, match="its partitions are 0 to 0"):
        elect(bench, T0, TopicPartition("flights", 7))
    with pytest.raises(UnknownTopicOrPartition, match="flights"):
        elect(bench, TopicPartition("flight", 0))
    assert bench.summary()[0] == 2


def test_an_unclean_election_by_command_gives_a_partition_a_leader_once() -> None:
    bench = running_topic()
    bench.isr(1, [1])
    bench.lose_replica(1)
    assert bench.summary() == (-1, 1, (1,))
    assert elect(bench, T0, unclean=True) == [["flights", 0, 0, "", 2, 2]]
    assert bench.state().unclean_leader_epoch == 2
    assert bench.image.topics["flights"].config.get("unclean.leader.election.enable") is None
    [[_, _, code, _, _, _]] = elect(bench, T0, unclean=True)
    assert code == 84, "it has a leader now"


def test_an_unclean_election_needs_a_partition_and_an_online_replica() -> None:
    bench = running_topic()
    for broker in (2, 3, 1):
        bench.lose_replica(broker)
    [[_, _, code, message, _, _]] = elect(bench, T0, unclean=True)
    assert code == 83
    assert "No replica of flights-0 runs" in str(message)
    with pytest.raises(InvalidRequest, match="name the partition"):
        elect(bench, unclean=True)


def test_an_unclean_election_awaits_isr_members_in_the_grace_period() -> None:
    bench = running_topic()
    bench.isr(1, [1])
    bench.lose_replica(1)
    bench.replica(1)
    bench.start()
    bench.replica(2)
    [[_, _, code, _, _, _]] = elect(bench, T0, unclean=True)
    assert code == 84, "its leader is believed to run"


# ---------------------------------------------------------------- periodic


def test_leadership_goes_back_to_the_preferred_replica_at_the_next_look() -> None:
    bench = strayed()
    bench.wait(CHECK_MS + 2_000, tick_ms=1_000)
    assert bench.summary() == (1, 3, (1, 2, 3))


def test_leadership_does_not_go_back_to_a_replica_that_is_out_of_sync() -> None:
    bench = running_topic()
    bench.lose_replica(1)
    bench.replica(1)
    bench.wait(CHECK_MS + 2_000, tick_ms=1_000)
    assert bench.summary() == (2, 2, (2, 3))


def test_a_small_imbalance_is_left_alone() -> None:
    bench = three_brokers()
    bench.create(assignment=[[1, 2]] * 10)
    partitions = [TopicPartition("flights", number) for number in range(10)]
    for partition in partitions:
        bench.replica(1, partition)
        bench.replica(2, partition)
    bench.lose_replica(1, partitions[0])
    bench.replica(1, partitions[0])
    bench.isr(2, [1, 2], partition=partitions[0])
    bench.wait(CHECK_MS + 2_000, tick_ms=1_000)
    assert bench.summary(partitions[0])[0] == 2, "one in ten is no more than ten percent"
    bench.lose_replica(1, partitions[1])
    bench.replica(1, partitions[1])
    bench.isr(2, [1, 2], partition=partitions[1])
    bench.wait(CHECK_MS + 2_000, tick_ms=1_000)
    assert [bench.summary(partition)[0] for partition in partitions] == [1] * 10
