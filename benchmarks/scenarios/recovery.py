"""Times apart from records: creating topics, memory at rest, failover, restart."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from benchmarks.bench import CONTESTANTS, Bench, Contestant, of_job
from benchmarks.clients.run import Running, run
from benchmarks.job import Job, Outcome
from benchmarks.peers.processes import private_bytes
from benchmarks.peers.raylog_peer import Raylog

PARTITIONS = 6
PROBE_RATE = 200.0
KAFKA_DOWN_S, RAYLOG_DOWN_S = 20.0, 6.0
"""Sending time; the server's recovery has to end within it."""


def _pair(bench: Bench) -> list[Contestant]:
    return bench.among("raylog send", "confluent-kafka")


def create(bench: Bench) -> None:
    """A topic of six partitions with three replicas each, from the request to one record stored in each partition.

    Raylog also with spares, as many on each broker as the topic needs there; each round begins when they are ready.
    """
    number = iter(range(1_000))

    def measure(contestant: Contestant) -> Outcome | None:
        peer = bench.peers[contestant.peer]
        name = f"created-{time.time_ns()}-{next(number)}"
        job = Job(load="create", client=contestant.client, topic=name, address=peer.address(),
                  partitions=PARTITIONS, linger_ms=0, waits=True)  # fmt: skip
        with Running(job) as running:
            running.wait_ready()  # the start of the client's process is not measured
            began_s = time.monotonic()
            try:
                peer.create_topic(name, PARTITIONS, 3, fsync=False)
                created_s = time.monotonic()
                running.begin()
                written = running.outcome()
                return {"seconds": written["monotonic_s"] - began_s, "created_s": created_s - began_s,
                        "records": written["records"]}  # fmt: skip
            finally:
                if not bench.is_broken_off:
                    peer.delete_topic(name)

    rounds = bench.pace.slow_rounds
    bench.rounds("create", "6 partitions, RF 3, cold", _pair(bench), measure, metric="seconds", count=rounds)
    cold = bench.peers.get("raylog")
    if not isinstance(cold, Raylog):
        return
    prepared = cold.with_spares(PARTITIONS)

    def measure_prepared(contestant: Contestant) -> Outcome | None:
        prepared.wait_for_spares()
        return measure(contestant)

    try:
        prepared.start()
        bench.peers[prepared.name] = prepared
        contestant = replace(CONTESTANTS["raylog send"], peer=prepared.name)
        bench.rounds("create", "6 partitions, RF 3, with spares", [contestant], measure_prepared, "seconds", rounds)
    finally:
        bench.peers.pop(prepared.name, None)
        prepared.stop()


def memory(bench: Bench) -> None:
    """Private memory of the server's processes at rest, with one topic of six partitions and three replicas each."""
    contestants = _pair(bench)
    with bench.topic(contestants, PARTITIONS, 3) as job_for:

        def measure(_: Job, contestant: Contestant) -> Outcome:
            sizes = [private_bytes(pid) / 1e6 for pid in bench.peers[contestant.peer].replica_pids()]
            each = statistics.median(sizes)
            return {"private_mb": each, "processes": len(sizes), "all_mb": sum(sizes)}

        case = "median process that holds replicas, 18 replicas in the topic"
        bench.rounds("memory", case, contestants, of_job(job_for, measure), metric="private_mb", count=1)


def failover(bench: Bench) -> None:
    """The longest time without an acknowledgement while a leader's process is killed; default settings."""
    contestants = _pair(bench)
    with bench.topic(contestants, 1, 3) as job_for:

        def measure(job: Job, contestant: Contestant) -> Outcome:
            peer = bench.peers[contestant.peer]
            peer.heal()
            seconds = KAFKA_DOWN_S if contestant.peer == "kafka" else RAYLOG_DOWN_S
            with Running(replace(job, load="probe", rate=PROBE_RATE, seconds=seconds, linger_ms=0)) as running:
                running.wait_ready()
                time.sleep(2.0)
                peer.kill_leader(job.topic)
                outcome = running.outcome()
            peer.heal()
            return outcome

        case = "kill -9 of a leader, RF 3, acks=all"
        bench.rounds("failover", case, contestants, of_job(job_for, measure), "gap_ms", bench.pace.slow_rounds)


def restart(bench: Bench) -> None:
    """Stop the whole server and start it on the same data, until a record is stored."""
    contestants = _pair(bench)
    with bench.topic(contestants, PARTITIONS, 3) as job_for:

        def measure(job: Job, contestant: Contestant) -> Outcome:
            peer = bench.peers[contestant.peer]
            began_s = time.monotonic()
            peer.stop()
            stopped_s = time.monotonic()
            peer.start()
            job = replace(job, address=peer.address(), load="create", linger_ms=0)
            outcome = run(job)
            return {"seconds": outcome["monotonic_s"] - stopped_s, "stop_s": stopped_s - began_s, "records": PARTITIONS}

        rounds = min(3, bench.pace.slow_rounds)
        case = "6 partitions, RF 3, until written again"
        bench.rounds("restart", case, contestants, of_job(job_for, measure), "seconds", rounds)
