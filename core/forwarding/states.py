"""The states of all forwarders as a state machine: what each has decided, and the redrives of dead letters.

It runs at the leader of a partition of ``__forwarding`` (``actors/forwarding/forwarder_states.py``). A state of expiry
belongs to the leadership whose records expire: an owner of an earlier epoch is refused. Decide, then apply: ``replay``
and ``step`` change state by the same function. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

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
    ROWS,
    RUNNING,
    ForwarderState,
    Frontier,
    Outcome,
    Redrive,
    spans_from,
)
from raylog.core.forwarding.rules import INTERNAL_PREFIX, check_filters
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.protocol.forwarding import (
    CancelRedriveRequest,
    ListRedrivesRequest,
    LoadForwarderRequest,
    SaveForwarderRequest,
    StartRedriveRequest,
)
from raylog.protocol.message import replace
from raylog.protocol.rows import Row, Tombstone

if TYPE_CHECKING:
    from dataclasses import dataclass as value
else:
    from raylog.core.values import dataclass as value

WHERE_MAX: Final = 16 * 1024
"""Most characters of a redrive's filters, which are stored in each of its rows."""


def state_name(redrive: int, partition: int) -> str:
    """Return the name of the forwarder of one partition of a redrive."""
    return f"redrive:{redrive}:{partition}"


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    cause: str
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLookedUp(_Event):
    """The outcome of :class:`LookUpTopic`: first and end offset of each partition, or why it failed."""

    topic: str
    topic_id: str = ""
    bounds: Sequence[tuple[int, int]] = ()
    error: RaylogError | None = None
    wall_ms: int = -1


@value(frozen=True, slots=True, kw_only=True)
class ListRedrives(Received[ListRedrivesRequest]):
    """A request to list redrives, and what is known of those that run."""

    progress: Mapping[tuple[int, int], tuple[int, int]]
    """Position and number of sent records, by redrive and partition, of those that run."""
    holding: frozenset[int]
    """The redrives of which a target takes nothing at present."""


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


ForwardingRequest: TypeAlias = LoadForwarderRequest | SaveForwarderRequest | StartRedriveRequest | CancelRedriveRequest
Event: TypeAlias = Received[ForwardingRequest] | ListRedrives | TopicLookedUp | PartitionRedriven | RequestDropped
Effect: TypeAlias = AppendRecords | StoreProof | Reply | Refuse | LookUpTopic | RunRedrive | StopRedrive | RedriveEnded


class _Decision(CoordinatorDecision[Row | Tombstone]):
    __slots__ = ()

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(row.to_wire() for row in self.records))


