"""The rows by name, as scenarios of the harness."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.analytics import on_ray, reads, streams
from benchmarks.analytics.sizes import Sizes, sizes_for
from benchmarks.bench import Bench

Row = Callable[[Bench, Sizes], None]
ROWS: dict[str, Row] = {
    "spark-read": reads.spark_read,
    "reader-arrow": reads.reader_arrow,
    "time-filter": reads.time_filter,
    "ray-data": on_ray.ray_data,
    "spark-stream": streams.spark_stream,
    "spark-write": streams.spark_write,
    "session": on_ray.session,
}


def as_scenario(row: Row, sizes: Sizes | None = None) -> Callable[[Bench], None]:
    """A row with the sizes of the run's pace, or with these."""

    def scenario(bench: Bench) -> None:
        row(bench, sizes or sizes_for(quick=bench.pace.quick))

    return scenario
