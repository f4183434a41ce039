"""Resets of offsets: of groups without members, of the plan's group, all or none. And what members subscribe to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.base.errors import (
    GroupSubscribedToTopic,
    InvalidRequest,
    NonEmptyGroup,
    RecordTooLarge,
    ResetOutdated,
    UnstableOffsetCommit,
)
from raylog.core.groups.coordinator import GroupSettings
from raylog.core.groups.subscriptions import topics_of
from tests.unit.core.groups.context import Groups

DAY_MS = 24 * 3_600_000
WIDE = GroupSettings(max_session_timeout_ms=30 * DAY_MS)


def kafkas(*topics: str) -> bytes:
    """The beginning of Kafka's ConsumerProtocolSubscription, and user data behind it."""
    named = b"".join(len(topic.encode()).to_bytes(2) + topic.encode() for topic in topics)
    return (3).to_bytes(2) + len(topics).to_bytes(4) + named + b"\xff\xff\xff\xff"


def reading(*topics: str, groups: Groups | None = None) -> tuple[Groups, str]:
    """A group with one member that subscribes to these topics and never falls silent."""
    groups = groups or Groups(WIDE)
    protocols = [("range", kafkas(*topics))]
    session_ms = 30 * DAY_MS
    member = groups.new_id(protocols=protocols, session_ms=session_ms)
    groups.join(member, protocols=protocols, session_ms=session_ms)
    groups.end_first_round()
    groups.sync(member, 1, {member: b"all"})
    assert groups.state == "Stable"
    return groups, member


def offsets(groups: Groups) -> dict[tuple[str, int], int]:
    return {(row[1], row[2]): row[3] for row in groups.reply(groups.fetch())}  # type: ignore[index]


# ---------------------------------------------------------------- resets


def test_offsets_of_a_group_without_members_are_reset_in_one_step(groups: Groups) -> None:
    groups.commit(40)
    groups.commit(7, partition=1)
    before = len(groups.log)
    assert groups.code(groups.reset((0, 0, 40), (1, 9, 7))) == 0
    assert len(groups.log) - before == 2
    assert len(groups.last.now) == 1, "one append has both"
    assert offsets(groups) == {("flights", 0): 0, ("flights", 1): 9}
    assert offsets(groups.restarted()) == offsets(groups)


@pytest.mark.parametrize("state", ["preparing", "completing", "stable"])
def test_a_group_in_use_is_not_reset_and_its_members_are_named(groups: Groups, state: str) -> None:
    getattr(groups, state)(7)
    request = groups.reset((0, 5, -1))
    error = groups.refusals[request]
    assert isinstance(error, NonEmptyGroup)
    assert "c (c-1), c (c-2), c (c-3), c (c-4), c (c-5) and 2 more" in error.message
    assert "stop these consumers" in error.message
    assert error.details["members"] == [f"c (c-{number})" for number in range(1, 8)]
    assert offsets(groups) == {}


def test_a_member_that_joins_before_the_reset_arrives_keeps_its_place(groups: Groups) -> None:
    """The race with a joining member: the machine decides one request after the other, so one of both comes first."""
    groups.commit(40)
    joins = groups.join(groups.new_id())
    assert groups.code(groups.reset((0, 0, 40), generation=0)) == NonEmptyGroup.code
    groups.end_first_round()
    assert groups.code(joins) == 0
    assert offsets(groups) == {("flights", 0): 40}


def test_a_group_that_was_used_since_the_plan_is_not_reset(groups: Groups) -> None:
    groups.emptied()
    generation = 2
    groups.commit(40)
    assert isinstance(groups.refusals[groups.reset((0, 0, 40), generation=generation - 1)], ResetOutdated)
    assert isinstance(groups.refusals[groups.reset((0, 0, 39), generation=generation)], ResetOutdated)
    assert isinstance(groups.refusals[groups.reset((1, 0, 39), (0, 0, 40))], ResetOutdated)
    assert offsets(groups) == {("flights", 0): 40}, "not one of them was committed"
    assert groups.code(groups.reset((0, 0, 40), (1, 3, -1), generation=generation)) == 0
    assert offsets(groups) == {("flights", 0): 0, ("flights", 1): 3}


