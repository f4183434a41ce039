"""Events and effects of a group coordinator.

The shell (an actor, or the simulator) feeds requests in arrival order, each as a :class:`Received` with the message of
`protocol/groups.py`, and carries effects out. ``request`` is the shell's number for a request, unique per incarnation;
every request is answered by exactly one :class:`Reply` or :class:`Refuse` with that number, at once or in a later step,
unless the shell reported a closed connection (:class:`RequestDropped`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raylog.core.coordinators.events import AppendRecords as AppendRecords
from raylog.core.coordinators.events import CoordinatorEvent
from raylog.core.coordinators.events import ProposeSleep as ProposeSleep
from raylog.core.coordinators.events import RequestDropped as RequestDropped
from raylog.core.coordinators.events import SleepRefused as SleepRefused
from raylog.core.coordinators.events import SleepRequested as SleepRequested
from raylog.core.coordinators.events import StoreProof as StoreProof
from raylog.core.coordinators.events import Tick as Tick
from raylog.core.decision import Refuse, Reply
from raylog.core.received import Received
from raylog.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    EndTxnOffsetsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetResetRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsSeen(CoordinatorEvent):
    """The result of :class:`LookUpTopics`: (topic id, number of partitions) by name; a missing topic does not exist."""

    requested: Sequence[str]
    topics: Mapping[str, tuple[str, int]]


GroupMessage = (
    ConsumerGroupHeartbeatRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | TxnOffsetCommitRequest
    | EndTxnOffsetsRequest
    | OffsetFetchRequest
    | OffsetResetRequest
    | OffsetDeleteRequest
    | ListGroupsRequest
    | DescribeGroupRequest
    | DeleteGroupRequest
)
"""The requests of the page `protocol/groups.py` that the machine decides; its shell answers the others."""
Notice = RequestDropped | Tick | SleepRequested | SleepRefused | TopicsSeen
"""Events that are answered to no client."""
Event = Received[GroupMessage] | Notice

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpTopics:
    """Fetch the metadata of these topics; :class:`TopicsSeen` follows, unless that fails."""

    cause: str
    topics: tuple[str, ...]


Effect = AppendRecords | StoreProof | Reply | Refuse | ProposeSleep | LookUpTopics
"""A :class:`Reply` is always in ``after_sync``; so is a :class:`Refuse` that depends on what is stored."""
