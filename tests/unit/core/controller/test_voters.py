"""Choice of the brokers that keep the metadata log."""

from itertools import product

from raylog.base.ids import BrokerId
from raylog.core.controller.voters import target_voters


def target(current: list[int], able: list[int], given_up: tuple[int, ...] = (), most: int = 3) -> list[int]:
    nodes = {BrokerId(broker): f"node {broker}" for broker in able}
    found = target_voters([BrokerId(item) for item in current], nodes, {BrokerId(item) for item in given_up}, most)
    return [int(entry) for entry in found]


def test_the_voters_are_as_many_as_brokers_allow_and_odd() -> None:
    assert target([1], [1]) == [1]
    assert target([1], [1, 2]) == [1]
    assert target([1], [1, 2, 3]) == [1, 2, 3]
    assert target([1], [1, 2, 3, 4, 5], most=5) == [1, 2, 3, 4, 5]
    assert target([1, 2, 3], [1, 2, 3, 4, 5], most=3) == [1, 2, 3]
    assert target([1, 2, 3], [1, 2, 3], most=1) == [1]


def test_a_voter_is_replaced_only_when_given_up_and_a_broker_is_free() -> None:
    assert target([1, 2, 3], [1, 2, 4]) == [1, 2, 3]
    assert target([1, 2, 3], [1, 2, 4], (3,)) == [1, 2, 4]
    assert target([1, 2, 3], [1, 2], (3,)) == [1, 2, 3], "two would tolerate no more"


def test_a_change_that_was_interrupted_is_finished_or_taken_back() -> None:
    assert target([1, 2], [1, 2, 3]) == [1, 2, 3]
    assert target([1, 2], [1, 2]) == [1]
    assert target([1, 2, 3, 4], [1, 2, 4]) == [1, 2, 4]


def test_new_nodes_come_first() -> None:
    nodes = {BrokerId(1): "a", BrokerId(2): "a", BrokerId(3): "b", BrokerId(4): "c"}
    assert target_voters([BrokerId(1)], nodes, set(), 3) == (1, 3, 4)


def test_the_number_is_odd_and_no_running_voter_is_replaced() -> None:
    for size, most in product(range(1, 6), (1, 3, 5)):
        for bits in product((0, 1), repeat=5):
            able = [broker for broker, bit in enumerate(bits, 1) if bit]
            current = list(range(1, size + 1))
            found = target(current, able, (), most)
            assert len(found) % 2 == 1
            if len(found) >= len(current):
                assert set(current) <= set(found)
