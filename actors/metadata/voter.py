"""A metadata voter on a broker's disk: its machine, its copy of the metadata log, and its promise.

Owned by :class:`~raylog.actors.metadata.voter_host.VoterHost`; only its thread calls it, because everything here may
block on the disk. All files are in the folder ``metadata`` of the broker's data directory, under that directory's lock:

- ``__cluster_metadata-0``: the log, a partition log with controller epochs as leader epochs.
- ``snapshot``: replaces the log's beginning.
- ``voter``: identity and promise, durable.
- ``voter-end``: the durable log end offset.
- ``founder``: exists as long as nothing is written.

A copy that is damaged, shorter than it was, or without its promise is set aside. The voter then begins again under
another identity, which counts once a controller has recorded it as a new voter.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from raylog.actors.clock import wall_ms
from raylog.actors.metadata.snapshot import MetadataSnapshot, read_snapshot, write_snapshot
from raylog.actors.metadata.voter_files import (
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
from raylog.actors.metadata.voter_runner import Answer, Order, VoterRunner
from raylog.base.errors import InvalidRequest
from raylog.core.quorum import Span, VoterMachine
from raylog.core.quorum import events as ev
from raylog.core.received import Received
from raylog.protocol.message import Message
from raylog.protocol.voter import (
    VOTER_PROMISE,
    VOTER_READ,
    VoterAppendRequest,
    VoterPromiseRequest,
    VoterReadRequest,
    VoterSnapshotRequest,
)
from raylog.storage.batch.header import iter_headers
from raylog.storage.directory import parse_partition_folder
from raylog.storage.files import list_files

logger = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
NO_CLOCK: Final = 0
"""In place of the time of a request: a voter decides nothing by time."""


class Files:
    """A :class:`~raylog.actors.metadata.voter_runner.VoterDisk` on real files."""

    def __init__(self, folder: Path, files: VoterFiles, *, identity: str, holds_data: bool) -> None:
        """``folder``: the voter's; ``holds_data``: whether its data directory also has partitions of topics."""
        self._folder = folder
        self._identity = identity
        self._log = files.log
        self.holds_data = holds_data
        self.is_founder = is_founder(folder)
        self._end_founding()  # a crash may have prevented it

    def end(self) -> int:
        """Return the log end offset."""
        return self._log.log_end_offset

    def durable_end(self) -> int:
        """Return the durable end offset."""
        return self._log.synced_end_offset

    def kick(self) -> None:
        """Do nothing: :meth:`Voter.perform` syncs once for all requests that came together."""

    def save_promise(self, promise: ev.SavePromise) -> None:
        """Write the promise durably."""
        VoterState(self._identity, promise.epoch, promise.candidate, promise.trusted).write(self._folder)

    def truncate_to(self, to: int) -> None:
        """Truncate the log, after noting its new end."""
        note_end(self._folder, to)
        self._log.truncate_to(to, wall_ms())

    def append(self, payload: memoryview, first: int) -> None:
        """Append the batches of a payload from number ``first`` on, byte for byte."""
        headers = list(iter_headers(payload))
        self._log.append_as_follower(payload[headers[first][0] :], wall_ms())

    def save_snapshot(self, payload: memoryview, effect: ev.SaveSnapshot) -> None:
        """Replace the snapshot durably."""
        write_snapshot(self._folder, bytes(payload))

    def drop_prefix(self, to: int) -> None:
        """Drop whole segments below ``to``."""
        drop_prefix(self._log, to)

    def restart_at(self, at: int) -> None:
        """Empty the log durably, to continue at ``at``."""
        restart_log(self._folder, self._log, at)
        self._end_founding()

    def sync(self) -> None:
        """Make the log durable and note its end."""
        if self._log.synced_end_offset < self._log.log_end_offset:
            note_end(self._folder, self._log.sync())
        self._end_founding()

    def read(self, offset: int, end: int) -> bytes:
        """Return batches from an offset on, at most :data:`READ_BYTES`; before the log's start, the whole snapshot."""
        if offset >= self._log.log_start_offset:
            return self._log.read(offset, READ_BYTES, end)
        snapshot = read_snapshot(self._folder)
        return b"" if snapshot is None else snapshot.to_bytes()

    def close(self, *, is_whole: bool) -> None:
        """Close the log; ``is_whole`` False: after an error, when memory and disk may differ."""
        if is_whole:
            note_end(self._folder, self._log.log_end_offset)
        self._log.close()

    def _end_founding(self) -> None:
        if self.is_founder and self._log.log_end_offset > 0:
            end_founding(self._folder)
            self.is_founder = False


