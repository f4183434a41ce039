"""Slow, obvious twins of two central rules: the commit rule and the search for the point of divergence."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.epochs import EpochHistory
from raylog.base.ids import NO_EPOCH, LeaderEpoch, Offset
from raylog.core.replication.watermark import committed_end

ends = st.integers(0, 20).map(Offset)


@settings(max_examples=100, deadline=None)
@given(
    current=ends,
    own=ends,
    members=st.lists(st.none() | ends, max_size=4),
    isr_size=st.integers(1, 5),
    min_insync_replicas=st.integers(1, 3),
    eligible=st.booleans(),
    epoch_start=ends,
)
def test_an_offset_is_committed_when_enough_members_have_all_below_it(
    current: Offset,
    own: Offset,
    members: list[Offset | None],
    isr_size: int,
    min_insync_replicas: int,
    eligible: bool,
    epoch_start: Offset,
) -> None:
    def all_have(offset: int) -> bool:
        others = all(end is not None and end > offset for end in members)
        may = not eligible and (isr_size >= min_insync_replicas or offset < epoch_start)
        return own > offset and others and may

    twin = int(current)
    if all(end is not None for end in members):
        earned = next(offset for offset in range(22) if not all_have(offset))
        twin = max(twin, earned)
    found = committed_end(
        current=current,
        own_durable_end=own,
        member_ends=members,
        isr_size=isr_size,
        min_insync_replicas=min_insync_replicas,
        eligible=eligible,
        epoch_start=epoch_start,
    )
    assert found == twin


logs = st.lists(st.integers(1, 6), max_size=12).map(sorted)
"""The leader epoch of each record of a log."""


def history_of(epochs: list[int]) -> EpochHistory:
    history = EpochHistory()
    for offset, epoch in enumerate(epochs):
        if epoch > history.latest:
            history.assign(LeaderEpoch(epoch), Offset(offset))
    return history


@settings(max_examples=100, deadline=None)
@given(epochs=logs, wanted=st.integers(0, 8))
def test_an_epoch_ends_where_the_first_record_of_a_later_one_lies(epochs: list[int], wanted: int) -> None:
    history = history_of(epochs)
    found = history.end_for(LeaderEpoch(wanted), Offset(len(epochs)))
    below = [epoch for epoch in epochs if epoch <= wanted]
    assert found.end_offset == next((at for at, epoch in enumerate(epochs) if epoch > wanted), len(epochs))
    assert found.epoch == (below[-1] if below else wanted)


@settings(max_examples=100, deadline=None)
@given(epochs=logs, cut=st.integers(0, 12), start=st.integers(0, 12))
def test_cutting_either_end_is_the_same_as_never_having_had_it(epochs: list[int], cut: int, start: int) -> None:
    history = history_of(epochs)
    history.truncate_end(Offset(cut))
    assert history.entries == history_of(epochs[:cut]).entries
    left = epochs[:cut]
    start = min(start, len(left))
    history.truncate_start(Offset(start))
    kept = {int(epoch) for epoch, _ in history.entries}
    assert set(left[start:]) <= kept
    assert all(begin >= start for _, begin in history.entries)


@settings(max_examples=100, deadline=None)
@given(shared=logs, leaders=st.lists(st.integers(1, 4), max_size=6), followers=st.lists(st.integers(1, 4), max_size=6))
def test_a_follower_ends_on_a_prefix_of_its_leader_and_keeps_the_shared(
    shared: list[int], leaders: list[int], followers: list[int]
) -> None:
    """The whole exchange of KIP-101 and KIP-279, between two logs that each have a tail with epochs of its own."""
    base = shared[-1] if shared else 0
    leader = shared + sorted(base + 2 * epoch for epoch in leaders)
    follower = shared + sorted(base + 2 * epoch - 1 for epoch in followers)
    leader_history = history_of(leader)
    leader_history.assign(LeaderEpoch(base + 20), Offset(len(leader)))
    follower_history = history_of(follower)
    for _ in range(20):
        last = follower_history.latest
        end = Offset(len(follower))
        if last == NO_EPOCH:
            break
        answer = leader_history.end_for(last, Offset(len(leader)))
        if answer.epoch == last and answer.end_offset >= end:
            break
        own = follower_history.end_for(answer.epoch, end).end_offset
        to = min(own, answer.end_offset, end)
        follower = follower[:to]
        follower_history.truncate_end(to)
    else:
        raise AssertionError("the conversation does not end")
    assert follower == leader[: len(follower)]
    assert len(follower) >= len(shared)
