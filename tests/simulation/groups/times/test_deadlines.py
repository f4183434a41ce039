"""The checker of deadlines: what a coordinator may do in time, and what it does too early or too late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from raylog.base.errors import MemberIdRequired, UnknownMemberId
from raylog.core.groups.records import GroupChanged, MemberRecord
from raylog.core.groups.states import GroupState
from raylog.protocol.groups import JoinGroupProtocol
from tests.simulation.groups.books import GroupBooks
from tests.simulation.groups.coordinator import Call
from tests.simulation.groups.test_group_answers import Request
from tests.simulation.groups.times.deadlines import Deadlines
from tests.simulation.world import Violation

SESSION_MS = 600
ROUND_MS = 1_000
RANGE = [["range", b""]]
TIMEOUTS = {"a": ROUND_MS, "b": ROUND_MS}


class Life:
    """One load of a coordinator: group ``g`` is stable in generation 3, with members a and b, since time 0."""

    def __init__(self) -> None:
        self.books = GroupBooks(members_max=2)
        self.deadlines = Deadlines(self.books, 0, first_delay_ms=100, round_ms=ROUND_MS)
        self.number = 0
        self.now_ms = 0
        self.write(GroupState.STABLE, 3)

    def write(self, state: GroupState, generation: int, timeouts: Mapping[str, int] = TIMEOUTS) -> None:
        """Decide a row, in the present step; ``timeouts``: the members' own times for a round."""
        members = tuple(
            MemberRecord(
                member_id=member,
                instance_id=None,
                client_id="reader",
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=timeout_ms,
                protocols=(JoinGroupProtocol("range", b""),),
                assignment=b"",
            )
            for member, timeout_ms in timeouts.items()
        )
        record = GroupChanged(
            group="g",
            generation=generation,
            protocol_type="consumer",
            protocol="range",
            leader="a",
            state=state,
            changed_ms=0,
            members=members,
        )
        key, value = record.to_wire()
        self.deadlines.row(key, value, replayed=generation == 3)

    def at(self, now_ms: int) -> None:
        """Begin a step."""
        self.now_ms = now_ms
        self.deadlines.began(now_ms)

    def tick(self, now_ms: int) -> None:
        """Let time pass, and let the coordinator notice it."""
        self.at(now_ms)
        self.deadlines.stepped(is_tick=True)

    def receive(self, method: str, *args: object) -> Call:
        """Receive a request in the present step."""
        self.number += 1
        call = cast(Call, Request(method, "g", *args, request=self.number))
        self.deadlines.received(call)
        return call

    def join(self, member_id: str) -> Call:
        """Receive a join."""
        return self.receive("join_group", member_id, None, "reader", SESSION_MS, ROUND_MS, "consumer", RANGE)

    def give(self, member_id: str) -> None:
        """Answer a first join with an id."""
        call = self.join("")
        self.deadlines.settled(call)
        self.deadlines.refused(call, MemberIdRequired(member_id=member_id))
        self.step()

    def beat(self, member_id: str) -> None:
        """Answer a heartbeat with success."""
        call = self.receive("heartbeat", 3, member_id, None)
        self.deadlines.settled(call)
        self.deadlines.replied(call, [])
        self.step()

    def step(self) -> None:
        """End a step."""
        self.deadlines.stepped(is_tick=False)

    def begin(self, *joined: str, timeouts: Mapping[str, int] = TIMEOUTS) -> None:
        """Begin generation 4 with the answers to these members."""
        self.write(GroupState.COMPLETING_REBALANCE, 4, timeouts)
        for member_id in joined:
            call = self.receive("join_group", member_id, None, "reader", SESSION_MS, ROUND_MS, "consumer", RANGE)
            self.deadlines.settled(call)
            self.deadlines.replied(call, [4, "range", "a", member_id, [], False])
        self.step()


@pytest.fixture
def life() -> Life:
    return Life()


def test_a_member_id_is_used_until_its_session_timeout(life: Life) -> None:
    life.give("c")
    life.give("d")
    life.tick(SESSION_MS - 1)
    life.join("c")
    life.step()
    life.tick(SESSION_MS)
    life.join("d")
    with pytest.raises(Violation, match="not valid any more"):
        life.step()


def test_a_late_member_id_has_to_be_refused(life: Life) -> None:
    life.give("c")
    life.tick(SESSION_MS)
    call = life.join("c")
    life.deadlines.settled(call)
    life.deadlines.refused(call, UnknownMemberId())
    life.step()


def test_a_member_id_that_has_left_is_not_used(life: Life) -> None:
    life.give("c")
    life.receive("leave_group", [["c", None]])
    life.step()
    life.join("c")
    with pytest.raises(Violation, match="not valid any more"):
        life.step()


def test_unused_member_ids_have_a_bound(life: Life) -> None:
    life.give("c")
    life.give("d")
    with pytest.raises(Violation, match="were not used yet"):
        life.give("e")


def test_a_round_waits_for_the_member_ids_that_were_given(life: Life) -> None:
    life.at(400)
    life.give("c")
    life.at(900)
    with pytest.raises(Violation, match="does not wait for c"):
        life.begin("a", "b")


def test_a_leader_has_joined_its_generation(life: Life) -> None:
    with pytest.raises(Violation, match="a leads generation 4"):
        life.begin("b")


def test_a_silent_member_ends_with_its_session(life: Life) -> None:
    life.at(500)
    life.beat("a")
    life.beat("b")
    life.tick(500 + SESSION_MS - 1)
    life.beat("a")
    life.tick(500 + SESSION_MS)
    with pytest.raises(Violation, match="b was silent for 600 ms"):
        life.beat("a")


def test_a_member_that_does_not_sync_is_removed(life: Life) -> None:
    life.at(100)
    life.begin("a", "b")
    life.books.synced(1, "g", "a", 4, 100)
    life.tick(100 + ROUND_MS)
    life.beat("a")
    with pytest.raises(Violation, match="b is a member, and has not synced"):
        life.beat("b")


def test_the_time_to_sync_is_that_of_the_members_it_began_with(life: Life) -> None:
    life.at(100)
    life.begin("a", "b", timeouts={"a": 2 * ROUND_MS, "b": ROUND_MS})
    life.at(200)
    life.write(GroupState.STABLE, 4, {"b": ROUND_MS})
    life.step()
    for now_ms in range(500, 100 + 2 * ROUND_MS, 400):
        life.at(now_ms)
        life.beat("b")
        life.tick(now_ms)
    life.tick(100 + 2 * ROUND_MS)
    with pytest.raises(Violation, match="b is a member, and has not synced in 2000 ms"):
        life.beat("b")


def test_a_round_ends_in_time(life: Life) -> None:
    life.at(100)
    life.join("a")
    life.step()
    life.tick(100 + ROUND_MS)
    with pytest.raises(Violation, match="have waited for 1001 ms"):
        life.tick(101 + ROUND_MS)
