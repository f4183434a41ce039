"""Requests on the wire turned into events of the group coordinator's machine. Used by its runner; keeps no state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from raylog.actors.request_table import Answerable
from raylog.core.groups import events as ev
from raylog.protocol import groups
from raylog.protocol.message import Message


class GroupRequest(Answerable, Protocol):
    """A request to a group coordinator: :class:`raylog.rpc.Request`, or its twin in the simulator."""

    method: str
    args: Any


def event_for(request: GroupRequest, number: int, now_ms: int) -> ev.Event:
    """Return the event for a request; the machine will reply to ``number``.

    Raises :class:`InvalidRequest` for a method that a coordinator does not know and for malformed fields.
    """
    args = groups.GROUP_COORDINATOR.read_request(request.method, request.args)
    return BUILDERS[type(args)](args, number, now_ms)


def _join(args: groups.JoinGroupRequest, number: int, now_ms: int) -> ev.Event:
    return ev.JoinReceived(
        cause="join_group",
        now_ms=now_ms,
        request=number,
        group=args.group_id,
        member_id=args.member_id,
        instance_id=args.group_instance_id,
        client_id=args.client_id,
        session_timeout_ms=args.session_timeout_ms,
        rebalance_timeout_ms=args.rebalance_timeout_ms,
        protocol_type=args.protocol_type,
        protocols=[(protocol.name, protocol.metadata) for protocol in args.protocols],
    )


def _sync(args: groups.SyncGroupRequest, number: int, now_ms: int) -> ev.Event:
    return ev.SyncReceived(
        cause="sync_group",
        now_ms=now_ms,
        request=number,
        group=args.group_id,
        generation=args.generation_id,
        member_id=args.member_id,
        instance_id=args.group_instance_id,
        assignments={row.member_id: row.assignment for row in args.assignments},
    )


def _heartbeat(args: groups.HeartbeatRequest, number: int, now_ms: int) -> ev.Event:
    return ev.HeartbeatReceived(
        cause="heartbeat",
        now_ms=now_ms,
        request=number,
        group=args.group_id,
        generation=args.generation_id,
        member_id=args.member_id,
        instance_id=args.group_instance_id,
    )


def _leave(args: groups.LeaveGroupRequest, number: int, now_ms: int) -> ev.Event:
    return ev.LeaveReceived(
        cause="leave_group",
        now_ms=now_ms,
        request=number,
        group=args.group_id,
        members=[(member.member_id, member.group_instance_id) for member in args.members],
    )


def _offset_commit(args: groups.OffsetCommitRequest, number: int, now_ms: int) -> ev.Event:
    return ev.OffsetCommitReceived(
        cause="offset_commit",
        now_ms=now_ms,
        request=number,
        group=args.group_id,
        generation=args.generation_id,
        member_id=args.member_id,
        instance_id=args.group_instance_id,
        offsets=[
            (
                row.topic_id,
                row.topic,
                row.partition,
                row.committed_offset,
                row.committed_leader_epoch,
                row.committed_metadata,
            )
            for row in args.offsets
        ],
    )


def _offset_fetch(args: groups.OffsetFetchRequest, number: int, now_ms: int) -> ev.Event:
    named = args.partitions
    return ev.OffsetFetchReceived(
        cause="offset_fetch",
        now_ms=now_ms,
        request=number,
        group=args.group_id,
        partitions=None if named is None else [(row.topic_id, row.topic, row.partition) for row in named],
    )


def _offset_delete(args: groups.OffsetDeleteRequest, number: int, now_ms: int) -> ev.Event:
    return ev.OffsetDeleteReceived(
        cause="offset_delete",
        now_ms=now_ms,
        request=number,
        group=args.group_id,
        partitions=[(row.topic_id, row.topic, row.partition) for row in args.partitions],
    )


def _list(args: groups.ListGroupsRequest, number: int, now_ms: int) -> ev.Event:
    return ev.ListGroupsReceived(cause="list_groups", now_ms=now_ms, request=number)


def _describe(args: groups.DescribeGroupRequest, number: int, now_ms: int) -> ev.Event:
    return ev.DescribeGroupReceived(cause="describe_group", now_ms=now_ms, request=number, group=args.group_id)


def _delete(args: groups.DeleteGroupRequest, number: int, now_ms: int) -> ev.Event:
    return ev.DeleteGroupReceived(cause="delete_group", now_ms=now_ms, request=number, group=args.group_id)


BUILDERS: Final[Mapping[type[Message], Callable[[Any, int, int], ev.Event]]] = {
    groups.JoinGroupRequest: _join,
    groups.SyncGroupRequest: _sync,
    groups.HeartbeatRequest: _heartbeat,
    groups.LeaveGroupRequest: _leave,
    groups.OffsetCommitRequest: _offset_commit,
    groups.OffsetFetchRequest: _offset_fetch,
    groups.OffsetDeleteRequest: _offset_delete,
    groups.ListGroupsRequest: _list,
    groups.DescribeGroupRequest: _describe,
    groups.DeleteGroupRequest: _delete,
}
"""How each request becomes an event; the shell answers the others itself."""
