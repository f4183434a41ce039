"""Methods of queue mode: of the queues of a partition, at its leader; and of ``__share_state``, at the leader of that.

A queue is a group on a partition (KIP-932 calls it a share partition). Every end is exclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.protocol.message import Description, Empty, Int32, Int64, Message, Rows, Settings
from raylog.protocol.method import CLIENT, CLUSTER, TOKEN, AnyMethod, Method, TokenScope


class QueueOpenRequest(Message, frozen=True):
    """Begin to work on a queue as a member; its locks end when the connection of this request is closed.

    A member that has opened the queue before begins from scratch: what it had locked is available again.
    ``settings``: the group's settings, which override the topic's; all members of a group set the same.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    member_id: str
    settings: Settings[str]


class QueueOpenReply(Message, frozen=True):
    """``lock_ms``: how long a record is locked; ``by_key``: whether the queue keeps the order of each key."""

    lock_ms: Int64
    by_key: bool


class QueueFetchRequest(Message, frozen=True):
    """Lock records that are available, and read them; waits up to ``max_wait_ms`` for the first.

    ``max_bytes``: at most so many, but at least one batch. ``max_records`` 0: lock none, and answer the waiting fetches
    of this member with nothing. So a member that gives the partition up knows what it still has to give back.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    member_id: str
    max_records: Int64
    max_bytes: Int64
    max_wait_ms: Int64


class QueueRange(Message, frozen=True):
    """Records from ``first`` up to ``end``, handed out for the ``count``-th time.

    ``lease``: identifies this hand-out in verdicts; no other hand-out of a record has the same.
    """

    first: Int64
    end: Int64
    count: Int64
    lease: Int64 = 0


class QueueFetchReply(Message, frozen=True):
    """The payload holds the whole batches of the ranges; only records in the ranges are locked for the member.

    Other batches may lie between: those of other members, and what was aborted. No batch of a range is hidden.
    ``waited_ms``: how long the request waited at the leader, at least, before the records were locked for ``lock_ms``.
    """

    ranges: Sequence[QueueRange]
    lock_ms: Int64
    waited_ms: Int64 = 0


class QueueVerdict(Message, frozen=True):
    """What a member says of records: ``kind`` 0 = there is no record, 1 = done, 2 = release, 3 = reject, 4 = renew the
    lock, 5 = retry, 6 = release, not begun.

    ``count``, ``lease``: the hand-out that it is about; 0 = whichever. ``delay_ms``: for a retry, the pause before it,
    -1 = by the group's setting; for kind 6, the pause before the records are handed out again, -1 = none; for a
    renewal, the time of the lock. ``message``: why.
    """

    first: Int64
    end: Int64
    kind: Int64
    count: Int64 = 0
    delay_ms: Int64 = -1
    message: str = ""
    lease: Int64 = 0


class QueueAcknowledgeRequest(Message, frozen=True):
    """Report what has become of locked records; answered when that is stored."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    member_id: str
    verdicts: Rows[QueueVerdict]


class QueueFailure(Message, frozen=True):
    """Records that were not locked by the member: nothing was changed about them.

    ``count``, ``lease``: as the verdict had them.
    """

    first: Int64
    end: Int64
    error_code: Int64
    message: str
    count: Int64 = 0
    lease: Int64 = 0


class QueueShorterLock(Message, frozen=True):
    """Records whose lock was renewed for ``lock_ms`` only, because a lock has a highest age."""

    first: Int64
    end: Int64
    count: Int64
    lease: Int64
    lock_ms: Int64


class QueueAcknowledgeReply(Message, frozen=True):
    """``failures``: what could not be done.

    ``postpones``: copies of records that are to be retried late are on their way to the group's retry topic.
    ``lock_ms``: how long locks last that were renewed by the group's setting, except those in ``shorter``. The time of
    a renewed lock counts from when this request came in.
    """

    failures: Sequence[QueueFailure]
    postpones: bool = False
    lock_ms: Int64 = 0
    shorter: Sequence[QueueShorterLock] = ()


class QueueLeaveRequest(Message, frozen=True):
    """Stop working on a queue; what the member has locked is available again."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    member_id: str


class QueueDescribeRequest(Message, frozen=True):
    """Describe a queue: where it is, how many records are in which state, its members and counters."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str


class QueuePeeked(Message, frozen=True):
    """A range of records. ``left_ms``: the time left of a lock, or of the wait before a retry; -1 = neither."""

    first: Int64
    end: Int64
    state: str
    count: Int64
    member_id: str
    left_ms: Int64
    reason: str
    message: str


class QueueDescribeReply(Description, frozen=True):
    """``start``: the first record that is not finished; ``end``: the offset after the last one handed out.

    ``states``: how many records are in each state, how many are not finished, and whether these are so many that no
    further ones are handed out (``full``). ``oldest``: the range at ``start``.
    """

    start: Int64
    end: Int64
    high_watermark: Int64
    state_epoch: Int32
    members: Sequence[str]
    states: Mapping[str, Int64]
    settings: Mapping[str, str]
    counters: Mapping[str, Int64]
    hottest_key_records: Int64
    dead_letter_topic: str
    oldest: Sequence[QueuePeeked] = ()


