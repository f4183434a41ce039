"""Partition folders that are set aside: because they are deleted, replaced by a topic of the same name, or damaged.

A broker's data directory has ``<topic>-<partition>`` folders, and a topic name may contain dots, hyphens and digits. So
a folder that is set aside does not get a suffix: it moves into ``.deleted``, ``.replaced`` or ``.damaged``, named after
its topic id. None of these three ends in a hyphen and a number, so none can be a partition's folder, and names stay
short for any topic name.

Called by a replica's shell (damage, topics of the same name) and by the supervisor (removal).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container
from pathlib import Path
from typing import Final, NamedTuple

from raylog.actors.clock import wall_ms
from raylog.base.errors import DataDirectoryError, RaylogError
from raylog.storage import filesystem
from raylog.storage.files import exists, is_folder, list_files, make_folder, read_text, remove_tree, sync_folder
from raylog.storage.folder_lock import FolderLock

logger = logging.getLogger(__name__)

DELETED: Final = ".deleted"
"""Folder of partitions that are being removed. Everything in it is removed at the next start."""
REPLACED: Final = ".replaced"
"""Folder of partitions that were replaced by another topic of the same name; removed once their topic is deleted."""
DAMAGED: Final = ".damaged"
"""Folder of partitions that were damaged below their synced end. Kept until an operator removes them."""

_ASIDE: Final = re.compile(r"(?P<topic_id>[A-Za-z0-9_-]{1,64})-(?P<partition>0|[1-9][0-9]{0,9})\.[1-9][0-9]*")


class Identity(NamedTuple):
    """The partition that a folder was made for; "" and -1 = not known."""

    topic_id: str = ""
    topic: str = ""
    partition: int = -1


def identity_of(folder: Path) -> Identity:
    """Read ``partition.metadata``; fields that are missing or unreadable have their defaults."""
    try:
        text = read_text(folder / "partition.metadata") or ""
    except RaylogError:
        return Identity()
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    number = fields.get("partition", "")
    return Identity(
        fields.get("topic_id", ""), fields.get("topic", ""), int(number) if re.fullmatch("[0-9]+", number) else -1
    )


def topic_id_of(folder: Path) -> str:
    """Return the topic id that a partition folder was made for; "" = not known."""
    return identity_of(folder).topic_id


def set_aside(folder: Path, mark: str, topic_id: str, partition: int) -> Path:
    """Move a partition's folder into the folder ``mark`` beside it, durably; returns its new path.

    The caller holds the folder's lock. Raises OSError or StorageIoError: then the folder has not moved, or it has moved
    but a power loss may bring it back.
    """
    place = folder.parent / mark
    make_folder(place)
    name = f"{topic_id or 'unknown'}-{partition}"
    moment = wall_ms()
    while exists(aside := place / f"{name}.{moment}"):
        moment += 1
    filesystem.replace(folder, aside)
    sync_folder(place)  # the new name first: after a power loss in between, at least one of the two names exists
    sync_folder(folder.parent)
    return aside


def clear_half_deleted(directory: Path) -> None:
    """Finish the moves and removals that a crash has interrupted."""
    for place in (directory / DAMAGED, directory / REPLACED):
        if is_folder(place):
            sync_folder(place)  # before the first sync of `directory`, which makes the loss of the old name durable
    doomed = _in(directory / DELETED)
    if doomed:
        sync_folder(directory)  # the process may have ended before the removal of the old name was durable
    for folder in doomed:
        clear_away(folder)


def clear_replaced(directory: Path, deleted: Container[str]) -> None:
    """Remove the folders that were replaced by another topic of the same name, if their own topic is deleted."""
    for folder in _in(directory / REPLACED):
        if topic_id_of(folder) in deleted:
            clear_away(folder)


def remove_partition_folder(folder: Path, topic_id: str) -> None:
    """Remove the folder of a deleted partition durably, unless another topic of the same name has it by now.

    Waits for a replica that is ending. Raises :class:`raylog.base.errors.DataDirectoryError` when that takes too long.
    """
    if exists(folder) and topic_id_of(folder) != topic_id:
        return
    lock = FolderLock(folder)
    try:
        about = identity_of(folder)
        if exists(folder) and about.topic_id == topic_id:
            clear_away(set_aside(folder, DELETED, topic_id, about.partition))
        else:
            sync_folder(folder.parent)  # an earlier attempt may have moved it and failed before it was durable
    finally:
        lock.release(for_good=not exists(folder))


def clear_away(doomed: Path) -> None:
    """Remove a folder that was set aside, unless a process holds its lock; logs a failure."""
    try:
        lock = FolderLock(doomed, wait_s=0)
    except DataDirectoryError as held:
        logger.warning("%s is not removed: %s", doomed, held)
        return
    try:
        remove_tree(doomed)
    except RaylogError as error:
        logger.warning("%s is not removed and can be removed by hand: %s", doomed, error)
    finally:
        lock.release(for_good=True)


def _in(place: Path) -> list[Path]:
    """The folders that `set_aside` put into ``place``."""
    if not is_folder(place):
        return []
    return [folder for folder in list_files(place) if _ASIDE.fullmatch(folder.name) and is_folder(folder)]
