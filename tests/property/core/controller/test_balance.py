"""Invariants of every plan of the balancer, for every cluster."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.ids import BrokerId, TopicPartition
from raylog.client.admin.balance import Move, plan_balance

Layout = dict[TopicPartition, tuple[BrokerId, ...]]
Nodes = dict[BrokerId, str]


@st.composite
def clusters(draw: st.DrawFn, *, one_broker_a_node: bool = False, same_factor: bool = False) -> tuple[Layout, Nodes]:
    """Brokers on nodes, and partitions on some of them, in any imbalance."""
    count = draw(st.integers(1, 8))
    brokers = [BrokerId(number) for number in range(1, count + 1)]
    if one_broker_a_node:
        nodes = {broker: f"node-{broker}" for broker in brokers}
    else:
        of_node = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
        nodes = {broker: f"node-{number}" for broker, number in zip(brokers, of_node, strict=True)}
    factor = draw(st.integers(1, min(3, count)))
    layout: Layout = {}
    for number in range(draw(st.integers(0, 25))):
        replicas = factor if same_factor else draw(st.integers(1, min(4, count)))
        row = draw(st.permutations(brokers))[:replicas]
        layout[TopicPartition("t", number)] = tuple(row)
    return layout, nodes


def after(layout: Layout, moves: list[Move]) -> Layout:
    assert all(layout[move.partition] == move.before for move in moves)
    return layout | {move.partition: move.after for move in moves}


def spans(counts: Counter[BrokerId], nodes: Nodes) -> int:
    values = [counts[broker] for broker in nodes]
    return max(values) - min(values)


def held(layout: Layout) -> Counter[BrokerId]:
    return Counter(broker for row in layout.values() for broker in row)


def led(layout: Layout) -> Counter[BrokerId]:
    return Counter(row[0] for row in layout.values())


@settings(deadline=None)
@given(clusters())
def test_a_plan_is_valid_and_a_second_one_is_empty(cluster: tuple[Layout, Nodes]) -> None:
    layout, nodes = cluster
    moves = plan_balance(layout, nodes)
    result = after(layout, moves)
    for partition, row in result.items():
        assert len(row) == len(set(row)) == len(layout[partition]), "no replica is lost or doubled"
        assert set(row) <= set(nodes)
    assert plan_balance(result, nodes) == []


@settings(deadline=None)
@given(clusters())
def test_replicas_are_on_as_many_nodes_as_there_are(cluster: tuple[Layout, Nodes]) -> None:
    layout, nodes = cluster
    for row in after(layout, plan_balance(layout, nodes)).values():
        assert len({nodes[broker] for broker in row}) == min(len(row), len(set(nodes.values())))


@settings(deadline=None)
@given(clusters(one_broker_a_node=True))
def test_replicas_are_even_and_no_more_move_than_must(cluster: tuple[Layout, Nodes]) -> None:
    layout, nodes = cluster
    moves = plan_balance(layout, nodes)
    assert spans(held(after(layout, moves)), nodes) <= 1
    loads = sorted((held(layout)[broker] for broker in nodes), reverse=True)
    share, rest = divmod(sum(loads), len(loads))
    needed = sum(max(0, load - share - (place < rest)) for place, load in enumerate(loads))
    assert sum(move.copies for move in moves) == needed


@settings(deadline=None)
@given(clusters(one_broker_a_node=True, same_factor=True))
def test_leaders_are_even(cluster: tuple[Layout, Nodes]) -> None:
    layout, nodes = cluster
    assert spans(led(after(layout, plan_balance(layout, nodes))), nodes) <= 1


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 4), st.data())
def test_nodes_with_equally_many_brokers_are_even_too(
    node_count: int, per_node: int, factor: int, data: st.DataObject
) -> None:
    brokers = [BrokerId(number) for number in range(node_count * per_node)]
    nodes = {broker: f"node-{broker % node_count}" for broker in brokers}
    factor = min(factor, node_count)
    layout = {
        TopicPartition("t", number): tuple(data.draw(st.permutations(brokers))[:factor])
        for number in range(data.draw(st.integers(0, 15)))
    }
    result = after(layout, plan_balance(layout, nodes))
    assert spans(held(result), nodes) <= 1
    assert spans(led(result), nodes) <= 1
    for row in result.values():
        assert len({nodes[broker] for broker in row}) == factor


@settings(deadline=None)
@given(clusters(), st.integers(1, 8))
def test_brokers_that_are_not_offered_keep_what_they_have_and_get_nothing(
    cluster: tuple[Layout, Nodes], away: int
) -> None:
    layout, nodes = cluster
    offered = {broker: node for broker, node in nodes.items() if broker != away}
    result = after(layout, plan_balance(layout, offered))
    for partition, row in result.items():
        assert (away in row) == (away in layout[partition])
        assert len(set(row)) == len(row) == len(layout[partition])
