"""Methods of a group coordinator: joining, assigning, committing, as in Kafka's classic group protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from raylog.protocol.message import Description, Empty, Int16, Int32, Int64, Message, Names, Rows
from raylog.protocol.method import CLIENT, CLUSTER, TOKEN, Endpoint, Method, TokenScope


class JoinGroupProtocol(Message, frozen=True):
    """An assignment strategy that a member supports, and its metadata for the leader."""

    has_bytes: ClassVar[bool] = True

    name: str
    metadata: bytes


class JoinGroupRequest(Message, frozen=True):
    """Join a group, or join it again; answered when the round of joins ends.

    ``member_id``: empty = not a member yet. ``group_instance_id``: of a static member. ``session_timeout_ms``: how
    long the coordinator waits for a heartbeat. ``rebalance_timeout_ms``: how long it waits, in a rebalance, for the
    member to join again.
    """

    has_bytes: ClassVar[bool] = True

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    session_timeout_ms: Int64
    rebalance_timeout_ms: Int64
    protocol_type: str
    protocols: Rows[JoinGroupProtocol]
    """In the member's order of preference."""


class JoinGroupMember(Message, frozen=True):
    """A member, as the leader receives it."""

    has_bytes: ClassVar[bool] = True

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupReply(Message, frozen=True):
    """``members``: all of them, to the leader alone, which assigns partitions unless ``skip_assignment``."""

    has_bytes: ClassVar[bool] = True

    generation_id: Int32
    protocol_name: str | None
    leader: str | None
    member_id: str
    members: Sequence[JoinGroupMember]
    skip_assignment: bool = False


class SyncGroupAssignment(Message, frozen=True):
    """What the leader gives to a member."""

    has_bytes: ClassVar[bool] = True

    member_id: str
    assignment: bytes


class SyncGroupRequest(Message, frozen=True):
    """Get this member's assignment; answered when the leader has sent ``assignments``, which are empty from others."""

    has_bytes: ClassVar[bool] = True

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    assignments: Rows[SyncGroupAssignment]


class SyncGroupReply(Message, frozen=True):
    """The member's assignment."""

    has_bytes: ClassVar[bool] = True

    assignment: bytes


