"""The results as a Markdown table: a row for each measure, a column for each peer and number of partitions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.job import Outcome
from benchmarks.report.results import Measured, Results
from benchmarks.report.tables import markdown, number

SCENARIO: Final = "rest"
CREATE, SERVE, REST, FIRST, STOP, START = "create", "serve", "rest", "first record", "stop", "start"
MORE = "create more"
MORE_PARTITIONS: Final = 30
STATUS, LIST, DESCRIBE = "status", "list", "describe"
REQUESTS: Final = (STATUS, LIST, DESCRIBE)
OVER: Final = ">"
"""Begins the reason of a measure that did not finish within its deadline."""
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True)
class Row:
    """Label, the measure that it belongs to, and the numbers in it."""

    label: str
    measure: str
    metrics: tuple[str, ...]


ROWS: Final = (
    Row("create, until every partition is described with a leader, s", CREATE, ("create_s",)),
    Row("from there until every leader answers, s", SERVE, ("serve_s",)),
    Row("server's processes at rest", REST, ("processes",)),
    Row("memory (PSS) of the server's processes, MB", REST, ("memory_mb",)),
    Row("CPU of the server's processes, cores", REST, ("cpu_cores",)),
    Row("memory (PSS) of Ray's own processes, MB", REST, ("ray_memory_mb",)),
    Row("CPU of Ray's own processes, cores", REST, ("ray_cpu_cores",)),
    Row("trickle: records", REST, ("trickle_records",)),
    Row("trickle: due until acknowledged, p50 / p99, ms", REST, ("trickle_p50_ms", "trickle_p99_ms")),
    Row("status of the cluster, ms", STATUS, (f"{STATUS}_ms",)),
    Row("list of all topics, ms", LIST, (f"{LIST}_ms",)),
    Row("description of all partitions, ms", DESCRIBE, (f"{DESCRIBE}_ms",)),
    Row(f"create {MORE_PARTITIONS} more, until every leader answers, s", MORE, ("more_s",)),
    Row("first record to a partition, p50 / p99, ms", FIRST, ("first_p50_ms", "first_p99_ms")),
    Row("clean stop, s", STOP, ("stop_s",)),
    Row("start until a record is read and one is written, s", START, ("start_s",)),
)


def case_name(partitions: int, replication: int) -> str:
    """The name of a case in the results."""
    return f"{partitions:,} partitions, RF {replication}"


def left_out_name(contestant: str, case: str, measure: str) -> str:
    """The name of a measure among those that were left out."""
    return f"{contestant}, {case}: {measure}"


def cell(row: Row, measured: Measured, results: Results) -> str:
    """Its numbers; ">120 s" past the deadline, "failed", or "" when it was not measured."""
    outcome: Outcome = measured.rounds[0] if measured.rounds else {}
    if all(metric in outcome for metric in row.metrics):
        return " / ".join(number(outcome[metric]) for metric in row.metrics)
    reason = results.left_out.get(left_out_name(measured.contestant, measured.case, row.measure), "")
    return reason if not reason or reason.startswith(OVER) else FAILED


def table(results: Results) -> str:
    """The table; rows that no column has are left out."""
    columns = [row for row in results.measured if row.scenario == SCENARIO]
    header = ["", *(f"{column.contestant}, {column.case}" for column in columns)]
    rows = [[row.label, *(cell(row, column, results) for column in columns)] for row in ROWS]
    return markdown(header, [row for row in rows if any(row[1:])])


def as_markdown(results: Results) -> str:
    """The table, what was left out and why, and what the run was."""
    lines = [f"- {what}: {why}\n" for what, why in results.left_out.items()]
    parts = [table(results)]
    parts += ["\nLeft out, with all that comes after it in its column:\n\n", *lines] if lines else []
    parts += ["\n", *(f"- {note}\n" for note in results.settings.get("notes", ()))]
    about = {**results.machine, **results.versions}
    about |= {name: str(value) for name, value in results.settings.items() if name != "notes"}
    return "".join([*parts, "\n", markdown(("what", "value"), list(about.items()))])
