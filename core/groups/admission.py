"""What is wrong with a member's request in every state of its group. Pure."""

from __future__ import annotations

from raylog.core.errors import InconsistentGroupProtocol, InvalidRequest, InvalidSessionTimeout, RaylogError
from raylog.core.groups.events import JoinReceived, MemberHeartbeatReceived
from raylog.core.groups.settings import GroupSettings


def member_error(event: JoinReceived | MemberHeartbeatReceived, settings: GroupSettings) -> RaylogError | None:
    """Return the error for a member that wants to join, in either protocol, or None."""
    if event.instance_id == "":
        return InvalidRequest("A group.instance.id may not be empty; a member without one sends none.")
    if isinstance(event, MemberHeartbeatReceived):
        return None  # its other fields count in some heartbeats only
    least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not least <= event.session_timeout_ms <= most:
        return InvalidSessionTimeout(
            f"session_timeout_ms is {event.session_timeout_ms}; it has to be within {least} and {most}."
        )
    if event.protocol_type == "" or not event.protocols:
        return InconsistentGroupProtocol("A member has to support at least one assignor.")
    return None
