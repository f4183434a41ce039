"""Methods of a partition's replica, for producers and consumers, if it leads; for followers; for administrators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.protocol.forwarding import FORWARDING_METHODS
from raylog.protocol.halves import HALF_METHODS
from raylog.protocol.message import Description, Empty, Int16, Int32, Int64, Message
from raylog.protocol.method import CLIENT, CLUSTER, TOKEN, AnyMethod, Endpoint, Method, TokenScope
from raylog.protocol.queues import QUEUE_METHODS, SHARE_STATE_METHODS
from raylog.protocol.scheduling import SCHEDULER_METHODS

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
"""Isolation level of readers that see no record of a transaction before it is committed, and none that is aborted."""


class ProduceRequest(Message, frozen=True):
    """Append the record batches in the payload.

    ``current_leader_epoch``: the leader's epoch as the sender knows it; another one is refused. ``acks``: 0 = no
    answer, 1 = the leader has appended, -1 = every in-sync replica has. ``timeout_ms``: how long these may take.
    ``transactional_id``: that of the batches of a transaction, which are refused without it; the leader queries its
    coordinator before the first one is appended.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    acks: Int64
    timeout_ms: Int64
    transactional_id: str = ""


class ProduceReply(Message, frozen=True):
    """``base_offset``: of the first record; -1 = not known, the batch had been appended long ago.

    ``log_append_time_ms``: the time that the leader gave all records; -1 = they have those of their producer.
    """

    base_offset: Int64
    log_start_offset: Int64
    log_append_time_ms: Int64 = -1


class FetchRequest(Message, frozen=True):
    """Read record batches from an offset on, below the high watermark.

    Waits up to ``max_wait_ms`` until there are ``min_bytes``. ``max_bytes``: at most, but always one batch.
    ``isolation_level``: 0 = read uncommitted; 1 = read committed, below the last stable offset.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    fetch_offset: Int64
    max_bytes: Int64
    min_bytes: Int64
    max_wait_ms: Int64
    isolation_level: Int64


class AbortedTxn(Message, frozen=True):
    """The batches of a producer are to be skipped from ``first_offset`` on, up to its next abort marker."""

    producer_id: Int64
    first_offset: Int64


class FetchReply(Message, frozen=True):
    """The payload holds whole batches, the first of which may begin below the offset. -1 = not known yet.

    ``last_stable_offset``: for isolation level 0 the high watermark. ``aborted``: for isolation level 1, the aborted
    transactions with records in the payload, by their first offsets.
    """

    high_watermark: Int64
    last_stable_offset: Int64
    log_start_offset: Int64
    aborted: Sequence[AbortedTxn] = ()


class FetchNearRequest(Message, frozen=True):
    """Read as ``fetch`` does, from a consumer that can open the segment files if it is on the leader's machine.

    ``machine``: the number of the consumer's machine (``raylog.rpc.machine_number``).
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    fetch_offset: Int64
    max_bytes: Int64
    min_bytes: Int64
    max_wait_ms: Int64
    isolation_level: Int64
    machine: Int64


class NearSlice(Message, frozen=True):
    """Whole batches in a segment file: ``length`` bytes from byte ``position`` on; its device and inode identify it."""

    path: str
    position: Int64
    length: Int64
    next_offset: Int64
    """The offset after the batches."""
    device: int
    inode: int


class FetchNearReply(Message, frozen=True):
    """As the reply to ``fetch``; batches are in ``slices``, in the payload, or there are none."""

    high_watermark: Int64
    last_stable_offset: Int64
    log_start_offset: Int64
    slices: Sequence[NearSlice] = ()
    aborted: Sequence[AbortedTxn] = ()


class ListOffsetsRequest(Message, frozen=True):
    """Look up an offset by time.

    ``timestamp``: milliseconds since 1970, for the first record at or after it; -1 = the end that consumers see,
    -2 = the start of the log, -3 = the record with the highest timestamp. ``isolation_level`` 1: only below the last
    stable offset, which is then the end.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    timestamp: Int64
    isolation_level: Int64 = 0


class ListOffsetsReply(Message, frozen=True):
    """``offset`` -1: there is no such record; ``timestamp`` -1: not of a record."""

    offset: Int64
    timestamp: Int64
    leader_epoch: Int32


class FindTimesRequest(Message, frozen=True):
    """Find the first batch from ``offset`` on that may hold a record within a span of time.

    ``low_ms``, ``end_ms`` (exclusive): milliseconds since 1970; null = no bound. ``isolation_level`` 1: only below the
    last stable offset. The leader looks into its own files, so a reader elsewhere need not fetch the batches it skips.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    offset: Int64
    low_ms: Int64 | None
    end_ms: Int64 | None
    isolation_level: Int64 = 0


