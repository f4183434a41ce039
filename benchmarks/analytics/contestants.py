"""The contestants of the rows, how Spark finds the topic of each, and the tasks of those without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.analytics.workers import Worker
from benchmarks.bench import Bench, Contestant, JobFor, Measure, of_job
from benchmarks.job import Job, Outcome

OURS = Contestant("raylog source", "raylog", "spark")
CONNECTOR = Contestant("kafka connector", "kafka", "spark")
CEILING = Contestant("ready-made batches", "", "spark")
CEILING_NEVER_NULL = Contestant("ready-made batches, never null", "", "spark", "never null")
"""With Raylog's columns, of which five are declared as never null."""
RATE_SOURCE = Contestant("rate source", "", "spark")
READER = Contestant("raylog reader", "raylog", "arrow")
RAY_DATA = Contestant("raylog.data", "raylog", "ray")
RAY_KAFKA = Contestant("ray.data for kafka", "kafka", "ray")
AT_LEAST_ONCE = Contestant("raylog sink, at-least-once", "raylog", "spark")
EXACTLY_ONCE = Contestant("raylog sink, exactly-once", "raylog", "spark", "exactly-once")
KAFKA_SINK = Contestant("kafka sink", "kafka", "spark")


def present(bench: Bench, *wanted: Contestant) -> list[Contestant]:
    """Those of the contestants whose server runs, or which need none."""
    return [item for item in wanted if item.peer in bench.peers or not item.peer]


def address_options(job: Job, peer: str) -> dict[str, str]:
    """The options of Spark's sources and sinks that name the servers."""
    if peer == "kafka":
        return {"kafka.bootstrap.servers": job.address["bootstrap"]}
    return {"raylog.bootstrap": job.address["bootstrap"], "raylog.secret": job.address["secret"]}


def doing(worker: Worker, job_for: JobFor, do: str, records: Mapping[str, int], **more: Any) -> Measure:
    """A measurement that is one task of a worker without Spark; `records` by server."""

    def measure(job: Job, contestant: Contestant) -> Outcome:
        task = {
            "do": do,
            "peer": contestant.peer,
            "topic": job.topic,
            "bootstrap": job.address["bootstrap"],
            "secret": job.address.get("secret"),
            "records": records[contestant.peer],
            "server_pids": job.server_pids,
        }
        return worker.run(task | more)

    return of_job(job_for, measure)


def servers_of(contestants: Iterable[Contestant]) -> list[Contestant]:
    """One contestant of each server: those that need a topic."""
    return list({item.peer: item for item in contestants if item.peer}.values())
