"""Replicas that cannot return after the controller's restart are fenced early, if others can serve without them."""

from raylog.core.controller import PlacesGone
from raylog.core.ids import BrokerId
from tests.unit.core.controller.bench import GRACE_MS, Bench, running_topic


def gone(bench: Bench, *brokers: int) -> None:
    endpoints = frozenset(("host", 10_000 + broker) for broker in brokers)
    bench.step(PlacesGone(cause="test", now_ms=bench.now, endpoints=endpoints))


def test_a_leader_that_cannot_come_back_is_replaced_before_the_grace_is_over() -> None:
    bench = running_topic().start()
    assert bench.machine.awaited() == {("host", 10_000 + broker): broker for broker in (1, 2, 3)}
    bench.back(2)
    bench.back(3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    gone(bench, 1)
    assert bench.summary() == (2, 2, (2, 3))
    assert bench.machine.awaited() == {}
    bench.replica(1)
    assert bench.summary() == (2, 2, (2, 3))


def test_nobody_is_given_up_early_while_another_isr_member_may_still_come() -> None:
    bench = running_topic().start()
    bench.back(2)
    gone(bench, 1)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_the_isr_is_kept_while_a_whole_cluster_starts() -> None:
    bench = running_topic().start()
    gone(bench, 1, 2, 3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.replica(2)
    gone(bench, 1, 3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.wait(GRACE_MS)
    assert bench.summary() == (2, 2, (2,))


def test_whoever_has_registered_is_not_given_up_by_its_address() -> None:
    bench = running_topic().start()
    for broker in (1, 2, 3):
        bench.back(broker)
    gone(bench, 1, 2, 3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.wait(GRACE_MS)
    assert bench.machine.awaited() is None
    gone(bench, 1)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_life_that_was_given_up_early_comes_back_as_after_a_broken_connection() -> None:
    bench = running_topic().start()
    bench.back(2)
    bench.back(3)
    gone(bench, 1)
    bench.back(1)
    assert bench.summary() == (2, 2, (2, 3))
    place = bench.state().place(BrokerId(1))
    assert place is not None
    assert place.port == 10_001
