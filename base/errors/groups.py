"""Errors of consumer groups and their coordinators. Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError, RetriableError, StaleMetadataError


class OffsetMetadataTooLarge(RaylogError):
    """The note beside a committed offset is larger than the coordinator keeps; commit a shorter one."""

    code = 12


class CoordinatorLoadInProgress(RetriableError):
    """The coordinator is still reading its log."""

    code = 14


class CoordinatorNotAvailable(StaleMetadataError):
    """The coordinator is not available at the moment."""

    code = 15


class NotCoordinator(StaleMetadataError):
    """This is not the coordinator of the group."""

    code = 16


class IllegalGeneration(RaylogError):
    """The generation of the member is not the group's current one."""

    code = 22


class InconsistentGroupProtocol(RaylogError):
    """The member supports no assignor that the other members of the group support."""

    code = 23


class InvalidGroupId(RaylogError):
    """The group id is not legal."""

    code = 24


class UnknownMemberId(RaylogError):
    """The group does not know this member."""

    code = 25


class InvalidSessionTimeout(RaylogError):
    """The session timeout is outside the range that the coordinator accepts."""

    code = 26


class RebalanceInProgress(RetriableError):
    """The group is rebalancing; the member has to join again."""

    code = 27


class NonEmptyGroup(RaylogError):
    """The group still has members."""

    code = 68


class GroupIdNotFound(RaylogError):
    """There is no such group."""

    code = 69


class ResetOutdated(RaylogError):
    """The group was used since its reset was planned; plan the reset again."""

    code = 1090


class MemberIdRequired(RaylogError):
    """The member has to join again with the id it was just given."""

    code = 79


class GroupMaxSizeReached(RaylogError):
    """The group has as many members as it may."""

    code = 81


class FencedInstanceId(RaylogError):
    """Another member uses this static instance id."""

    code = 82


class GroupSubscribedToTopic(RaylogError):
    """Members of the group subscribe to this topic; its offsets are in use."""

    code = 86


class FencedMemberEpoch(RaylogError):
    """The member is not in that epoch: the group went on without it, and it has to join again with epoch 0."""

    code = 110


class UnreleasedInstanceId(RaylogError):
    """Another member still has this static instance id: end that process, or wait until its session ends."""

    code = 111


class UnsupportedAssignor(RaylogError):
    """The coordinator has no assignor of that name."""

    code = 112


class StaleMemberEpoch(RaylogError):
    """The epoch of the member went on: what it held in that epoch may belong to others."""

    code = 113
