"""What a replica's shell does about damage in its log: it is logged and shown, and the machine decides the rest.

Also the note in the partition's folder by which the next life knows that the log is to be set aside, and to be copied
from the other replicas. May touch: that note.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raylog.core.errors import RaylogError
from raylog.core.ids import Offset, TopicPartition
from raylog.core.replication.damage import DamageFound, RebuildLog
from raylog.storage.errors import LogDamaged
from raylog.storage.log.files import read_text, write_atomically

logger = logging.getLogger(__name__)

REBUILD_NOTE: Final = "rebuild"
"""File in a partition's folder: why its log is to be set aside at the next start."""
REASON_CHARACTERS: Final = 300


class DamageWatch:
    """The damage that reads of one log have met."""

    def __init__(self, partition: TopicPartition) -> None:
        """Begin without any."""
        self._partition = partition
        self._known: set[tuple[str, int]] = set()
        self.last = ""
        """The damage that was found last, as one sentence; empty = none was."""
        self.before = ""
        """The damage for which the log of an earlier life was set aside; empty = none was, or that is long ago."""
        self.remade = ""
        """What was wrong in an index, or another file that was made again from the batches; empty = nothing was."""
        self.reported = ("", False)
        """What the last heartbeat reported: the damage, and whether it is mended."""

    def found(self, damage: LogDamaged, now_ms: int, request: int | None = None) -> DamageFound:
        """Return the event for the machine; a place is logged when it is met first."""
        where = (damage.path, damage.position)
        if where not in self._known:
            self._known.add(where)
            self.last = f"{Path(damage.path).name} at byte {damage.position} (offset {damage.offset}): {damage.reason}"
            logger.error("%s: the log is damaged: %s", self._partition, damage)
        return DamageFound(
            cause="damage",
            now_ms=now_ms,
            offset=Offset(damage.offset),
            next_offset=Offset(damage.next_offset),
            reason=damage.reason,
            request=request,
        )

    def file_remade(self, what: str) -> None:
        """Note what was wrong in a file that is whole again."""
        self.remade = what


def give_up(watch: DamageWatch, folder: Path, effect: RebuildLog, on_fatal: Callable[[str], None]) -> None:
    """Note durably that the log is to be set aside at the next start, and end this process."""
    what = f"{folder.name}: damaged at offset {effect.offset}; restarting to copy the log again."
    try:
        write_atomically(folder / REBUILD_NOTE, watch.last[:REASON_CHARACTERS].encode())
    except RaylogError as error:  # the next life finds the damage again
        what = f"{folder.name}: damaged at offset {effect.offset}, and that could not be noted: {error}"
    on_fatal(what)


def rebuild_noted(folder: Path) -> str:
    """Return why the log in this folder is to be set aside; empty = it is not."""
    text = read_text(folder / REBUILD_NOTE)
    return "" if text is None else text.strip() or "its last life found it damaged"
