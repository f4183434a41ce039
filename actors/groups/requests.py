"""Makes events of the group coordinator's machine from requests on the wire. Used by its runner; keeps no state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from raylog.actors.coordinators.runner import CoordinatorRequest
from raylog.actors.derived_events import DerivedEvent, table_of
from raylog.actors.permissions import sees_offset
from raylog.core.groups import events as ev
from raylog.protocol import groups
from raylog.protocol.message import Message


class GroupRequest(CoordinatorRequest, Protocol):
    """A request to a group coordinator, with the host of its sender."""

    @property
    def peer_host(self) -> str: ...


NAMES: Final = {"group": "group_id", "generation": "generation_id", "instance_id": "group_instance_id"}
"""Fields that the machine names without the prefix or suffix of Kafka's protocol."""

EVENTS: Final[Mapping[type[Message], DerivedEvent[ev.Event]]] = table_of(
    (
        DerivedEvent(groups.JOIN_GROUP, ev.JoinReceived, NAMES, client_host=lambda _: ""),
        DerivedEvent(
            groups.SYNC_GROUP,
            ev.SyncReceived,
            NAMES,
            assignments=lambda args: {row.member_id: row.assignment for row in args.assignments},
        ),
        DerivedEvent(groups.HEARTBEAT, ev.HeartbeatReceived, NAMES),
        DerivedEvent(
            groups.CONSUMER_GROUP_HEARTBEAT,
            ev.MemberHeartbeatReceived,
            NAMES,
            topics=lambda args: args.subscribed_topics,
            assignor=lambda args: args.server_assignor,
            owned=lambda args: None if args.owned is None else _places(args.owned),
            client_host=lambda args: "",
        ),
        DerivedEvent(groups.LEAVE_GROUP, ev.LeaveReceived, NAMES),
        DerivedEvent(groups.OFFSET_COMMIT, ev.OffsetCommitReceived, NAMES),
        DerivedEvent(groups.TXN_OFFSET_COMMIT, ev.TxnOffsetCommitReceived, NAMES),
        DerivedEvent(groups.END_TXN_OFFSETS, ev.EndTxnOffsetsReceived, NAMES),
        DerivedEvent(groups.OFFSET_FETCH, ev.OffsetFetchReceived, NAMES),
        DerivedEvent(groups.OFFSET_RESET, ev.OffsetResetReceived, NAMES),
        DerivedEvent(groups.OFFSET_DELETE, ev.OffsetDeleteReceived, NAMES),
        DerivedEvent(groups.LIST_GROUPS, ev.ListGroupsReceived),
        DerivedEvent(groups.DESCRIBE_GROUP, ev.DescribeGroupReceived, NAMES, sees=lambda _: None),
        DerivedEvent(groups.DELETE_GROUP, ev.DeleteGroupReceived, NAMES),
    )
)
"""How each request becomes an event; the shell answers all other requests itself."""


def _places(rows: Sequence[groups.TopicPartitions]) -> list[tuple[str, str, int]]:
    return [(row.topic_id, row.topic, number) for row in rows for number in row.partitions]


def event_for(request: GroupRequest, number: int, now_ms: int) -> ev.Event:
    """Return the event for a request; the machine will reply to ``number``.

    Raises :class:`InvalidRequest` for an unknown method or malformed fields.
    """
    args = groups.GROUP_COORDINATOR.read_request(request.method, request.args)
    event = EVENTS[type(args)].make(args, request=number, now_ms=now_ms)
    if isinstance(event, (ev.JoinReceived, ev.MemberHeartbeatReceived)):
        return replace(event, client_host=request.peer_host)
    if isinstance(event, ev.DescribeGroupReceived) and request.grant is not None:
        return replace(event, sees=partial(sees_offset, request.grant, event.group))
    return event
