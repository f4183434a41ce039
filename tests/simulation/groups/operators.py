"""What an operator may change beside a group at work, for the books and for the answers: resets and deletions.

Subscriptions are looked up as an observer sees them: the name of the topic is in a member's metadata, or they cannot be
read at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raylog.base.errors import GroupSubscribedToTopic
from raylog.core.groups.records import GroupChanged
from raylog.core.groups.states import GroupState
from tests.simulation.groups.observed import Committed, ObservedGroup, Protocols, Where, preferences
from tests.simulation.groups.topic import ELSE_ID, TOPIC

ANY = -2
_IN_USE = GroupSubscribedToTopic.code


def is_read(topic_id: str, choices: Iterable[Protocols]) -> bool:
    """Whether members with these assignors and metadata may read a topic: all read one, and none the other."""
    rows = [bytes(metadata) for protocols in choices for _, metadata in protocols]
    return bool(rows) and (topic_id != ELSE_ID or not all(TOPIC.encode() in metadata for metadata in rows))


def why_kept(image: GroupChanged | None, topic_id: str, *, expires: bool) -> str | None:
    """Return why an offset may not be deleted, or forgotten, in this generation; None when it may."""
    if image is None or image.state is GroupState.EMPTY:
        return None
    if expires and image.state is not GroupState.STABLE:
        return f"the group is {image.state.value}"
    if is_read(topic_id, map(preferences, image.members)):
        return f"members of generation {image.generation} read its topic"
    return None


def codes_of_deletion(group: ObservedGroup, topic_id: str) -> set[int]:
    """Return the codes that a deletion of an offset may have."""
    if group.is_empty and not group.is_touched:
        return {0}
    members = () if group.image is None else group.image.members
    choices = [*map(preferences, members), *(protocols for _, protocols in group.comers)]
    if not is_read(topic_id, choices):
        return {0}
    has_members = bool(group.joining) or not (group.is_empty or group.is_touched)
    return {_IN_USE} if has_members and topic_id != ELSE_ID else {0, _IN_USE}


def why_outdated(group: ObservedGroup, before: Mapping[Where, Committed], args: Sequence[Any]) -> str | None:
    """Return why a reset is outdated, or None when the group is as it was planned from, or as it is requested."""
    _, generation, rows = args
    if generation not in (-1, group.generation):
        return f"generation {group.generation} has come since {generation}"
    for topic_id, topic, partition, offset, planned_from in rows:
        held = before.get((topic_id, topic, partition), (-1, -1, ""))[0]
        if planned_from not in (ANY, held) and held != offset:
            return f"{held} is committed for partition {partition}, it was planned from {planned_from}"
    return None


def why_not_reset(group: ObservedGroup, before: Mapping[Where, Committed], args: Sequence[Any]) -> str | None:
    """Return why a reset may not succeed, or has not done what was requested; None when all is well."""
    if not group.is_empty or group.joining:
        return "the group has members"
    wanted = dict(before) | {(row[0], row[1], row[2]): (row[3], -1, "") for row in args[2]}
    if group.offsets != wanted:
        return f"{group.offsets} is committed and not {wanted}"
    return why_outdated(group, before, args)
