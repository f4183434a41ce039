"""The patches behind the planted bugs of the group world; ``planted.py`` says what each breaks and who notices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from raylog.core.errors import RaylogError
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.events import Effect, Event, LogExtent, OffsetCommitReceived, Tick, TrimLog
from raylog.core.groups.group import Group
from raylog.core.groups.records import GroupChanged
from raylog.core.groups.rewriting import Find, LiveKey, Rewriting
from raylog.core.groups.states import GroupState
from raylog.core.groups.writing import RowQueue
from raylog.core.outbox import Outbox
from tests.simulation.groups.topic import OffsetsTopic, Row


def load_half_the_log(original: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
    """The coordinator serves before it has read its log to the end."""

    def read(self: OffsetsTopic, end: int) -> list[Row]:
        rows = original(self, end)
        return rows[: len(rows) // 2]

    return read


def commits_of_any_generation(original: Callable[..., RaylogError | None]) -> Callable[..., RaylogError | None]:
    def commit_error(group: Group, event: OffsetCommitReceived) -> RaylogError | None:
        return original(group, replace(event, generation=group.generation) if event.generation >= 0 else event)

    return commit_error


def commits_of_anybody(original: Callable[..., RaylogError | None]) -> Callable[..., RaylogError | None]:
    """Whoever knows the generation may commit, member or not."""

    def commit_error(group: Group, event: OffsetCommitReceived) -> RaylogError | None:
        error = original(group, event)
        return None if event.generation == group.generation and group.state is GroupState.STABLE else error

    return commit_error


def commits_without_instance(original: Callable[..., RaylogError | None]) -> Callable[..., RaylogError | None]:
    """A commit does not say of which instance it is."""

    def commit_error(group: Group, event: OffsetCommitReceived) -> RaylogError | None:
        return original(group, replace(event, instance_id=None))

    return commit_error


def batches_of_any_size(original: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
    """Everything that waits goes into one batch."""
    return lambda self, bytes_max: original(self, 10**9)


def answers_of_half_steps(original: Callable[..., None]) -> Callable[..., None]:
    """When a batch is stored, the rest of what waits counts as stored too."""

    def stored(self: RowQueue[Row]) -> None:
        original(self)
        self._stored = self._end

    return stored


def somebody_joined(self: Group) -> bool:
    """The round ends with the first join: others get partitions that their owners have not given back."""
    return any(member.join_request is not None for member in self.members.values())


def forget_generation(original: Callable[..., None]) -> Callable[..., None]:
    """The generation counts from one again after a failover."""

    def replay(self: Group, image: GroupChanged) -> None:
        original(self, replace(image, generation=1))

    return replay


def generation_unwritten(original: Callable[..., None]) -> Callable[..., None]:
    """As in Kafka: a generation is written with its assignments only, and given again after a failover."""

    def apply(self: CoordinatorMachine, record: object) -> None:
        if isinstance(record, GroupChanged) and not self._loaded and record.state is GroupState.COMPLETING_REBALANCE:
            return
        original(self, record)

    return apply


def answer_at_once(original: Callable[..., Outbox[Effect]]) -> Callable[..., Outbox[Effect]]:
    """Answers do not wait for the records that they rest on."""

    def finish(self: GroupDecision) -> Outbox[Effect]:
        out = original(self)
        out.now.extend(out.after_sync)
        out.after_sync.clear()
        return out

    return finish


def sessions_end_with_the_coordinator(original: Callable[..., None]) -> Callable[..., None]:
    """A new coordinator gives nobody time to be heard."""

    def restore(self: Group, now_ms: int) -> None:
        original(self, now_ms)
        for member in self.members.values():
            member.session_deadline_ms = now_ms

    return restore


def assign_twice(original: Callable[..., bytes]) -> Callable[..., bytes]:
    """Who has no assignment gets the leader's."""

    def assignment(self: Group, member_id: str) -> bytes:
        given = original(self, member_id)
        return given if len(given) > 8 else original(self, self.leader)

    return assignment


def offsets_of_the_lost(original: Callable[..., None]) -> Callable[..., None]:
    """An empty group loses its offsets with its last member."""

    def apply(self: CoordinatorMachine, record: object) -> None:
        original(self, record)
        if isinstance(record, GroupChanged) and record.state is GroupState.EMPTY:
            self._offsets._by_group.pop(record.group, None)

    return apply


def trim_before_stored(original: Callable[..., None]) -> Callable[..., None]:
    """The beginning of the log is deleted when the last chunk is decided, not when it is stored."""

    def go_on(self: Rewriting, find: Find, decision: GroupDecision) -> None:
        original(self, find, decision)
        if self._chunk_under_way and not self._keys and self._begin is not None:
            decision.trim(self._begin.end_offset)

    return go_on


def trim_to_the_end(original: Callable[..., Outbox[Effect]]) -> Callable[..., Outbox[Effect]]:
    """What is deleted reaches up to where the log ends when the round is over, not to where it ended before."""
    ends: dict[int, int] = {}

    def step(self: CoordinatorMachine, event: Event) -> Outbox[Effect]:
        if isinstance(event, Tick) and event.log is not None:
            ends[id(self)] = event.log.end_offset
        out = original(self, event)
        out.now = [
            replace(each, before_offset=ends[id(self)]) if isinstance(each, TrimLog) else each for each in out.now
        ]
        return out

    return step


def rewrite_offsets_only(original: Callable[..., None]) -> Callable[..., None]:
    """Groups are not written again."""

    def begin(self: Rewriting, log: LogExtent, keys: Iterable[LiveKey]) -> None:
        original(self, log, [key for key in keys if not isinstance(key, str)])

    return begin


def rewrite_what_held_once(original: Callable[..., object]) -> Callable[..., object]:
    """What is written again is what a key held when it was looked at first, not what it holds now."""
    first: dict[tuple[int, LiveKey], object] = {}

    def live_record(self: CoordinatorMachine, key: LiveKey) -> object:
        return first.setdefault((id(self), key), original(self, key))

    return live_record
