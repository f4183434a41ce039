"""Requests on the wire turned into events of the group coordinator's machine. Used by its shell; keeps no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast

from raylog.actors.arguments import arguments, each, later, octets, optional, row, text, whole
from raylog.actors.request_table import Answerable
from raylog.core.errors import InvalidRequest
from raylog.core.groups import events as ev
from raylog.rpc import Request


class GroupRequest(Answerable, Protocol):
    """A request to a group coordinator: :class:`raylog.rpc.Request`, or its twin in the simulator."""

    method: str
    args: Any


def event_for(request: GroupRequest, number: int, now_ms: int) -> ev.Event:
    """Return the event for a request; ``number`` is what the machine will answer to.

    Raises :class:`InvalidRequest` for a method that a coordinator does not know and for arguments of the wrong shape.
    """
    known = _METHODS.get(request.method)
    if known is None:
        raise InvalidRequest(f"A group coordinator knows no method {request.method!r}.")
    build, *checks = known
    event: ev.Event = build(number, now_ms, arguments(cast(Request, request), *checks))
    return event


def _join(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    group, member, instance, client, session_ms, rebalance_ms, kind, protocols = args
    return ev.JoinReceived(
        cause="join_group",
        now_ms=now_ms,
        request=number,
        group=group,
        member_id=member,
        instance_id=instance,
        client_id=client,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        protocol_type=kind,
        protocols=[(name, bytes(metadata)) for name, metadata in protocols],
    )


def _sync(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    group, generation, member, instance, assignments = args
    return ev.SyncReceived(
        cause="sync_group",
        now_ms=now_ms,
        request=number,
        group=group,
        generation=generation,
        member_id=member,
        instance_id=instance,
        assignments={one: bytes(assignment) for one, assignment in assignments},
    )


def _heartbeat(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    group, generation, member, instance = args
    return ev.HeartbeatReceived(
        cause="heartbeat",
        now_ms=now_ms,
        request=number,
        group=group,
        generation=generation,
        member_id=member,
        instance_id=instance,
    )


def _leave(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    group, members = args
    return ev.LeaveReceived(
        cause="leave_group",
        now_ms=now_ms,
        request=number,
        group=group,
        members=[(member, instance) for member, instance in members],
    )


def _offset_commit(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    group, generation, member, offsets, instance = args
    return ev.OffsetCommitReceived(
        cause="offset_commit",
        now_ms=now_ms,
        request=number,
        group=group,
        generation=generation,
        member_id=member,
        instance_id=instance,
        offsets=[
            (topic_id, topic, part, offset, epoch, note) for topic_id, topic, part, offset, epoch, note in offsets
        ],
    )


def _offset_fetch(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    group, partitions = args
    asked = None if partitions is None else [(topic_id, topic, part) for topic_id, topic, part in partitions]
    return ev.OffsetFetchReceived(cause="offset_fetch", now_ms=now_ms, request=number, group=group, partitions=asked)


def _list(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.ListGroupsReceived(cause="list_groups", now_ms=now_ms, request=number)


def _describe(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.DescribeGroupReceived(cause="describe_group", now_ms=now_ms, request=number, group=args[0])


def _delete(number: int, now_ms: int, args: Sequence[Any]) -> ev.Event:
    return ev.DeleteGroupReceived(cause="delete_group", now_ms=now_ms, request=number, group=args[0])


_METHODS: Final[Mapping[str, tuple[Any, ...]]] = {
    "join_group": (_join, text, text, optional(text), text, whole, whole, text, each(row(text, octets))),
    "sync_group": (_sync, text, whole, text, optional(text), each(row(text, octets))),
    "heartbeat": (_heartbeat, text, whole, text, optional(text)),
    "leave_group": (_leave, text, each(row(text, optional(text)))),
    "offset_commit": (
        _offset_commit,
        text,
        whole,
        text,
        each(row(text, text, whole, whole, whole, text)),
        later(optional(text)),
    ),
    "offset_fetch": (_offset_fetch, text, optional(each(row(text, text, whole)))),
    "list_groups": (_list,),
    "describe_group": (_describe, text),
    "delete_group": (_delete, text),
}
"""How each method becomes an event, and what its arguments are."""
