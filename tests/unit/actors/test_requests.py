"""Every request of the controller and of a coordinator becomes an event, unless its shell answers it."""

import types
from itertools import starmap
from types import SimpleNamespace
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import pytest

from raylog.actors.derived_events import DerivedEvent
from raylog.actors.groups import requests as group_requests
from raylog.actors.groups.requests import GroupRequest
from raylog.actors.transactions import requests as transaction_requests
from raylog.base.errors import InvalidRequest
from raylog.core.controller.events import ControllerRequest
from raylog.core.groups.events import DeleteGroupReceived, JoinReceived, OffsetCommitReceived, SyncReceived
from raylog.protocol.broker import MetadataRequest
from raylog.protocol.controller import CONTROLLER, ControllerMetricsRequest
from raylog.protocol.groups import DELETE_GROUP, GROUP_COORDINATOR, CoordinatorMetricsRequest
from raylog.protocol.message import Message, read
from raylog.protocol.transactions import TRANSACTION_COORDINATOR, TransactionMetricsRequest
from tests.unit.protocol.samples import of_this_release

ANSWERED_BY_THE_SHELL = {
    MetadataRequest,
    ControllerMetricsRequest,
    CoordinatorMetricsRequest,
    TransactionMetricsRequest,
}
"""Requests that need no decision of a machine."""

DERIVED = [
    *group_requests.EVENTS.values(),
    *transaction_requests.EVENTS.values(),
]


def group_request(method: str, args: object) -> GroupRequest:
    return cast(GroupRequest, SimpleNamespace(method=method, args=args, peer_host="10.0.0.7", grant=None))


def test_every_request_has_an_event_or_is_answered_by_the_shell() -> None:
    tables = (
        (CONTROLLER, get_args(ControllerRequest)),
        (GROUP_COORDINATOR, group_requests.EVENTS),
        (TRANSACTION_COORDINATOR, transaction_requests.EVENTS),
    )
    for endpoint, events in tables:
        requests = {method.request for method in endpoint.methods.values()}
        assert requests - ANSWERED_BY_THE_SHELL == set(events)


@pytest.mark.parametrize("derived", DERIVED, ids=lambda derived: derived.cause)
def test_an_event_has_what_the_request_has(derived: DerivedEvent[Any]) -> None:
    arrival = {"session": 1, "request": 2, "now_ms": 3}

    def event_of(wire: object) -> Any:
        return derived.make(read(derived.request, wire, derived.cause), **arrival)

    wire = of_this_release(derived.request)
    event = event_of(wire)
    assert event.cause == derived.cause
    assert {name: getattr(event, name) for name in arrival if hasattr(event, name)}.items() <= arrival.items()
    for number, field in enumerate(msgspec.structs.fields(derived.request)):
        other = [*wire[:number], other_than(wire[number]), *wire[number + 1 :]]
        assert event_of(other) != event, field.name


@pytest.mark.parametrize("derived", DERIVED, ids=lambda derived: derived.cause)
def test_a_copied_field_has_the_type_that_the_event_expects(derived: DerivedEvent[Any]) -> None:
    taken = {field.name: field.type for field in msgspec.structs.fields(derived.request)}
    expected = get_type_hints(derived.event)
    for name, source in derived.copied.items():
        assert fits(taken[source], expected[name]), name


def test_a_field_without_a_value_shows_when_the_table_is_made() -> None:
    with pytest.raises(TypeError, match="'group', and a request 'delete_group' no 'group'"):
        DerivedEvent(DELETE_GROUP, DeleteGroupReceived)
    with pytest.raises(TypeError, match="no fields \\['generation'\\]"):
        DerivedEvent(DELETE_GROUP, DeleteGroupReceived, group_requests.NAMES, generation=lambda args: 1)


def other_than(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (list, dict)):
        return type(value)()
    return value + value


def fits(taken: Any, expected: Any) -> bool:
    """Return whether values of a request's field, its rows as tuples, may be those of an event's field."""
    taken, expected = plain(taken), plain(expected)
    if get_origin(taken) in (Union, types.UnionType):
        return all(fits(part, expected) for part in get_args(taken))
    if get_origin(expected) in (Union, types.UnionType):
        return any(fits(taken, part) for part in get_args(expected))
    inside = [part for part in get_args(expected) if part is not ...]
    if isinstance(taken, type) and issubclass(taken, Message):
        return all(starmap(fits, zip([field.type for field in msgspec.structs.fields(taken)], inside, strict=True)))
    if get_origin(taken) is not None:
        return all(starmap(fits, zip(get_args(taken), inside, strict=True)))
    return expected in (taken, object)


def plain(kind: Any) -> Any:
    """Return a type without the names and the bounds that either side gives to it."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def test_rows_of_a_request_become_tuples_of_the_event() -> None:
    join = group_request("join_group", ["g", "", None, "c", 1, 2, "consumer", [["range", b"meta", "later"]]])
    joined = group_requests.event_for(join, 1, 2)
    assert isinstance(joined, JoinReceived)
    assert joined.protocols == (("range", b"meta"),)
    synced = group_requests.event_for(group_request("sync_group", ["g", 1, "m", None, [["m", b"all"]]]), 1, 2)
    assert isinstance(synced, SyncReceived)
    assert synced.assignments == {"m": b"all"}


def test_an_offset_commit_carries_the_instance_id_of_a_static_member() -> None:
    commit = ["g", 1, "m", [["id", "t", 0, 5, 1, ""]]]
    for args, instance in (([*commit, "i"], "i"), ([*commit, None], None), (commit, None)):
        event = group_requests.event_for(group_request("offset_commit", args), 1, 2)
        assert isinstance(event, OffsetCommitReceived)
        assert event.instance_id == instance
    with pytest.raises(InvalidRequest, match="'group_instance_id' is wrong"):
        group_requests.event_for(group_request("offset_commit", [*commit, 5]), 1, 2)