class ForwarderStates:
    """The states of the forwarders, and the redrives, of one partition of ``__forwarding``.

    Invariants: the owner epoch of a forwarder never falls; of one topic, one redrive runs at a time.
    """

    def __init__(self, record_bytes_max: int) -> None:
        """``record_bytes_max``: the bytes of the largest row that the log takes."""
        self._record_bytes_max = record_bytes_max
        self.states: dict[str, ForwarderState] = {}
        self.redrives: dict[int, Redrive] = {}
        self.frontiers: dict[str, Frontier] = {}
        """By topic id."""
        self._tables: Mapping[type[Row], dict[Any, Any]] = {
            ForwarderState: self.states,
            Redrive: self.redrives,
            Frontier: self.frontiers,
        }
        self._starting: dict[str, tuple[RequestId, StartRedriveRequest]] = {}
        """Requests that wait until their topic was looked up, by topic."""
        self._outcomes: dict[int, dict[int, Outcome]] = {}
        """By redrive that runs: how it ended in each partition where it has."""
        self.story = Story()

    # ------------------------------------------------------------ the log

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Apply one row of the log. Raises UnreadableRow."""
        self._apply(ROWS.read(key, value))

    def loaded(self, now_ms: int, *, wall_ms: int | None = None) -> Outbox[Effect]:
        """Begin to serve, once the log is read to its end: redrives that have not ended go on."""
        decision = _Decision("loaded", now_ms, apply=self._apply, story=self.story)
        for redrive in self._listed():
            if not redrive.has_ended:
                self._run(redrive, decision, now_ms if wall_ms is None else wall_ms)
        return decision.finish()

    def _apply(self, row: Row | Tombstone) -> None:
        """Apply a row: the only mutator, for live traffic and replay alike."""
        if isinstance(row, Tombstone):
            self._tables[row.kind].pop(row.key[0], None)
        else:
            self._tables[type(row)][row.key[0]] = row

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
            if not isinstance(event, Received):
                raise
            decision.refuse(event.request, refusal)
        return decision.finish()

    def _handle(self, event: Event, decision: _Decision) -> None:
        match event:
            case ListRedrives():
                rows = [self._row(each, event) for each in self._listed() if event.message.topic in ("", each.topic)]
                decision.reply_proved(event.request, [rows])
            case TopicLookedUp():
                self._start(event, decision)
            case PartitionRedriven():
                self._redriven(event, decision)
            case RequestDropped():
                pass  # a redrive is started even if its sender has left: it would not know that it was not
            case _:
                self._answer(event.message, event.request, decision)

    def _answer(self, message: ForwardingRequest, request: RequestId, decision: _Decision) -> None:
        match message:
            case LoadForwarderRequest():
                self._load(message, request, decision)
            case SaveForwarderRequest():
                self._check_owner(message)
                self._write_state(ForwarderState(message.forwarder, message.owner_epoch, message.progress), decision)
                decision.reply(request, [])
            case StartRedriveRequest():
                self._check(message)
                self._starting[message.topic] = request, message
                decision.now.append(LookUpTopic(cause=decision.cause, topic=message.topic, to=message.to))
            case CancelRedriveRequest():
                self._cancel(message.redrive, request, decision)
            case _:
                assert_never(message)

    # ------------------------------------------------------------ states

    def _load(self, message: LoadForwarderRequest, request: RequestId, decision: _Decision) -> None:
        self._check_owner(message)
        known = self.states.get(message.forwarder)
        progress = b"" if known is None else known.progress
        if known is None or known.owner_epoch < message.owner_epoch:
            self._write_state(ForwarderState(message.forwarder, message.owner_epoch, progress), decision)
            decision.reply(request, [progress])
        else:
            decision.reply_proved(request, [progress])

    def _check_owner(self, message: LoadForwarderRequest | SaveForwarderRequest) -> None:
        known = self.states.get(message.forwarder)
        if known is not None and message.owner_epoch < known.owner_epoch:
            raise ForwarderFenced(
                f"{message.forwarder} is owned by epoch {known.owner_epoch}; epoch {message.owner_epoch} is over."
            )

    def _write_state(self, state: ForwarderState, decision: _Decision) -> None:
        self._write(state, decision)

    def _write(self, row: Row, decision: _Decision) -> None:
        size = row_bytes(*row.to_wire())
        if size > self._record_bytes_max:
            raise RecordTooLarge(
                f"The state of {row.key[0]} takes {size} bytes, and the log {self._record_bytes_max} at most; raise "
                "max.message.bytes of __forwarding."
            )
        decision.write(row)

    # ------------------------------------------------------------ redrives

    def _listed(self) -> list[Redrive]:
        return [self.redrives[number] for number in sorted(self.redrives)]

    def _check(self, message: StartRedriveRequest) -> None:
        check_filters(message.where)
        if message.rate < 0:
            raise InvalidRequest(f"rate={message.rate}: records a second, or 0 for as fast as they go.")
        if sum(len(name) + len(value) for name, value in message.where.items()) > WHERE_MAX:
            raise InvalidRequest(f"The filters of a redrive have more than {WHERE_MAX} characters; use shorter ones.")
        if message.topic.startswith(INTERNAL_PREFIX) and message.topic != UNDELIVERABLE_TOPIC:
            raise InvalidRequest(f"{message.topic} is Raylog's own, and holds no dead letters.")
        if message.to.startswith(INTERNAL_PREFIX):
            raise InvalidRequest(f"{message.to} is Raylog's own: nothing can be sent there.")
        if message.to == message.topic:
            raise InvalidRequest(f"{message.topic} is where they are; name another topic, or none for their origins.")
        running = next((each for each in self._listed() if each.topic == message.topic and not each.has_ended), None)
        if running is not None:
            raise RedriveRunning(
                f"Redrive {running.number} of {message.topic} runs; wait for its end, or cancel it: "
                f"`raylog dlq cancel {running.number}`."
            )
        if message.topic in self._starting:
            raise RedriveRunning(f"A redrive of {message.topic} is just beginning.")

    def _start(self, event: TopicLookedUp, decision: _Decision) -> None:
        started = self._starting.pop(event.topic, None)
        if started is None:
            return
        request, message = started
        if event.error is not None:
            decision.refuse(request, event.error)
            return
        before = self.frontiers.get(event.topic_id)
        if before is None or message.from_start:
            before = Frontier(event.topic_id)
        redrive = Redrive(
            1 + max(self.redrives, default=0),
            message.topic,
            event.topic_id,
            message.to,
            dict(message.where),
            message.rate,
            RUNNING,
            event.wall_ms,
            -1,
            spans_from(event.bounds, before),
            message.from_start,
            before.behind,
        )
        try:
            self._write(redrive, decision)
        except RaylogError as refusal:
            decision.refuse(request, refusal)
            return
        for each in self._listed()[:-1]:  # the newest stays, because it has the last number
            if each.has_ended and each.ended_ms < event.wall_ms - KEPT_MS:
                decision.write(Tombstone(Redrive, each.key))
        decision.reply(request, [redrive.number])
        self._run(redrive, decision, event.wall_ms)

    def _run(self, redrive: Redrive, decision: _Decision, wall_ms: int) -> None:
        self._outcomes[redrive.number] = {}
        if redrive.spans:
            decision.after_sync.append(RunRedrive(cause=decision.cause, redrive=redrive))
        else:
            self._finish(redrive, decision, wall_ms)

    def _cancel(self, number: int, request: RequestId, decision: _Decision) -> None:
        found = self.redrives.get(number)
        if found is None or found.has_ended:
            decision.reply_proved(request, ["NOT_FOUND" if found is None else "ALREADY_ENDED"])
            return
        self._write(replace(found, state=CANCELLING), decision)
        decision.reply(request, ["CANCELLED"])
        decision.after_sync.append(StopRedrive(cause=decision.cause, redrive=found.number))

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
            before = self.frontiers.get(redrive.topic_id, Frontier(redrive.topic_id))
            decision.write(redrive.frontier(before, outcomes))
        self._write(ended, decision)
        for partition in range(len(redrive.spans)):
            state = self.states.get(state_name(redrive.number, partition))
            if state is not None:
                decision.write(Tombstone(ForwarderState, state.key))
        decision.after_sync.append(RedriveEnded(cause=decision.cause, redrive=ended))

    def _row(self, redrive: Redrive, event: ListRedrives) -> list[object]:
        known = self._outcomes.get(redrive.number, {})
        partitions: list[object] = []
        for number, span in enumerate(redrive.spans):
            position, sent = span.position, span.sent
            if number in known:
                position, sent, _ = known[number]
            elif not redrive.has_ended:
                position, sent = event.progress.get((redrive.number, number), (position, sent))
            partitions.append([number, span.start, position, span.end, sent])
        is_holding = redrive.number in event.holding and redrive.state == RUNNING
        head: list[object] = [redrive.number, redrive.topic, redrive.to, dict(redrive.where), redrive.rate]
        state = HOLDING if is_holding else redrive.state
        return [*head, state, redrive.started_ms, redrive.ended_ms, partitions]
