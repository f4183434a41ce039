"""A member of the consumer protocol, state by state: what each answer, error and hand-over leaves (KIP-848)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raylog.base import errors
from raylog.base.ids import TopicPartition
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.consumer_session import ConsumerSession
from raylog.client.group.consumer_membership import (
    CONSUMER_REACTIONS,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_EPOCH,
    PAUSE_EPOCH,
    Change,
    ConsumerMembership,
    consumer_reaction,
)
from raylog.client.group.membership import GroupRequest
from raylog.protocol.groups import ConsumerGroupHeartbeatReply, ConsumerGroupHeartbeatRequest, TopicPartitions

TOPIC, TOPIC_ID = "flights", "id-1"
SUBSCRIPTION = [TOPIC]


def places(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition(TOPIC, number) for number in numbers]


def rows(*numbers: int, topic_id: str = TOPIC_ID) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id, TOPIC, list(numbers))] if numbers else []


def member(instance_id: str | None = None) -> ConsumerMembership:
    return ConsumerMembership("board", member_id="m1", client_id="c", instance_id=instance_id, assignor="uniform")


def answer(
    one: ConsumerMembership, epoch: int, *numbers: int, is_news: bool = True, topic_id: str = TOPIC_ID
) -> ConsumerGroupHeartbeatRequest:
    """Send the next heartbeat and take this answer to it."""
    sent = one.heartbeat_request(SUBSCRIPTION)
    given = rows(*numbers, topic_id=topic_id) if is_news else None
    one.answered(sent, ConsumerGroupHeartbeatReply("m1", epoch, given))
    return sent


def take(one: ConsumerMembership) -> None:
    """Change to what is assigned, as a consumer without a listener does."""
    one.begin_change()
    one.end_change()


def stable(*numbers: int, instance_id: str | None = None) -> ConsumerMembership:
    """A member in epoch 3 that holds these partitions, as the coordinator knows."""
    one = member(instance_id)
    answer(one, 3, *numbers)
    take(one)
    answer(one, 3, is_news=False)
    assert not one.has_to_speak(SUBSCRIPTION)
    return one


# ---------------------------------------------------------------- joining


def test_a_join_says_everything_and_holds_nothing() -> None:
    new = member()
    assert new.has_to_speak(SUBSCRIPTION)
    assert not new.is_stable
    assert new.commit_identity == (NO_EPOCH, "m1")
    sent = new.heartbeat_request(SUBSCRIPTION)
    assert (sent.member_epoch, sent.subscribed_topics, sent.server_assignor, sent.owned) == (
        JOIN_EPOCH,
        (TOPIC,),
        "uniform",
        [],
    )
    assert sent.max_wait_ms == 0, "a join is answered at once"
    assert new.leave_request() is None, "there is nothing to leave"


def test_an_assignment_is_taken_and_then_confirmed_once() -> None:
    one = member()
    answer(one, 1, 0, 1)
    assert (one.epoch, one.is_stable, one.is_in_force) == (1, True, False)
    assert not one.has_to_speak(SUBSCRIPTION), "what is not in force yet is not confirmed"
    take(one)
    assert one.has_to_speak(SUBSCRIPTION)
    sent = answer(one, 1, is_news=False)
    assert sent.owned == rows(0, 1)
    assert (sent.subscribed_topics, sent.server_assignor) == (None, None), "they are known"
    assert not one.has_to_speak(SUBSCRIPTION)
    assert one.heartbeat_request(SUBSCRIPTION).owned is None, "nothing is new"


# ---------------------------------------------------------------- reconciling


def test_what_is_taken_away_is_confirmed_once_it_is_given_up() -> None:
    one = stable(0, 1)
    answer(one, 3, 0)
    assert list(one.begin_change().partitions) == places(0)
    waiting = one.heartbeat_request(SUBSCRIPTION)
    assert waiting.owned is None, "a heartbeat meanwhile keeps the session and confirms nothing"
    one.answered(waiting, ConsumerGroupHeartbeatReply("m1", 3, None))
    one.unanswered()
    assert one.heartbeat_request(SUBSCRIPTION).owned == rows(0, 1), "one that says everything says what is held"
    one.end_change()
    assert one.has_to_speak(SUBSCRIPTION)
    assert answer(one, 4, 0).owned == rows(0)
    assert one.epoch == 4
    assert not one.has_to_speak(SUBSCRIPTION)


def test_partitions_of_a_topic_that_was_made_again_are_not_the_same() -> None:
    one = stable(0, 1)
    answer(one, 4, 0, 1, topic_id="id-2")
    assert not one.is_in_force
    assert one.begin_change().partitions == {}
    one.end_change()
    take(one)
    assert answer(one, 4, is_news=False).owned == rows(0, 1, topic_id="id-2")


def test_what_is_assigned_while_a_change_is_under_way_is_for_the_next_one() -> None:
    one = stable(0)
    answer(one, 3, 0, 1)
    one.begin_change()
    answer(one, 4, 0)  # the listener has not returned yet, and the partition is not its own any more
    assert not one.is_in_force, "it may read that partition already"
    assert not one.has_to_speak(SUBSCRIPTION), "so it does not confirm to have given it up"
    one.end_change()
    assert list(one.owned) == places(0, 1)
    take(one)
    assert answer(one, 4, is_news=False).owned == rows(0)


def test_a_topic_made_again_amid_a_change_is_noticed_behind_it() -> None:
    one = stable(0)
    answer(one, 3, 0, 1)
    one.begin_change()
    answer(one, 4, 0, 1, topic_id="id-2")
    one.end_change()
    assert set(one.owned.values()) == {TOPIC_ID}, "what it reads is of the topic that was"
    assert one.begin_change().partitions == {}


@pytest.mark.parametrize("held", [(), (0,)])
def test_what_a_change_takes_is_lost_with_the_membership(held: tuple[int, ...]) -> None:
    one = stable(*held)
    answer(one, 3, 0, 1)
    one.begin_change()
    one.failed(GroupRequest.HEARTBEAT, errors.UnknownMemberId(), generation=3)
    one.end_change()
    assert one.lost, "it may have read what belongs to others now"
    assert not one.has_to_speak(SUBSCRIPTION), "it joins again once that is given up"
    assert one.begin_change() == Change({}, is_lost=True, announces=False)


def test_a_heartbeat_that_says_everything_names_what_a_change_takes() -> None:
    one = stable(0)
    answer(one, 3, 1)
    one.begin_change()
    one.unanswered()
    assert one.heartbeat_request(SUBSCRIPTION).owned == rows(0, 1), "it may hold both"


def test_a_changed_subscription_is_sent_at_once_and_once() -> None:
    one = stable(0)
    assert one.has_to_speak(["planes"])
    sent = one.heartbeat_request(["planes"])
    assert sent.subscribed_topics == ("planes",)
    assert not one.has_to_speak(["planes"]), "it is on its way"
    one.answered(sent, ConsumerGroupHeartbeatReply("m1", 4, []))
    assert not one.has_to_speak(["planes"])


class Held(SimpleNamespace):
    """A partition, as far as a handover needs it."""

    def hold_back(self) -> None:
        self.paused = True


class Steps:
    """A session's hand-over without a network: what it does, in order."""

    def __init__(self, one: ConsumerMembership, *held: int) -> None:
        self.done: list[str] = []
        self.committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def state(*_: object) -> Any:
            return Held(paused=False, consumed_bytes=0, consumed_records=0)

        self.assignment = Assignment(state)
        self.assignment.subscribe(SUBSCRIPTION)
        self.assignment.set_partitions(places(*held), cast(Any, None))
        self.session = ConsumerSession(
            cast(Any, None),
            ConsumerConfig(bootstrap="none:1", group_id="board"),
            one,
            self.assignment,
            commit_positions=self._commit,
            on_assignment=lambda: None,
            notify=lambda: None,
        )

    async def _commit(self) -> None:
        self.done.append("commit")
        await self.committed

    async def poll(self) -> str | None:
        """All steps that need no wait; returns the kind of the listener's call that is due."""
        await asyncio.sleep(0)
        while self.session._handover.call is None and self.session._advanced():
            pass
        await asyncio.sleep(0)
        call = self.session._handover.call
        return None if call is None else call.kind


