"""Stopping a broker: its leaderships move first, and the broker stays out until it is resumed."""

import pytest

from raylog.base.errors import IneligibleReplica, InvalidReplicationFactor, InvalidRequest, StopRefused
from raylog.base.ids import TopicPartition
from raylog.protocol.admin import ResumeBrokerRequest, StopBrokerRequest
from tests.unit.core.controller.bench import Bench, running_topic, three_brokers


def stop(bench: Bench, broker: int, *, force: bool = False) -> list[object]:
    return bench.call(StopBrokerRequest(broker=broker, force=force))


def resume(bench: Bench, broker: int) -> None:
    bench.call(ResumeBrokerRequest(broker=broker))


def stopped(bench: Bench) -> list[int]:
    described = bench.described()
    rows = described["brokers"]
    assert isinstance(rows, list)
    return [row["broker"] for row in rows if row["stopped"]]


def test_the_leaders_of_a_broker_move_in_the_step_that_stops_it() -> None:
    bench = running_topic()
    assert stop(bench, 1) == [1, [], []]
    assert bench.summary() == (2, 2, (2, 3))
    assert stopped(bench) == [1]
    assert len(bench.image.online_brokers()) == 3, "its processes still run"


def test_a_stopped_broker_does_not_enter_an_isr_while_its_replicas_run() -> None:
    bench = running_topic()
    stop(bench, 1)
    with pytest.raises(IneligibleReplica):
        bench.isr(2, [1, 2, 3])
    bench.lose_replica(1)
    bench.replica(1)
    with pytest.raises(IneligibleReplica):
        bench.isr(2, [1, 2, 3])


def test_a_broker_that_returns_by_itself_stays_stopped_across_controllers() -> None:
    bench = running_topic()
    stop(bench, 1)
    bench.lose_replica(1)
    bench.lose(("broker", 1))
    bench.broker(1)
    assert stopped(bench) == [1]
    bench.start()
    assert stopped(bench) == [1]


def test_a_resumed_broker_comes_into_the_isr_again_and_may_lead() -> None:
    bench = running_topic()
    stop(bench, 1)
    bench.lose_replica(1)
    resume(bench, 1)
    bench.replica(1)
    bench.isr(2, [1, 2, 3])
    assert bench.summary() == (2, 2, (1, 2, 3))
    assert stopped(bench) == []
    resume(bench, 1)


def test_stopping_twice_is_stopping_once() -> None:
    bench = running_topic()
    stop(bench, 1)
    before = bench.image.version
    assert stop(bench, 1) == [0, [], []]
    assert bench.image.version == before


def test_an_unknown_broker_is_refused_with_the_brokers_that_there_are() -> None:
    bench = three_brokers()
    with pytest.raises(InvalidRequest, match="There is no broker 9; the brokers of this cluster are: 1, 2, 3"):
        stop(bench, 9)
    with pytest.raises(InvalidRequest, match="There is no broker 9"):
        resume(bench, 9)


def test_a_broker_with_the_only_copy_stops_by_force_and_leads_again() -> None:
    bench = three_brokers()
    bench.create(assignment=[[1]])
    bench.replica(1)
    with pytest.raises(StopRefused, match=r"no replica could lead flights-0.*--force") as refused:
        stop(bench, 1)
    assert refused.value.details == {"leaderless": ["flights-0"], "below_minimum": []}
    assert bench.summary() == (1, 1, (1,))
    assert stop(bench, 1, force=True) == [1, ["flights-0"], []]
    assert bench.summary() == (-1, 1, (1,))
    resume(bench, 1)
    assert bench.summary() == (1, 2, (1,))


def test_a_broker_that_the_minimum_needs_stops_by_force_alone() -> None:
    bench = running_topic(config={"min.insync.replicas": 3})
    with pytest.raises(StopRefused, match="too few replicas would be in sync for writes with acks=all to flights-0"):
        stop(bench, 2)
    assert stop(bench, 2, force=True) == [0, [], ["flights-0"]]
    assert bench.state().elr == (2,), "it has everything, should it be the last"


def test_the_last_replica_that_runs_counts_as_the_only_copy() -> None:
    bench = running_topic()
    bench.lose_replica(2)
    bench.lose_replica(3)
    with pytest.raises(StopRefused):
        stop(bench, 1)


def test_the_majority_of_the_metadata_is_never_given_up() -> None:
    from raylog.core.controller.events import VotersShown

    bench = three_brokers()
    bench.step(VotersShown(cause="test", now_ms=bench.now, voters={"1": "a", "2": "b", "3": "c"}))
    stop(bench, 3)
    with pytest.raises(StopRefused, match="only 1 of the 3 copies would run"):
        stop(bench, 2, force=True)


def test_a_repeated_stop_is_refused_once_the_majority_needs_the_broker() -> None:
    """The first one was interrupted, so that the broker's processes still run; then another voter was lost."""
    from raylog.core.controller.events import VotersShown

    bench = three_brokers()
    bench.step(VotersShown(cause="test", now_ms=bench.now, voters={"1": "a", "2": "b", "3": "c"}))
    stop(bench, 3)
    assert stop(bench, 3) == [0, [], []]
    bench.lose(("broker", 1))
    with pytest.raises(StopRefused, match="only 1 of the 3 copies would run"):
        stop(bench, 3)


def test_new_topics_do_not_go_to_a_stopped_broker() -> None:
    bench = three_brokers()
    stop(bench, 2)
    bench.create(partitions=4, replication_factor=2)
    assert all(2 not in state.replicas for state in bench.image.partitions())
    with pytest.raises(InvalidReplicationFactor, match="2 brokers"):
        bench.create("other", partitions=1, replication_factor=3)
    assert bench.image.partition(TopicPartition("other", 0)) is None


def test_an_eligible_replica_suffices_when_the_last_isr_member_stops() -> None:
    bench = running_topic(config={"min.insync.replicas": 2})
    bench.isr(1, [1])
    assert bench.state().elr == (2, 3)
    assert stop(bench, 1) == [1, [], []]
    assert bench.summary() == (2, 2, (2,))
