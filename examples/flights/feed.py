"""Produces every flight while the process of a partition leader is killed midway."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import raylog
from examples.flights.checks import Checks
from examples.flights.data import Flights

VICTIM = 0
"""The partition whose leader is killed."""
PROGRESS_EVERY = 5_000
FAILOVER_DEADLINE_S = 30.0
START_LOOK_S = 0.1


@dataclass
class Failover:
    """One kill: the leaders before and after, and the time without a leader."""

    pid: int
    old_leader: int
    new_leader: int = -1
    leaderless_ms: float = -1.0


def produce(console: Console, checks: Checks, cluster: raylog.Cluster, topic: str, flights: Flights) -> None:
    """Send all flights with acks=all; every future has to succeed, and each offset has to occur once."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    began = time.monotonic()
    with progress, raylog.Producer(acks="all", compression_type="lz4", linger_ms=5) as producer:
        task = progress.add_task("Producing", total=len(flights))
        futures = []
        killer: threading.Thread | None = None
        failover = Failover(pid=-1, old_leader=-1)
        for number, (key, value, timestamp_ms) in enumerate(flights):
            if number == len(flights) // 2:
                failover, killer = _kill_leader(cluster, topic)
            futures.append(producer.send(topic, value=value, key=key, timestamp_ms=timestamp_ms))
            if number % PROGRESS_EVERY == 0:
                progress.update(task, completed=number)
        producer.flush(timeout=60)
        progress.update(task, completed=len(flights))
    seconds = time.monotonic() - began
    places = {(done.partition, done.offset) for done in (future.result(timeout=30) for future in futures)}
    console.print(f"  {len(flights):,} records acknowledged in {seconds:.1f} s, {len(flights) / seconds:,.0f} a second")
    checks.equal("records acknowledged, each at its own offset", len(places), len(flights))
    if killer is not None:
        killer.join()
        checks.equal("the killed leader was replaced", failover.new_leader not in (-1, failover.old_leader), True)
        console.print(
            f"  killed process {failover.pid} (leader of {topic}-{VICTIM} on broker {failover.old_leader}); broker "
            f"{failover.new_leader} led {failover.leaderless_ms:.0f} ms later; nothing was lost"
        )


def _kill_leader(cluster: raylog.Cluster, topic: str) -> tuple[Failover, threading.Thread]:
    failover = _leader_of(cluster, topic)
    os.kill(failover.pid, signal.SIGKILL)
    watcher = threading.Thread(target=_watch, args=(topic, failover, time.monotonic()), name="failover watch")
    watcher.start()
    return failover, watcher


def _leader_of(cluster: raylog.Cluster, topic: str) -> Failover:
    """Return the leader's broker and process; a partition that has slept until now may still be waking."""
    deadline = time.monotonic() + FAILOVER_DEADLINE_S
    with raylog.Admin() as admin:
        while time.monotonic() < deadline:
            leader = admin.describe_topic(topic).partitions[VICTIM].leader
            for replica in cluster.replicas():
                if (replica["topic"], replica["partition"], replica["broker"]) == (topic, VICTIM, leader):
                    return Failover(pid=replica["pid"], old_leader=leader)
            time.sleep(START_LOOK_S)
    raise TimeoutError(f"{topic}-{VICTIM} has no leader that runs")


def _watch(topic: str, failover: Failover, killed_at: float) -> None:
    with raylog.Admin() as admin:
        while time.monotonic() < killed_at + FAILOVER_DEADLINE_S:
            leader = admin.describe_topic(topic).partitions[VICTIM].leader
            if leader not in (-1, failover.old_leader):
                failover.new_leader = leader
                failover.leaderless_ms = (time.monotonic() - killed_at) * 1000
                return
            time.sleep(0.002)
