"""Every request of the controller and of a group coordinator becomes an event, unless its shell answers it."""

from types import SimpleNamespace
from typing import cast

import pytest

from raylog.actors.controller import requests as controller_requests
from raylog.actors.groups import requests as group_requests
from raylog.actors.groups.requests import GroupRequest
from raylog.core.controller import events as ctl
from raylog.core.errors import InvalidRequest
from raylog.core.features import FIRST_LEVEL
from raylog.core.groups.events import JoinReceived, OffsetCommitReceived, SyncReceived
from raylog.core.ids import TopicPartition
from raylog.protocol.broker import MetadataRequest
from raylog.protocol.controller import CONTROLLER, ControllerMetricsRequest, SessionHeartbeatRequest
from raylog.protocol.groups import GROUP_COORDINATOR, CoordinatorMetricsRequest
from tests.unit.protocol.samples import of_the_first_release, of_this_release

SHELLS_OWN = {MetadataRequest, ControllerMetricsRequest, SessionHeartbeatRequest, CoordinatorMetricsRequest}


def group_request(method: str, args: object) -> GroupRequest:
    return cast(GroupRequest, SimpleNamespace(method=method, args=args))


def test_every_request_has_a_builder_or_is_the_shells_own() -> None:
    for endpoint, builders in (
        (CONTROLLER, controller_requests.BUILDERS),
        (GROUP_COORDINATOR, group_requests.BUILDERS),
    ):
        requests = {method.request for method in endpoint.methods.values()}
        assert requests - SHELLS_OWN == set(builders)


def test_an_event_names_the_method_as_its_cause() -> None:
    for method in CONTROLLER.methods.values():
        if method.request not in SHELLS_OWN:
            request = CONTROLLER.read_request(method.name, of_this_release(method.request))
            assert controller_requests.event_for(request, 1, 2, 3).cause == method.name
    for method in GROUP_COORDINATOR.methods.values():
        if method.request not in SHELLS_OWN:
            request = group_request(method.name, of_this_release(method.request))
            assert group_requests.event_for(request, 1, 2).cause == method.name


def test_rows_of_a_request_become_tuples_of_the_event() -> None:
    named = CONTROLLER.read_request("elect_leaders", [[["t", 1], ["u", 2]], False])
    event = controller_requests.event_for(named, 1, 2, 3)
    assert isinstance(event, ctl.ElectLeadersReceived)
    assert event.partitions == [TopicPartition("t", 1), TopicPartition("u", 2)]
    join = group_request("join_group", ["g", "", None, "c", 1, 2, "consumer", [["range", b"meta", "later"]]])
    joined = group_requests.event_for(join, 1, 2)
    assert isinstance(joined, JoinReceived)
    assert joined.protocols == [("range", b"meta")]
    synced = group_requests.event_for(group_request("sync_group", ["g", 1, "m", None, [["m", b"all"]]]), 1, 2)
    assert isinstance(synced, SyncReceived)
    assert synced.assignments == {"m": b"all"}


def test_an_earlier_broker_registers_with_the_first_feature_level() -> None:
    wire = of_the_first_release(CONTROLLER.methods["register_broker"].request)
    event = controller_requests.event_for(CONTROLLER.read_request("register_broker", wire), 1, 2, 3)
    assert isinstance(event, ctl.BrokerRegistrationReceived)
    assert event.levels == (FIRST_LEVEL, FIRST_LEVEL)


def test_an_offset_commit_carries_the_instance_id_of_a_static_member() -> None:
    commit = ["g", 1, "m", [["id", "t", 0, 5, 1, ""]]]
    for args, instance in (([*commit, "i"], "i"), ([*commit, None], None), (commit, None)):
        event = group_requests.event_for(group_request("offset_commit", args), 1, 2)
        assert isinstance(event, OffsetCommitReceived)
        assert event.instance_id == instance
    with pytest.raises(InvalidRequest, match="'group_instance_id' is wrong"):
        group_requests.event_for(group_request("offset_commit", [*commit, 5]), 1, 2)
