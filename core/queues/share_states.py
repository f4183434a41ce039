"""The states of all queues as a state machine, at the leader of ``__share_state`` (KIP-932 share coordinator).

A leader of queues reads their state here when it begins, which fences the leader before it, and sends changes, which
are stored before they are answered. From time to time a snapshot of each queue goes to the log, between them the
changes. Decide, then apply: ``replay`` and ``step`` change state by the same function. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from raylog.base.errors import (
    FencedLeaderEpoch,
    FencedStateEpoch,
    InvalidGroupId,
    InvalidRequest,
    LimitReached,
    RaylogError,
)
from raylog.core.coordinators.decision import CoordinatorDecision
from raylog.core.coordinators.events import AppendRecords, StoreProof
from raylog.core.decision import Refuse, Reply, RequestId, Story
from raylog.core.outbox import Outbox
from raylog.core.queues.records import QueueChange, QueueState, StoredChange, pieces_within
from raylog.core.received import Received
from raylog.protocol.message import read, replace
from raylog.protocol.queues import (
    DeleteShareStateRequest,
    ListShareStatesRequest,
    ReadShareStateRequest,
    WriteShareStateRequest,
)
from raylog.protocol.rows import read_fields

SNAPSHOT: Final = 0
CHANGE: Final = 1
OPENED: Final = 2
PART: Final = 3
"""The kinds of rows. If a snapshot or change is large, PART rows before it have its first ranges; they count only with
it."""
ROW_BYTES: Final = 128 * 1024
"""Most bytes of ranges in one row: a queue's state may be larger than the log takes in a batch."""

GROUPS_MAX: Final = 1_000
"""Most queues (groups) of one partition."""
QUEUES_MAX: Final = 100_000
"""Most queues of all partitions whose states are stored together."""
GROUP_CHARACTERS_MAX: Final = 1_024
"""Longest name of a new queue's group."""


class QueueKey(NamedTuple):
    """One queue: a group on one partition of a topic; a topic that was created again has another id."""

    group: str
    topic_id: str
    partition: int


ShareStateRequest: TypeAlias = (
    ReadShareStateRequest | WriteShareStateRequest | ListShareStatesRequest | DeleteShareStateRequest
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDue:
    """The log has become long: store a snapshot of every queue, so that the rows before can be deleted."""

    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStored:
    """Effect: the snapshot that was requested is in the log."""

    cause: str


Event: TypeAlias = Received[ShareStateRequest] | SnapshotDue
Effect: TypeAlias = AppendRecords | StoreProof | Reply | Refuse | SnapshotStored
Row = tuple[list[object], list[object] | None]


class _Decision(CoordinatorDecision[Row]):
    __slots__ = ()

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(self.records))


