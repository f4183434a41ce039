"""The states of all forwarders as a state machine: what each has decided, and the redrives of dead letters.

It runs at the leader of a partition of ``__forwarding`` (``actors/forwarding/forwarder_states.py``). Each state belongs
to the leadership whose records are forwarded: an owner of an earlier epoch is refused. Decide, then apply: ``replay``
and ``step`` change state by the same function. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

from raylog.base.errors import ForwarderFenced, InvalidRequest, RaylogError, RecordTooLarge, RedriveRunning
from raylog.core.coordinators.decision import CoordinatorDecision
from raylog.core.coordinators.events import AppendRecords, RequestDropped, StoreProof
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.dead_letters import UNDELIVERABLE_TOPIC
from raylog.core.decision import Refuse, Reply, RequestId, Story
from raylog.core.forwarding.redrives import (
    CANCELLING,
    HOLDING,
    KEPT_MS,
    RUNNING,
    Frontier,
    Outcome,
    Redrive,
    spans_from,
)
from raylog.core.forwarding.rules import INTERNAL_PREFIX, check_filters
from raylog.core.outbox import Outbox

STATE: Final = "state"
REDRIVE: Final = "redrive"
FRONTIER: Final = "frontier"
"""The kinds of rows, which their keys begin with."""
WHERE_MAX: Final = 16 * 1024
"""Most characters of a redrive's filters, which are stored in each of its rows."""


class State(NamedTuple):
    """What a forwarder has decided last, encoded, and the epoch of the owner that stored it."""

    owner_epoch: int
    note: bytes


def state_name(redrive: int, partition: int) -> str:
    """Return the name of the forwarder of one partition of a redrive."""
    return f"redrive:{redrive}:{partition}"


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Requested(_Event):
    request: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadState(_Requested):
    """An owner begins: it gets the state, and owners of an earlier epoch are refused from then on."""

    forwarder: str
    owner_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveState(_Requested):
    """An owner stores what it has decided."""

    forwarder: str
    owner_epoch: int
    note: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRedrive(_Requested):
    """Send on the dead letters that a topic holds now."""

    topic: str
    to: str
    where: Mapping[str, str]
    rate: int
    from_start: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLookedUp(_Event):
    """The outcome of :class:`LookUpTopic`: first and end offset of each partition, or why it failed."""

    topic: str
    topic_id: str = ""
    bounds: Sequence[tuple[int, int]] = ()
    error: RaylogError | None = None
    wall_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRedrives(_Requested):
    """List the redrives of a topic, or all ("")."""

    topic: str
    progress: Mapping[tuple[int, int], tuple[int, int]]
    """Position and number of sent records, by redrive and partition, of those that run."""
    holding: frozenset[int]
    """The redrives of which a target takes nothing at present."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRedrive(_Requested):
    """End a redrive; what it has sent stays where it is."""

    redrive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRedriven(_Event):
    """The forwarder of one partition of a redrive has ended."""

    redrive: int
    partition: int
    outcome: Outcome
    wall_ms: int


# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpTopic:
    """Look up the partitions of a topic, and whether the topic ``to`` exists; :class:`TopicLookedUp` follows."""

    cause: str
    topic: str
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRedrive:
    """Forward the partitions of a redrive, each until :class:`PartitionRedriven`; unless that is under way."""

    cause: str
    redrive: Redrive


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRedrive:
    """Let the forwarders of a redrive end after what they have begun."""

    cause: str
    redrive: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveEnded:
    """Forget a redrive's forwarders: its end is stored."""

    cause: str
    redrive: Redrive


Event: TypeAlias = (
    LoadState
    | SaveState
    | StartRedrive
    | TopicLookedUp
    | ListRedrives
    | CancelRedrive
    | PartitionRedriven
    | RequestDropped
)
Effect: TypeAlias = AppendRecords | StoreProof | Reply | Refuse | LookUpTopic | RunRedrive | StopRedrive | RedriveEnded
Row = tuple[list[object], list[object] | None]


class _Decision(CoordinatorDecision[Row]):
    __slots__ = ()

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(self.records))