def confirms(one: ConsumerMembership) -> bool:
    """Whether the next heartbeat, which would say everything, names only what is assigned."""
    one.unanswered()
    return one.heartbeat_request(SUBSCRIPTION).owned == rows(0)


def test_a_revocation_is_confirmed_after_the_commit_and_the_listener() -> None:
    async def story() -> None:
        one = stable(0, 1)
        steps = Steps(one, 0, 1)
        answer(one, 3, 0)
        assert await steps.poll() is None
        assert steps.done == ["commit"]
        assert not confirms(one), "the commit is on its way"
        assert [each.partition for each, state in steps.assignment.states.items() if state.paused] == [1]
        steps.committed.set_result(None)
        assert await steps.poll() == "revoked"
        assert not confirms(one), "the listener may still commit"
        steps.session.listener_called()
        await steps.poll()
        assert set(steps.assignment.states) == set(places(0))
        assert confirms(one)

    asyncio.run(story())


def test_what_is_lost_is_not_committed_and_given_up_before_the_join() -> None:
    async def story() -> None:
        one = stable(0, 1)
        steps = Steps(one, 0, 1)
        one.failed(GroupRequest.HEARTBEAT, errors.UnknownMemberId(), generation=3)
        assert not one.has_to_speak(SUBSCRIPTION), "it first gives up what others may have"
        assert await steps.poll() == "lost"
        assert steps.done == []
        steps.session.listener_called()
        await steps.poll()
        assert not one.lost
        assert one.has_to_speak(SUBSCRIPTION)
        assert one.heartbeat_request(SUBSCRIPTION).member_epoch == JOIN_EPOCH

    asyncio.run(story())


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (GroupRequest.HEARTBEAT, errors.FencedMemberEpoch),
        (GroupRequest.HEARTBEAT, errors.UnknownMemberId),
        (GroupRequest.COMMIT, errors.UnknownMemberId),
        (GroupRequest.COMMIT, errors.IllegalGeneration),  # of a group that has expired, or is a classic one since
    ],
)
def test_a_member_that_is_none_any_more_loses_all_and_joins_under_its_id(
    call: GroupRequest, error: type[errors.RaylogError]
) -> None:
    one = stable(0, 1)
    reaction = one.failed(call, error(), generation=3)
    assert (reaction.rejoin, reaction.fatal) == (True, False)
    assert (one.epoch, one.lost, one.assigned) == (JOIN_EPOCH, True, None)
    assert one.commit_identity[0] == NO_EPOCH
    assert one.begin_change() == Change({}, is_lost=True, announces=False)
    one.end_change()
    assert (one.lost, one.member_id) == (False, "m1")


