"""What passes the door of an endpoint."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.actors.arguments import (
    Check,
    anything,
    arguments,
    each,
    flag,
    later,
    octets,
    optional,
    row,
    table,
    text,
    whole,
)
from raylog.actors.controller_requests import event_for as controller_event
from raylog.actors.group_requests import event_for as group_event
from raylog.core.errors import InvalidRequest
from raylog.core.groups.events import OffsetCommitReceived
from raylog.rpc import Request

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats()
WIRE = st.recursive(
    SCALARS | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=12,
)
"""Whatever msgpack can carry."""


class Asked:
    """A request that came without a connection."""

    def __init__(self, method: str, args: Any) -> None:
        self.method, self.args = method, args


def request(args: Any, method: str = "m") -> Request:
    return cast(Request, Asked(method, args))


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (whole, [0, -1, 2**63 - 1, -(2**63)], [True, 1.0, "1", None, 2**63, 2**64 - 1]),
        (text, ["", "x"], [b"x", 1, None]),
        (flag, [True, False], [0, 1, None, "true"]),
        (octets, [b"", b"x"], ["x", 5, None, [1]]),
        (optional(text), [None, "x"], [1]),
        (each(whole), [[], [1, 2]], [None, 1, [True], ["1"], {"a": 1}, "12"]),
        (row(text, whole), [["a", 1], ["a", 1, "of a later release"]], [["a"], [1, "a"], None, "ab"]),
        (row(text, later(whole)), [["a", 1], ["a"]], [[], ["a", "b"]]),
        (table(whole), [{}, {"a": 1}], [[], {1: 1}, {"a": "b"}, None]),
        (anything, [None, 1, []], []),
    ],
)
def test_each_check_accepts_what_it_names_and_nothing_else(check: Check, right: list[Any], wrong: list[Any]) -> None:
    assert [check(value) for value in right] == [True] * len(right)
    assert [check(value) for value in wrong] == [False] * len(wrong)


def test_too_few_arguments_are_refused_and_none_at_all_may_be_left_out() -> None:
    assert arguments(request(None)) == []
    assert arguments(request(["a", 1]), text, whole) == ["a", 1]
    for args in (["a"], None, {"a": 1}, "ab"):
        with pytest.raises(InvalidRequest, match="takes 2 arguments"):
            arguments(request(args), text, whole)
    with pytest.raises(InvalidRequest, match="Argument 2 of 'm' cannot be 'b'"):
        arguments(request(["a", "b"]), text, whole)


def test_what_a_later_release_adds_at_the_end_is_cut_off_at_every_depth() -> None:
    pairs = optional(each(row(text, each(row(whole)))))
    assert arguments(request([[["a", [[1, "new"]], "new"]], 7, "new"]), pairs, whole) == [[["a", [[1]]]], 7]


def test_what_an_earlier_release_does_not_send_has_its_default() -> None:
    pairs = each(row(text, later(whole, -1)))
    assert arguments(request([[["a"], ["b", 2]]]), pairs, later(optional(text))) == [[["a", -1], ["b", 2]], None]
    with pytest.raises(InvalidRequest, match="Argument 2 of 'm' cannot be 5"):
        arguments(request([[], 5]), pairs, later(optional(text)))
    nested = later(each(row(text)), ())
    assert arguments(request([[["a", "new"]]]), nested) == [[["a"]]]
    assert arguments(request([]), nested) == [()]


METHODS = [
    "register_broker", "register_replica", "register_coordinator", "alter_partition", "create_topic", "delete_topic",
    "alter_topic_config", "allocate_producer_ids", "ensure_coordinator", "describe_cluster", "join_group", "sync_group",
    "heartbeat", "leave_group", "offset_commit", "offset_fetch", "list_groups", "describe_group", "delete_group", "",
]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(method=st.sampled_from(METHODS), args=WIRE | st.lists(WIRE, max_size=9))
def test_any_arguments_become_an_event_or_are_refused(method: str, args: Any) -> None:
    for build in (
        lambda one: controller_event(one, 1, 2, 3),
        lambda one: group_event(one, 1, 2),
    ):
        try:
            event = build(request(args, method))
        except InvalidRequest:
            continue
        assert event.cause == method


def test_an_offset_commit_carries_the_instance_id_of_a_static_member() -> None:
    commit = ["g", 1, "m", [["id", "t", 0, 5, 1, ""]]]
    for args, instance in (([*commit, "i"], "i"), ([*commit, None], None), (commit, None)):
        event = group_event(request(args, "offset_commit"), 1, 2)
        assert isinstance(event, OffsetCommitReceived)
        assert event.instance_id == instance
    with pytest.raises(InvalidRequest, match="Argument 5"):
        group_event(request([*commit, 5], "offset_commit"), 1, 2)
