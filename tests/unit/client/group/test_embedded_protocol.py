"""The bytes that members exchange are Kafka's.

The golden bytes were recorded from kafka-python 3.0.12 (`kafka.protocol.consumer.metadata`) and, for the user data of
`sticky`, from aiokafka 0.14.0, both under the Apache licence 2.0.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.base.ids import TopicPartition
from raylog.client.assignor import Subscription
from raylog.client.group.embedded_protocol import (
    decode_assignment,
    decode_previous,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_previous,
    encode_subscription,
)

OWNED = (TopicPartition("flights", 0), TopicPartition("flights", 2), TopicPartition("trips", 1))
TOPICS_BYTES = "000000020007666c69676874730005747269707300000002 0102"
OWNED_BYTES = "000000020007666c69676874730000000200000000000000020005747269707300000001 00000001"
GOLDEN = {
    0: f"0000 {TOPICS_BYTES}",
    1: f"0001 {TOPICS_BYTES} {OWNED_BYTES}",
    2: f"0002 {TOPICS_BYTES} {OWNED_BYTES} 00000007",
    3: f"0003 {TOPICS_BYTES} {OWNED_BYTES} 00000007 00027231",
}
ASSIGNMENT = "000000020007666c6967687473000000020000000000000001000574726970730000000100000003 0000000178"
ASSIGNED = (TopicPartition("flights", 0), TopicPartition("flights", 1), TopicPartition("trips", 3))
PREVIOUS = "000000020007666c6967687473000000020000000000000001000574726970730000000100000002 00000005"


def full(version: int) -> Subscription:
    return Subscription(
        topics=("flights", "trips"),
        owned=OWNED if version >= 1 else (),
        generation=7 if version >= 2 else -1,
        user_data=b"\x01\x02",
        rack_id="r1" if version >= 3 else None,
    )


@pytest.mark.parametrize("version", GOLDEN)
def test_a_subscription_of_another_implementation_is_read_in_each_version(version: int) -> None:
    assert decode_subscription(bytes.fromhex(GOLDEN[version])) == full(version)


def test_a_subscription_is_written_as_another_implementation_writes_it() -> None:
    assert encode_subscription(full(3)) == bytes.fromhex(GOLDEN[3])
    smallest = bytes.fromhex("0003 000000010007666c6967687473 ffffffff 00000000 ffffffff ffff")
    assert decode_subscription(smallest) == Subscription(topics=("flights",))


def test_an_assignment_is_written_and_read_as_by_another_implementation() -> None:
    assert encode_assignment(reversed(ASSIGNED), b"x") == bytes.fromhex(f"0003 {ASSIGNMENT}")
    for version in ("0000", "0003", "0011"):  # fields of a later version are ignored
        assert decode_assignment(bytes.fromhex(f"{version} {ASSIGNMENT}")) == ASSIGNED
    assert decode_assignment(bytes.fromhex("0000 00000000 ffffffff")) == ()
    assert decode_assignment(b"") == ()


def test_the_user_data_of_sticky_is_that_of_another_implementation() -> None:
    previous = (TopicPartition("flights", 0), TopicPartition("flights", 1), TopicPartition("trips", 2))
    assert encode_previous(previous, 5) == bytes.fromhex(PREVIOUS)
    assert decode_previous(bytes.fromhex(PREVIOUS)) == (previous, 5)
    assert decode_previous(bytes.fromhex(PREVIOUS)[:-4]) == (previous, -1)
    assert encode_generation(5) == bytes.fromhex("00000005")


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
partitions = st.lists(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=6, unique=True)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(names, max_size=4).map(tuple),
    owned=partitions.map(lambda found: tuple(sorted(found))),
    generation=st.integers(-1, 2**31 - 1),
    instance_id=st.none() | names,
    user_data=st.binary(max_size=9),
    rack_id=st.none() | names,
)


@given(subscriptions, st.integers(3, 2**15 - 1), st.binary(max_size=5))
def test_a_subscription_comes_back_and_later_fields_are_ignored(
    subscription: Subscription, version: int, more: bytes
) -> None:
    data = version.to_bytes(2, "big") + encode_subscription(subscription)[2:] + more
    assert decode_subscription(data, subscription.instance_id) == subscription


@given(partitions)
def test_an_assignment_comes_back_as_it_went_in(given_out: list[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(given_out)) == tuple(sorted(given_out))


@given(st.binary(max_size=40) | st.builds(lambda head, tail: head + tail, st.just(b"\0\3\0\0\0\1"), st.binary()))
def test_bytes_that_are_none_of_it_are_one_kind_of_error(data: bytes) -> None:
    for read in (decode_subscription, decode_assignment, decode_previous):
        try:
            read(data)
        except ValueError:
            pass  # what a leader takes for a member of another kind


@pytest.mark.parametrize("length", range(1, len(bytes.fromhex(GOLDEN[3]))))
def test_a_subscription_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(ValueError):
        decode_subscription(bytes.fromhex(GOLDEN[3])[:length])
