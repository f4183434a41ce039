"""Plans of the balancer for typical clusters."""

from raylog.base.ids import BrokerId, TopicPartition
from raylog.client.admin.balance import plan_balance


def layout(*rows: list[int]) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    return {TopicPartition("t", number): tuple(BrokerId(broker) for broker in row) for number, row in enumerate(rows)}


def nodes(*names: str) -> dict[BrokerId, str]:
    return {BrokerId(number): name for number, name in enumerate(names, start=1)}


def test_a_new_broker_gets_its_share_and_no_more() -> None:
    moves = plan_balance(layout(*[[1, 2, 3], [2, 3, 1], [3, 1, 2]] * 4), nodes("a", "b", "c", "d"))
    assert sum(move.copies for move in moves) == 9, "a quarter of 36 replicas"
    assert all(set(move.after) - set(move.before) <= {4} for move in moves)


def test_leaders_move_by_order_alone() -> None:
    moves = plan_balance(layout([1, 2], [1, 2], [1, 2], [1, 2]), nodes("a", "b"))
    assert len(moves) == 2
    assert {(move.after, move.copies) for move in moves} == {((2, 1), 0)}


def test_leaders_move_along_chains() -> None:
    # Broker 1 shares partitions with 2 alone, and 2 with 3: 2 passes one on to 3 and takes one from 1.
    moves = plan_balance(layout([1, 2], [1, 2], [1, 2], [2, 3], [2, 3], [3, 1]), nodes("a", "b", "c"))
    after = {move.partition: move.after for move in moves}
    firsts = [
        after.get(partition, row)[0]
        for partition, row in layout([1, 2], [1, 2], [1, 2], [2, 3], [2, 3], [3, 1]).items()
    ]
    assert sorted(firsts) == [1, 1, 2, 2, 3, 3]


def test_two_replicas_on_one_node_part() -> None:
    [move] = plan_balance(layout([1, 2]), nodes("a", "a", "b"))
    assert move.copies == 1
    assert 3 in move.after


def test_small_partitions_move_first_and_the_plan_says_how_much() -> None:
    sizes = {TopicPartition("t", 0): 900, TopicPartition("t", 1): 10, TopicPartition("t", 2): 500}
    [move] = plan_balance(layout([1], [1], [1]), nodes("a", "b"), sizes)
    assert move.partition == TopicPartition("t", 1)
    assert move.size_bytes == 10


def test_a_balanced_cluster_and_one_without_brokers_have_no_plan() -> None:
    assert plan_balance(layout([1, 2], [2, 1]), nodes("a", "b")) == []
    assert plan_balance(layout([1, 2]), {}) == []
