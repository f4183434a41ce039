"""Opening a replica's folder: one process per folder, damaged logs set aside, leftovers of deleted topics removed.

Called by a replica's shell at the start of each life.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.actors.clock import wall_ms
from raylog.actors.folder_lock import FolderLock
from raylog.actors.specs import ReplicaSpec
from raylog.storage.directory import partition_folder
from raylog.storage.errors import LogDamaged, WrongTopicId
from raylog.storage.log import LogConfig, PartitionLog

logger = logging.getLogger(__name__)

DELETED_MARK: Final = ".deleted-"
"""In the name of a folder that is about to be removed."""
REPLACED_MARK: Final = ".replaced-"
"""In the name of a folder that another topic of the same name had to make way for."""


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """An opened log, its lock, and whether records that were there before may be missing now."""

    log: PartitionLog
    lock: FolderLock
    log_lost: bool


def open_replica_log(spec: ReplicaSpec, config: LogConfig) -> OpenedLog:
    """Lock and recover the partition folder of a replica. Blocks for as long as recovery takes: run it in a thread.

    A log that is damaged below what was synced is renamed to ``*.damaged-<time>`` and a new one is begun, to be filled
    from the other replicas; the controller is told through ``log_lost``.
    """
    folder = partition_folder(spec.data_directory, spec.topic, spec.partition)
    lock = FolderLock(folder)
    try:
        return _recover(spec, folder, config, lock)
    except BaseException:  # whatever it was, the lock must not stay with a folder that was not opened
        lock.release()
        raise


def _recover(spec: ReplicaSpec, folder: Path, config: LogConfig, lock: FolderLock) -> OpenedLog:
    try:
        log = _open(spec, folder, config)
        return OpenedLog(log=log, lock=lock, log_lost=log.created)
    except LogDamaged as damage:
        aside = folder.with_name(f"{folder.name}.damaged-{wall_ms()}")
        logger.error("%s is damaged below what was synced (%s); kept as %s", folder.name, damage, aside.name)
        folder.rename(aside)
    except WrongTopicId:
        # Deleted and created again, most likely; but only the broker knows, so nothing is removed here.
        folder.rename(folder.with_name(f"{folder.name}{REPLACED_MARK}{wall_ms()}"))
    return OpenedLog(log=_open(spec, folder, config), lock=lock, log_lost=True)


def discard(folder: Path) -> None:
    """Remove a deleted topic's partition folder; what is left after a crash halfway is known by its name."""
    doomed = folder.with_name(f"{folder.name}{DELETED_MARK}{wall_ms()}")
    folder.rename(doomed)
    clear_away(doomed)


def clear_away(doomed: Path) -> None:
    """Remove a folder and say what could not be removed."""
    shutil.rmtree(doomed, onerror=_report)


def _report(function: Callable[..., object], path: str, _: object) -> None:
    logger.warning("could not remove %s (%s); it can be removed by hand", path, function.__name__)


def _open(spec: ReplicaSpec, folder: Path, config: LogConfig) -> PartitionLog:
    return PartitionLog.open(
        folder, config, topic_id=spec.topic_id, topic=spec.topic, partition=spec.partition, now_ms=wall_ms()
    )
