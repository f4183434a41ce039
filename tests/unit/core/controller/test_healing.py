"""Brokers that stay offline: their replicas are rebuilt on others, on virtual time."""

from raylog.base.ids import NO_LEADER, BrokerId, TopicPartition
from tests.unit.core.controller.bench import GRACE_MS, T0, Bench

PATIENCE_MS = 60_000


def cluster(*, brokers: int = 4, patience_ms: int = PATIENCE_MS, nodes: dict[int, str] | None = None) -> Bench:
    """Return a bench whose partition is on 1, 2, 3, led by 1; the further brokers are idle."""
    bench = Bench().start({"auto.heal.after.ms": str(patience_ms)})
    for broker in range(1, brokers + 1):
        bench.broker(broker, node=(nodes or {}).get(broker, ""))
    bench.create(assignment=[[1, 2, 3]])
    for broker in (1, 2, 3):
        bench.replica(broker)
    bench.wait(GRACE_MS + 1_000)
    return bench


def leaves(bench: Bench, broker: int) -> None:
    bench.lose(("broker", broker))
    bench.lose_replica(broker)


def test_a_broker_that_stays_away_is_replaced() -> None:
    bench = cluster()
    leaves(bench, 3)
    bench.wait(PATIENCE_MS - 1_000)
    assert not bench.state().adding, "its time is not over"
    bench.wait(3_000)
    assert (bench.state().replicas, bench.state().removing) == ((1, 2, 4, 3), (3,))
    bench.replica(4)
    bench.isr(1, [1, 2, 4])
    assert bench.state().replicas == bench.state().isr == (1, 2, 4)
    assert (T0, 3) in bench.image.removed_replicas, "a replica that comes back later removes what it has"


def test_a_leader_that_stays_away_is_replaced_in_its_place() -> None:
    bench = cluster()
    leaves(bench, 1)
    bench.wait(PATIENCE_MS + 3_000)
    assert bench.state().target == (4, 2, 3)


def test_a_broker_that_is_back_in_time_keeps_its_place() -> None:
    bench = cluster()
    leaves(bench, 3)
    bench.wait(PATIENCE_MS - 5_000)
    bench.broker(3)
    bench.replica(3)
    bench.wait(2 * PATIENCE_MS)
    assert bench.state().replicas == (1, 2, 3)


def test_a_broker_that_is_back_before_its_replacement_is_complete_ends_it() -> None:
    bench = cluster()
    leaves(bench, 3)
    bench.wait(PATIENCE_MS + 3_000)
    bench.replica(4)
    bench.broker(3)
    bench.wait(2_000)
    assert bench.state().adding == (4,), "a broker without its replica is not enough"
    bench.replica(3)
    bench.wait(2_000)
    assert set(bench.state().replicas) == {1, 2, 3}
    assert not bench.state().removing


def test_a_requested_move_is_not_cancelled() -> None:
    bench = cluster(brokers=5)
    leaves(bench, 3)
    bench.wait(PATIENCE_MS + 3_000)
    bench.reassign([1, 2, 5])
    bench.broker(3)
    bench.replica(3)
    bench.wait(5_000)
    assert bench.state().target == (1, 2, 5)


def test_nothing_happens_without_a_free_broker_or_when_it_is_turned_off() -> None:
    for bench in (cluster(brokers=3), cluster(patience_ms=-1)):
        leaves(bench, 3)
        bench.wait(3 * PATIENCE_MS)
        assert bench.state().replicas == (1, 2, 3)


def test_a_replica_that_runs_without_its_broker_is_left_alone() -> None:
    bench = cluster()
    bench.lose(("broker", 3))
    bench.wait(2 * PATIENCE_MS)
    assert bench.state().replicas == (1, 2, 3)


def test_a_partition_without_a_leader_has_no_source_to_copy_from() -> None:
    bench = cluster()
    for broker in (1, 2, 3):
        leaves(bench, broker)
    assert bench.summary()[0] == NO_LEADER
    bench.wait(2 * PATIENCE_MS)
    assert bench.state().replicas == (1, 2, 3)


def test_another_node_comes_before_a_broker_with_less_work() -> None:
    bench = cluster(brokers=5, nodes={1: "a", 2: "b", 3: "c", 4: "a", 5: "d"})
    bench.create("other", assignment=[[5]])
    leaves(bench, 3)
    bench.wait(PATIENCE_MS + 3_000)
    assert bench.state().target == (1, 2, 5)


def test_the_replacements_are_spread() -> None:
    bench = cluster(brokers=5)
    bench.create("more", assignment=[[1, 3]] * 6)
    more = [TopicPartition("more", number) for number in range(6)]
    for partition in more:
        bench.replica(1, partition)
        bench.replica(3, partition)
    bench.lose(("broker", 3))
    for partition in [T0, *more]:
        bench.lose_replica(3, partition)
    bench.wait(PATIENCE_MS + 3_000)
    heirs = [bench.state(partition).adding[0] for partition in [T0, *more]]
    assert abs(heirs.count(BrokerId(4)) - heirs.count(BrokerId(5))) <= 1


def test_a_new_controller_begins_the_wait_again() -> None:
    bench = cluster()
    leaves(bench, 3)
    bench.wait(PATIENCE_MS - 5_000)
    lives = dict(bench.lives)
    bench.start()
    for broker in (1, 2, 4):
        bench.broker(broker, incarnation=lives["broker", broker])
    for broker in (1, 2):
        bench.replica(broker, incarnation=lives[T0, broker])
    bench.wait(PATIENCE_MS - 5_000)
    assert not bench.state().adding
    bench.wait(GRACE_MS + 10_000)
    assert bench.state().adding == (4,)
