"""Transactions: the same producer with and without them, how long a commit takes, and the same topic read both ways."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.bench import Bench, Contestant, JobFor, Measure, of_job, run_for
from benchmarks.clients.run import run
from benchmarks.job import Job, Outcome

TRANSACTION_MS = 100
IDEMPOTENT, TRANSACTIONAL = "idempotent", f"transactions of {TRANSACTION_MS} ms"


def transactions(bench: Bench) -> None:
    """Produce in transactions of 100 ms, beside the same producer without them.

    The percentiles are of the commits alone: everything sent is acknowledged before. Then what is there is read, with
    the two isolation levels in turn.
    """
    contestants = bench.among("raylog send", "confluent-kafka")
    case = "100 B, 6 partitions, RF 3, "
    with bench.topic(contestants, 6, 3) as job_for:
        bench.rounds_in_turn(
            "transactions",
            {
                case + IDEMPOTENT: run_for(job_for, "produce", size=100),
                case + TRANSACTIONAL: run_for(job_for, "transact", size=100, transaction_ms=TRANSACTION_MS),
            },
            contestants,
            forgets=True,
        )
        readers = bench.among("raylog records", "raylog columns", "confluent-kafka")
        held: dict[str, int] = {}
        bench.rounds_in_turn(
            "isolation",
            {case + level: _reading(job_for, level, held) for level in ("read_uncommitted", "read_committed")},
            readers,
        )


def _reading(job_for: JobFor, level: str, held: dict[str, int]) -> Measure:
    """Read nine tenths of what a server holds: the markers of its transactions are counted, and are no records."""

    def measure(job: Job, contestant: Contestant) -> Outcome:
        if contestant.peer not in held:
            held[contestant.peer] = int(run(replace(job, load="count"))["stored"]) * 9 // 10
        return run(replace(job, load="consume", isolation=level, count=held[contestant.peer]))

    return of_job(job_for, measure)
