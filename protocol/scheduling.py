"""Methods of a partition of ``__scheduled``: its leader's scheduler answers them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from raylog.protocol.message import Int32, Int64, Message, Rows
from raylog.protocol.method import CLIENT, TOKEN, AnyMethod, Method, TokenScope


class ScheduleRequest(Message, frozen=True):
    """Store the record batches in the payload until they are due; answered when every in-sync replica has them.

    The timestamp of each record is its due time in milliseconds since 1970, and its header ``raylog-schedule`` names
    its target. The fields are those of a produce request with ``acks`` -1, and so are the rules of sequences.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    acks: Int64
    timeout_ms: Int64


class ScheduleReply(Message, frozen=True):
    """As the reply to a produce request: the offset of the first record, -1 = not known, it was stored long ago.

    ``replaced``, for each record: 1 = it has replaced the record that waited under its schedule id; 0 = none waited;
    -1 = it has no id, or this is not known any more. Empty if no record has an id.
    """

    base_offset: Int64
    log_start_offset: Int64
    log_append_time_ms: Int64 = -1
    replaced: Sequence[Int64] = ()


class CancelScheduledRequest(Message, frozen=True):
    """Cancel delayed records, each named by its due time and its offset; answered when that is committed."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    dues: Rows[Int64]
    offsets: Rows[Int64]


class CancelScheduledReply(Message, frozen=True):
    """For each record: ``DONE``, ``ALREADY_DELIVERED``, ``ALREADY_CANCELLED`` or ``NOT_FOUND``."""

    outcomes: Sequence[str]


class MoveScheduledRequest(Message, frozen=True):
    """Change the time at which a delayed record is due; a time in the past makes it due now."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    due_ms: Int64
    offset: Int64
    new_due_ms: Int64


class MoveScheduledReply(Message, frozen=True):
    """The outcome, as of a cancellation, and when the record is due now."""

    outcome: str
    due_ms: Int64


class ListScheduledRequest(Message, frozen=True):
    """List the records that wait, by their due times, from one on.

    ``topic``: of one target alone; empty = of all. ``from_due_ms``, ``from_offset``: where the page before ended;
    -1, -1 = from the first. ``before_ms``: none that are due later.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    topic: str
    from_due_ms: Int64
    from_offset: Int64
    before_ms: Int64
    limit: Int64


class ScheduledRecord(Message, frozen=True):
    """One record that waits.

    ``target_partition`` -1: its key decides the partition when it is due. ``sent_ms``: when its producer sent it.
    """

    due_ms: Int64
    offset: Int64
    topic: str
    target_partition: Int64
    sent_ms: Int64
    key: bytes | None
    value_bytes: Int64
    schedule_id: str = ""


class FindScheduledRequest(Message, frozen=True):
    """Find the record that was last sent to a topic under a schedule id."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    target_topic_id: str
    schedule_id: str


class FindScheduledReply(Message, frozen=True):
    """``standing``: ``WAITING``, ``DELIVERED`` (also: on its way), ``CANCELLED``, or ``NOT_FOUND``: nothing is known.

    ``record``: the record that waits; None = none does.
    """

    standing: str
    record: ScheduledRecord | None


class ListScheduledReply(Message, frozen=True):
    """A page; ``looked_due_ms`` and ``looked_offset``: where the next one begins, -1 = there is none."""

    records: Sequence[ScheduledRecord]
    looked_due_ms: Int64
    looked_offset: Int64


class DescribeSchedulerRequest(Message, frozen=True):
    """Describe the delayed records that wait, and get the time of day by which they become due."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32


class ParkedTarget(Message, frozen=True):
    """A target that does not take its records: how many are due, on the way or waiting."""

    topic: str
    partition: Int32
    waiting: Int64


class DescribeSchedulerReply(Message, frozen=True):
    """``clock_ms``: the scheduler's time of day. ``next_due_ms`` -1: nothing waits. Counts are of this leadership."""

    clock_ms: Int64
    waiting: Int64
    next_due_ms: Int64
    delivered: Int64
    cancelled: Int64
    runs: Int64
    lateness_p99_ms: Int64
    clock_step_ms: Int64
    parked: Sequence[ParkedTarget]


SCHEDULE: Final = Method(
    "schedule",
    ScheduleRequest,
    ScheduleReply,
    TOKEN,
    TokenScope.SCHEDULE,
    waits=True,
    unanswered=True,
)
CANCEL_SCHEDULED: Final = Method("cancel_scheduled", CancelScheduledRequest, CancelScheduledReply, CLIENT, waits=True)
MOVE_SCHEDULED: Final = Method("move_scheduled", MoveScheduledRequest, MoveScheduledReply, CLIENT, waits=True)
LIST_SCHEDULED: Final = Method("list_scheduled", ListScheduledRequest, ListScheduledReply, CLIENT, waits=True)
DESCRIBE_SCHEDULER: Final = Method(
    "describe_scheduler",
    DescribeSchedulerRequest,
    DescribeSchedulerReply,
    TOKEN,
    TokenScope.SCHEDULER,
    waits=True,
)
FIND_SCHEDULED: Final = Method("find_scheduled", FindScheduledRequest, FindScheduledReply, CLIENT, waits=True)

SCHEDULER_METHODS: Final[tuple[AnyMethod, ...]] = (
    SCHEDULE,
    CANCEL_SCHEDULED,
    MOVE_SCHEDULED,
    LIST_SCHEDULED,
    DESCRIBE_SCHEDULER,
    FIND_SCHEDULED,
)
