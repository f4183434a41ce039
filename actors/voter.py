"""A metadata voter: its machine, its copy of the metadata log, its promise, on a broker's disk.

Owned by :class:`~raylog.actors.voter_host.VoterHost`, whose thread alone calls it: everything here may block on the
disk. All lies in the folder ``metadata`` of the broker's data directory, under that directory's lock: the log
``__cluster_metadata-0`` (a partition log whose leader epochs are controller epochs), ``snapshot`` (what stands for its
beginning), ``voter`` (identity and promise, durable), ``voter-end`` (how far the log was on disk), and ``founder`` as
long as nothing is written. A copy that is damaged, shorter than it was, or without its promise is set aside. The voter
then begins again under another identity, which counts when a controller has entered it as a new voter.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.actors.arguments import arguments, text, whole
from raylog.actors.clock import wall_ms
from raylog.actors.metadata_snapshot import MetadataSnapshot, read_snapshot, write_snapshot
from raylog.actors.voter_files import (
    FOLDER,
    VoterFiles,
    VoterState,
    drop_prefix,
    end_founding,
    is_founder,
    note_end,
    open_files,
    restart_log,
)
from raylog.core.errors import InvalidRequest
from raylog.core.quorum import Span, VoterMachine
from raylog.core.quorum import events as ev
from raylog.rpc import Request
from raylog.storage.directory import parse_partition_folder
from raylog.storage.files import list_files
from raylog.storage.records import iter_headers

READ_BYTES: Final = 1 << 20
VOTER_METHODS: Final = frozenset({"voter_promise", "voter_append", "voter_read", "voter_snapshot"})


@dataclass(frozen=True, slots=True)
class Order:
    """A request as the voter takes it in; the event's ``request`` is its number."""

    event: ev.VoterEvent
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back for the request of that number; everything that it says is on disk."""

    request: int
    args: list[object]
    payload: bytes = b""


class Voter:
    """One life of a voter."""

    def __init__(self, folder: Path, files: VoterFiles, holds_data: bool) -> None:
        """Use :meth:`open`."""
        state = files.state
        self._folder = folder
        self._log = files.log
        self._holds_data = holds_data
        self._is_founder = is_founder(folder)
        self.identity = uuid.uuid4().hex if state is None else state.identity
        self.machine = VoterMachine(
            files.history,
            identity=self.identity,
            promised=0 if state is None else state.promised,
            candidate="" if state is None else state.candidate,
            trusted=state is not None and state.trusted,
        )

    @classmethod
    def open(cls, directory: Path) -> Voter:
        """Open the voter in a broker's locked data directory.

        Raises storage errors other than damage, which sets the copy aside, and OSError.
        """
        holds_data = any(parse_partition_folder(folder.name) is not None for folder in list_files(directory))
        folder = directory / FOLDER
        return cls(folder, open_files(folder), holds_data)

    def close(self, *, is_whole: bool = True) -> None:
        """Close the log; ``is_whole`` False: after an error, when memory and disk may differ."""
        if is_whole:
            note_end(self._folder, self._log.log_end_offset)
        self._log.close()

    def perform(self, orders: Sequence[Order]) -> list[Answer]:
        """Carry out requests in order, with one sync for all that can share it, and return their answers.

        Raises storage errors and InvariantBroken: then this life is over, and none of these requests may be answered.
        """
        answers: list[Answer] = []
        waiting: list[ev.VoterEffect] = []
        for order in orders:
            outbox = self.machine.step(order.event)
            for effect in outbox.now:
                if isinstance(effect, (ev.TruncateLog, ev.RestartLog)):  # what is answered was there at its time
                    answers += self._synced(waiting)
                    waiting = []
                self._carry_out(effect, order.payload)
            waiting += outbox.after_sync
        return answers + self._synced(waiting)

    def _carry_out(self, effect: ev.VoterEffect, payload: memoryview) -> None:
        match effect:
            case ev.SavePromise():
                VoterState(self.identity, effect.epoch, effect.candidate, effect.trusted).write(self._folder)
            case ev.TruncateLog():
                note_end(self._folder, effect.to)
                self._log.truncate_to(effect.to)
            case ev.AppendSpans():
                headers = list(iter_headers(payload))
                self._log.append_as_follower(payload[headers[effect.first][0] :], wall_ms())
            case ev.SaveSnapshot():
                write_snapshot(self._folder, bytes(payload))
            case ev.DropPrefix():
                drop_prefix(self._log, effect.to)
            case ev.RestartLog():
                restart_log(self._folder, self._log, effect.at)

    def _synced(self, effects: Sequence[ev.VoterEffect]) -> list[Answer]:
        """Bring everything to disk, and return the answers that waited for it."""
        end = self._log.log_end_offset
        if self._log.synced_end_offset < end:
            note_end(self._folder, self._log.sync())
        if self._is_founder and end > 0:
            end_founding(self._folder)
            self._is_founder = False
        return [self._answer(effect) for effect in effects if isinstance(effect, ev.Reply)]

    def _answer(self, effect: ev.Reply) -> Answer:
        match effect:
            case ev.PromiseReply():
                args: list[object] = [effect.granted, effect.promised, self.identity, _listed(effect.epochs)]
                args += [effect.start, effect.end, self._holds_data, self._is_founder]
                return Answer(effect.request, args)
            case ev.AppendReply():
                args = [effect.promised, self.identity, effect.matched, _listed(effect.epochs)]
                return Answer(effect.request, [*args, effect.end, effect.start])
            case ev.ReadReply():
                args = [effect.allowed, effect.promised, effect.end, effect.start]
                return Answer(effect.request, args, self._read(effect))

    def _read(self, effect: ev.ReadReply) -> bytes:
        if not effect.allowed or effect.offset >= effect.end:
            return b""
        if effect.offset >= effect.start:
            return self._log.read(effect.offset, READ_BYTES, effect.end)
        snapshot = read_snapshot(self._folder)
        return b"" if snapshot is None else snapshot.to_bytes()


def order_of(request: Request, number: int) -> Order:
    """Return a ``voter_*`` request as the voter takes it in; raises :class:`InvalidRequest`."""
    payload = request.payload
    event: ev.VoterEvent
    if request.method == "voter_promise":
        epoch, candidate = arguments(request, whole, text)
        event = ev.PromiseRequested(request=number, epoch=epoch, candidate=candidate)
    elif request.method == "voter_append":
        epoch, candidate, start, previous, committed = arguments(request, whole, text, whole, whole, whole)
        event = ev.AppendRequested(
            request=number,
            epoch=epoch,
            candidate=candidate,
            start=start,
            previous_epoch=previous,
            spans=_spans(payload, start),
            committed=committed,
        )
    elif request.method == "voter_snapshot":
        epoch, candidate = arguments(request, whole, text)
        event = _offered(payload, number, epoch, candidate)
    else:
        epoch, candidate, offset = arguments(request, whole, text, whole)
        event = ev.ReadRequested(request=number, epoch=epoch, candidate=candidate, offset=offset)
    return Order(event, payload)


def _listed(epochs: Sequence[tuple[int, int]]) -> list[list[int]]:
    return [list(entry) for entry in epochs]


def _offered(payload: memoryview, number: int, epoch: int, candidate: str) -> ev.SnapshotOffered:
    """Return the event of a snapshot that came whole; raises :class:`InvalidRequest` for another."""
    try:
        snapshot = MetadataSnapshot.from_bytes(bytes(payload))
    except ValueError as wrong:
        raise InvalidRequest(f"The snapshot of a voter_snapshot cannot be used: {wrong}.") from None
    return ev.SnapshotOffered(
        request=number, epoch=epoch, candidate=candidate, end=snapshot.end, end_epoch=snapshot.epoch
    )


def _spans(payload: memoryview, start: int) -> tuple[Span, ...]:
    """Return the batches of an append; raises :class:`InvalidRequest` when they do not follow ``start``."""
    spans = [
        Span(header.base_offset, header.next_offset, header.partition_leader_epoch)
        for _, header in iter_headers(payload)
    ]
    ends = [start, *(span.end for span in spans)]
    if any(span.start != end for span, end in zip(spans, ends, strict=False)):
        raise InvalidRequest(f"The batches of a voter_append do not follow offset {start}.")
    return tuple(spans)
