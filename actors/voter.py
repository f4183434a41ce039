"""The shell of a metadata voter: its machine, its copy of the metadata log, its promise, on a broker's disk.

Owned by a broker's server, which hands it every ``voter_*`` request. All lies in the folder ``metadata`` of the
broker's data directory, under that directory's lock: the log ``__cluster_metadata-0`` (a partition log whose leader
epochs are controller epochs), ``snapshot`` (what stands for its beginning), ``voter`` (identity and promise, durable),
``voter-end`` (how far the log was on disk). A copy that is damaged, shorter than it was, or without its promise is set
aside, and the voter begins again under another identity, without a say until a controller that the other voters elected
gives it one.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from pathlib import Path
from typing import Final

from raylog.actors.arguments import arguments, text, whole
from raylog.actors.clock import wall_ms
from raylog.actors.flusher import Flusher
from raylog.actors.metadata_snapshot import MetadataSnapshot, read_snapshot, write_snapshot
from raylog.actors.voter_files import VoterFiles, VoterState, drop_prefix, note_end, open_files, restart_log
from raylog.core.errors import InvalidRequest, KafkaStorageError, NotController
from raylog.core.invariants import InvariantBroken
from raylog.core.outbox import Outbox
from raylog.core.quorum import Span, VoterMachine
from raylog.core.quorum import events as ev
from raylog.rpc import Request
from raylog.storage.errors import StorageError
from raylog.storage.records import iter_headers

logger = logging.getLogger(__name__)

FOLDER: Final = "metadata"
READ_BYTES: Final = 1 << 20
VOTER_METHODS: Final = frozenset({"voter_promise", "voter_append", "voter_read", "voter_snapshot"})


class Voter:
    """One life of a voter; opened by the first request that a controller sends it."""

    def __init__(self, folder: Path, files: VoterFiles, holds_data: bool) -> None:
        """Use :meth:`open`."""
        state = files.state
        self._folder = folder
        self._log = log = files.log
        self._holds_data = holds_data
        self.identity = uuid.uuid4().hex if state is None else state.identity
        self.machine = VoterMachine(
            files.history,
            identity=self.identity,
            promised=0 if state is None else state.promised,
            candidate="" if state is None else state.candidate,
            admitted=state is not None and state.admitted,
        )
        self._requests: dict[int, Request] = {}
        self._last_number = 0
        self._waiting: deque[tuple[int, list[ev.VoterEffect]]] = deque()
        self.failed = False
        self._flusher = Flusher(log, on_synced=self._on_synced, on_failed=self._on_failed, name="voter")
        self._flusher.start()

    @classmethod
    def open(cls, directory: Path, *, holds_data: bool) -> Voter:
        """Open the voter in a broker's locked data directory; ``holds_data`` = it keeps partitions of topics.

        Raises storage errors other than damage, which sets the copy aside.
        """
        folder = directory / FOLDER
        return cls(folder, open_files(folder), holds_data)

    async def close(self) -> None:
        """Stop syncing and close the log; what waits for the disk is dropped, and asked for again."""
        await self._flusher.stop()
        if not self.failed:
            note_end(self._folder, self._log.log_end_offset)
        self._log.close()
        self._waiting.clear()
        self._requests.clear()

    # ------------------------------------------------------------ requests

    def on_request(self, request: Request) -> None:
        """Take a ``voter_*`` request in; it is answered when everything up to it is on disk."""
        self._last_number += 1
        number, payload = self._last_number, memoryview(b"")
        event: ev.VoterEvent
        if request.method == "voter_promise":
            epoch, candidate = arguments(request, whole, text)
            event = ev.PromiseRequested(request=number, epoch=epoch, candidate=candidate)
        elif request.method == "voter_append":
            epoch, candidate, start, previous, committed, admit = arguments(
                request, whole, text, whole, whole, whole, text
            )
            payload = request.payload
            event = ev.AppendRequested(
                request=number,
                epoch=epoch,
                candidate=candidate,
                start=start,
                previous_epoch=previous,
                spans=_spans(payload, start),
                committed=committed,
                admit=admit,
            )
        elif request.method == "voter_snapshot":
            epoch, candidate, admit = arguments(request, whole, text, text)
            payload = request.payload
            event = _offered(payload, number, epoch, candidate, admit)
        else:
            epoch, candidate, offset = arguments(request, whole, text, whole)
            event = ev.ReadRequested(request=number, epoch=epoch, candidate=candidate, offset=offset)
        self._requests[number] = request
        try:
            self._perform(self.machine.step(event), payload)
        except (StorageError, InvariantBroken, ValueError) as error:
            # Memory and disk may differ now: this life ends, the next request opens the files again.
            self._on_failed(error)

    def _perform(self, outbox: Outbox[ev.VoterEffect], payload: memoryview) -> None:
        for effect in outbox.now:
            match effect:
                case ev.SavePromise():
                    state = VoterState(self.identity, effect.epoch, effect.candidate, effect.admitted)
                    state.write(self._folder)
                case ev.TruncateLog():
                    self._truncate(effect.to)
                case ev.AppendSpans():
                    headers = list(iter_headers(payload))
                    self._log.append_as_follower(payload[headers[effect.first][0] :], wall_ms())
                case ev.SaveSnapshot():
                    write_snapshot(self._folder, bytes(payload))
                case ev.DropPrefix():
                    with self._flusher.exclusive:
                        drop_prefix(self._log, effect.to)
                case ev.RestartLog():
                    self._let_go(0)
                    with self._flusher.exclusive:
                        restart_log(self._folder, self._log, effect.at)
        end = self._log.log_end_offset
        if self._log.synced_end_offset >= end and not self._waiting:
            self._answer(outbox.after_sync)
        else:
            self._waiting.append((end, outbox.after_sync))
            self._flusher.kick()

    def _truncate(self, to: int) -> None:
        self._let_go(to)
        with self._flusher.exclusive:
            note_end(self._folder, to)
            self._log.truncate_to(to)

    def _let_go(self, to: int) -> None:
        """What is cut was promised to nobody any more: its senders are older than the one that has it cut."""
        for end, effects in self._waiting:
            if end > to:
                for effect in effects:
                    self._fail(effect, NotController("A newer controller has taken over; this one has to end."))
        self._waiting = deque(one for one in self._waiting if one[0] <= to)

    def _on_synced(self, end: int) -> None:
        if self.failed:
            return
        try:
            note_end(self._folder, end)
            while self._waiting and self._waiting[0][0] <= end:
                self._answer(self._waiting.popleft()[1])
        except StorageError as error:
            self._on_failed(error)

    def _on_failed(self, error: BaseException) -> None:
        logger.error("the metadata voter in %s failed and is opened again: %s", self._folder, error)
        self.failed = True
        self._waiting.clear()
        refusal = KafkaStorageError(f"The metadata voter's disk failed ({error}); check the disk.")
        for request in self._requests.values():
            request.fail(refusal)
        self._requests.clear()

    # ------------------------------------------------------------ answers

    def _fail(self, effect: ev.VoterEffect, error: Exception) -> None:
        if isinstance(effect, (ev.PromiseReply, ev.AppendReply, ev.ReadReply)):
            request = self._requests.pop(effect.request, None)
            if request is not None:
                request.fail(error)

    def _answer(self, effects: list[ev.VoterEffect]) -> None:
        for effect in effects:
            if not isinstance(effect, (ev.PromiseReply, ev.AppendReply, ev.ReadReply)):
                continue
            request = self._requests.pop(effect.request, None)
            if request is None:
                continue
            match effect:
                case ev.PromiseReply():
                    epochs = [list(entry) for entry in effect.epochs]
                    request.reply(
                        [
                            *(effect.granted, effect.promised, effect.admitted, self.identity),
                            *(epochs, effect.start, effect.end, self._holds_data),
                        ]
                    )
                case ev.AppendReply():
                    epochs = [list(entry) for entry in effect.epochs]
                    request.reply(
                        [
                            *(effect.promised, effect.admitted, self.identity, effect.matched),
                            *(epochs, effect.end, effect.start),
                        ]
                    )
                case ev.ReadReply():
                    payload = self._read(effect)
                    request.reply([effect.allowed, effect.promised, effect.end, effect.start], payload)

    def _read(self, effect: ev.ReadReply) -> bytes:
        if not effect.allowed or effect.offset >= effect.end:
            return b""
        if effect.offset >= effect.start:
            return self._log.read(effect.offset, READ_BYTES, effect.end)
        snapshot = read_snapshot(self._folder)
        return b"" if snapshot is None else snapshot.to_bytes()


def _offered(payload: memoryview, number: int, epoch: int, candidate: str, admit: str) -> ev.SnapshotOffered:
    """Return the event of a snapshot that came whole; raises :class:`InvalidRequest` for another."""
    try:
        snapshot = MetadataSnapshot.from_bytes(bytes(payload))
    except ValueError as wrong:
        raise InvalidRequest(f"The snapshot of a voter_snapshot cannot be used: {wrong}.") from None
    return ev.SnapshotOffered(
        request=number, epoch=epoch, candidate=candidate, end=snapshot.end, end_epoch=snapshot.epoch, admit=admit
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
