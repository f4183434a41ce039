"""The shell of a metadata voter: its machine, its copy of the metadata log, its promise, on a broker's disk.

Owned by a broker's server, which hands it every ``voter_*`` request. All lies in the folder ``metadata`` of the
broker's data directory, under that directory's lock: the log ``__cluster_metadata-0`` (a partition log whose leader
epochs are controller epochs), ``voter`` (identity and promise, durable), ``voter-end`` (how far the log was on disk).
A log that is damaged, shorter than it was, or without its promise is set aside, and the voter begins again under
another identity, without a say until a controller that the other voters elected gives it one.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.actors.arguments import arguments, text, whole
from raylog.actors.clock import wall_ms
from raylog.actors.flusher import Flusher
from raylog.actors.metadata_log import METADATA_TOPIC_ID
from raylog.actors.naming import METADATA_TOPIC
from raylog.core.errors import InvalidRequest, KafkaStorageError, NotController
from raylog.core.invariants import InvariantBroken
from raylog.core.outbox import Outbox
from raylog.core.quorum import LogHistory, Span, VoterMachine
from raylog.core.quorum import events as ev
from raylog.rpc import Request
from raylog.storage.directory import partition_folder
from raylog.storage.errors import LogDamaged, StorageError
from raylog.storage.files import read_text, sync_folder, write_atomically
from raylog.storage.log import LogConfig, PartitionLog
from raylog.storage.records import iter_headers

logger = logging.getLogger(__name__)

FOLDER: Final = "metadata"
STATE: Final = "voter"
END: Final = "voter-end"
READ_BYTES: Final = 1 << 20
VOTER_METHODS: Final = frozenset({"voter_promise", "voter_append", "voter_read"})


@dataclass(frozen=True, slots=True)
class _State:
    """The file ``voter``: who this voter is, what it promised, and whether it has a say."""

    identity: str
    promised: int
    candidate: str
    admitted: bool

    def to_text(self) -> str:
        return f"version=1\nidentity={self.identity}\npromised={self.promised}\ncandidate={self.candidate}\n" + (
            f"admitted={int(self.admitted)}\n"
        )

    @classmethod
    def read(cls, path: Path) -> _State | None:
        """Return what the file says; None where there is none, or none that can be read."""
        found = read_text(path)
        if found is None:
            return None
        values = dict(line.split("=", 1) for line in found.splitlines() if "=" in line)
        try:
            return cls(values["identity"], int(values["promised"]), values["candidate"], values["admitted"] == "1")
        except (KeyError, ValueError):
            logger.error("%s cannot be read; the voter begins again without its log", path)
            return None


class Voter:
    """One life of a voter; opened by the first request that a controller sends it."""

    def __init__(self, folder: Path, log: PartitionLog, state: _State | None, holds_data: bool) -> None:
        """Use :meth:`open`."""
        self._folder = folder
        self._log = log
        self._holds_data = holds_data
        self.identity = uuid.uuid4().hex if state is None else state.identity
        self.machine = VoterMachine(
            LogHistory(log.epochs.entries, log.log_end_offset, log.log_start_offset),
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
        try:
            log, state = _open_files(folder)
        except LogDamaged as damage:
            logger.error("the copy of the metadata log in %s is damaged and set aside: %s", folder, damage)
            _set_aside(folder)
            log, state = _open_files(folder)
        return cls(folder, log, state, holds_data)

    async def close(self) -> None:
        """Stop syncing and close the log; what waits for the disk is dropped, and asked for again."""
        await self._flusher.stop()
        if not self.failed:
            write_atomically(self._folder / END, b"%d\n" % self._log.log_end_offset, durable=False)
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
                    state = _State(self.identity, effect.epoch, effect.candidate, effect.admitted)
                    write_atomically(self._folder / STATE, state.to_text().encode())
                case ev.TruncateLog():
                    self._truncate(effect.to)
                case ev.AppendSpans():
                    headers = list(iter_headers(payload))
                    self._log.append_as_follower(payload[headers[effect.first][0] :], wall_ms())
        end = self._log.log_end_offset
        if self._log.synced_end_offset >= end and not self._waiting:
            self._answer(outbox.after_sync)
        else:
            self._waiting.append((end, outbox.after_sync))
            self._flusher.kick()

    def _truncate(self, to: int) -> None:
        # What is cut was promised to nobody any more: its senders are older than the one that has it cut.
        for end, effects in self._waiting:
            if end > to:
                for effect in effects:
                    self._fail(effect, NotController("A newer controller has taken over; this one has to end."))
        self._waiting = deque(one for one in self._waiting if one[0] <= to)
        with self._flusher.exclusive:
            self._note_end(to)
            self._log.truncate_to(to)

    def _on_synced(self, end: int) -> None:
        if self.failed:
            return
        try:
            self._note_end(end)
        except StorageError as error:
            self._on_failed(error)
            return
        while self._waiting and self._waiting[0][0] <= end:
            self._answer(self._waiting.popleft()[1])

    def _note_end(self, end: int) -> None:
        """Say how far the log is on disk: a log that is found shorter has lost what it confirmed."""
        write_atomically(self._folder / END, b"%d\n" % end, durable=False)

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
                    request.reply([effect.promised, effect.admitted, self.identity, effect.matched, epochs, effect.end])
                case ev.ReadReply():
                    payload = b""
                    if effect.allowed and effect.offset < effect.end:
                        payload = self._log.read(effect.offset, READ_BYTES, effect.end)
                    request.reply([effect.allowed, effect.promised, effect.end], payload)


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


def _open_files(folder: Path) -> tuple[PartitionLog, _State | None]:
    state = _State.read(folder / STATE)
    log = _open_log(folder)
    noted = (read_text(folder / END) or "").strip()
    known_end = int(noted) if noted.isdecimal() else 0
    lost = (
        "its folder is gone"
        if state is not None and state.admitted and log.created
        else "its promise is gone"
        if state is None and log.log_end_offset > 0
        else f"it ends at {log.log_end_offset} and was on disk up to {known_end}"
        if log.log_end_offset < known_end
        else ""
    )
    if lost:
        logger.error("the copy of the metadata log in %s is not whole and set aside: %s", folder, lost)
        log.close()
        _set_aside(folder)
        return _open_log(folder), None
    return log, state


def _open_log(folder: Path) -> PartitionLog:
    fresh = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        sync_folder(folder.parent)
    return PartitionLog.open(
        partition_folder(folder, METADATA_TOPIC, 0),
        LogConfig(),
        topic_id=METADATA_TOPIC_ID,
        topic=METADATA_TOPIC,
        partition=0,
        now_ms=wall_ms(),
    )


def _set_aside(folder: Path) -> None:
    """Keep what is left for people; nothing reads it again."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.damaged.{number}")).exists():
        number += 1
    folder.rename(aside)
    sync_folder(folder.parent)
