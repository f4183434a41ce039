"""Bugs of cleaners and of what reads cleaned logs, seen by the clients of compacted topics and between replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.replica.cleaner import Cleaner
from raylog.storage.cleaner import rewriting
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.cleaner.survivors import KeyTable
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import COMPACTION
from tests.simulation.whole.planted.bugs import Bug


def _edit(*texts: str) -> Callable[[Any], Any]:
    return Edit(*texts).of


def _none(_: Callable[..., Any]) -> Callable[..., None]:
    return lambda *_, **__: None


def _bug(
    name: str, target: Any, attribute: str, patch: Callable[[Any], Any], rules: tuple[str, ...], seeds: int = 8
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, COMPACTION)


_LOST: Final = ("W7", "W15", "W17", "W19", "W28")
COMPACTION_BUGS: Final = (
    _bug(
        "every cleaner keeps the first record of a key",
        KeyTable,
        "survivors",
        _edit(
            "last.update(_READ.iter_unpack(piece))",
            "for key, number in _READ.iter_unpack(piece):\n                    last.setdefault(key, number)",
        ),
        _LOST,
    ),
    _bug(
        "a cleaner goes beyond the high watermark",
        LogCleaning,
        "cleanable",
        _edit("upper=log.last_stable_offset(min(high_watermark, log.synced_end_offset))", "upper=log.log_end_offset"),
        _LOST,
        40,
    ),
    _bug(
        "a thinned batch is numbered without gaps",
        rewriting,
        "thinned",
        _edit("gaps = None if", "gaps = None if True or"),
        (*_LOST, "W3", "W4", "W8", "W9", "W10", "W14"),
    ),
    _bug(
        "a filler leaves out its last offset",
        rewriting,
        "filler",
        _edit("last_offset_delta=next_offset - base_offset - 1", "last_offset_delta=next_offset - base_offset - 2"),
        (*_LOST, "W8", "W9", "W10"),
    ),
    _bug(
        "every cleaner takes two keys for one",
        KeyTable,
        "add",
        _edit("pack(code, crc32(key), number)", "pack(0, 0, number)"),
        _LOST,
    ),
    _bug(
        "a thinned batch loses its headers",
        rewriting,
        "thinned",
        _edit("_of(columns.headers, chosen)", "None"),
        (*_LOST, "W8"),
    ),
    _bug(
        "a removal changes the times of the records beside it",
        rewriting,
        "thinned",
        _edit("else [moment - base for", "else [moment - moments[0] for"),
        ("W19",),
        20,
    ),
    _bug("the cleaners never run", Cleaner, "tick", _none, ("W9",), 2),
)
