"""What a group coordinator refuses for what it knows is proved first: a deposed one does not know what is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.groups.runner import GroupCoordinatorRunner
from raylog.base.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidProducerEpoch,
    InvalidSessionTimeout,
    LimitReached,
    MemberIdRequired,
    NonEmptyGroup,
    NotCoordinator,
    RaylogError,
    RebalanceInProgress,
    ResetOutdated,
    UnknownMemberId,
)
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.groups.coordinator import GroupCoordinatorMachine, GroupSettings
from tests.unit.actors.coordinators.incarnations import Incarnation, StateLog

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0, group_max_size=1, groups_max=4)
TOPIC = ("t" * 32, "orders", 0)
Step = Callable[[Incarnation], Any]


def new_runner(ports: Any) -> Any:
    machine = GroupCoordinatorMachine(settings=SETTINGS, share=EVERY_KEY, new_member_id=lambda client: f"{client}-1")
    return GroupCoordinatorRunner(machine, ports)


class Pair:
    """A coordinator that was cut off, and its successor."""

    def __init__(self, folder: Path) -> None:
        self._log = StateLog(folder)
        self.deposed = Incarnation(self._log, 0, new_runner)

    def succeeded(self) -> Incarnation:
        """Have the successor load."""
        return Incarnation(self._log, 1, new_runner)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "log")


def join(group: str, member: str = "", instance: str | None = "i", client: str = "c") -> Step:
    args = (group, member, instance, client, 10_000, 10_000, "consumer", [["range", b""]])
    return lambda coordinator: coordinator.done("join_group", *args)


def request(method: str, *args: object) -> Step:
    return lambda coordinator: coordinator.done(method, *args)


def commit(group: str, generation: int = -1, member: str = "", instance: str | None = None) -> Step:
    return request("offset_commit", group, generation, member, [[*TOPIC, 7, -1, ""]], instance)


def txn_commit(group: str, epoch: int) -> Step:
    return request("txn_offset_commit", group, -1, "", None, "etl", 5, epoch, [[*TOPIC, 7, -1, ""]])


def beat(group: str, member: str, epoch: int, sequence: int, topics: list[str] | None = None) -> Step:
    limits = (10_000, 10_000, 0)
    return request("consumer_group_heartbeat", group, member, epoch, None, sequence, "c", *limits, topics, None, None)


def leave(group: str, member: str, instance: str | None = "i") -> Step:
    return request("leave_group", group, [[member, instance]])


def nothing(_: Incarnation) -> None:
    """Nothing was stored before."""


LISTED = request("list_groups", [], [])

CASES: dict[str, tuple[Step, Step, Step, Any]] = {
    # what both know, what the successor alone knows, the request, the answer of a coordinator that knows no more
    "describe": (nothing, commit("g"), request("describe_group", "g"), GroupIdNotFound),
    "delete": (nothing, commit("g"), request("delete_group", "g"), GroupIdNotFound),
    "delete_used": (join("g"), leave("g", "c-1"), request("delete_group", "g"), NonEmptyGroup),
    "delete_offset": (
        lambda coordinator: (
            [commit("g")(coordinator), request("offset_delete", "g", [list(TOPIC)])(coordinator)]
            and join("g")(coordinator)
            and leave("g", "c-1")(coordinator)
        ),
        commit("g"),
        request("offset_delete", "g", [list(TOPIC)]),
        [["orders", 0, 0]],
    ),
    "list": (nothing, commit("g"), LISTED, []),
    "commit_unknown_group": (nothing, join("g"), commit("g", 1, "c-1", "i"), IllegalGeneration),
    "commit_unknown_member": (join("g"), leave("g", "c-1"), commit("g"), UnknownMemberId),
    "heartbeat": (nothing, join("g"), request("heartbeat", "g", 1, "c-1", "i"), UnknownMemberId),
    "heartbeat_generation": (join("g"), join("g", "c-1"), request("heartbeat", "g", 2, "c-1", "i"), IllegalGeneration),
    "sync": (nothing, join("g"), request("sync_group", "g", 1, "c-1", "i", [["c-1", b""]]), UnknownMemberId),
    "join_again": (nothing, join("g"), join("g", "c-1"), UnknownMemberId),
    "fenced_instance": (join("g"), leave("g", "c-1"), request("heartbeat", "g", 1, "x", "i"), FencedInstanceId),
    "leave": (
        lambda coordinator: join("g", client="a")(coordinator),
        lambda coordinator: leave("g", "a-1")(coordinator) and join("g", client="b")(coordinator),
        leave("g", "b-1"),
        [["b-1", "i", FencedInstanceId.code]],
    ),
    "full": (join("g"), leave("g", "c-1"), join("g", instance="j"), GroupMaxSizeReached),
    "room": (
        lambda coordinator: [commit(name)(coordinator) for name in "abcd"],
        request("delete_group", "a"),
        commit("e"),
        LimitReached,
    ),
    "reset_used": (
        join("g"),
        leave("g", "c-1"),
        request("offset_reset", "g", -1, [[*TOPIC, 5, -2]]),
        NonEmptyGroup,
    ),
    "reset_outdated": (
        commit("g"),
        request("offset_delete", "g", [list(TOPIC)]),
        request("offset_reset", "g", -1, [[*TOPIC, 5, -1]]),
        ResetOutdated,
    ),
    "member_heartbeat": (nothing, beat("g", "m", 0, 1, ["orders"]), beat("g", "m", 1, 2), UnknownMemberId),
    "member_epoch": (
        beat("g", "m", 0, 1, ["orders"]),
        lambda coordinator: beat("g", "m", -1, 2)(coordinator) and beat("g", "m", 0, 1, ["orders"])(coordinator),
        beat("g", "m", 3, 3),
        FencedMemberEpoch,
    ),
    "other_protocol": (join("g"), leave("g", "c-1"), beat("g", "m", 0, 1, ["orders"]), InconsistentGroupProtocol),
    "transaction": (
        txn_commit("g", 3),
        lambda coordinator: txn_commit("g", 4)(coordinator),
        txn_commit("g", 2),
        InvalidProducerEpoch,
    ),
}


def is_answer(answer: object, expected: object) -> bool:
    return isinstance(answer, expected) if isinstance(expected, type) else answer == expected


@pytest.mark.parametrize(("before", "later", "requested", "expected"), CASES.values(), ids=CASES)
def test_a_deposed_coordinator_states_nothing(
    pair: Pair, before: Step, later: Step, requested: Step, expected: object
) -> None:
    before(pair.deposed)
    later(pair.succeeded())
    answer = requested(pair.deposed)
    assert isinstance(answer, NotCoordinator), answer


@pytest.mark.parametrize(("before", "later", "requested", "expected"), CASES.values(), ids=CASES)
def test_one_that_leads_answers_with_a_row(
    pair: Pair, before: Step, later: Step, requested: Step, expected: object
) -> None:
    before(pair.deposed)
    pair.deposed.batches.clear()
    answer = requested(pair.deposed)
    assert is_answer(answer, expected), answer
    assert pair.deposed.batches == [1]


AT_ONCE: dict[str, tuple[Step, str, tuple[object, ...], type[RaylogError]]] = {
    "no_group_id": (nothing, "describe_group", ("",), InvalidGroupId),
    "session": (
        nothing,
        "join_group",
        ("g", "", None, "c", 1, 1, "consumer", [["range", b""]]),
        InvalidSessionTimeout,
    ),
    "member_id": (
        nothing,
        "join_group",
        ("g", "", None, "c", 10_000, 10_000, "consumer", [["range", b""]]),
        MemberIdRequired,
    ),
    "rebalance": (join("g"), "offset_commit", ("g", 1, "c-1", [[*TOPIC, 7, -1, ""]], "i"), RebalanceInProgress),
}


@pytest.mark.parametrize(("before", "method", "args", "error"), AT_ONCE.values(), ids=AT_ONCE)
def test_what_is_no_statement_waits_for_nothing(
    pair: Pair, before: Step, method: str, args: tuple[object, ...], error: type[RaylogError]
) -> None:
    before(pair.deposed)
    (answer,) = pair.deposed.send(method, *args).answers
    assert isinstance(answer, error)


def test_a_flood_of_refusals_waits_for_one_row_at_a_time(pair: Pair) -> None:
    coordinator = pair.deposed
    first = [coordinator.send("describe_group", f"g{number}") for number in range(500)]
    rows = coordinator.take()
    later = [coordinator.send("heartbeat", "g", 1, f"m{number}", None) for number in range(500)]
    coordinator.stored(rows)
    assert all(isinstance(each.answers[0], GroupIdNotFound) for each in first)
    assert not any(each.answers for each in later), "the row was under way when they came"
    coordinator.store()
    assert all(isinstance(each.answers[0], UnknownMemberId) for each in later)
    assert coordinator.batches == [1, 1]


def test_where_no_row_is_stored_a_refusal_is_to_be_tried_again(pair: Pair) -> None:
    coordinator = pair.deposed
    refused = coordinator.send("delete_group", "g")
    coordinator.take()
    coordinator.runner.end()  # as the shell does at the append's deadline
    (error,) = refused.answers
    assert isinstance(error, NotCoordinator)
    assert error.retriable
