"""Groups as clients see them: described and listed; and the change of a group to the other protocol. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from raylog.base.errors import InconsistentGroupProtocol
from raylog.core.groups.consumer_group import ConsumerGroup
from raylog.core.groups.group import Group
from raylog.core.groups.records import GroupChanged
from raylog.core.groups.states import GroupState, GroupType


def description(group: Group) -> dict[str, object]:
    """Return what DescribeGroup answers of a classic group, offsets aside."""
    members: list[object] = [
        {
            "member_id": member.member_id,
            "instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "session_timeout_ms": member.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "metadata": member.metadata(group.protocol),
            "assignment": group.assignment(member.member_id),
        }
        for member in group.members.values()
    ]
    return {
        "group": group.name,
        "state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "generation": group.generation,
        "leader": group.leader,
        "members": members,
    }


def listed(
    classic: Iterable[Group], consumers: Iterable[ConsumerGroup], *, states: Collection[str], types: Collection[str]
) -> list[object]:
    """Return [name, protocol type, state, type] of each group, by name.

    Only groups of the named states and types, whatever their case; none named = all.
    """
    rows = [(each.name, each.protocol_type, each.state.value, GroupType.CLASSIC.value) for each in classic]
    rows += [(each.name, "consumer", each.state, GroupType.CONSUMER.value) for each in consumers]
    return [list(row) for row in sorted(rows) if _is_named(row[2], states) and _is_named(row[3], types)]


def _is_named(name: str, names: Collection[str]) -> bool:
    return not names or name.lower() in {each.lower() for each in names}


def mixed(group: str, *, theirs: Literal["classic", "consumer"]) -> InconsistentGroupProtocol:
    """Return the error for a member whose protocol is not that of the group's members.

    The error's details name the group's protocol: a client whose user has not chosen one changes to it.
    """
    return InconsistentGroupProtocol(
        f"The members of group {group!r} use the {theirs} protocol; set group_protocol={theirs!r} here, or stop all of "
        "them first: a group without members takes either.",
        group_protocol=theirs,
    )


def classic_image(consumers: ConsumerGroup) -> GroupChanged:
    """Return the classic group that an empty group of the consumer protocol becomes: its epoch is the generation."""
    return GroupChanged(
        group=consumers.name,
        generation=consumers.epoch,
        protocol_type="",
        protocol="",
        leader="",
        state=GroupState.EMPTY,
        changed_ms=-1 if consumers.image is None else consumers.image.changed_ms,
    )
