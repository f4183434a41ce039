"""Every scenario: start the servers, measure Raylog beside its peers, show the results and keep them.

--only chooses scenarios, --peers servers. A server or a library that is not here is left out, with the reason. The exit
status is 1 when records were lost or counted twice.
"""

from __future__ import annotations

import argparse
import dataclasses
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine
from benchmarks.bench import FULL, GRACE_S, QUICK, Bench, Pace, TimeIsOver
from benchmarks.optional import Missing
from benchmarks.options import CACHE, Parser, some_of
from benchmarks.peers.base import Peer
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.nats_peer import Nats
from benchmarks.peers.processes import Unavailable, kill_children
from benchmarks.peers.rabbitmq_peer import RabbitMq
from benchmarks.peers.ray_queue_peer import RayQueue
from benchmarks.peers.raylog_peer import Raylog
from benchmarks.peers.redis_peer import Redis
from benchmarks.report.plots import draw
from benchmarks.report.results import REST_OF, Results
from benchmarks.report.tables import as_markdown, show
from benchmarks.scenarios.registry import LEFT_TO_FULL_RUNS, SCENARIOS, SHARES_TOPICS_WITH_LAST, share_of
from benchmarks.scenarios.throughput import warm_up
from benchmarks.scratch import scratch_folder

PEERS = ("raylog", "kafka", "nats", "redis", "ray.util.queue", "rabbitmq")
NEEDS_NO_SERVER = {"limits"}
PEERS_OF = {"queues": {"raylog", "kafka", "nats", "redis", "rabbitmq"}, "delays": {"raylog", "rabbitmq"}}
"""The servers of scenarios that some others take no part in; all of `PEERS` but their own take part in the rest."""
ONLY_THERE = {"rabbitmq"}
NEEDS_WARM_SERVERS = {"latency", "small", "produce", "transactions", "together", "consume"}
BREAK_OFF_AGAIN_S = 20.0
"""Cleanup after an interrupted run is aborted after this time."""
STOP_S = 40.0
"""Time for a quick run's servers to stop, before they are killed."""


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line's options."""
    parser = Parser("run", __doc__)
    add = parser.add_argument
    add("--only", type=some_of(tuple(SCENARIOS)), help=f"scenarios, parted by commas: {', '.join(SCENARIOS)}")
    add("--peers", type=some_of(PEERS), default=list(PEERS), help=f"servers, parted by commas: {', '.join(PEERS)}")
    add("--brokers", type=int, default=3, help="brokers of Raylog and of Kafka (default: 3)")
    add("--rounds", type=int, help="rounds of each case (default: 5, quick 2 and 1 of slow ones)")
    add("--seconds", type=float, help="measured seconds of each round")
    parser.add_quick("a part of the cases, within ten minutes")
    limit = f"seconds that the scenarios share (quick: {QUICK.limit_s:.0f}); {GRACE_S:.0f} later the run is broken off"
    add("--limit-s", type=float, help=limit)
    parser.add_results()
    parser.add_data()
    chosen = parser.parse_args(given)
    if chosen.only is None:
        chosen.only = [name for name in SCENARIOS if not chosen.quick or name not in LEFT_TO_FULL_RUNS]
    chosen.peers = [name for name in chosen.peers if name in servers_of(chosen.only)]
    return chosen


def servers_of(scenarios: Sequence[str]) -> set[str]:
    """The servers that take part in some of the scenarios."""
    return set().union(*(PEERS_OF.get(scenario, set(PEERS) - ONLY_THERE) for scenario in scenarios))


def make_peers(wanted: Sequence[str], scratch: Path, brokers: int) -> list[Peer]:
    """The requested servers; the queue of Ray needs Raylog's Ray."""
    raylog = Raylog(scratch, brokers)
    everything: list[Peer] = [
        raylog, Kafka(scratch, CACHE, brokers), Nats(scratch, 3), Redis(scratch), RayQueue(raylog),
        RabbitMq(scratch, brokers),
    ]  # fmt: skip
    names = {*wanted, *(["raylog"] if "ray.util.queue" in wanted else [])}
    return [item for item in everything if item.name in names]


