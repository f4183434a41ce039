"""Events and effects of a group coordinator.

The shell (an actor, or the simulator) turns requests into events in arrival order and carries effects out. ``request``
is the shell's number for a request, unique per incarnation; every request event is answered by exactly one
:class:`Reply` or :class:`Refuse` with that number, at once or in a later step, unless the shell reported a closed
connection (:class:`RequestDropped`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raylog.core.decision import Refuse, Reply, RequestId

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorEvent:
    """Common fields of events: ``cause``, its name in the story of a broken invariant, and the monotonic time in ms."""

    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRequest(CoordinatorEvent):
    """A request, by its number."""

    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest(CoordinatorRequest):
    """A request about one group."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReceived(GroupRequest):
    """JoinGroup request.

    ``member_id`` "" = a new member. ``instance_id`` is given by static members. ``protocols`` are (assignor name,
    metadata) in the member's order of preference; the coordinator never opens the metadata. Timeouts are milliseconds.
    """

    member_id: str
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Sequence[tuple[str, bytes]]
    instance_id: str | None = None
    protocol_type: str = "consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReceived(GroupRequest):
    """SyncGroup request; the leader's carries the assignments of all members (``assignments``, by member id)."""

    generation: int
    member_id: str
    assignments: Mapping[str, bytes]
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived(GroupRequest):
    """Heartbeat of a member; the answer reports whether its generation is still current."""

    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveReceived(GroupRequest):
    """LeaveGroup request: (member id, instance id) each; an empty member id removes a static member."""

    members: Sequence[tuple[str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitReceived(GroupRequest):
    """OffsetCommit request: (topic id, topic, partition, offset, leader epoch or -1, note) each.

    ``generation`` -1 with an empty member id = a simple consumer, which uses the group only as a name.
    """

    generation: int
    member_id: str
    offsets: Sequence[tuple[str, str, int, int, int, str]]
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchReceived(GroupRequest):
    """OffsetFetch request: (topic id, topic, partition) each; None = all offsets of the group."""

    partitions: Sequence[tuple[str, str, int]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteReceived(GroupRequest):
    """OffsetDelete request: (topic id, topic, partition) each; only for a group without members."""

    partitions: Sequence[tuple[str, str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroupsReceived(CoordinatorRequest):
    """List all groups of this coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupReceived(GroupRequest):
    """DescribeGroup request: state and members of one group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupReceived(GroupRequest):
    """DeleteGroup request: a group without members, with all its offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDropped(CoordinatorRequest):
    """The connection is closed: the parked request is dropped, and its member has to send it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """How far the coordinator's partition is stored.

    ``size_bytes`` counts from the log start at loading, and never falls.
    """

    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(CoordinatorEvent):
    """Time passed; deadlines are checked only here. A tick every 50 to 100 ms is fine.

    ``wall_ms`` is the time of day in milliseconds since 1970, None = unknown. See :meth:`CoordinatorMachine.loaded`.
    ``log`` is the log's extent at that time; without it the log is never rewritten and trimmed.
    """

    wall_ms: int | None = None
    log: LogExtent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsStored(CoordinatorEvent):
    """Everything decided up to a :class:`ReportStored` is in the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTrimmed(CoordinatorEvent):
    """The log starts at ``before_offset`` now, or later."""

    before_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepRequested(CoordinatorEvent):
    """The cluster is about to stop: a coordinator that is not in use shall end now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepRefused(CoordinatorEvent):
    """The controller did not agree to a :class:`ProposeSleep`: the coordinator serves on."""


RequestEvent = (
    JoinReceived
    | SyncReceived
    | HeartbeatReceived
    | LeaveReceived
    | OffsetCommitReceived
    | OffsetFetchReceived
    | OffsetDeleteReceived
    | ListGroupsReceived
    | DescribeGroupReceived
    | DeleteGroupReceived
)
Notice = RequestDropped | Tick | RowsStored | LogTrimmed | SleepRequested | SleepRefused
"""Events that are answered to no client."""
Event = RequestEvent | Notice

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRecords:
    """Append (key wire, value wire or None = tombstone) each, in one batch, to the coordinator's partition, acks=all.

    At most one in a step, and the first of its ``now``. When the append fails, this machine's view is ahead of the log:
    the shell answers :meth:`CoordinatorMachine.resign` and rebuilds a machine from the log.
    """

    cause: str
    records: tuple[tuple[list[object], list[object] | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportStored:
    """Feed :class:`RowsStored`. Always in ``after_sync``."""

    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimLog:
    """Delete the records below ``before_offset``, then feed :class:`LogTrimmed`.

    It may fail, be late or be repeated: the records below were stored again above, permanently and for every reader.
    """

    cause: str
    before_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeSleep:
    """Propose to the controller that this coordinator ends; :class:`SleepRefused` follows if it does not agree.

    Always in ``after_sync``: everything decided is in the log, and every request is answered. Nothing more is decided.
    """

    cause: str


Effect = AppendRecords | Reply | Refuse | ReportStored | TrimLog | ProposeSleep
"""A :class:`Reply` is always in ``after_sync``; a :class:`Refuse` is always in ``now``."""
