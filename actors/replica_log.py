"""Opening a replica's folder: one process per folder, damaged logs set aside, leftovers of deleted topics removed.

Called by a replica's shell at the start of each life.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.actors.clock import wall_ms
from raylog.actors.specs import ReplicaSpec
from raylog.core.errors import DataDirectoryError
from raylog.storage.directory import partition_folder
from raylog.storage.errors import LogDamaged, WrongTopicId
from raylog.storage.log import LogConfig, PartitionLog

logger = logging.getLogger(__name__)

LOCK_WAIT_S: Final = 10.0
LOCK_RETRY_S: Final = 0.05


class FolderLock:
    """An exclusive lock beside a partition folder: two lives of one replica never write to the same files."""

    def __init__(self, folder: Path) -> None:
        """Wait until the former life has let go; raises :class:`DataDirectoryError` after ten seconds."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.path = folder.parent / f".{folder.name}.lock"
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self._descriptor)
                    raise DataDirectoryError(
                        f"Another process still holds {folder}; end it, then this replica starts by itself."
                    ) from None
                time.sleep(LOCK_RETRY_S)

    def release(self) -> None:
        """Let the next life in."""
        os.close(self._descriptor)


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
        log = _open(spec, folder, config)
        return OpenedLog(log=log, lock=lock, log_lost=log.created)
    except LogDamaged as damage:
        aside = folder.with_name(f"{folder.name}.damaged-{wall_ms()}")
        logger.error("%s is damaged below what was synced (%s); kept as %s", folder.name, damage, aside.name)
        folder.rename(aside)
    except WrongTopicId:
        aside = folder.with_name(f"{folder.name}.deleted-{wall_ms()}")
        logger.info("%s belongs to a topic that was deleted; set aside as %s", folder.name, aside.name)
        folder.rename(aside)
    return OpenedLog(log=_open(spec, folder, config), lock=lock, log_lost=True)


def _open(spec: ReplicaSpec, folder: Path, config: LogConfig) -> PartitionLog:
    return PartitionLog.open(
        folder, config, topic_id=spec.topic_id, topic=spec.topic, partition=spec.partition, now_ms=wall_ms()
    )
