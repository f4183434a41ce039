"""The keeper of ``__share_state`` as a state machine: the stored state of every queue (KIP-932 share coordinator).

Runs at the leader of the topic's partition. Leaders of queues read their state here when they begin, which fences the
leader before, and send changes, which are stored before they are answered. The log has a snapshot of each queue now and
then, and the changes since. Decide, then apply: ``replay`` and ``step`` change state by the same function. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from raylog.core.coordinators.events import AppendRecords
from raylog.core.decision import LoggedDecision, Refuse, Reply, RequestId, Story
from raylog.core.errors import FencedLeaderEpoch, FencedStateEpoch, InvalidRequest, RaylogError
from raylog.core.outbox import Outbox
from raylog.core.queues.records import QueueChange, QueueState

SNAPSHOT: Final = 0
CHANGE: Final = 1
OPENED: Final = 2


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
    """List the queues of a group; an empty group: of all."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteState(_Requested):
    """Forget a queue."""

    key: QueueKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDue:
    """The log has become long: store the whole state of every queue, so that what lies before can go."""

    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStored:
    """Effect: the snapshot that was requested is in the log."""

    cause: str


Event: TypeAlias = ReadState | WriteState | ListStates | DeleteState | SnapshotDue
Effect: TypeAlias = AppendRecords | Reply | Refuse | SnapshotStored
Row = tuple[list[object], list[object] | None]


class _KeeperDecision(LoggedDecision[Effect, Row]):
    __slots__ = ()

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(self.records))


class KeeperMachine:
    """The states of all queues.

    Invariants: leader epoch and state epoch of a queue never fall; a change is taken once, in the order of versions.
    """

    def __init__(self) -> None:
        self.queues: dict[QueueKey, QueueState] = {}
        self.story = Story()

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Apply one row of the log; raises TypeError or ValueError for one that this release cannot read."""
        self._apply((list(key), None if value is None else list(value)))

    def loaded(self, now_ms: int, *, wall_ms: int | None = None) -> Outbox[Effect]:
        """Begin to serve: the log is read to its end."""
        return Outbox()

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event."""
        self.story.append((event.now_ms, event.cause, type(event).__name__))
        decision = _KeeperDecision(event.cause, event.now_ms, apply=self._apply, story=self.story)
        try:
            self._handle(event, decision)
        except RaylogError as refusal:
            if not isinstance(event, SnapshotDue):
                decision.now.append(Refuse(cause=event.cause, request=event.request, error=refusal))
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
                decision.after_sync.append(Reply(cause=event.cause, request=event.request, result=[rows]))
            case DeleteState():
                if event.key in self.queues:
                    decision.write((_wire(event.key), None))
                decision.after_sync.append(Reply(cause=event.cause, request=event.request, result=[]))
            case SnapshotDue():
                for key, state in sorted(self.queues.items()):
                    decision.write((_wire(key), _snapshot_row(state)))
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
        state_epoch = 1 if known is None else known.state_epoch + 1
        decision.write((_wire(event.key), [OPENED, event.topic, event.leader_epoch, state_epoch]))
        state = self.queues[event.key]
        result: list[object] = [state_epoch, state.snapshot().to_wire()]
        decision.after_sync.append(Reply(cause=event.cause, request=event.request, result=result))

    def _write(self, event: WriteState, decision: _KeeperDecision) -> None:
        state = self.queues.get(event.key)
        if state is None or (event.leader_epoch, event.state_epoch) != (state.leader_epoch, state.state_epoch):
            raise FencedStateEpoch("The queue was loaded again since, or was deleted; load its state again.")
        if event.version not in (state.version, state.version + 1):
            raise InvalidRequest(f"Change {event.version} does not follow change {state.version} of the queue.")
        if event.version == state.version + 1:  # else it is a repetition
            decision.write((_wire(event.key), [CHANGE, event.version, *event.change.to_wire()]))
        decision.after_sync.append(Reply(cause=event.cause, request=event.request, result=[]))

    def _apply(self, row: Row) -> None:
        """Apply a row: the only mutator, for live traffic and replay alike."""
        wire_key, value = row
        group, topic_id, partition = wire_key
        key = QueueKey(str(group), str(topic_id), int(str(partition)))
        if value is None:
            self.queues.pop(key, None)
            return
        kind, *rest = value
        fields: list[Any] = rest
        if kind == OPENED:
            topic, leader_epoch, state_epoch = fields[:3]
            state = self.queues.setdefault(key, QueueState(topic))
            state.leader_epoch, state.state_epoch, state.version = leader_epoch, state_epoch, 0
        elif kind == CHANGE:
            if key in self.queues:  # else its snapshot follows: the rows before are deleted
                state = self.queues[key]
                state.version = fields[0]
                state.apply(QueueChange.from_wire(fields[1:]))
        elif kind == SNAPSHOT:
            topic, leader_epoch, state_epoch, version, *change = fields
            state = self.queues[key] = QueueState(topic, leader_epoch, state_epoch, version)
            if change[0] >= 0:
                state.apply(QueueChange.from_wire(change))
        else:
            raise ValueError(f"a row of kind {kind!r} is not known")


def _wire(key: QueueKey) -> list[object]:
    return list(key)


def _snapshot_row(state: QueueState) -> list[object]:
    return [SNAPSHOT, state.topic, state.leader_epoch, state.state_epoch, state.version, *state.snapshot().to_wire()]
