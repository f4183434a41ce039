"""Runs the proposer of the metadata quorum: requests to voters, their answers, and the adopted log in memory.

Used by :class:`raylog.actors.metadata.quorum_log.QuorumLog` with connections, and by the simulator with a virtual
network. It reads the adopted log, encodes what the controller appends, and reports what is committed. It keeps the last
snapshot and all batches behind it, to bring voters up to date that lag, are empty, or are to join. It has no event loop
and no socket.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from raylog.actors.metadata.codec import Batch, encoded, image_of, split
from raylog.actors.metadata.snapshot import MetadataSnapshot
from raylog.actors.runner import Runner
from raylog.base.errors import DataDirectoryError, NotController
from raylog.base.invariants import InvariantBroken
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord, VotersEntered
from raylog.core.outbox import Outbox
from raylog.core.quorum import LogHistory, Proposer, Span
from raylog.core.quorum import events as ev
from raylog.protocol import voter as wire
from raylog.protocol.message import Message
from raylog.storage.errors import CorruptBatch

logger = logging.getLogger(__name__)

SEND_BYTES: Final = 1 << 20
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")


class VoterReply(Protocol):
    """A voter's reply: :class:`raylog.rpc.Reply` under Ray, the reply of a virtual voter in the simulator."""

    @property
    def args(self) -> Any:
        """The fields of the reply."""

    @property
    def payload(self) -> bytes | memoryview:
        """The batches or the snapshot in the payload."""


Answered = Callable[[VoterReply | None], None]
"""Takes a voter's reply; None = no reply in time."""


class QuorumPorts(Protocol):
    """Ports of the runner. Callbacks come later, never from inside the call."""

    def now_ms(self) -> int:
        """Return a monotonic time."""

    def wall_ms(self) -> int:
        """Return the time of day."""

    def call(self, voter: int, method: str, args: Message, payload: bytes, answered: Answered) -> None:
        """Send a request to a voter; ``answered`` is called once."""

    def send_snapshot(self, voter: int, args: Message, snapshot: MetadataSnapshot, answered: Answered) -> None:
        """Send a snapshot to a voter, with a timeout that grows with its size."""

    def encode_snapshot(
        self, records: Sequence[MetadataRecord], end: int, epoch: int, taken: Callable[[MetadataSnapshot], None]
    ) -> None:
        """Encode a snapshot, which may take long; ``taken`` gets it."""


class QuorumListener(Protocol):
    """The owner of the log."""

    def on_won(self, image: MetadataImage, epoch: int, founding: Mapping[str, str]) -> None:
        """This candidate leads ``epoch``; ``image`` is the result of its log.

        The first batch has to begin the epoch, and to record the voters ``founding`` if there are any.
        """

    def on_committed(self, end: int) -> None:
        """Everything below ``end`` is committed."""

    def on_confirmed(self) -> None:
        """``confirmed_question`` has grown."""

    def on_voters(self, voters: Mapping[str, str]) -> None:
        """The owner has to append a record with this configuration of voters."""

    def on_failed(self, error: Exception) -> None:
        """No further record can be committed: the controller has to end."""


@dataclass(slots=True)
class _Reading:
    """A log that is being read from a voter."""

    effect: ev.ReadHistory
    offset: int = 0
    snapshot: MetadataSnapshot | None = None
    batches: list[Batch] = field(default_factory=list)


class _NoDisk:
    """The durability of a proposer, which has no disk of its own."""

    def end(self) -> int:
        return 0

    def durable_end(self) -> int:
        return 0

    def kick(self) -> None:
        """Do nothing."""


