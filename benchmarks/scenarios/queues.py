"""Work queues: messages acknowledged one by one by ten consumers, and how soon a consumer has what was sent."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.bench import Bench, Contestant, JobFor, of_job
from benchmarks.clients.run import Running, run, run_both, with_sender
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import Unavailable
from benchmarks.queues.loads import distinct

CONTESTANTS = (
    "raylog queue", "raylog queue, order by key", "kafka share group", "rabbitmq quorum queue", "nats", "redis streams",
)  # fmt: skip
UNREPLICATED = "redis"
"""This server answers before its replicas have a record, so it has none."""
DROPS = ("rabbitmq", "nats")
"""On these servers a message is deleted when it is acknowledged: each round fills the queue again."""
CONSUMERS, PROCESSES = 10, 2
KEYS = 1_000
MESSAGES, QUICK_MESSAGES = 200_000, 100_000
RATE = 1_000
JOIN_S = 6.0
"""Members of a group are spread over partitions, and their first fetches wait; a share group takes seconds for it."""


def queues(bench: Bench) -> None:
    """Ten consumers in two processes work off a queue of 100 byte messages; then messages come at a fixed rate.

    A message counts when it is acknowledged, and the time ends with the last answer. Each is taken once: numbers in the
    messages show it.
    """
    count = QUICK_MESSAGES if bench.pace.quick else MESSAGES
    contestants = bench.among(*CONTESTANTS)
    case = f"100 B, {CONSUMERS} consumers, 1 partition, RF 3 (Redis: no replicas)"
    with _queues(bench, contestants, "filled") as job_for:
        filled: set[str] = set()
        measure = of_job(job_for, lambda job, contestant: _worked_off(job, contestant.peer, filled, count))
        bench.rounds("queues", f"{case}, acknowledged", contestants, measure)
    seconds = 3.0 if bench.pace.quick else 20.0
    plain = [contestant for contestant in contestants if contestant.form != "ordered"]
    with _queues(bench, plain, "at a rate") as job_for:
        late = of_job(job_for, lambda job, _: _send_to_handler(job, seconds))
        bench.rounds("queues", f"{case}, {RATE:,}/s, send to handler", plain, late, metric="p99_ms")


@contextlib.contextmanager
def _queues(bench: Bench, contestants: list[Contestant], holds: str) -> Iterator[JobFor]:
    """A queue on each server, with three replicas where the server can replicate one."""
    replicated = [contestant for contestant in contestants if contestant.peer != UNREPLICATED]
    alone = [contestant for contestant in contestants if contestant.peer == UNREPLICATED]
    with (
        bench.topic(replicated, 1, 3, holds=holds, is_queue=True) as of_three,
        bench.topic(alone, 1, 1, holds=holds, is_queue=True) as of_one,
    ):
        yield lambda contestant: (of_one if contestant.peer == UNREPLICATED else of_three)(contestant)


def _worked_off(job: Job, peer: str, filled: set[str], count: int) -> Outcome:
    """Fill the queue where that is needed, and have a new group work it off."""
    job = replace(job, count=count, keys=KEYS, group=f"group-{time.time_ns()}")
    if peer not in filled or peer in DROPS:
        run(replace(job, load="fill", form="records", fresh=peer in DROPS))
        filled.add(peer)
    working = replace(job, load="work", connections=CONSUMERS // PROCESSES, waits=True)
    with contextlib.ExitStack() as stack:
        crews = [stack.enter_context(Running(working)) for _ in range(PROCESSES)]
        for crew in crews:
            crew.wait_ready()
        for crew in crews:
            crew.begin()
        outcomes = [crew.outcome() for crew in crews]
    found = distinct([str(outcome.pop("seen")) for outcome in outcomes])
    records = sum(int(outcome["records"]) for outcome in outcomes)
    seconds = max(float(outcome["seconds"]) for outcome in outcomes)
    if not records or not seconds:
        raise Unavailable("its consumers got no message in the measured time")
    return {
        "records": records,
        "again": sum(int(outcome["taken"]) for outcome in outcomes) - found,
        "bytes": records * job.size,
        "seconds": seconds,
        "rate": records / seconds,
        "client_cpu_s": sum(float(outcome["client_cpu_s"]) for outcome in outcomes),
        "server_cpu_s": max(float(outcome["server_cpu_s"]) for outcome in outcomes),
    }


def _send_to_handler(job: Job, seconds: float) -> Outcome:
    warmup_s = min(2.0, seconds / 3)
    count = int(RATE * (seconds + warmup_s))
    job = replace(
        job, rate=RATE, count=count, warmup_s=warmup_s, linger_ms=0, group=f"group-{time.time_ns()}", form="records"
    )
    taking = replace(job, load="handle", connections=CONSUMERS)
    return with_sender(*run_both(taking, replace(job, load="pace", waits=True), JOIN_S))
