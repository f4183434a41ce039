"""Opens a replica's folder: locks it, and sets aside a damaged log or that of an earlier topic of the same name.

Called by a replica's shell at the start of each incarnation.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.clock import wall_ms
from raylog.actors.replica.damage import rebuild_noted
from raylog.actors.replica.set_aside import DAMAGED, REPLACED, identity_of, set_aside
from raylog.actors.settings import FlushPolicy
from raylog.storage.directory import partition_folder
from raylog.storage.errors import LogDamaged, WrongTopicId
from raylog.storage.files import read_text, write_atomically
from raylog.storage.folder_lock import FolderLock
from raylog.storage.log.checkpoints import Checkpoints
from raylog.storage.log.kept_watermark import kept_watermark
from raylog.storage.log.partition_log import LogConfig, PartitionLog

logger = logging.getLogger(__name__)

BOOT_NOTE: Final = "last-boot"
"""File in a partition's folder: the host's boot id, and whether records are synced before they are acknowledged."""
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """An opened log, its lock, and whether earlier records may be missing."""

    log: PartitionLog
    lock: FolderLock
    log_lost: bool
    damage: str = ""
    """The reason for which the earlier log was set aside; empty = it was not damaged."""
    unsynced_lost: bool = False
    """Records that an earlier incarnation acknowledged before syncing are missing, or may be: the host has failed."""
    end_cut: bool = False
    """A torn write was cut off the log's end, or committed records are missing there, and other replicas are not in
    doubt. (They are after a power cut, where records are acknowledged before a sync.)"""


async def open_in_thread(spec: ReplicaSpec, config: LogConfig, flush: FlushPolicy) -> OpenedLog:
    """As :func:`open_replica_log`, in a thread. After a cancellation, the log is closed as soon as it is open."""
    loop = asyncio.get_running_loop()
    opening = loop.run_in_executor(None, open_replica_log, spec, config, flush.before_acknowledging)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(abandon)
        raise


def open_replica_log(spec: ReplicaSpec, config: LogConfig, syncs_first: bool = True) -> OpenedLog:
    """Lock and recover the partition folder of a replica. Blocks while it recovers: run it in a thread.

    A log that is damaged below its synced end, or that the last incarnation found damaged, moves into the folder
    ``.damaged``. The new, empty log is filled from the other replicas; ``log_lost`` reports it to the controller.
    ``syncs_first``: records are acknowledged only when they are on disk. If the log's end is in doubt, it stays so in
    further incarnations until :func:`note_boot` is called.
    """
    folder = partition_folder(spec.data_directory, spec.topic, spec.partition)
    lock = FolderLock(folder)
    try:
        relaxed, other_boot = _last_life(folder, syncs_first)
        opened = _recover(spec, folder, config, lock, end_in_doubt=relaxed)
        try:
            lacks_some = _say_what_is_missing(folder, opened.log)
            in_doubt = relaxed and other_boot and not opened.log.created and not opened.log.recovered.clean
            in_doubt = in_doubt or lacks_some
            if not in_doubt:
                note_boot(spec, syncs_first)
            end_cut = (lacks_some or opened.log.recovered.end_cut) and not (relaxed and other_boot)
            return replace(opened, unsynced_lost=in_doubt, end_cut=end_cut)
        except BaseException:  # even a cancellation: no other owner would close the log
            opened.log.close()
            raise
    except BaseException:  # even a cancellation: no other owner would release the lock
        lock.release()
        raise


def _recover(spec: ReplicaSpec, folder: Path, config: LogConfig, lock: FolderLock, *, end_in_doubt: bool) -> OpenedLog:
    reason = ""
    try:
        reason = rebuild_noted(folder)
        if not reason or identity_of(folder).topic_id != spec.topic_id:
            log = _open(spec, folder, config, end_in_doubt=end_in_doubt)
            return OpenedLog(log=log, lock=lock, log_lost=log.created)
    except LogDamaged as damage:
        reason = str(damage)
    except WrongTopicId:
        # The topic was most likely deleted and created again. Only the broker knows, so nothing is removed here.
        set_aside(folder, REPLACED, identity_of(folder).topic_id, spec.partition)
        return OpenedLog(log=_open(spec, folder, config), lock=lock, log_lost=True)
    aside = set_aside(folder, DAMAGED, spec.topic_id, spec.partition)
    logger.error("%s is damaged below what was synced (%s); kept as %s", folder.name, reason, aside)
    shown = f"{reason} - kept as {aside}"
    return OpenedLog(log=_open(spec, folder, config), lock=lock, log_lost=True, damage=shown)


def _say_what_is_missing(folder: Path, log: PartitionLog) -> bool:
    """Log what recovery has cut off; returns whether committed records are missing."""
    name, end, cut, committed = folder.name, log.log_end_offset, log.recovered, kept_watermark(folder)
    if cut.reason is not None:
        what = "%s: %d bytes were cut off behind offset %d, as an interrupted write leaves them: %s"
        logger.warning(what, name, cut.bytes_cut, end, cut.reason)
    if committed > end:
        logger.error(
            "%s: the committed records from offset %d to %d are missing in this copy", name, end, committed - 1
        )
    return committed > end


def _last_life(folder: Path, syncs_first: bool) -> tuple[bool, bool]:
    """Return whether this or the last incarnation acknowledges before a sync, and whether the host has booted since.

    The operating system keeps the writes of a killed process. So acknowledged records may have been lost with the page
    cache only if both are true, and the log was not closed cleanly.
    """
    note = folder / BOOT_NOTE
    before = (read_text(note) or "").strip()
    boot, _, policy = before.partition(" ")
    relaxed = not syncs_first or policy not in ("synced", "")  # a damaged word counts as relaxed, the worse case
    return relaxed, boot != _boot_id()


def note_boot(spec: ReplicaSpec, syncs_first: bool) -> None:
    """Note this boot for the next incarnation, as soon as no doubt about the log's end has to be reported any more.

    Durable on return: without the note of a relaxed incarnation, a later one with another policy would see no doubt.
    """
    note = partition_folder(spec.data_directory, spec.topic, spec.partition) / BOOT_NOTE
    text = f"{_boot_id()} {'synced' if syncs_first else 'relaxed'}\n"
    write_atomically(note, text.encode())


def forget_cut(spec: ReplicaSpec) -> None:
    """Remove recovery's note that the end was cut, once the controller has committed the consequences."""
    Checkpoints(partition_folder(spec.data_directory, spec.topic, spec.partition)).remove_end_cut()


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux: every start may be the first after a crash
        return uuid.uuid4().hex


def _open(spec: ReplicaSpec, folder: Path, config: LogConfig, *, end_in_doubt: bool = False) -> PartitionLog:
    return PartitionLog.open(
        folder,
        config,
        topic_id=spec.topic_id,
        topic=spec.topic,
        partition=spec.partition,
        now_ms=wall_ms(),
        end_in_doubt=end_in_doubt,
    )


def abandon(opening: asyncio.Future[OpenedLog]) -> None:
    """Close a log that was opened after its replica was given up."""
    if not opening.cancelled() and opening.exception() is None:
        opened = opening.result()
        opened.log.close()
        opened.lock.release()
