"""The laws of the coordinator's assignors, over generated groups."""

from hypothesis import given
from hypothesis import strategies as st

from raylog.core.groups.assignors import ASSIGNORS, Reader, Targets, assign_uniform
from raylog.core.groups.consumer_records import Place, TopicFacts

TOPICS = ("a", "b", "c")
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9).map(lambda n: n), max_size=3)
topics = counts.map(lambda found: {name: TopicFacts(f"id-{name}", count) for name, count in found.items()})
places = st.builds(lambda name, n: Place(f"id-{name}", name, n), st.sampled_from(TOPICS), st.integers(0, 9))
wanted = st.frozensets(st.sampled_from(TOPICS), max_size=3)


def readers_of(subscriptions: st.SearchStrategy[frozenset[str]]) -> st.SearchStrategy[list[Reader]]:
    one = st.builds(
        Reader,
        st.sampled_from([f"m{n}" for n in range(6)]),
        st.none() | st.sampled_from(["i1", "i2"]),
        subscriptions,
        st.frozensets(places, max_size=12),
    )
    return st.lists(one, min_size=1, max_size=6, unique_by=lambda reader: reader.member_id)


equal = wanted.flatmap(lambda names: readers_of(st.just(names)))


def assigned(targets: Targets) -> list[Place]:
    return sorted(place for target in targets.values() for place in target)


@given(st.sampled_from(sorted(ASSIGNORS)), readers_of(wanted), topics)
def test_each_partition_goes_to_one_of_its_subscribers(
    name: str, readers: list[Reader], facts: dict[str, TopicFacts]
) -> None:
    targets = ASSIGNORS[name](readers, facts)
    subscribed = {topic for reader in readers for topic in reader.topics}
    assert assigned(targets) == sorted(
        Place(topic_id, topic, n)
        for topic, (topic_id, count) in facts.items()
        if topic in subscribed
        for n in range(count)
    )
    assert set(targets) == {reader.member_id for reader in readers}
    for reader in readers:
        assert {place.topic for place in targets[reader.member_id]} <= reader.topics
    assert ASSIGNORS[name](list(reversed(readers)), facts) == targets, "the order of members does not matter"


@given(equal, topics)
def test_uniform_balances_within_one_and_moves_no_more_than_that_needs(
    readers: list[Reader], facts: dict[str, TopicFacts]
) -> None:
    targets = assign_uniform(readers, facts)
    loads = sorted(len(target) for target in targets.values())
    assert loads[-1] - loads[0] <= 1
    settled = [reader._replace(held=targets[reader.member_id]) for reader in readers]
    assert assign_uniform(settled, facts) == targets, "what is balanced stays"
    # The fewest moves: each member keeps what it holds up to its share, the larger shares with the fullest.
    if len(settled) > 1:
        rest, total = settled[1:], len(assigned(targets))
        kept = sorted((len(reader.held) for reader in rest), reverse=True)
        each, extra = divmod(total, len(rest))
        least = sum(max(0, held - each - (1 if rank < extra else 0)) for rank, held in enumerate(kept))
        after = assign_uniform(rest, facts)
        moved = sum(len(reader.held - after[reader.member_id]) for reader in rest)
        assert moved == least


@given(readers_of(wanted), topics)
def test_uniform_leaves_no_single_move_that_would_balance_more(
    readers: list[Reader], facts: dict[str, TopicFacts]
) -> None:
    targets = assign_uniform(readers, facts)
    for reader in readers:
        for place in targets[reader.member_id]:
            for other in readers:
                if place.topic in other.topics:
                    assert len(targets[other.member_id]) + 1 >= len(targets[reader.member_id])
