"""Coordinators that end while their groups are not used, and start with the next use, and their partition with them."""

import pytest

from raylog.base.errors import InvalidRequest, StaleBrokerEpoch
from raylog.base.ids import TopicPartition
from raylog.core.controller.events import (
    EndCoordinator,
    RequestSleep,
    RestRequested,
    StartCoordinator,
)
from raylog.protocol.admin import AlterTopicConfigRequest
from raylog.protocol.controller import SleepCoordinatorRequest
from tests.unit.core.controller.bench import Bench
from tests.unit.core.controller.sleep_bench import SLEEPS

OFFSETS = TopicPartition("__consumer_offsets", 0)


def served() -> Bench:
    """Three brokers, and a coordinator that is registered."""
    bench = Bench().start(SLEEPS)
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.ensure()
    bench.coordinator()
    return bench


def propose(bench: Bench, *, session: int | None = None, epoch: int = 0) -> list[object]:
    return bench.call(
        SleepCoordinatorRequest(kind="group", index=0, epoch=epoch),
        bench.sessions["group", 0] if session is None else session,
    )


def kinds(bench: Bench) -> list[type]:
    return [type(found) for found in bench.effects if isinstance(found, (StartCoordinator, EndCoordinator))]


def test_a_coordinator_that_proposes_to_end_has_no_endpoint_and_is_ended() -> None:
    bench = served()
    assert propose(bench) == []
    assert kinds(bench) == [EndCoordinator]
    assert bench.image.coordinators["group", 0].port == 0
    bench.lose(("group", 0))
    assert bench.image.coordinators["group", 0].port == 0


def test_the_next_use_starts_it_at_once_in_the_next_epoch() -> None:
    bench = served()
    propose(bench)
    bench.ensure()
    assert kinds(bench) == [StartCoordinator]
    assert bench.coordinator()[0] == 1


def test_the_session_of_a_former_life_ends_nothing_of_the_next_one() -> None:
    bench = served()
    former = bench.sessions["group", 0]
    propose(bench)
    bench.ensure()
    bench.coordinator()
    bench.sessions["former"] = former
    bench.lose("former")
    assert bench.image.coordinators["group", 0].port == 20_000


def test_only_the_registered_life_may_end() -> None:
    bench = served()
    with pytest.raises(StaleBrokerEpoch):
        propose(bench, epoch=7)
    with pytest.raises(StaleBrokerEpoch):
        propose(bench, session=bench.sessions["broker", 1])
    assert bench.image.coordinators["group", 0].port == 20_000


def test_a_coordinator_stays_where_its_partitions_do_not_sleep() -> None:
    bench = served()
    stay = {"replica.sleep.after.ms": "-1"}
    bench.call(AlterTopicConfigRequest(topic="__consumer_offsets", set=stay, delete=()))
    with pytest.raises(InvalidRequest, match="do not sleep"):
        propose(bench)
    assert bench.image.coordinators["group", 0].port == 20_000


def test_its_partition_wakes_at_the_same_time() -> None:
    bench = Bench().start(SLEEPS)
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.ensure()
    state = bench.image.partition(OFFSETS)
    assert state is not None
    assert state.asleep is None
    assert kinds(bench) == [StartCoordinator]


def test_its_partition_sleeps_on_where_brokers_have_no_room() -> None:
    bench = Bench().start({**SLEEPS, "replica.awake.max": "0"})
    bench.broker(1)
    bench.ensure()
    state = bench.image.partition(OFFSETS)
    assert state is not None
    assert state.asleep is not None
    assert kinds(bench) == [StartCoordinator], "its first append says why it cannot be written to"


def test_a_cluster_that_stops_has_its_coordinators_propose_to_end() -> None:
    bench = served()
    effects = bench.step(RestRequested(cause="test", now_ms=bench.now))
    assert [found.session for found in effects if isinstance(found, RequestSleep)] == [bench.sessions["group", 0]]