@pytest.mark.parametrize("error", [errors.FencedMemberEpoch, errors.UnknownMemberId])
def test_an_error_of_an_earlier_epoch_loses_nothing(error: type[errors.RaylogError]) -> None:
    one = stable(0, 1)
    assert not one.failed(GroupRequest.HEARTBEAT, error(), generation=2).rejoin
    assert (one.epoch, one.lost) == (3, False)
    assert one.heartbeat_request(SUBSCRIPTION).owned == rows(0, 1), "but the next heartbeat says everything"


def test_a_fenced_instance_ends_for_good() -> None:
    one = stable(0, instance_id="gate-1")
    assert one.failed(GroupRequest.HEARTBEAT, errors.FencedInstanceId("taken"), generation=3).fatal
    assert one.fenced is not None
    take(one)
    assert not one.has_to_speak(SUBSCRIPTION)


def test_an_instance_that_is_not_released_yet_is_tried_again() -> None:
    new = member("gate-1")
    new.heartbeat_request(SUBSCRIPTION)
    reaction = new.failed(GroupRequest.HEARTBEAT, errors.UnreleasedInstanceId(), generation=JOIN_EPOCH)
    assert (reaction.retry, reaction.fatal) == (True, False)
    assert new.fenced is None
    assert new.heartbeat_request(SUBSCRIPTION).member_epoch == JOIN_EPOCH


def test_a_stale_epoch_changes_nothing() -> None:
    one = stable(0)
    for call in (GroupRequest.HEARTBEAT, GroupRequest.COMMIT):
        reaction = one.failed(call, errors.StaleMemberEpoch(), generation=3)
        assert (reaction.rejoin, reaction.retry, reaction.fatal) == (False, False, False)
    assert (one.epoch, list(one.owned)) == (3, places(0))


def test_an_error_without_a_row_is_retried_if_its_flags_allow_that() -> None:
    assert consumer_reaction(GroupRequest.HEARTBEAT, errors.NotCoordinator()).retry
    assert consumer_reaction(GroupRequest.HEARTBEAT, errors.GroupMaxSizeReached()).fatal
    assert consumer_reaction(GroupRequest.HEARTBEAT, errors.UnsupportedAssignor()).fatal
    assert {call for call, _ in CONSUMER_REACTIONS} == {GroupRequest.HEARTBEAT, GroupRequest.COMMIT}


# ---------------------------------------------------------------- lost and late answers


def test_a_member_whose_answer_is_lost_says_everything_in_its_epoch() -> None:
    one = stable(0, 1)
    one.heartbeat_request(SUBSCRIPTION)
    one.unanswered()
    sent = one.heartbeat_request(SUBSCRIPTION)
    assert (sent.member_epoch, sent.subscribed_topics, sent.owned) == (3, (TOPIC,), rows(0, 1))


def test_an_answer_that_a_newer_one_has_overtaken_changes_nothing() -> None:
    one = stable(0)
    late = one.heartbeat_request(SUBSCRIPTION)
    answer(one, 5, 0, 1)
    one.answered(late, ConsumerGroupHeartbeatReply("m1", 4, []))
    assert (one.epoch, list(one.assigned or ())) == (5, places(0, 1))


def test_the_answer_to_a_heartbeat_from_before_a_loss_makes_no_member() -> None:
    one = stable(0)
    late = one.heartbeat_request(SUBSCRIPTION)
    one.failed(GroupRequest.COMMIT, errors.UnknownMemberId(), generation=3)
    one.answered(late, ConsumerGroupHeartbeatReply("m1", 4, rows(0)))
    assert (one.epoch, one.assigned) == (JOIN_EPOCH, None)


# ---------------------------------------------------------------- leaving


@pytest.mark.parametrize(
    ("instance_id", "for_good", "epoch"),
    [(None, False, LEAVE_EPOCH), ("gate-1", False, PAUSE_EPOCH), ("gate-1", True, LEAVE_EPOCH)],
)
def test_a_static_member_keeps_its_place_unless_it_leaves_for_good(
    instance_id: str | None, for_good: bool, epoch: int
) -> None:
    leaving = stable(0, instance_id=instance_id).leave_request(for_good=for_good)
    assert leaving is not None
    assert (leaving.member_epoch, leaving.max_wait_ms, leaving.owned) == (epoch, 0, None)
