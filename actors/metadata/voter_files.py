"""The files of a metadata voter: its promise, its snapshot, its copy of the log, and the log's durable end.

Used by the voter's shell. All files are in the folder ``metadata`` of a broker's data directory. A copy that is
damaged, or lacks something that it had, is set aside as a whole: an incomplete copy is worse than none.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.actors.clock import wall_ms
from raylog.actors.metadata.snapshot import read_snapshot
from raylog.actors.naming import METADATA_TOPIC
from raylog.core.quorum import Found, LogHistory, put_together
from raylog.storage import filesystem
from raylog.storage.directory import partition_folder
from raylog.storage.errors import LogDamaged
from raylog.storage.files import exists, make_folder, read_text, remove, sync_folder, write_atomically
from raylog.storage.log.partition_log import LogConfig, PartitionLog

logger = logging.getLogger(__name__)

FOLDER: Final = "metadata"
METADATA_TOPIC_ID: Final = "0" * 32
STATE: Final = "voter"
FOUNDER: Final = "founder"
END: Final = "voter-end"
LOG_CONFIG: Final = LogConfig(segment_bytes=1 << 20, retention_ms=-1, retention_bytes=-1, file_delete_delay_ms=0)
"""Segments are small, because only whole segments can be dropped after a snapshot."""


@dataclass(frozen=True, slots=True)
class VoterState:
    """The file ``voter``: the identity of this copy, its promise, and whether a proposer has written to it."""

    identity: str
    promised: int
    candidate: str
    trusted: bool

    def write(self, folder: Path) -> None:
        """Write it durably."""
        text = f"version=1\nidentity={self.identity}\npromised={self.promised}\ncandidate={self.candidate}\n"
        write_atomically(folder / STATE, f"{text}admitted={int(self.trusted)}\n".encode())

    @classmethod
    def read(cls, folder: Path) -> VoterState | None:
        """Return the file's content; None if it is missing or unreadable."""
        found = read_text(folder / STATE)
        if found is None:
            return None
        values = dict(line.split("=", 1) for line in found.splitlines() if "=" in line)
        try:
            return cls(values["identity"], int(values["promised"]), values["candidate"], values["admitted"] == "1")
        except (KeyError, ValueError):
            logger.error("%s cannot be read; the voter begins again without its log", folder / STATE)
            return None


@dataclass(frozen=True, slots=True)
class VoterFiles:
    """What was found: the log, the history of snapshot and log together, and the promise."""

    log: PartitionLog
    history: LogHistory
    state: VoterState | None


def open_files(folder: Path) -> VoterFiles:
    """Open a voter's folder; an incomplete copy is set aside, and an empty one made in its place.

    Raises storage errors other than damage.
    """
    state = VoterState.read(folder)
    try:
        snapshot = read_snapshot(folder)
        log = _open_log(folder)
    except LogDamaged as damage:
        return _begin_again(folder, str(damage))
    noted = (read_text(folder / END) or "").strip()
    known_end = int(noted) if noted.isdecimal() else 0
    found = put_together(
        LogHistory(log.epochs.entries, log.log_end_offset, log.log_start_offset),
        None if snapshot is None else (snapshot.end, snapshot.epoch),
    )
    lost = (
        "its folder is missing"
        if state is not None and state.trusted and log.created
        else "its promise is missing"
        if state is None and (log.log_end_offset > 0 or snapshot is not None)
        else f"it ends at {log.log_end_offset} and was on disk up to {known_end}"
        if log.log_end_offset < known_end
        else found.lost
    )
    if lost:
        log.close()
        return _begin_again(folder, lost)
    _finish(folder, log, found)
    return VoterFiles(log, found.history, state)


def make_founder(directory: Path) -> None:
    """Mark a new broker's directory as a founder's: its empty copy counts as the beginning of the log.

    Only for the start that creates the cluster. The mark is in the folder of the log, so that it is lost with the log.
    """
    folder = directory / FOLDER
    make_folder(folder)
    write_atomically(folder / FOUNDER, b"the cluster begins with this copy\n")
    sync_folder(directory)


def is_founder(folder: Path) -> bool:
    """Return whether this copy may found the cluster."""
    return exists(folder / FOUNDER)


def end_founding(folder: Path) -> None:
    """Remove the founder's mark, because records are on disk: this copy may no longer found a cluster."""
    remove(folder / FOUNDER)


def note_end(folder: Path, end: int) -> None:
    """Note the durable log end offset: if the log is shorter at the next start, it has lost acknowledged records."""
    write_atomically(folder / END, b"%d\n" % end, durable=False)


def drop_prefix(log: PartitionLog, to: int) -> None:
    """Drop the records that the snapshot covers: whole segments now, the others with a later snapshot."""
    log.advance_log_start(to)
    now_ms = wall_ms()
    log.apply_retention(now_ms, to)
    log.purge_deleted(now_ms)


def restart_log(folder: Path, log: PartitionLog, at: int) -> None:
    """Empty the log and continue it at ``at``.

    It truncates first. If it moved the start first, a crash could leave the end of another log behind the snapshot,
    which would look like one that belongs there.
    """
    note_end(folder, log.log_start_offset)
    now_ms = wall_ms()
    log.truncate_to(log.log_start_offset, now_ms)
    log.truncate_fully_and_start_at(at, now_ms)
    note_end(folder, at)


def _finish(folder: Path, log: PartitionLog, found: Found) -> None:
    """Make the log begin at the end of its snapshot, if a crash has prevented that."""
    if found.restart_at is not None:
        restart_log(folder, log, found.restart_at)
    elif found.drop_before is not None:
        drop_prefix(log, found.drop_before)


def _begin_again(folder: Path, why: str) -> VoterFiles:
    """Move the incomplete copy to where Raylog does not read it, for operators, and begin with an empty one."""
    logger.error("the copy of the metadata log in %s is not whole and set aside: %s", folder, why)
    number = 1
    while exists(aside := folder.with_name(f"{folder.name}.damaged.{number}")):
        number += 1
    filesystem.replace(folder, aside)
    sync_folder(folder.parent)
    return VoterFiles(_open_log(folder), LogHistory(), None)


def _open_log(folder: Path) -> PartitionLog:
    fresh = not exists(folder)
    make_folder(folder)
    if fresh:
        sync_folder(folder.parent)
    return PartitionLog.open(
        partition_folder(folder, METADATA_TOPIC, 0),
        LOG_CONFIG,
        topic_id=METADATA_TOPIC_ID,
        topic=METADATA_TOPIC,
        partition=0,
        now_ms=wall_ms(),
    )
