"""Replicas whose log's end was cut at their start: others of the ISR lead where there are any (ADR 0136)."""

from tests.unit.core.controller.bench import GRACE_MS, Bench, running_topic

TWO: dict[str, object] = {"min.insync.replicas": 2}


def restarted_with(*back: int) -> Bench:
    """A controller that has just started, and replicas that have registered again since."""
    bench = running_topic(config=TWO)
    bench.start()
    for broker in back:
        bench.back(broker)
    return bench


def test_a_leader_that_was_cut_yields_to_a_member_that_runs() -> None:
    bench = restarted_with(2)
    bench.replica(1, end_cut=True)
    assert bench.summary() == (2, 2, (2, 3)), "what 1 lacks may be committed; it joins once it has it again"


def test_a_leader_that_was_cut_waits_for_members_that_may_run() -> None:
    bench = restarted_with()
    bench.replica(1, end_cut=True)
    assert bench.summary() == (-1, 1, (2, 3))
    bench.back(3)
    assert bench.summary()[0] == 3


def test_a_leader_that_was_not_cut_leads_again() -> None:
    bench = restarted_with(2)
    bench.replica(1)
    assert bench.summary() == (1, 2, (1, 2, 3))


def test_all_that_were_cut_go_by_what_is_left() -> None:
    bench = restarted_with()
    for broker in (1, 2):
        bench.replica(broker, end_cut=True)
    assert (bench.summary(), bench.state().elr) == ((-1, 1, (3,)), (2,))
    bench.replica(3, end_cut=True)
    assert bench.summary()[0] == 2, "it left an ISR that could commit nothing after that"


def test_a_replica_cut_before_the_isr_was_too_small_stays_eligible() -> None:
    bench = restarted_with()
    for broker in (1, 2):
        bench.replica(broker, end_cut=True)
    bench.wait(GRACE_MS)
    assert bench.summary()[0] == 2, "3 does not come back"


def test_a_replica_known_to_miss_records_is_not_eligible() -> None:
    bench = restarted_with()
    bench.replica(1, end_cut=True)
    bench.replica(2, end_cut=True, unsynced_lost=True)
    assert (bench.summary(), bench.state().elr) == ((-1, 1, (3,)), ())


def test_the_only_member_that_runs_leads_although_it_was_cut() -> None:
    bench = running_topic(config=TWO)
    for broker in (3, 2, 1):
        bench.lose_replica(broker)
    bench.replica(1, end_cut=True)
    assert bench.summary() == (1, 2, (1,))


def test_a_replica_that_registers_again_is_not_cut_twice() -> None:
    bench = restarted_with(2)
    bench.replica(1, end_cut=True)
    bench.isr(2, [1, 2])
    bench.replica(1, end_cut=True, incarnation=bench.lives[bench.state().partition, 1])
    assert bench.state().isr == (1, 2)