class ForwarderStates:
    """The states of the forwarders, and the redrives, of one partition of ``__forwarding``.

    Invariants: the owner epoch of a forwarder never falls; of one topic, one redrive runs at a time.
    """

    def __init__(self, record_bytes_max: int) -> None:
        """``record_bytes_max``: the bytes of the largest row that the log takes."""
        self._record_bytes_max = record_bytes_max
        self.states: dict[str, State] = {}
        self.redrives: dict[int, Redrive] = {}
        self.frontiers: dict[str, Frontier] = {}
        """By topic id."""
        self._starting: dict[str, StartRedrive] = {}
        """Requests that wait until their topic was looked up, by topic."""
        self._outcomes: dict[int, dict[int, Outcome]] = {}
        """By redrive that runs: how it ended in each partition where it has."""
        self.story = Story()

    # ------------------------------------------------------------ the log

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Apply one row of the log; raises TypeError or ValueError for one that this release cannot read."""
        self._apply((list(key), None if value is None else list(value)))

    def loaded(self, now_ms: int, *, wall_ms: int | None = None) -> Outbox[Effect]:
        """Begin to serve, once the log is read to its end: redrives that have not ended go on."""
        decision = _Decision("loaded", now_ms, apply=self._apply, story=self.story)
        for redrive in self._listed():
            if not redrive.has_ended:
                self._run(redrive, decision, now_ms if wall_ms is None else wall_ms)
        return decision.finish()

    def _apply(self, row: Row) -> None:
        """Apply a row: the only mutator, for live traffic and replay alike."""
        (kind, name, *_), value = row
        fields: Any = value
        if kind == STATE:
            _put(self.states, str(name), None if fields is None else State(int(fields[0]), bytes(fields[1])))
        elif kind == REDRIVE:
            _put(self.redrives, int(str(name)), None if fields is None else Redrive.from_wire([name, *fields]))
        elif kind == FRONTIER:
            found = None if fields is None else Frontier(*(tuple(map(int, each)) for each in fields[:2]))
            _put(self.frontiers, str(name), found)
        else:
            raise ValueError(f"a row of kind {kind!r} is not known")

    # ------------------------------------------------------------ step

    def next_due_ms(self) -> int | None:
        """Return None: nothing is due by itself."""
        return None

    def set_clock(self, now_ms: int, wall_ms: int) -> None:
        """Do nothing: events have the times that they need."""

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event."""
        self.story.append((event.now_ms, event.cause, type(event).__name__))
        decision = _Decision(event.cause, event.now_ms, apply=self._apply, story=self.story)
        try:
            self._handle(event, decision)
        except RaylogError as refusal:
            if not isinstance(event, _Requested):
                raise
            decision.refuse(event.request, refusal)
        return decision.finish()

    def _handle(self, event: Event, decision: _Decision) -> None:
        match event:
            case LoadState():
                self._load(event, decision)
            case SaveState():
                self._check_owner(event)
                self._write_state(event.forwarder, State(event.owner_epoch, event.note), decision)
                decision.reply(event.request, [])
            case StartRedrive():
                self._check(event)
                self._starting[event.topic] = event
                decision.now.append(LookUpTopic(cause=event.cause, topic=event.topic, to=event.to))
            case TopicLookedUp():
                self._start(event, decision)
            case ListRedrives():
                rows = [self._row(each, event) for each in self._listed() if event.topic in ("", each.topic)]
                decision.reply_proved(event.request, [rows])
            case CancelRedrive():
                self._cancel(event, decision)
            case PartitionRedriven():
                self._redriven(event, decision)
            case RequestDropped():
                pass  # a redrive is started even if its sender has left: it would not know that it was not
            case _:
                assert_never(event)

    # ------------------------------------------------------------ states

    def _load(self, event: LoadState, decision: _Decision) -> None:
        self._check_owner(event)
        known = self.states.get(event.forwarder)
        note = b"" if known is None else known.note
        if known is None or known.owner_epoch < event.owner_epoch:
            self._write_state(event.forwarder, State(event.owner_epoch, note), decision)
            decision.reply(event.request, [note])
        else:
            decision.reply_proved(event.request, [note])

    def _check_owner(self, event: LoadState | SaveState) -> None:
        known = self.states.get(event.forwarder)
        if known is not None and event.owner_epoch < known.owner_epoch:
            raise ForwarderFenced(
                f"{event.forwarder} is owned by epoch {known.owner_epoch}; epoch {event.owner_epoch} is over."
            )

    def _write_state(self, name: str, state: State, decision: _Decision) -> None:
        self._write([STATE, name], [*state], decision)

    def _write(self, key: list[object], value: list[object] | None, decision: _Decision) -> None:
        size = row_bytes(key, value)
        if size > self._record_bytes_max:
            raise RecordTooLarge(
                f"The state of {key[1]} takes {size} bytes, and the log {self._record_bytes_max} at most; raise "
                "max.message.bytes of __forwarding."
            )
        decision.write((key, value))

    # ------------------------------------------------------------ redrives

    def _listed(self) -> list[Redrive]:
        return [self.redrives[number] for number in sorted(self.redrives)]

    def _check(self, event: StartRedrive) -> None:
        check_filters(event.where)
        if event.rate < 0:
            raise InvalidRequest(f"rate={event.rate}: records a second, or 0 for as fast as they go.")
        if sum(len(name) + len(value) for name, value in event.where.items()) > WHERE_MAX:
            raise InvalidRequest(f"The filters of a redrive have more than {WHERE_MAX} characters; use shorter ones.")
        if event.topic.startswith(INTERNAL_PREFIX) and event.topic != UNDELIVERABLE_TOPIC:
            raise InvalidRequest(f"{event.topic} is Raylog's own, and holds no dead letters.")
        if event.to.startswith(INTERNAL_PREFIX):
            raise InvalidRequest(f"{event.to} is Raylog's own: nothing can be sent there.")
        if event.to == event.topic:
            raise InvalidRequest(f"{event.topic} is where they are; name another topic, or none for their origins.")
        running = next((each for each in self._listed() if each.topic == event.topic and not each.has_ended), None)
        if running is not None:
            raise RedriveRunning(
                f"Redrive {running.number} of {event.topic} runs; wait for its end, or cancel it: "
                f"`raylog dlq cancel {running.number}`."
            )
        if event.topic in self._starting:
            raise RedriveRunning(f"A redrive of {event.topic} is just beginning.")

    def _start(self, event: TopicLookedUp, decision: _Decision) -> None:
        started = self._starting.pop(event.topic, None)
        if started is None:
            return
        if event.error is not None:
            decision.refuse(started.request, event.error)
            return
        before = Frontier() if started.from_start else self.frontiers.get(event.topic_id, Frontier())
        redrive = Redrive(
            1 + max(self.redrives, default=0),
            started.topic,
            event.topic_id,
            started.to,
            dict(started.where),
            started.rate,
            RUNNING,
            event.wall_ms,
            -1,
            spans_from(event.bounds, before),
            started.from_start,
            before.behind,
        )
        try:
            self._write_redrive(redrive, decision)
        except RaylogError as refusal:
            decision.refuse(started.request, refusal)
            return
        for each in self._listed()[:-1]:  # the newest stays, because it has the last number
            if each.has_ended and each.ended_ms < event.wall_ms - KEPT_MS:
                decision.write(([REDRIVE, each.number], None))
        decision.reply(started.request, [redrive.number])
        self._run(redrive, decision, event.wall_ms)

    def _write_redrive(self, redrive: Redrive, decision: _Decision) -> None:
        number, *fields = redrive.to_wire()
        self._write([REDRIVE, number], fields, decision)

    def _run(self, redrive: Redrive, decision: _Decision, wall_ms: int) -> None:
        self._outcomes[redrive.number] = {}
        if redrive.spans:
            decision.after_sync.append(RunRedrive(cause=decision.cause, redrive=redrive))
        else:
            self._finish(redrive, decision, wall_ms)

    def _cancel(self, event: CancelRedrive, decision: _Decision) -> None:
        found = self.redrives.get(event.redrive)
        if found is None or found.has_ended:
            decision.reply_proved(event.request, ["NOT_FOUND" if found is None else "ALREADY_ENDED"])
            return
        self._write_redrive(replace(found, state=CANCELLING), decision)
        decision.reply(event.request, ["CANCELLED"])
        decision.after_sync.append(StopRedrive(cause=event.cause, redrive=found.number))

    def _redriven(self, event: PartitionRedriven, decision: _Decision) -> None:
        outcomes, redrive = self._outcomes.get(event.redrive), self.redrives.get(event.redrive)
        if outcomes is None or redrive is None:
            return  # the end is stored already
        outcomes[event.partition] = event.outcome
        if len(outcomes) == len(redrive.spans):
            self._finish(redrive, decision, event.wall_ms)

    def _finish(self, redrive: Redrive, decision: _Decision, wall_ms: int) -> None:
        """Write that a redrive has ended, and what it has sent."""
        outcomes = self._outcomes.pop(redrive.number)
        ended = redrive.ended(outcomes, wall_ms)
        if not redrive.where:
            frontier = redrive.frontier(self.frontiers.get(redrive.topic_id, Frontier()), outcomes)
            decision.write(([FRONTIER, redrive.topic_id], [list(frontier.behind), list(frontier.unsent)]))
        self._write_redrive(ended, decision)
        for partition in range(len(redrive.spans)):
            if (name := state_name(redrive.number, partition)) in self.states:
                decision.write(([STATE, name], None))
        decision.after_sync.append(RedriveEnded(cause=decision.cause, redrive=ended))

    def _row(self, redrive: Redrive, event: ListRedrives) -> list[object]:
        known = self._outcomes.get(redrive.number, {})
        partitions: list[object] = []
        for number, (start, end, position, sent) in enumerate(redrive.spans):
            if number in known:
                position, sent, _ = known[number]
            elif not redrive.has_ended:
                position, sent = event.progress.get((redrive.number, number), (position, sent))
            partitions.append([number, start, position, end, sent])
        is_holding = redrive.number in event.holding and redrive.state == RUNNING
        head: list[object] = [redrive.number, redrive.topic, redrive.to, dict(redrive.where), redrive.rate]
        state = HOLDING if is_holding else redrive.state
        return [*head, state, redrive.started_ms, redrive.ended_ms, partitions]


def _put(rows: dict[Any, Any], key: object, value: object) -> None:
    """Set or delete (None) a row."""
    if value is None:
        rows.pop(key, None)
    else:
        rows[key] = value
