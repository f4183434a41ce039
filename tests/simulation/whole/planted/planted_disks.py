"""Bugs that only a disk reveals: one that loses its power, is full or hangs; seen by clients and by the quorum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.metadata.voter_files import VoterState
from raylog.core.replication.disk import DiskHealth
from raylog.storage.segments.segment import SyncRound
from tests.simulation.whole.plan import DISK
from tests.simulation.whole.planted.bugs import Bug


def _end(_: Callable[..., Any]) -> Callable[..., Any]:
    return SyncRound._end


def _none(_: Callable[..., Any]) -> Callable[..., None]:
    return lambda *_, **__: None


DISK_BUGS: Final = (
    Bug(
        "a sync is skipped below the whole cluster", SyncRound, "run", _end, ("W4", "W5", "W6", "W7", "W9"), 12, DISK, 7
    ),
    Bug("a voter keeps its promise in memory alone", VoterState, "write", _none, ("W8", "W9", "W10", "W11"), 12, DISK),
    Bug("a leader leads on while its disk hangs", DiskHealth, "note_tick", _none, ("W16",), 40, DISK),
)
