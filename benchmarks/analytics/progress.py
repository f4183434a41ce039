"""What a streaming query reports of its micro-batches: the time of each phase, and rows a second. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.job import Outcome

WARM_BATCHES = 3
"""Micro-batches that are left out at the beginning: the first ones start Python processes and compile code."""
SOURCE_PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit")
"""Phases in which Spark calls a source: its newest offset, the tasks of a batch, and, beside Spark's own log of
offsets, the commit of the batch before."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: its rows, and milliseconds by phase as Spark names them."""

    rows: int
    phases_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def source_ms(self) -> int:
        """The phases in which the source works outside of tasks."""
        return sum(self.phases_ms.get(name, 0) for name in SOURCE_PHASES)

    @property
    def whole_ms(self) -> int:
        """From trigger to end."""
        return self.phases_ms.get("triggerExecution", 0)


def batches_of(reports: Sequence[Mapping[str, Any]], warm: int = WARM_BATCHES) -> list[Batch]:
    """The micro-batches with rows, without the first ones; a report is a StreamingQueryProgress as a dict."""
    found = {int(report["batchId"]): Batch(int(report["numInputRows"]), report["durationMs"]) for report in reports}
    return [batch for _, batch in sorted(found.items()) if batch.rows][warm:]


def medians(batches: Sequence[Batch]) -> Outcome:
    """Medians of a micro-batch: its source's phases, the work itself, and everything."""
    if not batches:
        return {}
    phases = {name for batch in batches for name in batch.phases_ms}
    return {
        "batches": len(batches),
        "batch_rows": median(batch.rows for batch in batches),
        "source_ms": median(batch.source_ms for batch in batches),
        "batch_ms": median(batch.whole_ms for batch in batches),
        **{f"{name}_ms": median(batch.phases_ms.get(name, 0) for batch in batches) for name in sorted(phases)},
    }


def throughput(batches: Sequence[Batch]) -> Outcome:
    """Rows a second over whole micro-batches, one after the other."""
    rows, seconds = sum(batch.rows for batch in batches), sum(batch.whole_ms for batch in batches) / 1000
    return {"records": rows, "seconds": seconds, "rate": rows / seconds if seconds else 0.0}
