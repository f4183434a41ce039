"""Which protocol a member begins with, and by which errors it goes over to the other one."""

from typing import Any

import pytest

from raylog.base.errors import (
    FencedInstanceId,
    InconsistentGroupProtocol,
    InvalidRequest,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ConsumerConfig, load
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.consumer_session import ConsumerSession
from raylog.client.consumer.protocols import CHANGES_MAX, SessionMaker
from raylog.client.group.sticky import CooperativeStickyAssignor

OTHERS_ARE_CLASSIC = InconsistentGroupProtocol("the members are classic", group_protocol="classic")
OTHERS_ARE_NOT = InconsistentGroupProtocol("the members are not classic", group_protocol="consumer")


def maker(**keys: Any) -> SessionMaker:
    config = load(ConsumerConfig, None, {"bootstrap": "127.0.0.1:1", "group_id": "board"} | keys)

    async def commit() -> None:
        raise AssertionError("nothing is held")

    def fail(*_: object) -> Any:
        raise AssertionError("nothing is assigned")

    return SessionMaker(
        ClusterClient(config), config, Assignment(fail), commit_positions=commit, on_assignment=fail, notify=fail
    )


@pytest.mark.parametrize(
    ("keys", "is_consumer"),
    [
        ({}, True),
        ({"group_protocol": "consumer"}, True),
        ({"group_remote_assignor": "range"}, True),
        ({"group_protocol": "classic"}, False),
        ({"partition_assignment_strategy": "range"}, False),
        ({"partition_assignment_strategy": [CooperativeStickyAssignor]}, False),
    ],
)
async def test_settings_that_one_protocol_has_decide_on_it(keys: dict[str, Any], is_consumer: bool) -> None:
    made = maker(**keys)
    first = made.first("board")
    assert isinstance(first, ConsumerSession) == is_consumer
    if keys:
        errors = (OTHERS_ARE_CLASSIC, OTHERS_ARE_NOT)
        assert [made.instead(first, error) for error in errors] == [None, None], "it is decided"


@pytest.mark.parametrize(
    ("error", "goes_over"),
    [
        (OTHERS_ARE_CLASSIC, True),
        (InvalidRequest("A group coordinator knows no such method."), False),
        (FencedInstanceId("another process"), False),
        (UnknownTopicOrPartition("no such topic"), False),
    ],
)
async def test_an_open_member_goes_over_by_the_error_of_its_join(error: RaylogError, goes_over: bool) -> None:
    made = maker()
    first = made.first("board")
    assert (made.instead(first, error) is not None) == goes_over
    first.membership.epoch = 3  # type: ignore[union-attr]
    assert made.instead(first, error) is None, "it is a member"


async def test_a_classic_member_comes_back_where_the_error_names_the_other() -> None:
    made = maker()
    classic = made.instead(made.first("board"), OTHERS_ARE_CLASSIC)
    assert classic is not None
    assert made.instead(classic, InconsistentGroupProtocol("no assignor in common")) is None
    assert isinstance(made.instead(classic, OTHERS_ARE_NOT), ConsumerSession)


async def test_a_group_that_contradicts_itself_is_an_error_in_the_end() -> None:
    made = maker()
    session = made.first("board")
    for turn in range(CHANGES_MAX):
        found = made.instead(session, OTHERS_ARE_NOT if turn % 2 else OTHERS_ARE_CLASSIC)
        assert found is not None
        session = found
    assert made.instead(session, OTHERS_ARE_NOT) is None
    assert made.instead(session, OTHERS_ARE_NOT) is not None, "the next poll tries again"