class ShareStateMachine:
    """The states of all queues.

    Invariants: leader epoch and state epoch of a queue never fall; each change is applied once, in order of versions.
    """

    def __init__(self) -> None:
        self.queues: dict[QueueKey, QueueState] = {}
        self._parts: dict[QueueKey, list[list[Any]]] = {}
        """Ranges of PART rows whose snapshot or change has not been read yet."""
        self.story = Story()

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Apply one row of the log; raises TypeError or ValueError for one that this release cannot read."""
        self._apply((list(key), None if value is None else list(value)))

    def loaded(self, now_ms: int, *, wall_ms: int | None = None) -> Outbox[Effect]:
        """Begin to serve, once the log is read to its end."""
        return Outbox()

    def next_due_ms(self) -> int | None:
        """Return None: nothing is due by itself."""
        return None

    def set_clock(self, now_ms: int, wall_ms: int) -> None:
        """Do nothing: events have the times that they need."""

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event."""
        self.story.append((event.now_ms, event.cause, type(event).__name__))
        decision = _Decision(event.cause, event.now_ms, apply=self._apply, story=self.story)
        match event:
            case Received():
                try:
                    self._answer(event.message, event.request, decision)
                except RaylogError as refusal:
                    decision.refuse_proved(event.request, refusal)
            case SnapshotDue():
                for key, state in sorted(self.queues.items()):
                    head = [SNAPSHOT, state.topic, state.leader_epoch, state.state_epoch, state.version]
                    self._write_rows(key, head, state.snapshot(), decision, state.partitions)
                decision.after_sync.append(SnapshotStored(cause=event.cause))
            case _:
                assert_never(event)
        return decision.finish()

    def _answer(self, message: ShareStateRequest, request: RequestId, decision: _Decision) -> None:
        match message:
            case ReadShareStateRequest():
                self._read(message, request, decision)
            case WriteShareStateRequest():
                self._write(message, request, decision)
            case ListShareStatesRequest():
                rows = [
                    [*key, state.topic, state.start, state.leader_epoch, state.state_epoch, dict(state.settings)]
                    for key, state in sorted(self.queues.items())
                    if message.group_id in ("", key.group)
                ]
                decision.reply_proved(request, [rows])
            case DeleteShareStateRequest():
                key = _key_of(message)
                if key in self.queues:
                    decision.write((list(key), None))
                decision.reply_proved(request, [])
            case _:
                assert_never(message)

    def _read(self, message: ReadShareStateRequest, request: RequestId, decision: _Decision) -> None:
        key = _key_of(message)
        known = self.queues.get(key)
        if known is not None and message.leader_epoch < known.leader_epoch:
            raise FencedLeaderEpoch(
                f"The queue was loaded in leader epoch {known.leader_epoch}; a leader of epoch {message.leader_epoch} "
                "may not serve it any more."
            )
        if known is None:
            self._check_room(key)
        state_epoch = 1 if known is None else known.state_epoch + 1
        is_later = self._is_later(key)
        row = [OPENED, message.queue_topic, message.leader_epoch, state_epoch, message.queue_partitions]
        decision.write((list(key), row))
        decision.reply(request, [state_epoch, self.queues[key].snapshot().to_wire(), is_later])

    def _check_room(self, key: QueueKey) -> None:
        """Raise LimitReached or InvalidGroupId if there may be no new queue of this key."""
        if len(key.group) > GROUP_CHARACTERS_MAX:
            raise InvalidGroupId(
                f"The group id has {len(key.group)} characters, and may have {GROUP_CHARACTERS_MAX} at most; use a "
                "shorter one."
            )
        if len(self.queues) < GROUPS_MAX:
            return
        place = (key.topic_id, key.partition)
        there = sum(1 for each in self.queues if (each.topic_id, each.partition) == place)
        if there >= GROUPS_MAX or len(self.queues) >= QUEUES_MAX:
            raise LimitReached(
                f"There are {there} queues of this partition and {len(self.queues)} in all; {GROUPS_MAX} and "
                f"{QUEUES_MAX} are the most. Delete some that are not used any more (`raylog queue delete`)."
            )

    def _is_later(self, key: QueueKey) -> bool:
        """Whether the partition was added after the group began to work on the topic."""
        return any(
            state.partitions <= key.partition
            for other, state in self.queues.items()
            if (other.group, other.topic_id) == (key.group, key.topic_id) and other.partition != key.partition
        )

    @staticmethod
    def _write_rows(
        key: QueueKey, head: list[object], change: QueueChange, decision: _Decision, partitions: int = 0
    ) -> None:
        *parts, last = pieces_within(change.ranges, ROW_BYTES)
        for number, part in enumerate(parts):
            decision.write((list(key), [PART, number, part]))
        stored = StoredChange(
            change.start,
            last,
            change.settings,
            change.letter_box,
            change.is_reset,
            change.copy_box,
            len(parts),
            partitions,
        )
        decision.write((list(key), [*head, *stored.to_wire()]))

    def _write(self, message: WriteShareStateRequest, request: RequestId, decision: _Decision) -> None:
        key, version = _key_of(message), message.version
        state = self.queues.get(key)
        if state is None or (message.leader_epoch, message.state_epoch) != (state.leader_epoch, state.state_epoch):
            raise FencedStateEpoch("The queue was loaded again since, or was deleted; load its state again.")
        if version not in (state.version, state.version + 1):
            raise InvalidRequest(f"Change {version} does not follow change {state.version} of the queue.")
        if version == state.version + 1:  # else it is a repetition
            change = read(QueueChange, message.change, "A change of a queue")
            self._write_rows(key, [CHANGE, version], change, decision)
        decision.reply(request, [])

    def _whole(self, key: QueueKey, wire: list[object]) -> StoredChange | None:
        """Return a change with the ranges of its PART rows; None = some of these are missing."""
        parts = self._parts.pop(key, [])
        change = read_fields(StoredChange, wire, "A change of a queue")
        if not change.parts:
            return change
        if len(parts) != change.parts:
            return None
        return replace(change, ranges=[*(tuple(row) for part in parts for row in part), *change.ranges])

    def _apply(self, row: Row) -> None:
        """Apply a row: the only mutator, for live traffic and replay alike."""
        wire_key, value = row
        group, topic_id, partition = wire_key
        key = QueueKey(str(group), str(topic_id), int(str(partition)))
        if value is None:
            self.queues.pop(key, None)
            self._parts.pop(key, None)
            return
        kind, *rest = value
        fields: list[Any] = rest
        if kind == PART:
            number, ranges = fields[:2]
            if number == 0:
                self._parts[key] = []
            self._parts.get(key, []).append(ranges)
        elif kind == OPENED:
            topic, leader_epoch, state_epoch, partitions = fields[:4]
            state = self.queues.setdefault(key, QueueState(topic, partitions=partitions))
            state.leader_epoch, state.state_epoch, state.version = leader_epoch, state_epoch, 0
        elif kind == CHANGE:
            change = self._whole(key, fields[1:])
            if key in self.queues and change is not None:  # else its snapshot follows: the rows before are deleted
                state = self.queues[key]
                state.version = fields[0]
                state.apply(change)
        elif kind == SNAPSHOT:
            topic, leader_epoch, state_epoch, version, *wire = fields
            change = self._whole(key, wire)
            if change is None:
                return  # a leader ended amid this snapshot, so the rows that it would replace are still in the log
            state = QueueState(topic, leader_epoch, state_epoch, version, partitions=change.partitions)
            self.queues[key] = state
            if change.start >= 0:
                state.apply(change)
        else:
            raise ValueError(f"a row of kind {kind!r} is not known")


def _key_of(message: ReadShareStateRequest | WriteShareStateRequest | DeleteShareStateRequest) -> QueueKey:
    return QueueKey(message.group_id, message.queue_topic_id, message.queue_partition)