class Voter:
    """One incarnation of a voter on real files."""

    def __init__(self, folder: Path, files: VoterFiles, holds_data: bool) -> None:
        """Call :meth:`open` instead."""
        state = files.state
        self.identity = uuid.uuid4().hex if state is None else state.identity
        self._files = Files(folder, files, identity=self.identity, holds_data=holds_data)
        self._answers: list[Answer] = []
        self._runner = VoterRunner(
            VoterMachine(
                files.history,
                identity=self.identity,
                promised=0 if state is None else state.promised,
                candidate="" if state is None else state.candidate,
                trusted=state is not None and state.trusted,
            ),
            self._files,
            answer=self._answers.append,
            on_defect=lambda what: logger.error("the metadata voter in %s: %s", folder, what),
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
        self._files.close(is_whole=is_whole)

    def perform(self, orders: Sequence[Order]) -> list[Answer]:
        """Carry out requests in order, with one sync for all that can share it, and return their replies.

        Raises storage errors and InvariantBroken: then this object has to be closed, and none of these requests may be
        answered with success.
        """
        for order in orders:
            self._runner.take(order)
        self._files.sync()
        self._runner.release()
        answers = self._answers.copy()
        self._answers.clear()
        return answers


def order_of(args: Message, payload: memoryview, number: int) -> Order:
    """Return a ``voter_*`` request in the voter's form. Raises :class:`InvalidRequest` for a wrong payload."""
    event: ev.VoterEvent
    match args:
        case VoterPromiseRequest():
            event = Received(message=args, cause=VOTER_PROMISE.name, request=number, now_ms=NO_CLOCK)
        case VoterAppendRequest():
            event = ev.AppendRequested(
                request=number,
                epoch=args.epoch,
                candidate=args.candidate,
                start=args.start,
                previous_epoch=args.previous_epoch,
                spans=_spans(payload, args.start),
                committed=args.committed,
            )
        case VoterSnapshotRequest():
            event = _offered(payload, number, args.epoch, args.candidate)
        case VoterReadRequest():
            event = Received(message=args, cause=VOTER_READ.name, request=number, now_ms=NO_CLOCK)
        case _:
            raise TypeError(f"{args!r} is no request to a voter")
    return Order(event, payload)


def _offered(payload: memoryview, number: int, epoch: int, candidate: str) -> ev.SnapshotOffered:
    """Return the event of a complete snapshot. Raises :class:`InvalidRequest` for any other payload."""
    try:
        snapshot = MetadataSnapshot.from_bytes(bytes(payload))
    except ValueError as wrong:
        raise InvalidRequest(f"The snapshot of a voter_snapshot cannot be used: {wrong}.") from None
    return ev.SnapshotOffered(
        request=number, epoch=epoch, candidate=candidate, end=snapshot.end, end_epoch=snapshot.epoch
    )


def _spans(payload: memoryview, start: int) -> tuple[Span, ...]:
    """Return the spans of the batches of an append. Raises :class:`InvalidRequest` if they do not follow ``start``."""
    spans = [
        Span(header.base_offset, header.next_offset, header.partition_leader_epoch)
        for _, header in iter_headers(payload)
    ]
    ends = [start, *(span.end for span in spans)]
    if any(span.start != end for span, end in zip(spans, ends, strict=False)):
        raise InvalidRequest(f"The batches of a voter_append do not follow offset {start}.")
    return tuple(spans)
