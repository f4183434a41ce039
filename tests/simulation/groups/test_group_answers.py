"""The checker of answers has bugs too: the answers a coordinator may give in a group's state, and those it may not."""

from __future__ import annotations

from typing import Any, cast

import pytest

from raylog.base.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    MemberIdRequired,
    NonEmptyGroup,
    RaylogError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.core.groups.records import GroupChanged, MemberRecord, OffsetCommitted, OffsetKey
from raylog.core.groups.states import GroupState
from raylog.protocol.groups import JoinGroupProtocol
from raylog.protocol.rows import Tombstone
from tests.simulation.groups.answers import Answers
from tests.simulation.groups.books import GroupBooks
from tests.simulation.groups.coordinator import Call
from tests.simulation.world import Violation

LIFE = 1
RANGE = [["range", b""]]
NOW_MS = 100


class Request:
    """The fields of a request that the checker reads."""

    def __init__(self, method: str, *args: object, request: int = 1) -> None:
        self.method = method
        self.args: list[Any] = list(args)
        self.request = request
        self.came_ms = NOW_MS
        self.group = str(args[0]) if args else ""
        place = {"join_group": 1, "sync_group": 2, "heartbeat": 2, "offset_commit": 2}.get(method)
        self.member_id = "" if place is None else str(args[place])


class Coordinator:
    """One load of a coordinator: group ``g`` is stable in generation 3, with members a and b; b is static."""

    def __init__(self) -> None:
        self.books = GroupBooks()
        self.books.loaded(LIFE, 0)
        self.answers = Answers(self.books, LIFE, 0)
        self.write(GroupState.COMPLETING_REBALANCE, replayed=True)
        self.write(GroupState.STABLE, replayed=True)
        for member in "ab":
            self.books.active(LIFE, "g", member, NOW_MS)
            self.books.synced(LIFE, "g", member, 3, NOW_MS)

    def write(self, state: GroupState, generation: int = 3, *, protocol: str = "range", replayed: bool = False) -> None:
        given = state is GroupState.STABLE
        members = tuple(
            MemberRecord(
                member_id=member,
                instance_id=instance,
                client_id="reader",
                session_timeout_ms=600,
                rebalance_timeout_ms=1_000,
                protocols=(JoinGroupProtocol("range", b""),),
                assignment=member.encode() if given else b"",
            )
            for member, instance in (("a", None), ("b", "instance"))
        )
        record = GroupChanged(
            group="g",
            generation=generation,
            protocol_type="consumer",
            protocol=protocol,
            leader="a",
            state=state,
            changed_ms=0,
            members=members,
        )
        key, value = record.to_wire()
        self.answers.row(key, value, replayed=replayed)

    def receive(self, request: Request) -> Call:
        call = cast(Call, request)
        self.answers.received(call)
        return call

    def refuse(self, request: Request, error: RaylogError) -> None:
        call = self.receive(request)
        self.answers.settled(call)
        self.answers.refused(call, error, NOW_MS)

    def reply(self, request: Request, result: object) -> None:
        call = self.receive(request)
        self.answers.settled(call)
        self.answers.replied(call, result, NOW_MS)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def anomaly() -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, check=lambda found: found.rule == "I15")


def heartbeat(member_id: str, generation: int = 3, instance: str | None = None) -> Request:
    return Request("heartbeat", "g", generation, member_id, instance)


def join(member_id: str, instance: str | None = None, request: int = 1) -> Request:
    return Request("join_group", "g", member_id, instance, "reader", 600, 1_000, "consumer", RANGE, request=request)


RIGHT: list[tuple[Request, RaylogError]] = [
    (heartbeat("a", generation=2), IllegalGeneration(generation=3)),
    (heartbeat("c"), UnknownMemberId()),
    (heartbeat("old", instance="instance"), FencedInstanceId()),
    (join(""), MemberIdRequired(member_id="d")),
    (Request("delete_group", "g"), NonEmptyGroup()),
    (Request("describe_group", "other"), GroupIdNotFound()),
    (Request("join_group", "g", "", "i", "c", 1, 1_000, "consumer", RANGE), InvalidSessionTimeout()),
    (Request("join_group", "g", "", "i", "c", 600, 1_000, "consumer", [["sticky", b""]]), InconsistentGroupProtocol()),
    (Request("offset_fetch", "", None), InvalidGroupId()),
]
WRONG: list[tuple[Request, RaylogError]] = [
    (heartbeat("a"), IllegalGeneration(generation=3)),
    (heartbeat("a"), UnknownMemberId()),
    (heartbeat("b", instance="instance"), FencedInstanceId()),
    (heartbeat("a"), FencedInstanceId()),
    (heartbeat("a"), RebalanceInProgress()),
    (Request("offset_commit", "g", 3, "a", [], None), RebalanceInProgress()),
    (join("a"), MemberIdRequired(member_id="d")),
    (Request("delete_group", "empty"), NonEmptyGroup()),
    (Request("describe_group", "g"), GroupIdNotFound()),
    (heartbeat("a"), InvalidRequest()),
    (heartbeat("old", instance="instance"), UnknownMemberId()),
    (heartbeat("c", generation=2), IllegalGeneration(generation=3)),
    (join("", "i"), InvalidSessionTimeout()),
    (join("", "i"), InconsistentGroupProtocol()),
    (join("", "i"), GroupMaxSizeReached()),
    (Request("offset_fetch", "g", None), InvalidGroupId()),
    (Request("offset_fetch", "", None), GroupIdNotFound()),
]


@pytest.mark.parametrize(("request_", "error"), RIGHT, ids=lambda each: type(each).__name__)
def test_an_error_that_the_state_allows(coordinator: Coordinator, request_: Request, error: RaylogError) -> None:
    coordinator.refuse(request_, error)