def test_a_reset_may_be_repeated_and_may_count_from_any_offset(groups: Groups) -> None:
    groups.commit(40)
    for _ in range(2):
        assert groups.code(groups.reset((0, 3, 40), generation=0)) == 0
    assert groups.code(groups.reset((0, 4, -2))) == 0
    assert offsets(groups) == {("flights", 0): 4}


def test_a_reset_is_refused_whole(groups: Groups) -> None:
    assert groups.code(groups.reset((0, 1, -1), (1, -5, -1))) == InvalidRequest.code
    assert groups.code(groups.reset((0, 1, -1), (0, 2, -1))) == InvalidRequest.code
    assert groups.code(groups.reset()) == InvalidRequest.code
    many = [(number, 1, -1) for number in range(20_000)]
    assert groups.code(groups.reset(*many)) == RecordTooLarge.code
    assert groups.state == "Dead", "a refused reset leaves no group behind"


def test_offsets_that_a_transaction_is_about_to_commit_are_not_reset(groups: Groups) -> None:
    groups.txn_commit(5)
    assert isinstance(groups.refusals[groups.reset((0, 1, -1))], UnstableOffsetCommit)
    groups.end_txn(committed=False)
    assert groups.code(groups.reset((0, 1, -1))) == 0


# ---------------------------------------------------------------- subscriptions, deletion and expiry


@given(st.lists(st.text(min_size=1, max_size=40), max_size=40))
def test_the_topics_of_a_subscription_are_read(topics: list[str]) -> None:
    assert topics_of(kafkas(*topics)) == frozenset(topics)


@given(st.binary(max_size=60))
def test_what_is_no_subscription_is_unknown_and_harms_nothing(data: bytes) -> None:
    found = topics_of(data)
    assert found is None or all(isinstance(topic, str) for topic in found)


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5), st.data())
def test_a_subscription_that_is_cut_off_is_unknown(topics: list[str], data: st.DataObject) -> None:
    whole = kafkas(*topics)[:-4]
    assert topics_of(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


def test_offsets_of_topics_that_members_subscribe_to_are_not_deleted() -> None:
    groups, member = reading("flights")
    groups.commit(1, member_id=member, generation=1)
    groups.commit(2, member_id=member, generation=1, topic_id="id2", topic="planes")
    answer = groups.reply(groups.delete_offsets(("id1", "flights", 0), ("id2", "planes", 0)))
    assert answer == [["flights", 0, GroupSubscribedToTopic.code], ["planes", 0, 0]]
    assert offsets(groups) == {("flights", 0): 1}


def test_a_member_that_has_just_joined_counts_with_its_topics() -> None:
    groups, member = reading("flights")
    groups.commit(2, member_id=member, generation=1, topic_id="id2", topic="planes")
    groups.join(groups.new_id(protocols=[("range", kafkas("planes"))]), protocols=[("range", kafkas("planes"))])
    assert groups.reply(groups.delete_offsets(("id2", "planes", 0))) == [["planes", 0, GroupSubscribedToTopic.code]]


def test_while_a_subscription_cannot_be_read_no_offset_is_deleted(groups: Groups) -> None:
    (member,) = groups.stable(1)
    groups.commit(1, member_id=member, generation=1)
    assert groups.reply(groups.delete_offsets(("id1", "flights", 0))) == [["flights", 0, GroupSubscribedToTopic.code]]


def test_offsets_without_subscribers_expire_while_the_group_reads() -> None:
    groups, member = reading("flights")
    groups.commit(1, member_id=member, generation=1)
    groups.tick(DAY_MS)
    groups.commit(2, member_id=member, generation=1, topic_id="id2", topic="planes")
    groups.tick(6 * DAY_MS)
    assert offsets(groups) == {("flights", 0): 1, ("planes", 0): 2}
    groups.tick(DAY_MS)
    assert offsets(groups) == {("flights", 0): 1}, "from the commit on, seven days"
    assert groups.state == "Stable"
    after = groups.restarted()
    after.tick(0)
    assert offsets(after) == {("flights", 0): 1}


def test_amid_a_round_no_offset_expires() -> None:
    groups, member = reading("flights")
    groups.commit(2, member_id=member, generation=1, topic_id="id2", topic="planes")
    groups.join(member, protocols=[("range", kafkas("flights"))], session_ms=30 * DAY_MS, rebalance_ms=29 * DAY_MS)
    assert groups.state == "CompletingRebalance"
    groups.tick(8 * DAY_MS)
    assert ("planes", 0) in offsets(groups)
