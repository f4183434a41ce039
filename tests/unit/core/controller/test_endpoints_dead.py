"""Replicas that cannot return after the controller's restart are fenced early, if others can serve without them."""

from raylog.base.ids import BrokerId
from raylog.core.controller.events import EndpointsDead
from tests.unit.core.controller.bench import GRACE_MS, Bench, running_topic


def report_dead(bench: Bench, *brokers: int) -> None:
    endpoints = frozenset(("host", 10_000 + broker) for broker in brokers)
    bench.step(EndpointsDead(cause="test", now_ms=bench.now, endpoints=endpoints))


def test_a_dead_leader_is_replaced_before_the_grace_period_ends() -> None:
    bench = running_topic().start()
    assert bench.machine.awaited() == {("host", 10_000 + broker): broker for broker in (1, 2, 3)}
    bench.back(2)
    bench.back(3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    report_dead(bench, 1)
    assert bench.summary() == (2, 2, (2, 3))
    assert bench.machine.awaited() == {}
    bench.replica(1)
    assert bench.summary() == (2, 2, (2, 3))


def test_no_replica_is_fenced_early_while_another_isr_member_is_awaited() -> None:
    bench = running_topic().start()
    bench.back(2)
    report_dead(bench, 1)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_the_isr_is_kept_while_a_whole_cluster_starts() -> None:
    bench = running_topic().start()
    report_dead(bench, 1, 2, 3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.replica(2)
    report_dead(bench, 1, 3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.wait(GRACE_MS)
    assert bench.summary() == (2, 2, (2,))


def test_a_registered_replica_is_not_fenced_by_its_endpoint() -> None:
    bench = running_topic().start()
    for broker in (1, 2, 3):
        bench.back(broker)
    report_dead(bench, 1, 2, 3)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.wait(GRACE_MS)
    assert bench.machine.awaited() is None
    report_dead(bench, 1)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_an_incarnation_fenced_early_returns_as_after_a_broken_connection() -> None:
    bench = running_topic().start()
    bench.back(2)
    bench.back(3)
    report_dead(bench, 1)
    bench.back(1)
    assert bench.summary() == (2, 2, (2, 3))
    place = bench.state().place(BrokerId(1))
    assert place is not None
    assert place.port == 10_001