class HeartbeatRequest(Message, frozen=True):
    """Stay a member; refused with REBALANCE_IN_PROGRESS when the member has to join again."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None


class LeavingMember(Message, frozen=True):
    """A member by its id; a static one by its instance id, with an empty ``member_id``."""

    member_id: str
    group_instance_id: str | None


class LeaveGroupRequest(Message, frozen=True):
    """Leave a group, or remove members from it."""

    group_id: str
    members: Rows[LeavingMember]


class LeaveGroupResult(Message, frozen=True):
    """``error_code`` 0: it has left."""

    member_id: str
    group_instance_id: str | None
    error_code: Int64


class OffsetCommitPartition(Message, frozen=True):
    """``committed_offset``: that of the next record to read. ``committed_leader_epoch``: that of the last record read;
    -1 = none."""

    topic_id: str
    topic: str
    partition: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32
    committed_metadata: str


class OffsetCommitRequest(Message, frozen=True):
    """Commit offsets, as a member of a generation.

    ``generation_id`` -1 with an empty ``member_id``: of a group without members.
    """

    group_id: str
    generation_id: Int32
    member_id: str
    offsets: Rows[OffsetCommitPartition]
    group_instance_id: str | None = None


class OffsetCommitResult(Message, frozen=True):
    """``error_code`` 0: committed."""

    topic: str
    partition: Int32
    error_code: Int64


class TxnOffsetCommitRequest(Message, frozen=True):
    """Commit offsets with a transaction, as a member of a generation: they take effect when the transaction commits.

    The group has to be added to the transaction first. ``generation_id`` -1 with an empty ``member_id``: of a group
    without members.
    """

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None
    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    offsets: Rows[OffsetCommitPartition]


class EndTxnOffsetsRequest(Message, frozen=True):
    """End the transaction of a producer in this group: its offsets take effect, or are forgotten.

    ``producer_epoch`` and ``coordinator_epoch``: as in ``write_txn_markers``.
    """

    group_id: str
    producer_id: Int64
    producer_epoch: Int16
    coordinator_epoch: Int32
    committed: bool


class OffsetFetchPartition(Message, frozen=True):
    """A partition in a request about committed offsets."""

    topic_id: str
    topic: str
    partition: Int32


class TopicPartitions(Message, frozen=True):
    """Partitions of a topic."""

    topic_id: str
    topic: str
    partitions: Rows[Int32]


class ConsumerGroupHeartbeatRequest(Message, frozen=True):
    """Join a group of the consumer protocol (KIP-848), follow its assignment, or leave it.

    ``member_id`` is made by the client. ``member_epoch``: 0 joins, -1 leaves, -2 leaves for a while (a static member),
    else that of the last answer. ``sequence`` grows with each heartbeat of a member. ``subscribed_topics``,
    ``server_assignor`` (empty: the group's choice) and ``owned`` None: as before. ``max_wait_ms``: how long the answer
    may be held back while it has no news.
    """

    group_id: str
    member_id: str
    member_epoch: Int32
    group_instance_id: str | None
    sequence: Int64
    client_id: str
    session_timeout_ms: Int64
    rebalance_timeout_ms: Int64
    max_wait_ms: Int64
    subscribed_topics: Names | None
    server_assignor: str | None
    owned: Rows[TopicPartitions] | None


class ConsumerGroupHeartbeatReply(Message, frozen=True):
    """The member's epoch, and its assignment where that is news; None = as before."""

    member_id: str
    member_epoch: Int32
    assignment: Sequence[TopicPartitions] | None


class OffsetFetchRequest(Message, frozen=True):
    """Get the committed offsets of a group.

    ``member_epoch`` of a member of the consumer protocol: refused with STALE_MEMBER_EPOCH in another epoch; -1 = none.

    ``partitions``: None = all that have one. ``require_stable``: refused with UNSTABLE_OFFSET_COMMIT while an open
    transaction has offsets of one of them.
    """

    group_id: str
    partitions: Rows[OffsetFetchPartition] | None
    require_stable: bool = False
    member_id: str = ""
    member_epoch: Int32 = -1


class OffsetFetchResult(Message, frozen=True):
    """``committed_offset`` -1: none was committed."""

    topic_id: str
    topic: str
    partition: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32
    committed_metadata: str


class OffsetResetPartition(Message, frozen=True):
    """The offset to commit, and the committed one that this was planned from: -1 = none was committed, -2 = any."""

    topic_id: str
    topic: str
    partition: Int32
    committed_offset: Int64
    planned_from: Int64


class OffsetResetRequest(Message, frozen=True):
    """Commit offsets for a group without members, all or none, unless it was used since this was planned.

    ``generation_id``: of the group when this was planned, 0 = it did not exist, -1 = any.
    """

    group_id: str
    generation_id: Int32
    offsets: Rows[OffsetResetPartition]


class OffsetDeleteRequest(Message, frozen=True):
    """Delete committed offsets of topics that no member subscribes to; it is no error if there is none."""

    group_id: str
    partitions: Rows[OffsetFetchPartition]


class OffsetDeleteResult(Message, frozen=True):
    """``error_code`` 0: no offset is committed any more. GROUP_SUBSCRIBED_TO_TOPIC: members read the topic."""

    topic: str
    partition: Int32
    error_code: Int64


class ListGroupsRequest(Message, frozen=True):
    """List the groups of this coordinator; only those of these states and types, if any are named.

    ``coordinator``: the number of the coordinator that the sender takes this one for; another one refuses. -1 = any.
    """

    states: Names = ()
    types: Names = ()
    coordinator: Int64 = -1


class ListedGroup(Message, frozen=True):
    """``state``: as in Kafka, such as ``Stable`` or ``Empty``; ``group_type``: ``classic`` or ``consumer``."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


class DescribeGroupRequest(Message, frozen=True):
    """Describe a group with its members and committed offsets."""

    group_id: str


class DescribedMember(Description, frozen=True):
    """A member, its metadata for the leader, and its assignment.

    A member of the consumer protocol has instead: its epoch and state, the topics it reads, the partitions that it is
    assigned, those that it has to give up, and those that it is to have.
    """

    has_bytes: ClassVar[bool] = True

    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: Int64
    rebalance_timeout_ms: Int64
    metadata: bytes
    assignment: bytes
    client_host: str = ""
    member_epoch: Int32 = -1
    member_state: str = ""
    topics: Sequence[str] = ()
    assigned: Sequence[TopicPartitions] = ()
    revoking: Sequence[TopicPartitions] = ()
    target: Sequence[TopicPartitions] = ()


class PendingOffset(Message, frozen=True):
    """An offset that a transaction commits when it commits."""

    producer_id: Int64
    producer_epoch: Int16
    topic_id: str
    topic: str
    partition: Int32
    committed_offset: Int64
    committed_leader_epoch: Int32
    committed_metadata: str


class DescribeGroupReply(Description, frozen=True):
    """``protocol`` and ``leader`` are None before the first round has ended.

    ``group_type``: ``classic`` or ``consumer``; then ``generation`` is the group's epoch and ``protocol`` its assignor.
    """

    has_bytes: ClassVar[bool] = True

    group: str
    state: str
    protocol_type: str
    protocol: str | None
    generation: Int32
    leader: str | None
    members: Sequence[DescribedMember]
    offsets: Sequence[OffsetFetchResult]
    pending_offsets: Sequence[PendingOffset] = ()
    group_type: str = "classic"
    target_epoch: Int32 = -1


class DeleteGroupRequest(Message, frozen=True):
    """Delete a group without members, with its committed offsets."""

    group_id: str


class CoordinatorMetricsRequest(Message, frozen=True):
    """Get the sizes of the groups of this coordinator, their committed offsets, and what its process uses."""


class CommittedOffset(Message, frozen=True):
    """A committed offset in the figures of a group."""

    topic_id: str
    topic: str
    partition: Int32
    committed_offset: Int64


class GroupFigures(Message, frozen=True):
    """A group in the figures of its coordinator; ``members`` counts them.

    ``pending_offsets`` counts what open transactions are about to commit.
    """

    group_id: str
    state: str
    members: Int64
    offsets: Sequence[CommittedOffset]
    pending_offsets: Int64 = 0


class CoordinatorMetricsReply(Description, frozen=True):
    """``loaded`` False: the coordinator still reads its log, and ``groups`` is empty.

    ``rows_unreadable``: rows of its log that it passed over, because they cannot be read.
    """

    process: Mapping[str, Any]
    loaded: bool
    groups: Sequence[GroupFigures]
    rows_unreadable: Int64 = 0


JOIN_GROUP: Final = Method("join_group", JoinGroupRequest, JoinGroupReply, TOKEN, TokenScope.GROUP, waits=True)
SYNC_GROUP: Final = Method("sync_group", SyncGroupRequest, SyncGroupReply, TOKEN, TokenScope.GROUP, waits=True)
HEARTBEAT: Final = Method("heartbeat", HeartbeatRequest, Empty, TOKEN, TokenScope.GROUP)
CONSUMER_GROUP_HEARTBEAT: Final = Method(
    "consumer_group_heartbeat",
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatReply,
    TOKEN,
    TokenScope.SUBSCRIPTION,
    waits=True,
)
LEAVE_GROUP: Final = Method("leave_group", LeaveGroupRequest, list[LeaveGroupResult], TOKEN, TokenScope.GROUP)
OFFSET_COMMIT: Final = Method(
    "offset_commit", OffsetCommitRequest, list[OffsetCommitResult], TOKEN, TokenScope.GROUP_OFFSETS
)
TXN_OFFSET_COMMIT: Final = Method(
    "txn_offset_commit",
    TxnOffsetCommitRequest,
    list[OffsetCommitResult],
    TOKEN,
    TokenScope.TRANSACTION_COMMIT,
)
END_TXN_OFFSETS: Final = Method("end_txn_offsets", EndTxnOffsetsRequest, Empty, CLUSTER)
OFFSET_FETCH: Final = Method(
    "offset_fetch", OffsetFetchRequest, list[OffsetFetchResult], TOKEN, TokenScope.GROUP_OFFSETS
)
OFFSET_RESET: Final = Method("offset_reset", OffsetResetRequest, Empty, CLIENT)
OFFSET_DELETE: Final = Method("offset_delete", OffsetDeleteRequest, list[OffsetDeleteResult], CLIENT)
LIST_GROUPS: Final = Method("list_groups", ListGroupsRequest, list[ListedGroup], CLIENT)
DESCRIBE_GROUP: Final = Method("describe_group", DescribeGroupRequest, DescribeGroupReply, TOKEN, TokenScope.GROUP_VIEW)
DELETE_GROUP: Final = Method("delete_group", DeleteGroupRequest, Empty, CLIENT)
COORDINATOR_METRICS: Final = Method("coordinator_metrics", CoordinatorMetricsRequest, CoordinatorMetricsReply, CLUSTER)

GROUP_COORDINATOR: Final = Endpoint.of(
    "group coordinator",
    (
        JOIN_GROUP,
        SYNC_GROUP,
        HEARTBEAT,
        CONSUMER_GROUP_HEARTBEAT,
        LEAVE_GROUP,
        OFFSET_COMMIT,
        TXN_OFFSET_COMMIT,
        END_TXN_OFFSETS,
        OFFSET_FETCH,
        OFFSET_RESET,
        OFFSET_DELETE,
        LIST_GROUPS,
        DESCRIBE_GROUP,
        DELETE_GROUP,
        COORDINATOR_METRICS,
    ),
)
