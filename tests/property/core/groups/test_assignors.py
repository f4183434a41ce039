"""The laws of the assignors, over generated subscriptions."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.broadcast_assignor import BroadcastAssignor
from raylog.base.errors import AssignorFailed, InconsistentGroupProtocol, InvalidConfig
from raylog.base.ids import TopicPartition
from raylog.client.assignor import Assignment, PartitionAssignor, RebalanceProtocol, Subscription
from raylog.client.group.assignors import ASSIGNORS, RangeAssignor, rebalance_protocol_of, strategies_of
from raylog.client.group.assignors import assign as assign_by

TOPICS = ("a", "b", "c", "d")
MEMBERS = ("m1", "m2", "m3", "m4", "m5")

counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), max_size=4)
owned = st.lists(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8)), max_size=8).map(tuple)
topics = st.lists(st.sampled_from(TOPICS), max_size=4, unique=True).map(tuple)
EVERYTHING_AT_ONCE = ("range", "roundrobin", "sticky")
names = st.sampled_from(EVERYTHING_AT_ONCE)
BUILT_IN = strategies_of(tuple(ASSIGNORS))


def assign(name: str, members: dict[str, Subscription], partition_counts: dict[str, int]) -> Assignment:
    return assign_by(BUILT_IN, name, members, partition_counts)


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
@given(st.sampled_from(sorted(ASSIGNORS)), groups, counts, st.randoms(use_true_random=False))
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


# Cooperative: the sticky target in two rounds


def rounds(
    members: dict[str, Subscription], partition_counts: dict[str, int], first: int
) -> tuple[Assignment, Assignment]:
    """One round, and the next: each member has given back what the first took from it, and claims what it got."""
    one = assign("cooperative-sticky", members, partition_counts)
    return one, assign("cooperative-sticky", as_owned(members, one, first), partition_counts)


@settings(max_examples=150, deadline=None)
@given(groups, counts)
def test_cooperative_gives_no_partition_away_that_another_member_owns(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    target = assign("sticky", members, partition_counts)
    assignment = assign("cooperative-sticky", members, partition_counts)
    for member, partitions in assignment.items():
        assert set(partitions) <= set(target[member])
        for partition in partitions:
            owners = [other for other, each in members.items() if partition in each.owned]
            assert not owners or member in owners
        withheld = set(target[member]) - set(partitions)
        assert all(
            any(partition in each.owned for other, each in members.items() if other != member) for partition in withheld
        ), "what has no owner is given out at once"


@settings(max_examples=150, deadline=None)
@given(groups, counts)
def test_cooperative_reaches_a_whole_assignment_in_two_rounds(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    one, two = rounds(members, partition_counts, 4)
    given_out = sorted(partition for partitions in two.values() for partition in partitions)
    wanted = {topic for each in members.values() for topic in each.topics}
    assert given_out == sorted(
        TopicPartition(topic, number) for topic in wanted for number in range(partition_counts.get(topic, 0))
    )
    for member, partitions in one.items():
        assert set(partitions) <= set(two[member]), "what a member was left with stays"
    assert assign("cooperative-sticky", as_owned(members, two, 5), partition_counts) == two


@settings(max_examples=150, deadline=None)
@given(equal_groups, counts)
def test_cooperative_moves_only_what_balance_needs(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    """With equal subscriptions as few partitions change their owner as any assignment within one allows."""
    _, before = rounds(members, partition_counts, 1)
    held = as_owned(members, before, 2)
    newcomer = Subscription(topics=next(iter(members.values())).topics)
    total = sum(len(partitions) for partitions in before.values())
    for after in ({**held, "new": newcomer}, dict(list(held.items())[1:])):
        if not after:
            continue
        one, _ = rounds(after, partition_counts, 2)
        moved = sum(len(set(before[member]) - set(one[member])) for member in after if member in before)
        assert moved == fewest_moves([len(each.owned) for each in after.values()], total)


def fewest_moves(loads: list[int], total: int) -> int:
    """How many partitions at least must leave members with these loads, for all loads to be within one.

    The dumb twin: the fullest members keep the larger shares.
    """
    share, larger = divmod(total, len(loads))
    shares = sorted([share + 1] * larger + [share] * (len(loads) - larger), reverse=True)
    return sum(max(0, load - kept) for load, kept in zip(sorted(loads, reverse=True), shares, strict=True))


@settings(max_examples=100, deadline=None)
@given(equal_groups, counts)
def test_sticky_moves_as_little_when_a_member_comes_or_goes(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    before = assign("sticky", members, partition_counts)
    held = as_owned(members, before, 2)
    total = sum(len(partitions) for partitions in before.values())
    newcomer = Subscription(topics=next(iter(members.values())).topics)
    for after in ({**held, "new": newcomer}, dict(list(held.items())[1:])):
        if after:
            now = assign("sticky", after, partition_counts)
            moved = sum(len(set(before[member]) - set(now[member])) for member in after if member in before)
            assert moved == fewest_moves([len(each.owned) for each in after.values()], total)


def test_what_a_member_of_sticky_had_comes_with_its_user_data() -> None:
    one, two = TopicPartition("a", 0), TopicPartition("a", 1)
    sticky = ASSIGNORS["sticky"]()
    members = {
        "m1": Subscription(topics=("a",), user_data=sticky.user_data(["a"], [two], 3)),
        "m2": Subscription(topics=("a",), user_data=sticky.user_data(["a"], [one], 3)),
        "m3": Subscription(topics=("a",), user_data=b"not of this assignor"),
    }
    assert assign("sticky", members, {"a": 2}) == {"m1": [two], "m2": [one], "m3": []}


# The choice of assignors, and what they may return


@pytest.mark.parametrize(
    ("choice", "protocol"),
    [
        (("cooperative-sticky",), RebalanceProtocol.COOPERATIVE),
        (("cooperative-sticky", "range"), RebalanceProtocol.EAGER),
        (("range", "cooperative-sticky"), RebalanceProtocol.EAGER),
        ("sticky, roundrobin", RebalanceProtocol.EAGER),
    ],
)
def test_a_member_is_cooperative_when_all_its_assignors_are(choice: object, protocol: RebalanceProtocol) -> None:
    assert rebalance_protocol_of(strategies_of(choice)) is protocol


class Wilful(PartitionAssignor):
    """Returns what it is made with."""

    name = "wilful"
    rebalance_protocols = (RebalanceProtocol.COOPERATIVE,)

    def __init__(self, result: object = None) -> None:
        self.result = result

    def assign(self, subscriptions: object, partition_counts: object) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ("stiky", "did you mean 'sticky'"),
        ((), "at least one"),
        (("range", "range"), "each name once"),
        (int, "subclasses of raylog.PartitionAssignor"),
        ("no.such.module.Class", "cannot be imported"),
        (type("Nameless", (Wilful,), {"name": ""}), "has no name"),
        (type("Broken", (Wilful,), {"__init__": lambda self: 1 / 0}), "cannot be made"),
    ],
)
def test_what_is_no_assignor_is_refused_when_the_consumer_is_made(choice: object, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        strategies_of(choice)


def test_assignors_without_a_common_protocol_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="no rebalance protocol in common"):
        rebalance_protocol_of(strategies_of((Wilful, "range")))


def test_an_assignor_may_be_a_class_an_object_or_a_dotted_name() -> None:
    made = Wilful({})
    found = strategies_of((made, RangeAssignor, "raylog.client.group.sticky.StickyAssignor"))
    assert found[0] is made
    assert [each.name for each in found] == ["wilful", "range", "sticky"]


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (ZeroDivisionError("no"), "raised .ZeroDivisionError: no"),
        (None, "raised"),
        ({"m1": [("a",)]}, "raised"),
        ({"m9": [("a", 0)]}, "'m9', which is no member"),
        ({"m1": [("b", 0)]}, "gave b-0 to 'm1', which does not subscribe"),
        ({"m1": [("a", 2)]}, "gave a-2 to 'm1', and there is no such partition"),
        ({"m1": [("a", 0)]}, "gave a-0 to 'm1' while 'm2' still owns it"),
    ],
)
def test_what_no_group_can_use_is_refused_with_the_assignors_name(result: object, complaint: str) -> None:
    members = {
        "m1": Subscription(topics=("a",)),
        "m2": Subscription(topics=("a", "b"), owned=(TopicPartition("a", 0),)),
    }
    with pytest.raises(AssignorFailed, match=complaint) as failed:
        assign_by([Wilful(result)], "wilful", members, {"a": 2, "b": 1}, is_cooperative=True)
    assert failed.value.details["assignor"] == "wilful"


def test_members_may_get_nothing_and_a_partition_may_go_to_several() -> None:
    members = {name: Subscription(topics=("a",)) for name in ("m1", "m2", "m3")}
    given_out = assign_by([Wilful({"m1": [("a", 0)], "m2": [("a", 0)]})], "wilful", members, {"a": 1})
    assert given_out == {"m1": [("a", 0)], "m2": [("a", 0)], "m3": []}


def test_an_unknown_assignor_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InconsistentGroupProtocol, match="did you mean 'sticky'"):
        assign("stiky", {}, {})


@settings(max_examples=50, deadline=None)
@given(groups, counts)
def test_broadcast_gives_each_member_all_that_it_wants(
    members: dict[str, Subscription], partition_counts: dict[str, int]
) -> None:
    given_out = assign_by([BroadcastAssignor()], "broadcast", members, partition_counts)
    for member, each in members.items():
        assert sorted(given_out[member]) == sorted(
            TopicPartition(topic, number) for topic in each.topics for number in range(partition_counts.get(topic, 0))
        )
