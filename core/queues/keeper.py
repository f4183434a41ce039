"""The keeper of ``__share_state`` as a state machine: the stored state of every queue (KIP-932 share coordinator).

It runs at the leader of the topic's partition. A leader of queues reads their state here when it begins, which fences
the leader before it, and sends changes, which are stored before they are answered. From time to time a snapshot of each
queue goes to the log, between them the changes. Decide, then apply: ``replay`` and ``step`` change state by the same
function. Pure.
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
from raylog.core.queues.records import QueueChange, QueueState, pieces_within

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requested:
    cause: str
    now_ms: int
    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadState(_Requested):
    """A leader begins to serve a queue."""

    key: QueueKey
    topic: str
    leader_epoch: int
    partitions: int
    """How many partitions the topic has now, as far as the leader knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteState(_Requested):
    """A leader stores change number ``version`` of its state epoch."""

    key: QueueKey
    leader_epoch: int
    state_epoch: int
    version: int
    change: QueueChange


@dataclass(frozen=True, slots=True, kw_only=True)
class ListStates(_Requested):
    """List the queues of a group; with an empty group, all queues."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteState(_Requested):
    """Forget a queue."""

    key: QueueKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDue:
    """The log has become long: store a snapshot of every queue, so that the rows before can be deleted."""

    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStored:
    """Effect: the snapshot that was requested is in the log."""

    cause: str


Event: TypeAlias = ReadState | WriteState | ListStates | DeleteState | SnapshotDue
Effect: TypeAlias = AppendRecords | StoreProof | Reply | Refuse | SnapshotStored
Row = tuple[list[object], list[object] | None]


class _KeeperDecision(CoordinatorDecision[Row]):
    __slots__ = ()

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(self.records))


class KeeperMachine:
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
        decision = _KeeperDecision(event.cause, event.now_ms, apply=self._apply, story=self.story)
        try:
            self._handle(event, decision)
        except RaylogError as refusal:
            if not isinstance(event, SnapshotDue):
                decision.refuse_proved(event.request, refusal)
        return decision.finish()

    def _handle(self, event: Event, decision: _KeeperDecision) -> None:
        match event:
            case ReadState():
                self._read(event, decision)
            case WriteState():
                self._write(event, decision)
            case ListStates():
                rows = [
                    [*key, state.topic, state.start, state.leader_epoch, state.state_epoch, dict(state.settings)]
                    for key, state in sorted(self.queues.items())
                    if event.group in ("", key.group)
                ]
                decision.reply_proved(event.request, [rows])
            case DeleteState():
                if event.key in self.queues:
                    decision.write((_wire(event.key), None))
                decision.reply_proved(event.request, [])
            case SnapshotDue():
                for key, state in sorted(self.queues.items()):
                    head = [SNAPSHOT, state.topic, state.leader_epoch, state.state_epoch, state.version]
                    self._write_rows(key, head, state.snapshot(), decision, state.partitions)
                decision.after_sync.append(SnapshotStored(cause=event.cause))
            case _:
                assert_never(event)

    def _read(self, event: ReadState, decision: _KeeperDecision) -> None:
        known = self.queues.get(event.key)
        if known is not None and event.leader_epoch < known.leader_epoch:
            raise FencedLeaderEpoch(
                f"The queue was loaded in leader epoch {known.leader_epoch}; a leader of epoch {event.leader_epoch} "
                "may not serve it any more."
            )
        if known is None:
            self._check_room(event.key)
        state_epoch = 1 if known is None else known.state_epoch + 1
        is_later = self._is_later(event.key)
        row = [OPENED, event.topic, event.leader_epoch, state_epoch, event.partitions]
        decision.write((_wire(event.key), row))
        state = self.queues[event.key]
        result: list[object] = [state_epoch, state.snapshot().to_wire(), is_later]
        decision.reply(event.request, result)

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
        key: QueueKey, head: list[object], change: QueueChange, decision: _KeeperDecision, partitions: int = 0
    ) -> None:
        *parts, last = pieces_within(change.ranges, ROW_BYTES)
        for number, part in enumerate(parts):
            decision.write((_wire(key), [PART, number, [list(row) for row in part]]))
        wire = change._replace(ranges=last).to_wire()
        more: list[object] = [len(parts), partitions] if parts or partitions else []
        if more and change.copy_box is None:
            more.insert(0, None)
        decision.write((_wire(key), [*head, *wire, *more]))

    def _write(self, event: WriteState, decision: _KeeperDecision) -> None:
        state = self.queues.get(event.key)
        if state is None or (event.leader_epoch, event.state_epoch) != (state.leader_epoch, state.state_epoch):
            raise FencedStateEpoch("The queue was loaded again since, or was deleted; load its state again.")
        if event.version not in (state.version, state.version + 1):
            raise InvalidRequest(f"Change {event.version} does not follow change {state.version} of the queue.")
        if event.version == state.version + 1:  # else it is a repetition
            self._write_rows(event.key, [CHANGE, event.version], event.change, decision)
        decision.reply(event.request, [])

    def _whole(self, key: QueueKey, wire: list[Any]) -> QueueChange | None:
        """Return a change with the ranges of its PART rows; None = some of these are missing."""
        parts = self._parts.pop(key, [])
        change = QueueChange.from_wire(wire)
        count = wire[_PARTS] if len(wire) > _PARTS else 0
        if not count:
            return change
        if len(parts) != count:
            return None
        return change._replace(ranges=[*(tuple(row) for part in parts for row in part), *change.ranges])

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
                return  # a keeper ended amid this snapshot, so the rows that it would replace are still in the log
            state = QueueState(topic, leader_epoch, state_epoch, version, partitions=wire[_PARTITIONS])
            self.queues[key] = state
            if change.start >= 0:
                state.apply(change)
        else:
            raise ValueError(f"a row of kind {kind!r} is not known")


_PARTS: Final = 6
_PARTITIONS: Final = 7
"""Places in a stored change of the number of its PART rows, and of the number of the topic's partitions."""


def _wire(key: QueueKey) -> list[object]:
    return list(key)
