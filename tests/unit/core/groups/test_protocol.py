"""Round trip of the members' embedded protocol through wire lists."""

import pytest

from raylog.client.group.assignors import Subscription
from raylog.client.group.embedded_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from raylog.core.ids import TopicPartition


def test_a_subscription_comes_back_as_it_went_in() -> None:
    owned = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))
    subscription = Subscription(topics=("a", "b"), owned=owned, generation=7, instance_id="one")
    wire = encode_subscription(subscription, b"user")
    assert wire == [1, ["a", "b"], [["a", [0, 2]], ["b", [1]]], 7, b"user"]
    assert decode_subscription(wire, instance_id="one") == subscription


def test_an_assignment_comes_back_as_it_went_in() -> None:
    partitions = (TopicPartition("a", 0), TopicPartition("b", 1))
    wire = encode_assignment(reversed(partitions))
    assert wire == [1, [["a", [0]], ["b", [1]]], b""]
    assert decode_assignment(wire) == partitions


def test_no_assignment_is_no_partitions() -> None:
    assert decode_assignment([]) == ()


def test_fields_of_a_later_version_are_ignored() -> None:
    assert decode_subscription([2, ["a"], [], -1, b"", "rack"]) == Subscription(topics=("a",))
    assert decode_assignment([2, [["a", [1]]], b"", "more"]) == (TopicPartition("a", 1),)


@pytest.mark.parametrize("wire", [[1, "a", [], 0, b""], [1, ["a"], [["a", ["0"]]], 0, b""], [1, ["a"], [], "0", b""]])
def test_what_is_no_subscription_is_refused(wire: list[object]) -> None:
    with pytest.raises(TypeError):
        decode_subscription(wire)
