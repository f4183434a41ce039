"""The findings of a run as text: faults by kind and their cost, operations, anomalies, verdict. Pure."""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.chaos.evidence.checker import Analysis, Verdict
from tests.chaos.evidence.history import Fault, History, Poll, Send

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
    """The result of the comparison on disk."""
    part: str = "processes"
    seed: int = 1
    claims: list[str] = field(default_factory=list)
    """What was looked at, a line each, where a part has claims of its own."""


def longest_gap(times: Sequence[float], from_s: float, to_s: float) -> float:
    """The longest time without an event within the span; ``times`` are sorted."""
    first, behind = bisect_right(times, from_s), bisect_left(times, to_s)
    before = times[first - 1] if first else from_s
    after = times[behind] if behind < len(times) else to_s
    edges = [before, *times[first:behind], after]
    return max(later - earlier for earlier, later in pairwise(edges))


def unavailable(fault: Fault, events: Mapping[int, Sequence[float]]) -> float:
    """Longest time without a success in any partition, in seconds, from the fault until the cluster was whole again."""
    end_s = fault.whole_s if fault.whole_s is not None else fault.healed_s + AFTERMATH_S
    return max((longest_gap(times, fault.at_s, end_s) for times in events.values()), default=0.0)


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile for this share."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, 99th percentile and maximum in seconds; None for an empty list."""
    if not values:
        return None
    found = {"median": statistics.median(values), "p99": percentile(values, 0.99), "max": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


def as_plain(result: Result) -> dict[str, Any]:
    """The whole report as plain values, for JSON: times in seconds, None where the cluster never became whole."""
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
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in history.of(Fault):
        by_kind[fault.kind].append(fault)
    analysis = result.analysis
    return {
        "part": result.part,
        "seed": result.seed,
        "verdict": result.verdict.value,
        "faults": {
            kind: {
                "times": len(some),
                "no_write_s": spread([unavailable(fault, written) for fault in some]),
                "no_read_s": spread([unavailable(fault, read) for fault in some]),
                "whole_after_s": spread([fault.whole_s - fault.at_s for fault in some if fault.whole_s is not None]),
            }
            for kind, some in sorted(by_kind.items())
        },
        "sends": dict(history.outcomes),
        "records_read": history.records_read,
        "compared": result.compared,
        "claims": result.claims,
        "anomalies": dict(sorted(analysis.counts.items())),
        "examples": [[example.kind, example.what] for example in analysis.examples],
        "hangs": result.hangs,
        "doubts": result.doubts,
        "remarks": result.remarks,
    }


def table(plain: Mapping[str, Any]) -> str:
    """One part's report as text."""
    sends = plain["sends"]
    lines = [
        "",
        *_fault_lines(plain["faults"]),
        "",
        f"sends      {sends['ok']:,} ok, {sends['fail']:,} fail, {sends['unknown']:,} unknown; "
        f"{plain['records_read']:,} records read",
        *([f"logs       {plain['compared']}"] if plain["compared"] else []),
        *(f"claim      {claim}" for claim in plain.get("claims", ())),
        *_anomaly_lines(plain),
        *(f"hang       {hang}" for hang in plain["hangs"]),
        *(f"doubt      {doubt}" for doubt in plain["doubts"]),
        *(f"remark     {remark}" for remark in plain["remarks"]),
        f"verdict    {plain['verdict']}",
    ]
    return "\n".join(lines)


def summary(parts: Sequence[Mapping[str, Any]]) -> tuple[str, Verdict]:
    """All parts of a run in a few lines, and the worst of their verdicts."""
    order = [Verdict.PASSED, Verdict.NODATA, Verdict.UNKNOWN, Verdict.HANG, Verdict.FAILED]
    worst = max((Verdict(part["verdict"]) for part in parts), key=order.index, default=Verdict.NODATA)
    times = sum(fault["times"] for part in parts for fault in part["faults"].values())
    kinds = {(part["part"], kind) for part in parts for kind in part["faults"]}
    anomalies = sum(count for part in parts for count in part["anomalies"].values())
    lines = [
        "",
        *(f"{part['part']:<11}{part['verdict']:<8}{part['sends']['ok']:>10,} records acknowledged" for part in parts),
        f"together   {sum(part['sends']['ok'] for part in parts):,} records acknowledged, "
        f"{sum(part['records_read'] for part in parts):,} read, {times} faults of {len(kinds)} kinds, "
        f"{anomalies} anomalies",
        f"verdict    {worst.value}",
    ]
    return "\n".join(lines), worst


def _fault_lines(faults: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    columns = {"no_write_s": "no write for, s", "no_read_s": "no read for, s", "whole_after_s": "whole after, s"}
    yield f"{'fault':<25}{'times':>5}" + "".join(f"   {name:>20}" for name in columns.values())
    yield f"{'':<30}" + f"   {'median':>6} {'p99':>6} {'max':>6}" * len(columns)
    for kind, item in faults.items():
        yield f"{kind:<25}{item['times']:>5}" + "".join(
            f"   {'never':>6} {'':>6} {'':>6}"
            if item[name] is None
            else f"   {item[name]['median']:>6.2f} {item[name]['p99']:>6.2f} {item[name]['max']:>6.2f}"
            for name in columns
        )
    if not faults:
        yield "none"


def _anomaly_lines(plain: Mapping[str, Any]) -> Iterable[str]:
    if not plain["anomalies"]:
        yield "anomalies  none"
    for kind, count in plain["anomalies"].items():
        yield f"anomaly    {count} x {kind}"
        for what in [what for named, what in plain["examples"] if named == kind][:EXAMPLES_SHOWN]:
            yield f"             {what}"
