"""Batch reads: Spark's sources side by side, Raylog's reader alone, and what a narrow time filter fetches."""

from __future__ import annotations

from benchmarks.analytics.contestants import (
    CEILING,
    CEILING_NEVER_NULL,
    CONNECTOR,
    OURS,
    READER,
    address_options,
    doing,
    present,
    servers_of,
)
from benchmarks.analytics.sizes import Sizes
from benchmarks.analytics.workers import Worker
from benchmarks.bench import Bench, Contestant, JobFor, Measure
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import Unavailable
from benchmarks.peers.spark_kafka import connector
from benchmarks.scenarios.throughput import fill_each

VALUE_BYTES = (100, 1_000)
FILL_S = 150.0
WARM_PASSES = 3
"""Passes of each contestant that do not count: a JVM's first takes up to four times as long as its third."""
SPARK_WORKER, ARROW_WORKER = "benchmarks.analytics.spark_worker", "benchmarks.analytics.arrow_worker"
FORMATS = {OURS: "raylog", CONNECTOR: "kafka", CEILING: "readymade", CEILING_NEVER_NULL: "readymade"}


def jars(bench: Bench) -> list[str]:
    """Spark's connector for Kafka; none, and left out, where it cannot be fetched or Kafka does not run."""
    if "kafka" not in bench.peers:
        return []
    try:
        return [str(path) for path in connector(bench.cache)]
    except Unavailable as error:
        bench.leave_out(CONNECTOR.name, error)
        return []


def able(bench: Bench, found: list[str], *wanted: Contestant) -> list[Contestant]:
    """The contestants that can take part: those of Kafka need the connector's jars."""
    return [item for item in present(bench, *wanted) if found or item.peer != "kafka"]


def records_of(size: int, sizes: Sizes) -> int:
    """Records of this size: as many bytes for each size."""
    return sizes.records * VALUE_BYTES[0] // size


def source_options(contestant: Contestant, job: Job | None, size: int, records: int, partitions: int) -> dict[str, str]:
    """What `spark.read` needs to read the whole topic."""
    if job is None:
        nulls = "declared" if contestant is CEILING_NEVER_NULL else "possible"
        return {"records": str(records), "size": str(size), "partitions": str(partitions), "nulls": nulls}
    return {"subscribe": job.topic, "startingOffsets": "earliest", **address_options(job, contestant.peer)}


def spark_read(bench: Bench, sizes: Sizes) -> None:
    """A whole topic into Spark, which sums up the lengths of its values, beside ready-made Arrow batches.

    All partitions hold as many records, as those of the ready-made batches do: what is compared is reading, not how
    evenly a producer spreads its records. All contestants share one JVM on two cores, which is warm before the first
    pass that counts.
    """
    found = jars(bench)
    contestants = able(bench, found, OURS, CEILING, CEILING_NEVER_NULL, CONNECTOR)
    for size in VALUE_BYTES:
        records = records_of(size, sizes)
        with (
            bench.topic(servers_of(contestants), sizes.partitions, 1, holds=f"{size:,} B for Spark") as job_for,
            Worker(SPARK_WORKER, {"jars": found}) as worker,
        ):
            held = fill_each(bench, job_for, servers_of(contestants), size, records, FILL_S, even=True)
            held[""] = records // sizes.partitions * sizes.partitions
            measure = _whole(worker, job_for, size, held, sizes.partitions)
            for contestant in contestants * WARM_PASSES:
                bench.warm_up(contestant, measure)
            bench.rounds("spark-read", f"{size:,} B, {sizes.partitions} partitions, local[2]", contestants, measure)


def _whole(worker: Worker, job_for: JobFor, size: int, held: dict[str, int], partitions: int) -> Measure:
    def measure(contestant: Contestant) -> Outcome | None:
        job = job_for(contestant) if contestant.peer else None
        if job is None and contestant.peer:
            return None
        task = {
            "do": "read",
            "format": FORMATS[contestant],
            "options": source_options(contestant, job, size, held[contestant.peer], partitions),
            "records": held[contestant.peer],
            "server_pids": job.server_pids if job else [],
        }
        return worker.run(task)

    return measure


def reader_arrow(bench: Bench, sizes: Sizes) -> None:
    """Raylog's reader in one process without Spark: ranges of a topic, one after the other, to Arrow record batches.

    The rate counts records for each second of one core: of processor time, where that is more than the time passed.
    """
    contestants = present(bench, READER)
    for size in VALUE_BYTES:
        with bench.topic(contestants, sizes.partitions, 1, holds=f"{size:,} B for Spark") as job_for:
            held = fill_each(bench, job_for, contestants, size, records_of(size, sizes), FILL_S, even=True)
            with Worker(ARROW_WORKER) as worker:
                measure = doing(worker, job_for, "read", held)
                for contestant in contestants:
                    bench.warm_up(contestant, measure)
                bench.rounds("reader-arrow", f"{size:,} B, {sizes.partitions} partitions", contestants, measure)


def time_filter(bench: Bench, sizes: Sizes) -> None:
    """The bytes that a filter on a thousandth of a topic's time fetches, as parts of all bytes of the topic.

    The topic is filled in one go, so its time is that of filling it.
    """
    contestants = present(bench, READER)
    size = VALUE_BYTES[0]
    with bench.topic(contestants, sizes.partitions, 1, holds=f"{size:,} B for Spark") as job_for:
        held = fill_each(bench, job_for, contestants, size, records_of(size, sizes), FILL_S, even=True)
        with Worker(ARROW_WORKER) as worker:
            for place, lateness_ms in (("middle", None), ("middle", 0), ("end", None)):
                measure = doing(worker, job_for, "filter", held, place=place, lateness_ms=lateness_ms)
                option = "" if lateness_ms is None else f", raylog.timestampLatenessMs={lateness_ms}"
                case = f"{size:,} B, a thousandth of the time in the {place}{option}"
                bench.rounds("time-filter", case, contestants, measure, metric="part_read", count=1)