@pytest.mark.parametrize(("request_", "error"), WRONG, ids=lambda each: type(each).__name__)
def test_an_error_that_nothing_justifies(coordinator: Coordinator, request_: Request, error: RaylogError) -> None:
    with anomaly():
        coordinator.refuse(request_, error)


def test_a_heartbeat_that_succeeds_for_a_member_of_the_generation_alone(coordinator: Coordinator) -> None:
    coordinator.reply(heartbeat("a"), [])
    for wrong in (heartbeat("a", generation=2), heartbeat("c")):
        with anomaly():
            coordinator.reply(wrong, [])


def test_nothing_goes_on_as_before_while_a_join_waits(coordinator: Coordinator) -> None:
    coordinator.receive(join("d", request=7))
    coordinator.refuse(heartbeat("a"), RebalanceInProgress())
    with anomaly():
        coordinator.reply(heartbeat("a"), [])


def test_nothing_goes_on_as_before_when_a_member_has_left(coordinator: Coordinator) -> None:
    coordinator.reply(Request("leave_group", "g", [["b", None]]), [["b", None, 0]])
    with anomaly():
        coordinator.reply(heartbeat("a"), [])


def test_an_id_that_was_just_given_is_known(coordinator: Coordinator) -> None:
    coordinator.refuse(join(""), MemberIdRequired(member_id="d"))
    with anomaly():
        coordinator.refuse(join("d", request=2), UnknownMemberId())


def test_a_sync_that_brings_another_assignment(coordinator: Coordinator) -> None:
    coordinator.reply(Request("sync_group", "g", 3, "b", "instance", []), [b"b"])
    with anomaly():
        coordinator.reply(Request("sync_group", "g", 3, "b", "instance", []), [b"a"])


def test_assignments_that_the_leader_of_the_generation_did_not_send(coordinator: Coordinator) -> None:
    coordinator.write(GroupState.COMPLETING_REBALANCE, 4)
    coordinator.receive(Request("sync_group", "g", 3, "a", None, [["a", b"a"], ["b", b"b"]]))
    with anomaly():
        coordinator.write(GroupState.STABLE, 4)
    coordinator.receive(Request("sync_group", "g", 4, "a", None, [["a", b"a"], ["b", b"b"]]))
    coordinator.write(GroupState.STABLE, 4)


def test_a_join_answered_with_another_generation(coordinator: Coordinator) -> None:
    coordinator.reply(join("b", "instance"), [3, "range", "a", "b", [], False])
    with anomaly():
        coordinator.reply(join("b", "instance"), [2, "range", "a", "b", [], False])
    with anomaly():
        coordinator.reply(join("a"), [3, "range", "a", "a", [["a", None, b""]], False])


def test_a_static_member_that_returns_takes_its_place_at_once(coordinator: Coordinator) -> None:
    coordinator.receive(join("", "instance"))
    with anomaly():
        coordinator.answers.stepped()


def test_a_static_member_that_changes_the_vote_begins_a_round(coordinator: Coordinator) -> None:
    coordinator.receive(Request("join_group", "g", "", "instance", "reader", 600, 1_000, "consumer", [["sticky", b""]]))
    coordinator.answers.stepped()


def test_a_replaced_process_is_fenced_while_it_waits(coordinator: Coordinator) -> None:
    waiting = coordinator.receive(join("b", "instance", request=6))
    coordinator.receive(join("", "instance", request=7))
    coordinator.answers.refused(waiting, FencedInstanceId(), NOW_MS)
    with anomaly():
        coordinator.answers.refused(waiting, RebalanceInProgress(), NOW_MS)


def test_an_assignor_without_a_vote_and_too_many_members(coordinator: Coordinator) -> None:
    with anomaly():
        coordinator.write(GroupState.COMPLETING_REBALANCE, 4, protocol="sticky")
    coordinator.books.members_max = 1
    with anomaly():
        coordinator.write(GroupState.COMPLETING_REBALANCE, 4)


def test_offsets_are_fetched_and_deleted_as_they_were_committed(coordinator: Coordinator) -> None:
    for topic_id in ("t", "u"):
        key = OffsetKey("kept", topic_id, "orders", 0)
        committed = OffsetCommitted(*key, offset=1, leader_epoch=2, metadata="note", committed_ms=0)
        coordinator.answers.row(*committed.to_wire(), replayed=True)
    fetch = Request("offset_fetch", "kept", [["t", "orders", 0]])
    coordinator.reply(fetch, [["t", "orders", 0, 1, 2, "note"]])
    with anomaly():
        coordinator.reply(fetch, [["t", "orders", 0, 1, 2, ""]])
    delete = coordinator.receive(Request("offset_delete", "kept", [["t", "orders", 0]]))
    for topic_id in ("t", "u"):
        coordinator.answers.row(
            *Tombstone(OffsetCommitted, OffsetKey("kept", topic_id, "orders", 0)).to_wire(), replayed=False
        )
    with anomaly():
        coordinator.answers.replied(delete, [["orders", 0, 0]], NOW_MS)


def test_a_group_that_is_not_listed_or_described_otherwise(coordinator: Coordinator) -> None:
    key = OffsetKey("kept", "t", "orders", 0)
    committed = OffsetCommitted(*key, offset=1, leader_epoch=-1, metadata="", committed_ms=0)
    coordinator.answers.row(*committed.to_wire(), replayed=True)
    coordinator.reply(Request("list_groups"), [["g", "consumer", "Stable"], ["kept", "", "Empty"]])
    with anomaly():
        coordinator.reply(Request("list_groups"), [["g", "consumer", "Stable"]])
    with anomaly():
        coordinator.reply(Request("describe_group", "g"), {"state": "Empty", "generation": 3, "offsets": []})
