"""How a group is used, whatever its protocol: an operator's changes and the expiry of offsets depend on that.

Made by ``coordinator.py`` when it is needed; read by ``resets.py`` and ``offsets.py``. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raylog.base.errors import NonEmptyGroup
from raylog.core.groups.consumer_group import ConsumerGroup
from raylog.core.groups.consumer_records import MemberChanged
from raylog.core.groups.group import Group, Member
from raylog.core.groups.states import GroupState
from raylog.core.groups.subscriptions import CONSUMERS, subscribed_topics

NAMED_MAX: Final = 5
"""Most members that an error names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """The facts of one group at this moment."""

    group: str
    generation: int
    state: str
    is_empty: bool
    """Whether it has no member, not even one on its way through a round."""
    members: tuple[str, ...]
    """The members as an operator knows them: client id, and instance id or member id."""
    are_consumers: bool
    """Whether the members subscribe to topics; other members may use the offsets of any topic."""
    topics: frozenset[str] | None
    """The topics that the members subscribe to; None = not known, which counts as every topic."""
    counts_from_ms: int | None
    """Time of day from which the retention of offsets counts, or from their commit if that was later; None = none
    expires now."""

    def reads(self, topic: str) -> bool:
        """Return whether the group's offsets of a topic are in use."""
        return not self.is_empty and (self.topics is None or topic in self.topics)

    def active_error(self) -> NonEmptyGroup | None:
        """Return the error for a change that needs a group without members, or None if it has none."""
        if self.is_empty:
            return None
        more = len(self.members) - NAMED_MAX
        shown = ", ".join(self.members[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        return NonEmptyGroup(
            f"Group {self.group!r} is in use ({self.state}), by {shown or 'members that are just leaving'}: stop these "
            "consumers, then try again. `raylog group remove-members` removes what is left of a process that died.",
            group=self.group,
            state=self.state,
            members=list(self.members),
        )


def use_of(group: Group | ConsumerGroup) -> GroupUse:
    """Return how a group is used."""
    return _use_of_consumers(group) if isinstance(group, ConsumerGroup) else _use_of_classic(group)


def _use_of_consumers(group: ConsumerGroup) -> GroupUse:
    is_empty = not group.members
    counts_from_ms: int | None = 0
    if is_empty:
        counts_from_ms = None if group.image is None or group.image.changed_ms < 0 else group.image.changed_ms
    return GroupUse(
        group=group.name,
        generation=group.epoch,
        state=group.state,
        is_empty=is_empty,
        members=tuple(_named(member) for member in group.members.values()),
        are_consumers=True,
        topics=frozenset(group.subscribed()),
        counts_from_ms=counts_from_ms,
    )


def _use_of_classic(group: Group) -> GroupUse:
    is_empty = group.state is GroupState.EMPTY
    counts_from_ms: int | None = None
    if is_empty and group.image is not None:
        counts_from_ms = group.image.changed_ms if group.image.changed_ms >= 0 else None
    elif is_empty or group.state is GroupState.STABLE:
        counts_from_ms = 0
    return GroupUse(
        group=group.name,
        generation=group.generation,
        state=group.state.value,
        is_empty=is_empty,
        members=tuple(_named(member) for member in group.members.values()),
        are_consumers=is_empty or group.protocol_type == CONSUMERS,
        topics=frozenset() if is_empty else subscribed_topics(group),
        counts_from_ms=counts_from_ms,
    )


def _named(member: Member | MemberChanged) -> str:
    return f"{member.client_id} ({member.instance_id or member.member_id})"