class QueuePeekRequest(Message, frozen=True):
    """List the states of records, from an offset on; changes nothing."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    first: Int64
    limit: Int64


class QueuePeekReply(Message, frozen=True):
    """The ranges, in order."""

    ranges: Sequence[QueuePeeked]


class QueueResetRequest(Message, frozen=True):
    """Continue at another offset: records before it are skipped, records from it on are handed out again.

    ``offset``: -1 = the end, -2 = the start of the log. Refused while the group has members.
    """

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    offset: Int64


class QueueResetReply(Message, frozen=True):
    """The offset at which the queue continues."""

    offset: Int64


class ReadShareStateRequest(Message, frozen=True):
    """Load the state of a queue as the partition's leader, and fence the leader before."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    queue_topic: str
    queue_topic_id: str
    queue_partition: Int64
    leader_epoch: Int32
    queue_partitions: Int64


class ReadShareStateReply(Message, frozen=True):
    """``state``: as ``core/queues/records.py`` has it; its start is -1 where the queue is new.

    ``is_later``: whether the group had begun on the topic before this partition was added.
    """

    state_epoch: Int32
    state: Sequence[Any]
    is_later: bool = False


class WriteShareStateRequest(Message, frozen=True):
    """Store change number ``version`` of a state epoch; answered when every in-sync replica has it."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    queue_topic_id: str
    queue_partition: Int64
    leader_epoch: Int32
    state_epoch: Int32
    version: Int64
    change: Sequence[Any]


class ListShareStatesRequest(Message, frozen=True):
    """List the queues of a group, or of all groups where it is empty."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str


class ShareState(Message, frozen=True):
    """One queue, as it is stored."""

    group_id: str
    topic_id: str
    partition: Int32
    topic: str
    start: Int64
    leader_epoch: Int32
    state_epoch: Int32
    settings: Mapping[str, str]


class ListShareStatesReply(Message, frozen=True):
    """The queues, in order."""

    queues: Sequence[ShareState]


class DeleteShareStateRequest(Message, frozen=True):
    """Forget a queue: members that come later begin from scratch."""

    topic_id: str
    partition: Int32
    current_leader_epoch: Int32
    group_id: str
    queue_topic_id: str
    queue_partition: Int64


QUEUE_OPEN: Final = Method("queue_open", QueueOpenRequest, QueueOpenReply, TOKEN, TokenScope.QUEUE_SETTINGS, waits=True)
QUEUE_FETCH: Final = Method("queue_fetch", QueueFetchRequest, QueueFetchReply, TOKEN, TokenScope.QUEUE, waits=True)
QUEUE_ACKNOWLEDGE: Final = Method(
    "queue_acknowledge",
    QueueAcknowledgeRequest,
    QueueAcknowledgeReply,
    TOKEN,
    TokenScope.QUEUE,
    waits=True,
)
QUEUE_LEAVE: Final = Method("queue_leave", QueueLeaveRequest, Empty, TOKEN, TokenScope.QUEUE)
QUEUE_DESCRIBE: Final = Method("queue_describe", QueueDescribeRequest, QueueDescribeReply, CLIENT, waits=True)
QUEUE_PEEK: Final = Method("queue_peek", QueuePeekRequest, QueuePeekReply, CLIENT, waits=True)
QUEUE_RESET: Final = Method("queue_reset", QueueResetRequest, QueueResetReply, CLIENT, waits=True)
READ_SHARE_STATE: Final = Method("read_share_state", ReadShareStateRequest, ReadShareStateReply, CLUSTER, waits=True)
WRITE_SHARE_STATE: Final = Method("write_share_state", WriteShareStateRequest, Empty, CLUSTER, waits=True)
LIST_SHARE_STATES: Final = Method("list_share_states", ListShareStatesRequest, ListShareStatesReply, CLIENT, waits=True)
DELETE_SHARE_STATE: Final = Method("delete_share_state", DeleteShareStateRequest, Empty, CLIENT, waits=True)

QUEUE_METHODS: Final[tuple[AnyMethod, ...]] = (
    QUEUE_OPEN,
    QUEUE_FETCH,
    QUEUE_ACKNOWLEDGE,
    QUEUE_LEAVE,
    QUEUE_DESCRIBE,
    QUEUE_PEEK,
    QUEUE_RESET,
)
"""The methods of every partition that is a queue."""
SHARE_STATE_METHODS: Final[tuple[AnyMethod, ...]] = (
    READ_SHARE_STATE,
    WRITE_SHARE_STATE,
    LIST_SHARE_STATES,
    DELETE_SHARE_STATE,
)
"""The methods of the partition of ``__share_state``."""
