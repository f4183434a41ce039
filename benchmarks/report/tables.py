"""Results as tables: on the terminal with rich, and as Markdown. Pure, except for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.goals import verdicts
from benchmarks.report.results import HIGHER_IS_BETTER, RAYLOG, Measured, Results, ratio_to
from benchmarks.report.verdict import Verdict

UNITS = {
    "rate": "records/s", "rate_mb": "MB/s", "p99_ms": "p99 ms", "gap_ms": "ms", "seconds": "s", "join_s": "s",
    "private_mb": "MB", "idle_cpu_ms": "ms of CPU a second",
    "source_ms": "ms of a micro-batch in the source's phases", "p50_ms": "p50 ms", "part_read": "of all bytes",
}  # fmt: skip
COLUMNS = ("contestant", "median", "range", "Raylog is", "more", "CPU µs/record: client", "server")
COMPARED = {"private_mb": ("less", "more"), "idle_cpu_ms": ("less", "more")}
"""Meaning of a ratio for metrics other than speed."""
Row = tuple[str, ...]


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def rows_of(measured: Sequence[Measured]) -> list[Row]:
    """A row for each contestant of a case, left out ones with their reason; ratios are to the best Raylog row."""
    best = best_of_raylog(measured)
    rows: list[Row] = []
    for row in measured:
        found = row.summary()
        if found is None:
            rows.append((row.contestant, "left out", row.left_out, "", "", "", ""))
            continue
        compared = "" if row.contestant.startswith(RAYLOG) else _compared(best, row)
        costs = [
            summary.median if (summary := row.summary(f"{side}_cpu_us")) else None for side in ("client", "server")
        ]
        rows.append(
            (
                row.contestant,
                number(found.median),
                f"{number(found.low)} to {number(found.high)}",
                compared,
                _more(row),
                *("" if cost is None else number(cost) for cost in costs),
            )
        )
    return rows


def best_of_raylog(measured: Sequence[Measured]) -> Measured | None:
    """Raylog's row for the comparison: its per-record form, the only form of the others."""
    ours = [row for row in measured if row.contestant.startswith(RAYLOG) and row.rounds]
    return ours[0] if ours else None


def _compared(ours: Measured | None, theirs: Measured) -> str:
    ratio = ratio_to(ours, theirs)
    if ratio is None:
        return ""
    better, worse = COMPARED.get(theirs.metric, ("faster", "slower"))
    return f"{ratio:.2f} x, {better if ratio >= 1 else worse}"


def _more(one: Measured) -> str:
    if one.metric == "p99_ms":
        p50, worst, most = (one.summary(name) for name in ("p50_ms", "p99.9_ms", "max_ms"))
        if p50 and worst and most:
            return f"p50 {number(p50.median)}, p99.9 {number(worst.median)}, max {number(most.high)} ms"
    if one.metric == "rate" and (speed := one.summary("rate_mb")):
        commit = one.summary("p50_ms") if one.scenario == "transactions" else None
        return f"{number(speed.median)} MB/s" + (f", commit p50 {number(commit.median)} ms" if commit else "")
    if one.metric == "source_ms" and (whole_ms := one.summary("batch_ms")) and (rows := one.summary("batch_rows")):
        return f"a whole micro-batch {number(whole_ms.median)} ms, of {rows.median:,.0f} rows"
    if one.metric == "p50_ms" and (slow := one.summary("p99_ms")):
        return f"p99 {number(slow.median)} ms"
    if one.metric == "part_read" and (remote := one.summary("part_over_network")):
        return f"over the network {number(remote.median)}"
    if one.metric == "private_mb" and (whole := one.summary("all_mb")) and (count := one.summary("processes")):
        return f"{number(whole.median)} MB in {count.median:.0f} processes"
    if one.metric == "seconds" and (begun := one.summary("session_s")):
        return f"{number(begun.median)} s until there was a session"
    if one.metric == "seconds" and (created := one.summary("created_s")):
        return f"{number(created.median)} s until the call to create it returned"
    if one.metric == "idle_cpu_ms" and (count := one.summary("processes")):
        ours, replicas = one.summary("replicas_cpu_ms"), one.summary("replicas")
        processes = f"{count.median:.0f} process{'es'[: 2 * (count.median > 1)]}"
        if ours is None or replicas is None or replicas.median >= count.median:
            return processes
        return f"{processes}, of them {replicas.median:.0f} of replicas with {number(ours.median)} ms"
    if one.metric == "join_s" and (rate := one.summary("rate")):
        return f"{number(rate.median)} records/s"
    return ""


def unit(metric: str) -> str:
    """Unit of a metric, and its better direction."""
    return f"{UNITS.get(metric, metric)}, {'more' if HIGHER_IS_BETTER[metric] else 'less'} is better"


def show(results: Results, console: Console) -> None:
    """Every case on the terminal, then the goals."""
    for scenario, case, measured in results.cases():
        table = Table(title=f"{scenario}: {case} ({unit(measured[0].metric)})", title_justify="left")
        for column in COLUMNS:
            table.add_column(column)
        for row in rows_of(measured):
            table.add_row(*row)
        console.print(table)
    goals = Table(title="goals", title_justify="left")
    for column in ("goal", "found", "reached"):
        goals.add_column(column)
    for verdict in verdicts(results):
        goals.add_row(verdict.goal, verdict.found, yes_or_no(verdict))
    console.print(goals)
    for line in results.miscounts():
        console.print(f"[red]does not add up:[/red] {line}")


def yes_or_no(verdict: Verdict) -> str:
    """Whether a goal was reached, as a word."""
    return {True: "yes", False: "no", None: ""}[verdict.reached]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def as_markdown(results: Results, about: Mapping[str, str] | None = None) -> str:
    """A section for each scenario with every case, losing rows included; `about` is the text before its table."""
    found: dict[str, dict[str, list[Row]]] = {}
    for scenario, case, measured in results.cases():
        rows = found.setdefault(scenario, {}).setdefault(unit(measured[0].metric), [])
        rows += [(case if number == 0 else "", *row) for number, row in enumerate(rows_of(measured))]
    parts = []
    for scenario, tables in found.items():
        parts.append(f"### {scenario}\n")
        parts += [text] if (text := (about or {}).get(scenario)) else []
        for counted_in, rows in tables.items():
            parts.append(f"In {counted_in}.\n")
            parts.append(markdown(("case", *COLUMNS), rows))
    return "\n".join(parts)
