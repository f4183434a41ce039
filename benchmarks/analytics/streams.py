"""Streams: what a source adds to a micro-batch and to a record's way, and how fast sinks are."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from benchmarks.analytics.contestants import (
    AT_LEAST_ONCE,
    CEILING,
    CONNECTOR,
    EXACTLY_ONCE,
    KAFKA_SINK,
    OURS,
    RATE_SOURCE,
    address_options,
    servers_of,
)
from benchmarks.analytics.reads import SPARK_WORKER, able, jars
from benchmarks.analytics.sizes import Sizes
from benchmarks.analytics.workers import Worker
from benchmarks.bench import Bench, Contestant, JobFor, Measure, of_job
from benchmarks.clients.run import Running
from benchmarks.job import Job, Outcome

SIZE = 100
SENDERS = {"raylog": "raylog", "kafka": "confluent"}
LINGER_MS = 0
START_S = 120.0
"""Time that a query takes to start at most, during which records are sent as well."""


def spark_stream(bench: Bench, sizes: Sizes) -> None:
    """A steady stream into a query at processingTime=0: latency from `send` to the sink, and the source's phases.

    The sink is `foreachBatch`, which collects each micro-batch on the driver and notes the time. So does `console`, but
    its printing is left out. Spark's rate source makes its rows in the query itself.
    """
    found = jars(bench)
    contestants = able(bench, found, OURS, RATE_SOURCE, CEILING, CONNECTOR)
    case = f"{SIZE} B, {sizes.stream_rate:,}/s, {sizes.partitions} partitions, processingTime=0"
    with (
        bench.topic(servers_of(contestants), sizes.partitions, 1, holds="a stream") as job_for,
        Worker(SPARK_WORKER, {"jars": found}) as worker,
    ):
        measure = _following(worker, job_for, sizes)
        count = bench.pace.slow_rounds
        bench.rounds("spark-stream", case, contestants, measure, metric="source_ms", count=count)
    bench.results.measured += [
        replace(row, scenario="spark-latency", metric="p50_ms", rounds=timed)
        for row in bench.results.measured
        if row.scenario == "spark-stream" and (timed := [item for item in row.rounds if "p50_ms" in item])
    ]


def _following(worker: Worker, job_for: JobFor, sizes: Sizes) -> Measure:
    def measure(contestant: Contestant) -> Outcome | None:
        job = job_for(contestant) if contestant.peer else None
        if contestant.peer and job is None:
            return None
        name, options, origin = _stream_of(contestant, job, sizes)
        task = {"do": "stream", "format": name, "options": options, "origin": origin, "seconds": sizes.stream_s}
        with contextlib.ExitStack() as stack:
            if job is not None:
                stack.enter_context(Running(_sending(job, contestant.peer, sizes))).wait_ready()
            return worker.run(task)

    return measure


def _stream_of(contestant: Contestant, job: Job | None, sizes: Sizes) -> tuple[str, dict[str, str], str]:
    """Format, options, and where a record's time of origin is."""
    if job is not None:
        name = "kafka" if contestant.peer == "kafka" else "raylog"
        return name, {"subscribe": job.topic, **address_options(job, contestant.peer)}, "stamp"
    if contestant == RATE_SOURCE:
        return "rate", {"rowsPerSecond": str(sizes.stream_rate), "numPartitions": "2"}, "timestamp"
    return "readymade", {"rate": str(sizes.stream_rate), "size": str(SIZE)}, ""


def _sending(job: Job, peer: str, sizes: Sizes) -> Job:
    """The job of the client that sends meanwhile; it is ended with the query."""
    count = int(sizes.stream_rate * (sizes.stream_s + START_S))
    rate = float(sizes.stream_rate)
    return replace(
        job, load="pace", client=SENDERS[peer], form="records", size=SIZE, rate=rate, count=count, linger_ms=LINGER_MS
    )


def spark_write(bench: Bench, sizes: Sizes) -> None:
    """A stream of numbered records into a topic, at-least-once and exactly-once, beside Spark's sink for Kafka."""
    found = jars(bench)
    contestants = able(bench, found, AT_LEAST_ONCE, EXACTLY_ONCE, KAFKA_SINK)
    case = f"{SIZE} B, {sizes.partitions} partitions, micro-batches of {sizes.batch_records:,}, local[2]"
    with (
        bench.topic(servers_of(contestants), sizes.partitions, 1, holds="what Spark wrote", fresh=True) as job_for,
        Worker(SPARK_WORKER, {"jars": found}) as worker,
    ):

        def work(job: Job, contestant: Contestant) -> Outcome:
            own = {"deliveryGuarantee": "exactly-once"} if contestant == EXACTLY_ONCE else {}
            task = {
                "do": "write",
                "format": "kafka" if contestant.peer == "kafka" else "raylog",
                "options": {"topic": job.topic, **address_options(job, contestant.peer), **own},
                "size": SIZE,
                "batch_records": sizes.batch_records,
                "seconds": sizes.stream_s,
                "server_pids": job.server_pids,
            }
            return worker.run(task)

        measure = of_job(job_for, work)
        for contestant in contestants:  # otherwise the first compiles for the others
            bench.warm_up(contestant, measure)
        count = bench.pace.slow_rounds
        bench.rounds("spark-write", case, contestants, measure, count=count, forgets=True)
