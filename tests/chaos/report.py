"""What a run found, as text: faults by kind and what they cost, operations, anomalies, verdict. Touches nothing."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.checker import Analysis, Verdict
from tests.chaos.history import Fault, History, Poll, Send

EXAMPLES_SHOWN = 8
AFTERMATH_S = 2.0


@dataclass(slots=True)
class Result:
    """The end of a run."""

    verdict: Verdict
    analysis: Analysis
    history: History
    hangs: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    compared: str = ""
    """What was compared on disk."""


def longest_gap(times: Sequence[float], from_s: float, to_s: float) -> float:
    """The longest time without an event that touches the span; ``times`` are sorted."""
    inside = [time for time in times if from_s < time < to_s]
    before = max((time for time in times if time <= from_s), default=from_s)
    after = min((time for time in times if time >= to_s), default=to_s)
    edges = [before, *inside, after]
    return max(later - earlier for earlier, later in pairwise(edges))


def unavailable(fault: Fault, events: Mapping[int, Sequence[float]]) -> float:
    """Seconds without a success in the partition that had to wait longest, from the fault until all was whole again."""
    end_s = fault.whole_s if fault.whole_s is not None else fault.healed_s + AFTERMATH_S
    return max((longest_gap(times, fault.at_s, end_s) for times in events.values()), default=0.0)


def table(result: Result) -> str:
    """The whole report."""
    history = result.history
    written: dict[int, list[float]] = defaultdict(list)
    for send in history.of(Send):
        if send.outcome == "ok":
            written[send.partition].append(send.completed_s)
    read: dict[int, list[float]] = defaultdict(list)
    for poll in history.of(Poll):
        for partition in {partition for partition, _, _ in poll.records}:
            read[partition].append(poll.completed_s)
    for events in (written, read):
        for times in events.values():
            times.sort()
    counts = history.outcomes
    lines = [
        "",
        *_fault_lines(history.of(Fault), written, read),
        "",
        f"sends      {counts['ok']:,} ok, {counts['fail']:,} fail, {counts['unknown']:,} unknown; "
        f"{history.records_read:,} records read",
        *([f"logs       {result.compared}"] if result.compared else []),
        *_anomaly_lines(result.analysis),
        *(f"hang       {one}" for one in result.hangs),
        *(f"doubt      {one}" for one in result.doubts),
        *(f"remark     {one}" for one in result.remarks),
        f"verdict    {result.verdict.value}",
    ]
    return "\n".join(lines)


def _fault_lines(
    faults: Sequence[Fault], written: Mapping[int, Sequence[float]], read: Mapping[int, Sequence[float]]
) -> Iterable[str]:
    head = f"{'fault':<18}{'times':>6}   {'no write for, s':>17}   {'no read for, s':>17}   {'whole after, s':>17}"
    yield head
    yield f"{'':<18}{'':>6}   {'median':>8} {'max':>8}   {'median':>8} {'max':>8}   {'median':>8} {'max':>8}"
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        by_kind[fault.kind].append(fault)
    for kind, some in sorted(by_kind.items()):
        columns = [
            [unavailable(fault, written) for fault in some],
            [unavailable(fault, read) for fault in some],
            [fault.whole_s - fault.at_s for fault in some if fault.whole_s is not None],
        ]
        yield f"{kind:<18}{len(some):>6}" + "".join(
            f"   {statistics.median(times):>8.2f} {max(times):>8.2f}" if times else f"   {'never':>8} {'':>8}"
            for times in columns
        )
    if not by_kind:
        yield "none"


def _anomaly_lines(analysis: Analysis) -> Iterable[str]:
    if not analysis.counts:
        yield "anomalies  none"
    for kind, count in sorted(analysis.counts.items()):
        yield f"anomaly    {count} x {kind}"
        for anomaly in [one for one in analysis.examples if one.kind == kind][:EXAMPLES_SHOWN]:
            yield f"             {anomaly.what}"
