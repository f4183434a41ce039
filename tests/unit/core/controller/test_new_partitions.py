"""New partitions: the replicas awaited before an election, and before writes are accepted."""

from tests.unit.core.controller.bench import WAIT_MS, new_topic


def test_a_new_partition_has_no_leader_and_all_replicas_in_its_isr() -> None:
    assert new_topic().summary() == (-1, 0, (1, 2, 3))


def test_the_preferred_replica_leads_as_soon_as_it_registers() -> None:
    bench = new_topic()
    bench.replica(2)
    assert bench.summary() == (-1, 0, (1, 2, 3))
    bench.replica(1)
    assert bench.summary()[:2] == (1, 1)


def test_a_new_partition_serves_with_a_majority_before_its_last_replica() -> None:
    bench = new_topic()
    bench.replica(1)
    assert bench.summary() == (1, 1, (1, 2, 3)), "writes wait for a majority"
    bench.replica(3)
    assert bench.summary() == (1, 1, (1, 3)), "and then for no other replica"
    assert bench.state().elr == (), "a replica that has never run has no records to lead with"
    bench.replica(2)
    assert bench.summary() == (1, 1, (1, 3)), "it has to fetch first"
    bench.isr(1, [1, 2, 3])
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_new_partition_waits_for_a_majority_with_any_lower_minimum() -> None:
    bench = new_topic(min_insync=1)
    bench.replica(1)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_new_partition_waits_for_min_insync_replicas() -> None:
    bench = new_topic(min_insync=3)
    bench.replica(1)
    bench.replica(2)
    assert bench.summary() == (1, 1, (1, 2, 3))


def test_a_member_that_left_keeps_a_new_partition_waiting_for_another() -> None:
    bench = new_topic()
    bench.replica(2)
    bench.lose_replica(2)
    bench.replica(1)
    assert bench.summary() == (1, 1, (1, 3))
    bench.replica(3)
    assert bench.summary() == (1, 1, (1, 3))


def test_the_next_controller_goes_on_without_a_replica_that_has_never_run() -> None:
    bench = new_topic()
    bench.replica(1)
    bench.start()
    bench.back(1)
    assert bench.summary() == (1, 1, (1, 2, 3))
    bench.replica(2)
    assert bench.summary() == (1, 1, (1, 2))


def test_the_next_controller_does_not_await_a_replica_that_has_ended() -> None:
    bench = new_topic()
    bench.replica(2)
    bench.lose_replica(2)
    bench.start()
    bench.replica(1)
    assert bench.summary() == (1, 1, (1, 3))


def test_another_isr_member_leads_when_the_preferred_one_is_late() -> None:
    bench = new_topic()
    bench.replica(3)
    bench.wait(WAIT_MS - 1)
    assert bench.summary()[0] == -1
    bench.wait(1)
    assert bench.summary() == (3, 1, (3,))


def test_replicas_that_never_came_leave_the_isr_when_the_wait_is_over() -> None:
    bench = new_topic()
    bench.replica(1)
    bench.replica(3)
    bench.wait(WAIT_MS)
    assert bench.summary() == (1, 1, (1, 3))


def test_a_replica_that_comes_after_the_wait_leads_without_a_leader() -> None:
    bench = new_topic()
    bench.wait(WAIT_MS * 2)
    assert bench.summary() == (-1, 0, (1, 2, 3))
    bench.replica(2)
    assert bench.summary() == (2, 1, (2,))


def test_leadership_does_not_go_back_to_the_preferred_replica_by_itself() -> None:
    bench = new_topic()
    bench.replica(2)
    bench.wait(WAIT_MS)
    bench.replica(1)
    bench.isr(2, [1, 2])
    bench.wait(10_000)
    assert bench.summary() == (2, 1, (1, 2))
