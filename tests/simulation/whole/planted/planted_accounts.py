"""Bugs of cleaners, logs and coordinators that show only where transactions and cleaned logs meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.coordinators.stored_rows import LiveRows
from raylog.actors.replica.cleaner import Cleaner
from raylog.storage.cleaner import cleaning
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.cleaner.markers import Markers
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import ACCOUNTS
from tests.simulation.whole.planted.bugs import Bug

SEEDS: Final = 12


def _edit(*texts: str) -> Callable[[Any], Any]:
    return Edit(*texts).of


def _forgets_the_open(original: Callable[..., bool]) -> Callable[..., bool]:
    """A log that takes cleaned segments has no open transaction any more."""

    def take_cleaned(self: LogCleaning, *arguments: Any) -> bool:
        self._log.producers.transactions.open.clear()
        return original(self, *arguments)

    return take_cleaned


def _bug(name: str, target: Any, attribute: str, patch: Callable[[Any], Any], *rules: str, seeds: int = SEEDS) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, profile=ACCOUNTS)


ACCOUNT_BUGS: Final = (
    _bug(
        "a marker goes before the records of its transaction",
        Markers,
        "left_of",
        _edit("if is_there:\n        return data", "if is_there:\n        return None"),
        "W9",
        "W25",
    ),
    _bug(
        "an aborted record supersedes a committed one",
        cleaning,
        "_enter",
        _edit("table.skip(header.record_count)", 'table.add(open_batch(data, position, header).column("keys"))'),
        "W28",
        "W24",
        "W25",
    ),
    _bug(
        "a cleaner goes beyond the last stable offset",
        LogCleaning,
        "cleanable",
        _edit("log.last_stable_offset(min(high_watermark, log.synced_end_offset))", "high_watermark"),
        "W19",
        "W28",
        "W24",
        "W25",
    ),
    _bug(
        "a log forgets its open transactions when it is cleaned",
        LogCleaning,
        "take_cleaned",
        _forgets_the_open,
        "W24",
        "W25",
    ),
    _bug(
        "what was read before a cleaning stays in memory",
        Cleaner,
        "_take",
        _edit("self._on_cleaned()", "pass"),
        "W24",
        seeds=20,
    ),
    _bug(
        "a coordinator takes the first row of a key",
        LiveRows,
        "gather",
        _edit(
            "self._last.update(zip(columns.keys, _values(columns), strict=True))",
            "[self._last.setdefault(*row) for row in zip(columns.keys, _values(columns))]",
        ),
        "W6",
        "W7",
        "W9",
        "W10",
        "W25",
        "W27",
    ),
    _bug(
        "a coordinator passes over what a cleaner has thinned",
        LiveRows,
        "gather",
        _edit(
            "columns is not None:",
            "columns is not None and header.record_count > header.last_offset_delta:",
        ),
        "W7",
        "W8",
        "W9",
        "W25",
        "W27",
    ),
)