def measure(bench: Bench, scenarios: Sequence[str]) -> None:
    """Run the scenarios in order; one that fails, or has no time left, does not affect the others."""
    chosen = [scenario for scenario in SCENARIOS if scenario in scenarios]
    done = 0
    try:
        if set(chosen) - NEEDS_NO_SERVER:
            bench.start()
            if NEEDS_WARM_SERVERS & set(chosen):
                run_scenario(bench, "warm-up", warm_up)
        for done, name in enumerate(chosen):
            if name not in SHARES_TOPICS_WITH_LAST:
                bench.drop_topics()
            bench.begin(share_of(name, chosen[done + 1 :]))
            run_scenario(bench, f"scenario {name}", SCENARIOS[name])
    except TimeIsOver:
        over = Unavailable(f"the run's time of {bench.pace.hard_s:.0f} s was over")
        for name in chosen[done:]:
            begun = any(row.scenario == name for row in bench.results.measured)
            bench.leave_out(f"{REST_OF}{name}" if begun else f"scenario {name}", over)


def run_scenario(bench: Bench, name: str, scenario: Callable[[Bench], None]) -> None:
    """Run a scenario; one that fails is left out, with the reason."""
    try:
        scenario(bench)
    except (Unavailable, Missing) as error:
        bench.leave_out(name, error)
    except Exception as error:  # a failed scenario must not lose the results of the others
        traceback.print_exc()
        bench.leave_out(name, error)


def stop(bench: Bench) -> None:
    """Stop the servers; those of a quick run that take too long are killed."""
    if bench.pace.quick:
        signal.setitimer(signal.ITIMER_REAL, STOP_S)
    try:
        bench.stop()
    except TimeIsOver:
        bench.say("the servers took too long to stop and are killed")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        kill_children()


def keep(results: Results, folder: Path) -> None:
    """Write JSON, Markdown and plots."""
    results.write(folder / "results.json")
    (folder / "results.md").write_text(as_markdown(results), encoding="utf-8")
    try:
        draw(results, folder)
    except Missing as error:
        print(f"No pictures: {error}", file=sys.stderr)


def conduct(
    chosen: argparse.Namespace,
    pace: Pace,
    settings: Mapping[str, Any],
    peers: Callable[[Path], list[Peer]],
    work: Callable[[Bench], None],
) -> Results:
    """Have the work done with servers on an empty folder, keep its results, and stop the servers."""
    results = Results(machine.describe(), machine.versions(), {**dataclasses.asdict(pace), **settings})
    with scratch_folder(chosen.data) as scratch:
        bench = Bench(peers(scratch), pace, results, scratch, CACHE)
        signal.signal(signal.SIGALRM, lambda *_: bench.break_off())
        signal.setitimer(signal.ITIMER_REAL, pace.hard_s, BREAK_OFF_AGAIN_S)
        folder = chosen.results / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        try:
            work(bench)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            results.machine |= machine.at_end()
            keep(results, folder)  # first, because stopping takes its time
            stop(bench)
    show(results, Console(width=160 if not sys.stdout.isatty() else None))
    for what, why in results.left_out.items():
        print(f"Left out: {what}, because {why}")
    print(f"Kept in {folder}.")
    return results


def main(given: Sequence[str]) -> int:
    """Run; the exit status is 1 when records were lost or counted twice."""
    chosen = arguments(given)
    options = ((name, getattr(chosen, name)) for name in ("rounds", "seconds", "limit_s"))
    changes: dict[str, Any] = {name: value for name, value in options if value}
    if chosen.rounds:
        changes["slow_rounds"] = chosen.rounds
    results = conduct(
        chosen,
        dataclasses.replace(QUICK if chosen.quick else FULL, **changes),
        {"brokers": chosen.brokers, "scenarios": ", ".join(chosen.only)},
        lambda scratch: make_peers(chosen.peers, scratch, chosen.brokers),
        lambda bench: measure(bench, chosen.only),
    )
    return 1 if results.miscounts() else 0
