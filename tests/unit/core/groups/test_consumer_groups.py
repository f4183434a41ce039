"""The consumer protocol on a bare coordinator: epochs, hand-over, fencing, commits, conversion (KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from raylog.base.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    InconsistentGroupProtocol,
    InvalidRequest,
    InvalidSessionTimeout,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
    UnsupportedAssignor,
)
from raylog.core.groups.events import TopicsSeen
from raylog.core.groups.settings import GroupSettings
from raylog.protocol.groups import ConsumerGroupHeartbeatRequest
from tests.simulation.whole.holdings import sizes_below
from tests.unit.core.groups.context import GROUP, Groups

TOPIC, TOPIC_ID = "orders", "t1"
SESSION_MS, REBALANCE_MS, WAIT_MS = 10_000, 20_000, 3_000
Places = Sequence[tuple[str, str, int]]


@dataclass
class Member:
    """A member that does what its assignment says, when the test says so."""

    groups: Groups
    name: str
    instance: str | None = None
    topics: tuple[str, ...] = (TOPIC,)
    epoch: int = 0
    sequence: int = 0
    owned: list[int] = field(default_factory=list)
    assigned: list[int] = field(default_factory=list)
    request: int = 0
    taken: int = 0

    def beat(self, *, epoch: int | None = None, owned: Sequence[int] | None = None, **other: object) -> int:
        """Send a heartbeat; returns its request, and takes the answer if there is one."""
        if self.request in self.groups.replies and self.request != self.taken:
            self.take()
        self.sequence += 1
        epoch = self.epoch if epoch is None else epoch
        given: dict[str, Any] = {
            "member_id": self.name,
            "member_epoch": epoch,
            "sequence": self.sequence,
            "client_id": "client",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "max_wait_ms": WAIT_MS if epoch > 0 else 0,
            "subscribed_topics": self.topics if epoch == 0 else None,
            "server_assignor": None,
            "owned": None if owned is None else [(TOPIC_ID, TOPIC, owned)],
            "group_instance_id": self.instance,
        }
        self.request = self.groups.send(ConsumerGroupHeartbeatRequest, **(given | other))
        self.take()
        return self.request

    def take(self) -> bool:
        """Take the answer to the last heartbeat, if it has come."""
        if self.request not in self.groups.replies:
            return False
        self.taken = self.request
        _, self.epoch, rows = cast(
            "tuple[str, int, list[tuple[str, str, list[int]]] | None]", self.groups.reply(self.request)
        )
        if rows is not None:
            self.assigned = [number for _, _, numbers in rows for number in numbers]
        return True

    def commit(self, partition: int, offset: int, epoch: int | None = None) -> int:
        return self.groups.commit(
            offset,
            topic_id=TOPIC_ID,
            topic=TOPIC,
            partition=partition,
            member_id=self.name,
            generation=self.epoch if epoch is None else epoch,
            group_instance_id=self.instance,
        )


def started(partitions: int = 4) -> tuple[Groups, Member]:
    """A group with one member that has all partitions."""
    groups = Groups()
    first = Member(groups, "m1")
    first.beat()
    seen(groups, partitions)
    first.beat(owned=[])
    assert first.assigned == list(range(partitions))
    first.beat(owned=first.assigned)
    return groups, first


def seen(groups: Groups, partitions: int, topic_id: str = TOPIC_ID) -> None:
    groups.now_ms += 200
    topics = {TOPIC: (topic_id, partitions)} if partitions else {}
    groups.notice(TopicsSeen, requested=[TOPIC], topics=topics)


def test_topics_that_no_group_reads_any_more_are_forgotten() -> None:
    groups, first = started()
    assert sizes_below(("", groups.machine))["ConsumerGroups._known"] == 1
    first.beat(epoch=-1)
    groups.tick(groups.settings.topics_check_ms)
    groups.delete()
    groups.tick(groups.settings.topics_check_ms)
    assert not sizes_below(("", groups.machine))["ConsumerGroups._known"]


def test_a_member_joins_before_its_topics_are_known(groups: Groups) -> None:
    member = Member(groups, "m1")
    member.beat()
    assert (member.epoch, member.assigned, groups.looked_up) == (1, [], [(TOPIC,)])
    parked = member.beat()
    assert groups.code(parked) is None, "it waits for news"
    seen(groups, 3)
    assert member.take()
    assert (member.epoch, member.assigned) == (2, [0, 1, 2])


def test_a_partition_moves_when_its_owner_has_confirmed() -> None:
    groups, first = started()
    second = Member(groups, "m2")
    groups.now_ms += 200
    second.beat()
    assert second.assigned == [], "the first still has them"
    assert first.take()
    assert (len(first.assigned), first.epoch) == (2, 2), "it keeps its epoch until it has given up two"
    second.beat()
    assert groups.code(second.request) is None
    first.beat()
    assert not second.take(), "a heartbeat that names nothing confirms nothing"
    first.beat(owned=first.assigned)
    assert (first.epoch, second.take()) == (3, True)
    assert sorted(first.assigned + second.assigned) == [0, 1, 2, 3]
    assert (first.epoch, second.epoch, groups.described()["state"]) == (3, 3, "Stable")


def test_a_join_confirms_nothing() -> None:
    groups, first = started()
    groups.now_ms += 200
    second = Member(groups, "m2")
    second.beat()
    first.take()
    first.beat(epoch=0, owned=[])
    second.beat()
    assert second.assigned == [], "the join may be older than what the member holds"


def test_a_late_heartbeat_is_refused() -> None:
    groups, first = started()
    first.sequence -= 1
    assert groups.code(first.beat(owned=[])) == StaleMemberEpoch.code
    assert groups.described()["state"] == "Stable"


def test_a_member_whose_answer_was_lost_repeats_its_epoch() -> None:
    groups, first = started()
    seen(groups, 5)
    first.epoch, first.assigned = 2, []
    first.beat(owned=[0, 1, 2, 3])
    assert (first.epoch, first.assigned) == (3, [0, 1, 2, 3, 4])
    assert groups.code(first.beat(epoch=1, owned=[0])) == FencedMemberEpoch.code
    assert groups.code(first.beat(epoch=9)) == FencedMemberEpoch.code


def test_a_silent_member_and_one_that_does_not_give_up_are_removed() -> None:
    groups, first = started()
    groups.now_ms += 200
    second = Member(groups, "m2")
    second.beat()
    for _ in range(REBALANCE_MS // 1_000 + 1):
        groups.tick(1_000)
        first.beat()
        second.beat()
    assert groups.code(first.request) == UnknownMemberId.code
    second.take()
    assert second.assigned == [0, 1, 2, 3]
    groups.drop(second.request)
    groups.tick(SESSION_MS + 100)
    assert groups.described()["state"] == "Empty"


def test_a_failover_costs_no_epoch() -> None:
    groups, first = started()
    after = groups.restarted()
    first.groups = after
    after.request = groups.request
    assert groups.code(first.beat(owned=first.assigned)) is None
    assert (first.epoch, after.described()["generation"]) == (2, 2)


def test_commits_count_for_what_the_member_has_held_since_then() -> None:
    groups, first = started()
    assert groups.code(first.commit(0, 5)) == 0
    groups.now_ms += 200
    second = Member(groups, "m2")
    second.beat()
    first.take()
    kept, moved = first.assigned[0], next(n for n in range(4) if n not in first.assigned)
    assert groups.code(first.commit(moved, 7)) == 0, "until it has confirmed"
    first.beat(owned=first.assigned)
    second.beat()
    assert groups.code(first.commit(kept, 6, epoch=2)) == 0, "its epoch advanced while the commit was on its way"
    assert groups.code(first.commit(moved, 8, epoch=2)) == StaleMemberEpoch.code
    assert groups.code(first.commit(moved, 8)) == StaleMemberEpoch.code, "it belongs to another member"
    assert groups.code(first.commit(kept, 8, epoch=9)) == StaleMemberEpoch.code
    first.beat(epoch=-1)
    assert groups.code(first.commit(kept, 9, epoch=3)) == UnknownMemberId.code


def test_a_member_fetches_offsets_in_its_epoch() -> None:
    groups, first = started()
    place = (TOPIC_ID, TOPIC, 0)
    assert groups.code(groups.fetch(place, member_id=first.name, member_epoch=2)) == 0
    assert groups.code(groups.fetch(place, member_id=first.name, member_epoch=1)) == StaleMemberEpoch.code
    assert groups.code(groups.fetch(place)) == 0


def test_a_static_member_keeps_its_place_while_it_is_away(groups: Groups) -> None:
    seen(groups, 4)
    first, other = Member(groups, "m1", "gate-1"), Member(groups, "m2")
    first.beat()
    seen(groups, 4)
    groups.now_ms += 200
    first.beat(owned=[])
    assert first.assigned == [0, 1, 2, 3]
    double = Member(groups, "m3", "gate-1")
    assert groups.code(double.beat()) == UnreleasedInstanceId.code
    first.beat(epoch=-2)
    groups.now_ms += 200
    other.beat()
    assert other.assigned == [], "the absent member holds two of them until it is back, or removed"
    double.beat()
    assert len(double.assigned) == 2
    assert groups.code(first.beat(epoch=2)) == FencedInstanceId.code
    other.beat(owned=[])
    assert sorted(other.assigned + double.assigned) == [0, 1, 2, 3]


def test_bad_heartbeats_are_refused() -> None:
    groups, first = started()
    stranger = Member(groups, "m2")
    assert groups.code(stranger.beat(epoch=3)) == UnknownMemberId.code
    assert groups.code(stranger.beat(server_assignor="best")) == UnsupportedAssignor.code
    assert groups.code(stranger.beat(session_timeout_ms=1)) == InvalidSessionTimeout.code
    assert groups.code(stranger.beat(subscribed_topics=None)) == InvalidRequest.code
    assert groups.code(stranger.beat(member_id="")) == InvalidRequest.code
    assert [row["member_id"] for row in groups.described()["members"]] == [first.name]


def test_protocols_do_not_mix_and_an_empty_group_converts() -> None:
    groups, first = started()
    first.commit(1, 7)
    classic = groups.join("")
    assert groups.code(classic) == InconsistentGroupProtocol.code
    first.beat(epoch=-1)
    groups.stable()
    assert [row[3] for row in groups.reply(groups.list_groups())] == ["classic"]  # type: ignore[index]
    assert groups.code(first.beat(epoch=0)) == InconsistentGroupProtocol.code
    groups.leave(*((row["member_id"], None) for row in groups.described()["members"]))
    first.beat(epoch=0)
    assert [row[3] for row in groups.reply(groups.list_groups())] == ["consumer"]  # type: ignore[index]
    assert [row[3] for row in groups.reply(groups.fetch())] == [7]  # type: ignore[index]
    assert groups.restarted().machine.hard_state() == groups.machine.hard_state()


def test_a_topic_that_is_made_again_is_assigned_again() -> None:
    groups, first = started(2)
    first.beat()
    seen(groups, 2, "t2")
    assert first.take()
    assert first.assigned == [], "the partitions of the former topic go first"
    first.beat(owned=[])
    assert first.assigned == [0, 1]
    assert groups.reply(first.request)[2] == [["t2", TOPIC, [0, 1]]]


def test_an_empty_group_is_forgotten_with_its_last_offset() -> None:
    groups, first = started()
    first.beat(epoch=-1)
    groups.tick(groups.settings.offsets_retention_check_ms)
    assert groups.reply(groups.list_groups()) == []
    assert groups.restarted().machine.hard_state() == [[], []]


def test_an_instance_id_is_not_empty_and_is_its_members_own() -> None:
    groups, first = started()
    assert groups.code(groups.join(group_id="classic", group_instance_id="")) == InvalidRequest.code
    assert groups.code(Member(groups, "m2", instance="").beat()) == InvalidRequest.code
    static = Member(groups, "m3", instance="gate-1")
    static.beat()
    assert groups.code(static.beat(group_instance_id="gate-2")) == UnknownMemberId.code, (
        "there is no such static member"
    )
    static.instance = "gate-2"
    assert groups.code(static.commit(0, 5)) == UnknownMemberId.code
    first.instance = "gate-1"
    assert groups.code(first.commit(0, 5)) == FencedInstanceId.code, "it is another member's"
    assert groups.code(first.beat()) == FencedInstanceId.code
    first.instance = None
    assert groups.code(first.commit(0, 5)) == 0


def test_equal_subscriptions_are_kept_once(groups: Groups) -> None:
    names = [f"topic-{number}" for number in range(50)]
    for number in range(20):
        Member(groups, f"m{number}", topics=tuple("".join(name) for name in names)).beat()
    for machine in (groups.machine, groups.restarted().machine):
        group = machine._consumers.get(GROUP)
        assert group is not None
        assert len(group.members) == 20
        assert len(group.subscriptions()) == 1, "members of a group mostly read the same"
        assert group.subscribed() == set(names)


def test_the_different_subscriptions_of_a_group_have_a_bound_together() -> None:
    groups = Groups(GroupSettings(subscribed_names_max=5))
    assert Member(groups, "m1", topics=("a", "b", "c")).beat() in groups.replies
    assert Member(groups, "m2", topics=("a", "b", "c")).beat() in groups.replies
    assert Member(groups, "m3", topics=("a", "b")).beat() in groups.replies
    refused = Member(groups, "m4", topics=("b",)).beat()
    assert isinstance(groups.refusals[refused], InvalidRequest)
    assert Member(groups, "m4", topics=("b", "a", "a")).beat() in groups.replies, "the same topics, in another order"
