"""What an observer knows of a group, and the rules of one request or generation without the machine's code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from raylog.base.errors import (
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    OffsetMetadataTooLarge,
    RaylogError,
)
from raylog.core.groups.records import GroupChanged, MemberRecord
from raylog.core.groups.states import GroupState

SESSION_MS_MIN: Final = 100
NOTE_BYTES_MAX: Final = 12
"""Most bytes of the note beside a committed offset."""

Protocols = Sequence[tuple[str, bytes]]
Committed = tuple[int, int, str]
"""An offset with its leader epoch and note."""
Where = tuple[str, str, int]
"""Topic id, topic and partition."""


class ObservedGroup:
    """The visible state of one group."""

    __slots__ = ("comers", "image", "is_left", "is_touched", "joining", "name", "offsets", "successors")

    def __init__(self, name: str) -> None:
        self.name = name
        self.image: GroupChanged | None = None
        self.offsets: dict[Where, Committed] = {}
        self.joining: set[int] = set()
        """Unanswered joins: while there are any, the group prepares a round."""
        self.is_touched = False
        """A join or a leave arrived since the last generation was written: the group may prepare a round."""
        self.is_left = False
        """A member of the last generation has left: the group prepares a round."""
        self.successors: set[str] = set()
        """Static instances with a new process since the last generation was written."""
        self.comers: list[tuple[str, Protocols]] = []
        """Member id and assignors of each join since the last generation was written."""

    @property
    def generation(self) -> int:
        return self.image.generation if self.image is not None else 0

    @property
    def is_empty(self) -> bool:
        return self.image is None or self.image.state is GroupState.EMPTY

    def has(self, member_id: str) -> bool:
        return self.image is not None and self.image.member(member_id) is not None

    def may_have(self, member_id: str) -> bool:
        """Whether it is a member, or has joined since."""
        return self.has(member_id) or any(comer == member_id for comer, _ in self.comers)

    def holder(self, instance: str | None) -> MemberRecord | None:
        """The member of an instance that no new process has joined for since."""
        if instance is None or self.image is None or instance in self.successors:
            return None
        return next((member for member in self.image.members if member.instance_id == instance), None)


def malformed(method: str, args: Sequence[Any]) -> type[RaylogError] | None:
    """Return the error of a request that is wrong in every state of its group, or None."""
    if args and args[0] == "":
        return InvalidGroupId
    if method == "join_group":
        if args[4] < SESSION_MS_MIN:
            return InvalidSessionTimeout
        if args[6] == "" or not args[7]:
            return InconsistentGroupProtocol
    return None


def commit_code(offset: int, note: str) -> int:
    """Return the code for one offset of a commit that is accepted."""
    if offset < 0:
        return InvalidRequest.code
    return OffsetMetadataTooLarge.code if len(note.encode()) > NOTE_BYTES_MAX else 0


def preferences(member: MemberRecord) -> list[tuple[str, bytes]]:
    """Return the assignors of a member with its metadata for each."""
    return [(each.name, each.metadata) for each in member.protocols]


def in_common(choices: Iterable[Protocols]) -> set[str]:
    """Return the assignors that all of these members support; at least one member."""
    names = [{name for name, _ in protocols} for protocols in choices]
    return set.intersection(*names)


def voted(image: GroupChanged, instead: Mapping[str, Protocols] | None = None) -> str | None:
    """Return the assignor of a generation: the one most members prefer of those that all support, None without one.

    The leader's preference decides between equals. ``instead`` has other preferences for some members.
    """
    choices = {row.member_id: (instead or {}).get(row.member_id, preferences(row)) for row in image.members}
    common = in_common(choices.values())
    if not common:
        return None
    votes = [next(name for name, _ in protocols if name in common) for protocols in choices.values()]
    most = max(votes.count(name) for name in common)
    return next(name for name, _ in choices[image.leader] if name in common and votes.count(name) == most)


def keeps_leader(before: GroupChanged, image: GroupChanged) -> bool:
    """Whether a leader that has joined the next generation leads it; a static one may only be awaited."""
    member = image.member(before.leader)
    return member is None or member.instance_id is not None or image.leader == before.leader


def differs_from_join(member: MemberRecord, args: Sequence[Any]) -> str | None:
    """Return what a member's record has otherwise than its last join, or None."""
    written = (member.instance_id, member.client_id, member.session_timeout_ms, member.rebalance_timeout_ms)
    if written != tuple(args[2:6]):
        return f"{written} is written, and {tuple(args[2:6])} was sent"
    sent = [(name, bytes(metadata)) for name, metadata in args[7]]
    return None if sent == preferences(member) else "the metadata are not those that were sent"