class FindTimesReply(Message, frozen=True):
    """All records from the requested offset up to ``next_offset`` are outside the span.

    ``is_found``: the batch at ``next_offset`` may hold a record within. Else the end of the log was reached, or enough
    was looked at: request the rest from there on.
    """

    next_offset: Int64
    is_found: bool


class OffsetForLeaderEpochRequest(Message, frozen=True):
    """Get the end offset of ``leader_epoch`` in the leader's log."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    leader_epoch: Int32


class OffsetForLeaderEpochReply(Message, frozen=True):
    """The requested epoch, or the highest below it that has records; the offset after its last record."""

    leader_epoch: Int32
    end_offset: Int64
    log_start_offset: Int64


class ReplicaFetchRequest(Message, frozen=True):
    """Read record batches as a follower, up to the leader's log end, and report what the follower holds.

    ``current_leader_epoch``: has to be the leader's. ``broker`` and ``incarnation``: identify the follower.
    ``fetch_offset``: the follower's log end, durable up to there. ``last_fetched_epoch``: of the record before it;
    -1 = its log is empty. ``disk_failing``: other than 0, the follower's disk cannot keep what it gets.
    ``lacks_producers``: the follower's log is empty and begins above 0, and it requests the producers of the batches
    before its start; such a fetch acknowledges nothing.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    broker: Int64
    incarnation: Int64
    fetch_offset: Int64
    last_fetched_epoch: Int32
    max_bytes: Int64
    max_wait_ms: Int64
    log_start_offset: Int64
    disk_failing: Int64
    lacks_producers: bool = False


class EpochEnd(Message, frozen=True):
    """A leader epoch, and the offset after its last record."""

    leader_epoch: Int32
    end_offset: Int64


class ReplicaFetchReply(Message, frozen=True):
    """``diverging``: where the logs diverge; the follower truncates there, and the reply has no batches.

    ``held_from``: the lowest offset that retention has to keep, because a role of the leader still has to copy its
    record elsewhere; -1 = none. ``has_producers``: the payload is a snapshot of producers, and has no batches.
    """

    leader_epoch: Int32
    high_watermark: Int64
    log_start_offset: Int64
    diverging: EpochEnd | None
    held_from: Int64 = -1
    has_producers: bool = False


class DeleteRecordsRequest(Message, frozen=True):
    """Delete the records below ``before_offset``; -1 = all that consumers can see.

    ``timeout_ms``: how long the replicas may take to follow.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    before_offset: Int64
    timeout_ms: Int64


class DeleteRecordsReply(Message, frozen=True):
    """``low_watermark``: the lowest start offset of the replicas."""

    low_watermark: Int64


class WriteTxnMarkersRequest(Message, frozen=True):
    """End the transaction of a producer in this partition; answered when every in-sync replica has the marker.

    ``producer_epoch``: that of the producer's next transaction, which is higher than that of its records. A marker
    with the epoch that the partition knows already was written before, and is answered without another.
    ``coordinator_epoch``: of the transaction coordinator; -1 = an administrator ends a hanging transaction.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    producer_id: Int64
    producer_epoch: Int16
    coordinator_epoch: Int32
    committed: bool
    timeout_ms: Int64


