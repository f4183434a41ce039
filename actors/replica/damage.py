"""Damage in a replica's log: this module logs and reports it; the state machine decides what follows.

It also writes the note in the partition's folder by which the next incarnation sets the log aside and copies it from
the other replicas. May touch: that note.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from raylog.base.errors import RaylogError
from raylog.base.ids import Offset, TopicPartition
from raylog.core.replication.damage import DamageFound, RebuildLog
from raylog.storage.errors import LogDamaged
from raylog.storage.files import read_text, write_atomically

logger = logging.getLogger(__name__)

REBUILD_NOTE: Final = "rebuild"
"""File in a partition's folder: the reason for which the next start sets the log aside."""
REASON_CHARACTERS: Final = 300


class DamageWatch:
    """The damage that reads of one log have found."""

    def __init__(self, partition: TopicPartition) -> None:
        """Begin without known damage."""
        self._partition = partition
        self._known: set[tuple[str, int]] = set()
        self.last = ""
        """The latest damage, as one sentence; empty = none."""
        self.before = ""
        """The damage for which an earlier incarnation's log was set aside; empty = none, or long ago."""
        self.remade = ""
        """Damage of an index, or of another file that was rebuilt from the batches; empty = none."""
        self.reported = ("", False)
        """What the last heartbeat reported: the damage, and whether it is repaired."""

    def found(self, damage: LogDamaged, now_ms: int, request: int | None = None) -> DamageFound:
        """Return the event for the state machine. Each damaged place is logged once."""
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
        """Note the damage of a file that was rebuilt."""
        self.remade = what


def give_up(watch: DamageWatch, folder: Path, effect: RebuildLog, on_fatal: Callable[[str], None]) -> None:
    """Note durably that the next start has to set the log aside, and end this process through ``on_fatal``."""
    what = f"{folder.name}: damaged at offset {effect.offset}; restarting to copy the log again."
    try:
        write_atomically(folder / REBUILD_NOTE, watch.last[:REASON_CHARACTERS].encode())
    except RaylogError as error:  # without the note, the next incarnation finds the damage again
        what = f"{folder.name}: damaged at offset {effect.offset}, and that could not be noted: {error}"
    on_fatal(what)


def rebuild_noted(folder: Path) -> str:
    """Return the noted reason for setting aside the log in this folder; empty = no note."""
    text = read_text(folder / REBUILD_NOTE)
    return "" if text is None else text.strip() or "its last life found it damaged"
