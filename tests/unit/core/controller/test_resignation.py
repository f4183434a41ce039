"""A leader that cannot write any more resigns in favour of another member of the ISR, if one runs."""

import pytest

from raylog.base.errors import IneligibleReplica, StaleBrokerEpoch
from raylog.base.ids import BrokerId, LeaderEpoch
from raylog.protocol.controller import ResignLeaderRequest
from tests.unit.core.controller.bench import T0, Bench, running_topic


def resigns(bench: Bench, broker: int, *, leader_epoch: int | None = None, incarnation: int | None = None) -> None:
    state = bench.state()
    bench.call(
        ResignLeaderRequest(
            topic_id=state.topic_id,
            topic=T0.topic,
            partition=T0.partition,
            broker=broker,
            incarnation=bench.lives[T0, broker] if incarnation is None else incarnation,
            leader_epoch=state.leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch),
        ),
        bench.sessions.get((T0, broker), 0),
    )


def test_a_leader_that_resigned_leaves_the_isr_to_the_next_replica() -> None:
    bench = running_topic()
    resigns(bench, 1)
    assert bench.summary() == (2, 2, (2, 3))
    place = bench.state().place(BrokerId(1))
    assert place is not None
    assert place.port, "it runs, and follows"
    assert bench.sessions[T0, 1] in bench.sent_states()
    bench.isr(2, [1, 2, 3])
    assert bench.summary() == (2, 2, (1, 2, 3))


def test_time_does_not_bring_the_leadership_back() -> None:
    bench = running_topic()
    resigns(bench, 1)
    bench.wait(10_000)
    assert bench.summary() == (2, 2, (2, 3))


def test_a_late_copy_changes_nothing() -> None:
    bench = running_topic()
    resigns(bench, 1)
    resigns(bench, 1, leader_epoch=1)
    resigns(bench, 3)
    assert bench.summary() == (2, 2, (2, 3))


def test_the_last_in_sync_replica_that_runs_leads_on() -> None:
    bench = running_topic()
    bench.isr(1, [1])
    with pytest.raises(IneligibleReplica, match="no other in-sync replica"):
        resigns(bench, 1)
    assert bench.summary() == (1, 1, (1,))


def test_only_the_present_life_may_resign() -> None:
    with pytest.raises(StaleBrokerEpoch):
        resigns(running_topic(), 1, incarnation=0)
