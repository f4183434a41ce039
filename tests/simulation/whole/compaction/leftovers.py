"""What cleaners have left to do. Used at the end, when every log that may be cleaned has to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.core.controller.coordinators import INTERNAL_TOPICS
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.cleaner.rules import is_due
from tests.simulation.whole.books import At

if TYPE_CHECKING:
    from tests.simulation.whole.observer import Observer


def dirty_table(observer: Observer, partitions: list[At]) -> str:
    """Return a replica of a compacted partition that has something to clean; empty = there is none."""
    for at in partitions:
        runners = observer.runners(at)
        if not runners:
            return f"{at} is not there"
        for broker, runner in runners.items():
            if runner is None:
                return f"the replica of {at} on broker {broker} does not run"
            rules = runner.log.config.compaction
            if rules is not None and is_due(
                LogCleaning(runner.log).cleanable(runner.machine.high_watermark, 0, rules), 0, rules
            ):
                return f"the replica of {at} on broker {broker} has something to clean"
    return ""


def uncleaned_coordinator(observer: Observer) -> str:
    """Return a coordinator's partition whose leader has closed segments and never cleaned them; empty = none.

    Coordinators write all the time, so there may always be something to clean.
    """
    for at in (at for topic in sorted(INTERNAL_TOPICS.values()) for at in observer.partitions_of(topic)):
        runner = next(iter(observer.runners(at).values()), None)
        if runner is None:
            return f"the leader of {at} does not run"
        if len(runner.log.segments) > 1 and not runner.log.cleaned_to:
            return f"{at} was never cleaned"
    return ""
