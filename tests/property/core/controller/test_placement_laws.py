"""The laws of replica placement, and of elections, over generated clusters."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.controller.leadership import Standing, settle
from raylog.core.controller.placement import place_replicas
from raylog.core.partition import PartitionState

clusters = st.dictionaries(
    st.integers(0, 30).map(BrokerId), st.sampled_from(["a", "b", "c", "d", "e"]), min_size=1, max_size=12
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[BrokerId, str], int, int, dict[BrokerId, int], dict[BrokerId, int]]:
    nodes = draw(clusters)
    loads = st.dictionaries(st.sampled_from(sorted(nodes)), st.integers(0, 20))
    return nodes, draw(st.integers(1, 40)), draw(st.integers(1, len(nodes))), draw(loads), draw(loads)


@given(requests())
def test_placement_laws(
    request: tuple[dict[BrokerId, str], int, int, dict[BrokerId, int], dict[BrokerId, int]],
) -> None:
    nodes, partitions, factor, leaders, replicas = request
    assignment = place_replicas(
        nodes, partitions=partitions, replication_factor=factor, leaders=leaders, replicas=replicas
    )
    assert len(assignment) == partitions
    size = Counter(nodes.values())
    for members in assignment:
        assert len(members) == len(set(members)) == factor
        assert set(members) <= set(nodes)
        used = Counter(nodes[broker] for broker in members)
        assert len(used) == min(factor, len(size)), "as many nodes as possible"
        for node, count in used.items():
            for other in size:
                assert count <= used[other] + 1 or used[other] == size[other], f"{node} has more than its share"
    leads = Counter(dict.fromkeys(nodes, 0)) + Counter()
    leads.update(members[0] for members in assignment)
    counts = [leads[broker] for broker in nodes]
    assert max(counts) - min(counts) <= 1, "leaders go around the brokers"


@given(st.integers(1, 8), st.integers(1, 40), st.data())
def test_brokers_on_nodes_of_their_own_share_the_replicas_evenly(
    brokers: int, partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, brokers))
    nodes = {BrokerId(broker): f"node-{broker}" for broker in range(brokers)}
    assignment = place_replicas(nodes, partitions=partitions, replication_factor=factor)
    holds = Counter(broker for members in assignment for broker in members)
    counts = [holds[broker] for broker in nodes]
    assert max(counts) - min(counts) <= 2


def test_a_new_broker_does_not_get_the_whole_next_topic() -> None:
    nodes = {BrokerId(broker): f"node-{broker}" for broker in (1, 2, 3)}
    busy = {BrokerId(1): 50, BrokerId(2): 50}
    assignment = place_replicas(nodes, partitions=6, replication_factor=1, leaders=busy, replicas=busy)
    assert Counter(members[0] for members in assignment) == {1: 2, 2: 2, 3: 2}
    assert assignment[0] == (3,), "the idle one comes first"


@given(requests())
@settings(max_examples=30)
def test_placement_depends_on_nothing_but_its_arguments(
    request: tuple[dict[BrokerId, str], int, int, dict[BrokerId, int], dict[BrokerId, int]],
) -> None:
    nodes, partitions, factor, _, _ = request
    backwards = dict(reversed(list(nodes.items())))
    first = place_replicas(nodes, partitions=partitions, replication_factor=factor)
    assert first == place_replicas(backwards, partitions=partitions, replication_factor=factor)


@st.composite
def situations(
    draw: st.DrawFn,
) -> tuple[PartitionState, dict[BrokerId, Standing], list[BrokerId], bool, BrokerId | None]:
    replicas = tuple(BrokerId(broker) for broker in draw(st.permutations(range(draw(st.integers(1, 4))))))
    isr = tuple(broker for broker in replicas if draw(st.booleans())) or replicas[:1]
    lost = [broker for broker in isr if draw(st.integers(0, 4)) == 0]
    elr = tuple(broker for broker in replicas if broker not in isr and draw(st.booleans()))
    leader = draw(st.sampled_from([NO_LEADER, *[broker for broker in isr if broker not in lost]]))
    epoch = draw(st.integers(0 if leader == NO_LEADER else 1, 3))
    state = PartitionState(
        topic_id="f" * 32,
        partition=TopicPartition("t", 0),
        replicas=replicas,
        isr=isr,
        elr=elr,
        leader=leader,
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(draw(st.integers(epoch, 9))),
    )
    standing = {broker: draw(st.sampled_from(Standing)) for broker in replicas}
    return state, standing, lost, draw(st.booleans()), draw(st.sampled_from([None, *replicas]))


@given(situations(), st.integers(1, 4))
@settings(max_examples=100)
def test_election_laws(
    situation: tuple[PartitionState, dict[BrokerId, Standing], list[BrokerId], bool, BrokerId | None],
    min_isr: int,
) -> None:
    state, standing, lost, unclean, prefer = situation
    after = settle(state, standing, lost=lost, unclean=unclean, prefer=prefer, min_isr=min_isr)
    changed = after != state
    assert (after is state) == (not changed)
    assert after.partition_epoch == state.partition_epoch + changed
    assert after.isr
    assert set(after.isr) <= set(state.replicas)
    assert after.replicas == state.replicas
    elected = after.leader_epoch != state.leader_epoch
    assert after.leader_epoch == state.leader_epoch + elected
    if elected:
        assert after.leader in after.isr
        assert standing[after.leader] is Standing.ONLINE
        if not unclean:
            assert after.leader in (*state.isr, *state.elr)
            assert after.leader not in lost
    else:
        assert after.leader in (state.leader, NO_LEADER)
    healthy = state.leader != NO_LEADER and standing[state.leader] is not Standing.OFFLINE and state.leader not in lost
    if healthy:
        assert (after.leader, after.leader_epoch) == (state.leader, state.leader_epoch), "a healthy leader stays"
    dirty = elected and (after.leader not in (*state.isr, *state.elr) or after.leader in lost)
    assert after.unclean_leader_epoch == (after.leader_epoch if dirty else 0)
    complete = {*state.isr, *state.elr} - set(lost)
    assert set(after.elr) <= complete - set(after.isr), "eligible replicas have everything"
    if not after.unclean_leader_epoch:
        assert (set(after.elr) == complete - set(after.isr)) == (
            len(after.isr) < min_isr or not complete - set(after.isr)
        )
    if after.leader in state.elr:
        assert after.isr == (after.leader,)
    elif not unclean:
        assert set(after.isr) <= set(state.isr), "only the leader's proposals let members in"
        for broker in set(state.isr) - set(after.isr):
            assert standing[broker] is Standing.OFFLINE or broker in lost, "awaited and online members stay"
    still_lost = [broker for broker in lost if broker in after.isr and broker != after.leader]
    assert settle(after, standing, lost=still_lost, unclean=unclean, prefer=prefer, min_isr=min_isr) == after, (
        "settled is settled"
    )
