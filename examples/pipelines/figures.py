"""What the queries of a run did: how often they were started, their micro-batches, records and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from rich.table import Table


@dataclass(slots=True)
class Work:
    """The work of one query over all its runs."""

    runs: int = 0
    batches: int = 0
    records: int = 0
    """Records that were read from topics."""
    busy_s: float = 0.0
    """Time in micro-batches; several queries run side by side on the same cores."""

    def add(self, progress: Sequence[Any]) -> None:
        """Add a run, by Spark's reports on its micro-batches."""
        read = [each for each in progress if each["numInputRows"]]
        self.runs += 1
        self.batches += len(read)
        self.records += sum(each["numInputRows"] for each in read)
        self.busy_s += sum(each["durationMs"]["triggerExecution"] for each in progress) / 1000


@dataclass(slots=True)
class Figures:
    """The work of all queries, by name."""

    works: dict[str, Work] = field(default_factory=dict)

    def add(self, query: StreamingQuery) -> None:
        """Add a run that has ended."""
        self.works.setdefault(query.name or "without a name", Work()).add(query.recentProgress)

    def table(self) -> Table:
        """Return them as a table."""
        from rich.table import Table

        table = Table(title="Streaming queries")
        for number, name in enumerate(("query", "runs", "micro-batches", "records read", "seconds in micro-batches")):
            table.add_column(name, justify="right" if number else "left")
        for row in self.rows():
            table.add_row(*row)
        return table

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the cells of each query's row."""
        for name, work in sorted(self.works.items()):
            yield name, f"{work.runs}", f"{work.batches}", f"{work.records:,}", f"{work.busy_s:.1f}"
