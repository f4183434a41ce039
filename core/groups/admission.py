"""Which requests are invalid whatever the state of their group. Pure."""

from __future__ import annotations

from typing import Final

from raylog.base.errors import (
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    LimitReached,
    RaylogError,
)
from raylog.core.groups.settings import GroupSettings
from raylog.protocol.groups import ConsumerGroupHeartbeatRequest, JoinGroupRequest

GROUP_CHARACTERS_MAX: Final = 1_024
"""Longest name of a new group."""


def group_error(group: str, groups: int, settings: GroupSettings) -> RaylogError | None:
    """Return the error for a new group when the coordinator has ``groups`` already, or None."""
    if len(group) > GROUP_CHARACTERS_MAX:
        return InvalidGroupId(
            f"The group id has {len(group)} characters, and may have {GROUP_CHARACTERS_MAX} at most; use a shorter one."
        )
    if groups >= settings.groups_max:
        return LimitReached(
            f"There are {groups} groups, the most that a coordinator keeps (group.max.groups): delete some that are "
            "not used any more (`raylog group delete`), wait until their offsets expire, or raise that."
        )
    return None


def member_error(
    message: JoinGroupRequest | ConsumerGroupHeartbeatRequest, settings: GroupSettings
) -> RaylogError | None:
    """Return the error for the fields of a join, in either protocol, or None."""
    if message.group_instance_id == "":
        return InvalidRequest("A group.instance.id may not be empty; a member without one sends none.")
    if isinstance(message, ConsumerGroupHeartbeatRequest):
        return None  # its other fields only count in some heartbeats, and are checked there
    least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not least <= message.session_timeout_ms <= most:
        return InvalidSessionTimeout(
            f"session_timeout_ms is {message.session_timeout_ms}; it has to be within {least} and {most}."
        )
    if message.protocol_type == "" or not message.protocols:
        return InconsistentGroupProtocol("A member has to support at least one assignor.")
    return None