class QuorumRunner:
    """One incarnation of a proposer, and its copy of the log.

    Invariants: batches follow one another from the snapshot's end on; the machine's history is behind them only while
    the effects of a step are carried out; a snapshot replaces batches only when all of them are committed.
    """

    def __init__(
        self,
        proposer: Proposer,
        ports: QuorumPorts,
        listener: QuorumListener,
        *,
        snapshot_bytes: int,
        send_bytes: int = SEND_BYTES,
    ) -> None:
        """``snapshot_bytes``: the least number of bytes appended before a snapshot replaces them.

        ``send_bytes``: the most bytes that one append sends, unless a single batch is larger.
        """
        self.proposer = proposer
        self.snapshot_bytes = snapshot_bytes
        self._send_bytes = send_bytes
        self.snapshot: MetadataSnapshot | None = None
        """The result of all records before the first of the batches; None = the log starts with the batches."""
        self.batches: list[Batch] = []
        self.answered: set[int] = set()
        """Voters that have answered."""
        self.has_log = False
        """Whether any voter has shown a log."""
        self._ports = ports
        self._listener = listener
        self._tail_bytes = 0
        self._taken: MetadataSnapshot | None = None
        """The next snapshot, while not everything in it is committed."""
        self._next: MetadataSnapshot | None = None
        """The snapshot that replaces the log's beginning when the queued event SnapshotTaken is stepped."""
        self._taking = False
        self._questions = 0
        self._image = MetadataImage()
        self._reading: _Reading | None = None
        self._runner: Runner[ev.ProposerEvent, ev.ProposerEffect] = Runner(
            self._step,
            {
                ev.RequestPromise: self._request_promise,
                ev.ReadHistory: self._read_history,
                ev.SendAppend: self._send_append,
                ev.SendSnapshot: self._send_snapshot,
                ev.Won: self._won,
                ev.Committed: self._committed,
                ev.Confirmed: lambda _: listener.on_confirmed(),
                ev.EnterVoters: lambda effect: listener.on_voters(_by_name(effect.members)),
                ev.Fenced: self._fenced,
                ev.Hopeless: lambda effect: listener.on_failed(DataDirectoryError(effect.reason)),
            },
            _NoDisk(),
            on_defect=lambda what: listener.on_failed(InvariantBroken(what)),
        )

    # ------------------------------------------------------------ the log, as the controller uses it

    @property
    def log_end_offset(self) -> int:
        """The log end offset."""
        return self.batches[-1][0].end if self.batches else self._snapshot_end

    @property
    def committed_offset(self) -> int:
        """The offset below which a majority of voters has everything on disk."""
        return self.proposer.committed

    @property
    def _snapshot_end(self) -> int:
        return 0 if self.snapshot is None else self.snapshot.end

    def append(self, records: Sequence[MetadataRecord], controller_epoch: int) -> None:
        """Append records as one batch; the listener is called when a majority of voters has it.

        Raises :class:`NotController` when a newer controller has been seen.
        """
        if self.proposer.phase != "leading":
            raise NotController("A newer controller runs; this one has to end.")
        start = self.log_end_offset
        payload = bytearray(encoded(records, self._ports.wall_ms()))
        _BASE_OFFSET.pack_into(payload, 0, start)
        _LEADER_EPOCH.pack_into(payload, 12, controller_epoch)
        span = Span(start, start + len(records), controller_epoch)
        self.batches.append((span, bytes(payload)))
        self._tail_bytes += len(payload)
        entered = [record for record in records if isinstance(record, VotersEntered)]
        members = _by_number(entered[-1].voters) if entered else None
        self._feed(ev.Appended(now_ms=self._ports.now_ms(), span=span, members=members))

    @property
    def confirmed_question(self) -> int:
        """The number of the last :meth:`question` that a majority of voters has answered."""
        return self.proposer.confirmed

    def question(self) -> int:
        """Query the voters whether a majority has promised no higher epoch; returns the number of the question.

        The listener is called when it is answered. Raises :class:`NotController` when a newer controller has been seen.
        """
        if self.proposer.phase != "leading":
            raise NotController("A newer controller runs; this one has to end.")
        self._questions = number = self._questions + 1
        self._feed(ev.LeadershipQuestioned(now_ms=self._ports.now_ms(), question=number))
        return number

    def offer(self, image: MetadataImage) -> None:
        """Take a snapshot when enough was appended since the last one; it is used once all its records are committed.

        Enough is at least the size of the last snapshot: otherwise a large image would be written too often.
        """
        history = self.proposer.history
        least = self.snapshot_bytes if self.snapshot is None else max(self.snapshot_bytes, self.snapshot.size)
        if self._tail_bytes < least or self._taking or self.proposer.phase != "leading":
            return
        if not image.version == history.end == self.log_end_offset:
            return  # the image is ahead of the log, because a decision is still being appended
        self._taking = True
        epoch = history.epoch_before(image.version)
        self._ports.encode_snapshot(image.to_records(), image.version, epoch, self._snapshot_encoded)

    def want_voters(self, voters: Sequence[int]) -> None:
        """Begin to make these brokers the voters: they are brought up to date, then recorded one by one."""
        self._feed(ev.VotersWanted(now_ms=self._ports.now_ms(), voters=frozenset(voters)))

    # ------------------------------------------------------------ events

    def tick(self) -> None:
        """Advance the time; the first tick begins the election."""
        self._feed(ev.Tick(now_ms=self._ports.now_ms()))

    def brokers_found(self, brokers: frozenset[int]) -> None:
        """Take which brokers run; any of them may hold the log."""
        self._feed(ev.BrokersFound(now_ms=self._ports.now_ms(), brokers=brokers))

    def end(self) -> None:
        """Take no more events. Uncommitted records may or may not survive."""
        self._reading = None
        self._runner.end()

    def _feed(self, event: ev.ProposerEvent) -> None:
        self._runner.feed(event)

    def _step(self, event: ev.ProposerEvent) -> Outbox[ev.ProposerEffect]:
        if isinstance(event, ev.SnapshotTaken):
            self._replace_beginning()
        return self.proposer.step(event)

    # ------------------------------------------------------------ effects

    def _won(self, effect: ev.Won) -> None:
        self._reading = None  # a read that is still under way does not count any more
        logger.info("controller epoch %d: %d batches adopted", effect.epoch, len(self.batches))
        self._listener.on_won(self._image, effect.epoch, _by_name(effect.members))

    def _committed(self, effect: ev.Committed) -> None:
        self._listener.on_committed(effect.end)
        self._use_snapshot()

    def _fenced(self, effect: ev.Fenced) -> None:
        self._listener.on_failed(
            NotController(
                f"Broker {effect.by} has promised controller epoch {effect.epoch}: a newer controller runs, "
                "and this one ends."
            )
        )

    def _request_promise(self, effect: ev.RequestPromise) -> None:
        def answered(reply: VoterReply | None) -> None:
            if reply is None:
                self._silent(effect.voter, effect.request)
                return
            self.answered.add(effect.voter)
            found = wire.VOTER_PROMISE.read_reply(reply.args)
            self.has_log = self.has_log or found.end > 0
            self._feed(
                ev.PromiseAnswered(
                    now_ms=self._ports.now_ms(),
                    voter=effect.voter,
                    request=effect.request,
                    granted=found.granted,
                    promised=found.promised,
                    identity=found.identity,
                    history=_history(found),
                    holds_data=found.holds_data,
                    founder=found.founder,
                )
            )

        wanted = wire.VoterPromiseRequest(effect.epoch, effect.candidate)
        self._ports.call(effect.voter, wire.VOTER_PROMISE.name, wanted, b"", answered)

    def _send_append(self, effect: ev.SendAppend) -> None:
        args = wire.VoterAppendRequest(
            effect.epoch, effect.candidate, effect.start, effect.previous_epoch, effect.committed
        )
        batches = self._batches_from(effect.start)
        self._ports.call(
            effect.voter, wire.VOTER_APPEND.name, args, batches, lambda reply: self._append_answered(effect, reply)
        )

    def _send_snapshot(self, effect: ev.SendSnapshot) -> None:
        snapshot = self.snapshot
        if snapshot is None or snapshot.end != effect.end:
            raise InvariantBroken(f"{effect} is the snapshot that is held")
        args = wire.VoterSnapshotRequest(effect.epoch, effect.candidate)
        self._ports.send_snapshot(effect.voter, args, snapshot, lambda reply: self._append_answered(effect, reply))

    def _append_answered(self, effect: ev.SendAppend | ev.SendSnapshot, reply: VoterReply | None) -> None:
        if reply is None:
            self._silent(effect.voter, effect.request)
            return
        self.answered.add(effect.voter)
        found = wire.VOTER_APPEND.read_reply(reply.args)
        self._feed(
            ev.AppendAnswered(
                now_ms=self._ports.now_ms(),
                voter=effect.voter,
                request=effect.request,
                promised=found.promised,
                identity=found.identity,
                matched=found.matched,
                history=_history(found),
            )
        )

    def _silent(self, voter: int, request: int) -> None:
        self._feed(ev.VoterSilent(now_ms=self._ports.now_ms(), voter=voter, request=request))

    def _batches_from(self, start: int) -> bytes:
        place = len(self.batches)
        while place > 0 and self.batches[place - 1][0].start >= start:
            place -= 1
        parts: list[bytes] = []
        left = self._send_bytes
        for _, payload in self.batches[place:]:
            if parts and len(payload) > left:
                break
            parts.append(payload)
            left -= len(payload)
        return b"".join(parts)

    # ------------------------------------------------------------ snapshots

    def _snapshot_encoded(self, taken: MetadataSnapshot) -> None:
        self._taken = taken
        self._use_snapshot()

    def _use_snapshot(self) -> None:
        """Replace the log's beginning once it is committed. It is queued: the running step may still send that part."""
        taken = self._taken
        if taken is not None and self._may_use(taken):
            self._taken, self._next = None, taken
            self._feed(ev.SnapshotTaken(now_ms=self._ports.now_ms(), end=taken.end))

    def _may_use(self, taken: MetadataSnapshot) -> bool:
        return self.proposer.phase == "leading" and self.committed_offset >= taken.end

    def _replace_beginning(self) -> None:
        taken, self._next, self._taking = self._next, None, False
        if taken is None:
            raise InvariantBroken("a snapshot is used once")
        self.snapshot = taken
        self.batches = [batch for batch in self.batches if batch[0].start >= taken.end]
        self._tail_bytes = sum(len(payload) for _, payload in self.batches)
        logger.info("a snapshot of %d bytes replaces the metadata below %d", len(taken.batches), taken.end)

    # ------------------------------------------------------------ reading the log that is adopted

    def _read_history(self, effect: ev.ReadHistory) -> None:
        self._reading = _Reading(effect)
        self._read_on(self._reading)

    def _read_on(self, reading: _Reading) -> None:
        effect = reading.effect
        if effect.source is None or reading.offset >= effect.end:
            self._finish_reading(reading)
            return
        args = wire.VoterReadRequest(effect.epoch, effect.candidate, reading.offset)
        name = wire.VOTER_READ.name
        self._ports.call(effect.source, name, args, b"", lambda reply: self._read_answered(reading, reply))

    def _read_answered(self, reading: _Reading, reply: VoterReply | None) -> None:
        if reading is not self._reading:
            return
        effect, source = reading.effect, reading.effect.source
        if source is None:
            raise InvariantBroken(f"{effect} has no source that could answer")
        if reply is not None:
            self.answered.add(source)
        answer = None if reply is None else wire.VOTER_READ.read_reply(reply.args)
        payload = b"" if reply is None or answer is None or not answer.allowed else bytes(reply.payload)
        if reading.offset < effect.start:
            reading.snapshot = _expected(payload, effect)
            reading.offset = effect.start if reading.snapshot is not None else -1
        else:
            found = _readable(payload)
            reading.batches.extend(found)
            reading.offset = found[-1][0].end if found else -1
        if reading.offset >= 0:
            self._read_on(reading)
            return
        self._reading = None
        promised = 0 if answer is None else answer.promised
        self._feed(ev.HistoryUnreadable(now_ms=self._ports.now_ms(), source=source, promised=promised))

    def _finish_reading(self, reading: _Reading) -> None:
        self._reading = None
        snapshot, batches = reading.snapshot, reading.batches
        try:
            image = image_of((payload for _, payload in batches), None if snapshot is None else snapshot.image())
        except Exception as error:  # any error: this version cannot continue with this log
            self._listener.on_failed(error)
            return
        self.snapshot, self.batches, self._image = snapshot, batches, image
        self._tail_bytes = sum(len(payload) for _, payload in batches)
        members = _by_number(image.voters)
        self._feed(ev.HistoryRead(now_ms=self._ports.now_ms(), source=reading.effect.source, members=members))


def _readable(payload: bytes) -> list[Batch]:
    """Return the batches of a read; empty when they are damaged, so that another voter is read."""
    try:
        return split(payload)
    except CorruptBatch as damage:
        logger.warning("a voter answered a read with damaged batches: %s", damage)
        return []


def _history(found: wire.VoterPromiseReply | wire.VoterAppendReply) -> LogHistory:
    return LogHistory(((each.epoch, each.start_offset) for each in found.epochs), found.end, found.start)


def _expected(payload: bytes, effect: ev.ReadHistory) -> MetadataSnapshot | None:
    """Return the snapshot if it is the one that the voter's promise described; otherwise None."""
    try:
        snapshot = MetadataSnapshot.from_bytes(payload)
    except ValueError:
        return None
    return snapshot if (snapshot.end, snapshot.epoch) == (effect.start, effect.start_epoch) else None


def _by_name(members: Mapping[int, str]) -> dict[str, str]:
    return {str(number): identity for number, identity in sorted(members.items())}


def _by_number(voters: Mapping[str, str]) -> dict[int, str]:
    return {int(number): identity for number, identity in voters.items()}
