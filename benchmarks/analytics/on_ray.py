"""Rows in Raylog's Ray: Ray Data on both servers, and the start of Spark."""

from __future__ import annotations

from benchmarks.analytics.contestants import OURS, RAY_DATA, RAY_KAFKA, address_options, doing, present, servers_of
from benchmarks.analytics.sizes import Sizes
from benchmarks.analytics.workers import Worker
from benchmarks.bench import Bench, Contestant, of_job
from benchmarks.job import Job, Outcome
from benchmarks.scenarios.throughput import fill_each

RAY_WORKER, SESSION_WORKER = "benchmarks.analytics.ray_worker", "benchmarks.analytics.session_worker"
SIZE = 100
FILL_S = 60.0
SESSION_RECORDS = 10_000


def ray_data(bench: Bench, sizes: Sizes) -> None:
    """A topic into a dataset, its values' lengths summed up; and numbered rows into a topic as JSON.

    Ray's own functions for Kafka use confluent-kafka; both run in the same Ray, on two CPUs.
    """
    contestants = present(bench, RAY_DATA, RAY_KAFKA) if "raylog" in bench.peers else []
    parts = f"{SIZE} B, {sizes.partitions} partitions"
    with (
        bench.topic(servers_of(contestants), sizes.partitions, 1, holds="what Ray Data reads") as job_for,
        Worker(RAY_WORKER, {"ray": bench.peers["raylog"].address()["ray"]}) as worker,
    ):
        held = fill_each(bench, job_for, contestants, SIZE, sizes.ray_records, FILL_S)
        measure = doing(worker, job_for, "read", held)
        for contestant in contestants:
            bench.warm_up(contestant, measure)
        bench.rounds("ray-data", f"read {parts}", contestants, measure)
        with bench.topic(servers_of(contestants), sizes.partitions, 1, holds="what Ray Data wrote") as written_to:
            count = dict.fromkeys(held, sizes.write_records)
            bench.rounds("ray-data", f"write {parts}", contestants, doing(worker, written_to, "write", count))


def session(bench: Bench, sizes: Sizes) -> None:
    """The seconds from the call of raylog.spark.session() to the first row of a topic, in a Ray that runs already."""
    contestants = present(bench, OURS)
    with bench.topic(contestants, 1, 1, holds="rows of a session") as job_for:
        fill_each(bench, job_for, contestants, SIZE, min(SESSION_RECORDS, sizes.records), FILL_S)

        def measure(job: Job, contestant: Contestant) -> Outcome:
            options = {"subscribe": job.topic, **address_options(job, contestant.peer)}
            with Worker(SESSION_WORKER, {"ray": job.address["ray"]}) as worker:
                return worker.run({"do": "session", "options": options})

        count = bench.pace.slow_rounds
        bench.rounds(
            "session", "to the first row", contestants, of_job(job_for, measure), metric="seconds", count=count
        )
