"""The laws of the assignors, over generated subscriptions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.client.group.assignors import ASSIGNORS, Assignment, Subscription, assign
from raylog.core.errors import InconsistentGroupProtocol
from raylog.core.ids import TopicPartition

TOPICS = ("a", "b", "c", "d")
MEMBERS = ("m1", "m2", "m3", "m4", "m5")

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), max_size=4)
owned = st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8)), max_size=8).map(tuple)
topics = st.lists(st.sampled_from(TOPICS), max_size=4, unique=True).map(tuple)
names = st.sampled_from(sorted(ASSIGNORS))


def subscription(wanted: st.SearchStrategy[tuple[str, ...]]) -> st.SearchStrategy[Subscription]:
    return st.builds(
        Subscription,
        topics=wanted,
        owned=owned,
        generation=st.integers(-1, 3),
        instance_id=st.none() | st.sampled_from(["i1", "i2"]),
    )


groups = st.dictionaries(st.sampled_from(MEMBERS), subscription(topics), min_size=1, max_size=5)
equal_groups = topics.flatmap(
    lambda wanted: st.dictionaries(st.sampled_from(MEMBERS), subscription(st.just(wanted)), min_size=1, max_size=5)
)


def as_owned(members: dict[str, Subscription], assignment: Assignment, generation: int) -> dict[str, Subscription]:
    return {
        member: Subscription(
            topics=each.topics, owned=tuple(assignment[member]), generation=generation, instance_id=each.instance_id
        )
        for member, each in members.items()
    }


@settings(max_examples=100, deadline=None)
@given(names, groups, counts)
def test_each_partition_of_a_wanted_topic_goes_to_exactly_one_subscriber(
    name: str, members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    assignment = assign(name, members, partition_counts)
    assert set(assignment) == set(members)
    given_out = sorted(partition for partitions in assignment.values() for partition in partitions)
    wanted = {topic for each in members.values() for topic in each.topics}
    assert given_out == sorted(
        TopicPartition(topic, number) for topic in wanted for number in range(partition_counts.get(topic, 0))
    )
    for member, partitions in assignment.items():
        assert {partition.topic for partition in partitions} <= set(members[member].topics)


@settings(max_examples=50, deadline=None)
@given(names, groups, counts, st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    name: str, members: dict[str, Subscription], partition_counts: dict[str, int], chance: object
) -> None:
    mixed = dict(reversed(list(members.items())))
    assert assign(name, mixed, dict(reversed(list(partition_counts.items())))) == assign(
        name, members, partition_counts
    )


@settings(max_examples=50, deadline=None)
@given(groups, counts)
def test_range_is_balanced_by_topic_and_gives_neighbouring_partitions(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    assignment = assign("range", members, partition_counts)
    for topic in TOPICS:
        shares = [
            [partition.partition for partition in assignment[member] if partition.topic == topic]
            for member, each in members.items()
            if topic in each.topics
        ]
        for share in shares:
            assert share == list(range(share[0], share[0] + len(share))) if share else True
        sizes = [len(share) for share in shares]
        assert not sizes or max(sizes) - min(sizes) <= 1


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(["roundrobin", "sticky"]), equal_groups, counts)
def test_with_equal_subscriptions_all_loads_are_within_one(
    name: str, members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    loads = [len(partitions) for partitions in assign(name, members, partition_counts).values()]
    assert max(loads) - min(loads) <= 1


@settings(max_examples=100, deadline=None)
@given(groups, counts)
def test_sticky_leaves_no_move_that_would_even_two_loads_out(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    assignment = assign("sticky", members, partition_counts)
    for partitions in assignment.values():
        for partition in partitions:
            for other, each in members.items():
                if partition.topic in each.topics:
                    assert len(partitions) <= len(assignment[other]) + 1


@settings(max_examples=100, deadline=None)
@given(groups, counts)
def test_sticky_changes_nothing_when_nothing_changed(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    first = assign("sticky", members, partition_counts)
    assert assign("sticky", as_owned(members, first, 4), partition_counts) == first


@settings(max_examples=100, deadline=None)
@given(equal_groups, counts)
def test_sticky_keeps_an_owners_partitions_up_to_the_fair_share(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    first = assign("sticky", members, partition_counts)
    total = sum(len(partitions) for partitions in first.values())
    stayed = dict(list(as_owned(members, first, 4).items())[1:])
    newcomer = Subscription(topics=next(iter(members.values())).topics)
    for after in ({**stayed, "new": newcomer}, stayed):
        if not after:
            continue
        second = assign("sticky", after, partition_counts)
        share = total // len(after)
        for member in stayed:
            assert len(set(first[member]) & set(second[member])) >= min(len(first[member]), share)


def test_sticky_believes_the_newest_generation_and_on_a_tie_none() -> None:
    one, two = TopicPartition("a", 0), TopicPartition("a", 1)
    members = {
        "m1": Subscription(topics=("a",), owned=(one, two), generation=3),
        "m2": Subscription(topics=("a",), owned=(one,), generation=4),
    }
    assert assign("sticky", members, {"a": 2}) == {"m1": [two], "m2": [one]}
    tied = {
        "m1": Subscription(topics=("a",), owned=(two,), generation=4),
        "m2": Subscription(topics=("a",), owned=(two,), generation=4),
    }
    assert assign("sticky", tied, {"a": 2}) == {"m1": [one], "m2": [two]}


def test_a_static_member_keeps_its_share_when_its_member_id_changes() -> None:
    before = {name: Subscription(topics=("a",), instance_id=instance) for name, instance in (("x", "i1"), ("y", "i2"))}
    after = {name: Subscription(topics=("a",), instance_id=instance) for name, instance in (("z", "i1"), ("y", "i2"))}
    for name in ("range", "roundrobin"):
        first, second = assign(name, before, {"a": 3}), assign(name, after, {"a": 3})
        assert (first["x"], first["y"]) == (second["z"], second["y"])


def test_an_unknown_assignor_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InconsistentGroupProtocol, match="did you mean 'sticky'"):
        assign("stiky", {}, {})