class DescribeProducersRequest(Message, frozen=True):
    """Describe the idempotent and transactional producers that a partition knows."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32


class ActiveProducer(Message, frozen=True):
    """``txn_start_offset`` -1: no transaction is open; times in milliseconds since 1970; -1 = none."""

    producer_id: Int64
    producer_epoch: Int16
    last_sequence: Int64
    last_timestamp: Int64
    coordinator_epoch: Int32
    txn_start_offset: Int64


class ReplicaStatusRequest(Message, frozen=True):
    """Describe a replica: role, offsets, ISR, disk."""


class ReplicaStatusReply(Description, frozen=True):
    """Offsets are -1 and the ISR is empty before the replica knows its role; times are in milliseconds.

    ``damage``: what is wrong with the log and not mended yet; empty = nothing is known.
    """

    topic: str
    partition: Int32
    broker: Int64
    role: str
    leader_epoch: Int32
    high_watermark: Int64
    isr: Sequence[Int64]
    min_insync_replicas: Int64
    parked_fetches: Int64
    log_start_offset: Int64
    log_end_offset: Int64
    synced_end_offset: Int64
    disk_hanging_ms: Int64
    size_bytes: Int64
    clock_jump_ms: Int64
    pid: Int64
    incarnation: Int64
    controller_connected: bool
    damage: str = ""


class ReplicaMetricsRequest(Message, frozen=True):
    """Get the counters of a replica and its process."""


class ReplicaMetricsReply(Description, frozen=True):
    """``counters`` since ``born_ms``, histograms in ``latencies``, and the ``process`` as ``core/metrics/usage.py``.

    ``damage``: as in the status.
    """

    topic_id: str
    role: str
    size_bytes: Int64
    log_start_offset: Int64
    log_end_offset: Int64
    high_watermark: Int64
    born_ms: Int64
    counters: Mapping[str, Any]
    latencies: Mapping[str, Any]
    process: Mapping[str, Any]
    damage: str = ""


PRODUCE: Final = Method(
    "produce", ProduceRequest, ProduceReply, TOKEN, TokenScope.WRITE, internal_role=CLUSTER, waits=True, unanswered=True
)
FETCH: Final = Method("fetch", FetchRequest, FetchReply, TOKEN, TokenScope.READ, waits=True)
FETCH_NEAR: Final = Method("fetch_near", FetchNearRequest, FetchNearReply, TOKEN, TokenScope.READ, waits=True)
LIST_OFFSETS: Final = Method("list_offsets", ListOffsetsRequest, ListOffsetsReply, TOKEN, TokenScope.OFFSETS)
FIND_TIMES: Final = Method("find_times", FindTimesRequest, FindTimesReply, TOKEN, TokenScope.READ)
OFFSET_FOR_LEADER_EPOCH: Final = Method(
    "offset_for_leader_epoch", OffsetForLeaderEpochRequest, OffsetForLeaderEpochReply, TOKEN, TokenScope.READ
)
REPLICA_FETCH: Final = Method("replica_fetch", ReplicaFetchRequest, ReplicaFetchReply, CLUSTER, waits=True)
DELETE_RECORDS: Final = Method(
    "delete_records", DeleteRecordsRequest, DeleteRecordsReply, CLIENT, internal_role=CLUSTER, waits=True
)
WRITE_TXN_MARKERS: Final = Method(
    "write_txn_markers",
    WriteTxnMarkersRequest,
    Empty,
    CLIENT,
    internal_role=CLUSTER,
    waits=True,
)
DESCRIBE_PRODUCERS: Final = Method("describe_producers", DescribeProducersRequest, list[ActiveProducer], CLIENT)
REPLICA_STATUS: Final = Method("replica_status", ReplicaStatusRequest, ReplicaStatusReply, CLIENT)
REPLICA_METRICS: Final = Method("replica_metrics", ReplicaMetricsRequest, ReplicaMetricsReply, CLUSTER)

LEADER_METHODS: Final[tuple[AnyMethod, ...]] = (
    PRODUCE,
    FETCH,
    FETCH_NEAR,
    LIST_OFFSETS,
    FIND_TIMES,
    OFFSET_FOR_LEADER_EPOCH,
    DELETE_RECORDS,
    WRITE_TXN_MARKERS,
    DESCRIBE_PRODUCERS,
    *SCHEDULER_METHODS,
    *HALF_METHODS,
    *QUEUE_METHODS,
    *SHARE_STATE_METHODS,
    *FORWARDING_METHODS,
)
"""What clients request of a leader; for a partition that sleeps its broker answers."""

REPLICA: Final = Endpoint.of(
    "replica",
    (
        PRODUCE,
        FETCH,
        FETCH_NEAR,
        LIST_OFFSETS,
        FIND_TIMES,
        OFFSET_FOR_LEADER_EPOCH,
        REPLICA_FETCH,
        DELETE_RECORDS,
        WRITE_TXN_MARKERS,
        DESCRIBE_PRODUCERS,
        REPLICA_STATUS,
        REPLICA_METRICS,
        *SCHEDULER_METHODS,
        *HALF_METHODS,
        *QUEUE_METHODS,
        *SHARE_STATE_METHODS,
        *FORWARDING_METHODS,
    ),
)
