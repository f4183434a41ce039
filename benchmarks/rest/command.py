"""What partitions cost at rest, Raylog beside Kafka, as a table and JSON."""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import machine
from benchmarks.options import CACHE, Parser, some_of
from benchmarks.peers.processes import adopt_orphans
from benchmarks.report.results import Measured, Results
from benchmarks.rest.case import Case, Plan
from benchmarks.rest.kafka_rest import KafkaAtRest
from benchmarks.rest.peer import AtRest
from benchmarks.rest.raylog_rest import RaylogAtRest
from benchmarks.rest.table import SCENARIO, as_markdown, case_name, left_out_name
from benchmarks.scratch import end_children, scratch_folder

PEERS = ("raylog", "kafka")
OPEN_FILES = 65_536
"""Enough for a connection, or a file, for each of 10,000 partitions."""
QUIET_S, WINDOW_S, TRICKLE_WINDOW_S = 10.0, 20.0, 60.0


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """The command line's options."""
    parser = Parser("rest", __doc__)
    add = parser.add_argument
    add("--partitions", default="100,1000,10000", help="numbers of partitions, parted by commas (default: %(default)s)")
    add("--peers", type=some_of(PEERS), default=list(PEERS), help="servers, parted by commas (default: both)")
    add("--brokers", type=int, default=1, help="brokers, of Raylog alone (default: 1)")
    add("--replication", type=int, default=1, help="replicas of each partition, of Raylog alone (default: 1)")
    add("--deadline", type=float, default=120.0, help="seconds for each measure (default: 120)")
    add("--quiet", type=float, default=QUIET_S, help=f"seconds before the window at rest (default: {QUIET_S:.0f})")
    length = f"seconds of the window at rest (default: {WINDOW_S:.0f}, with a trickle {TRICKLE_WINDOW_S:.0f})"
    add("--window", type=float, help=length)
    add("--trickle", type=float, default=0.0, help="records a minute to each partition during the window")
    add("--config", action="append", default=[], metavar="KEY=VALUE", help="a setting of the cluster, of Raylog alone")
    parser.add_results()
    parser.add_data()
    chosen = parser.parse_args(given)
    try:
        chosen.partitions = [int(item) for item in chosen.partitions.split(",")]
    except ValueError:
        parser.error(f"--partitions takes numbers parted by commas, not {chosen.partitions}")
    if min(chosen.partitions) < 2:
        parser.error("--partitions takes 2 or more: the producer connects by a record to the first")
    if chosen.peers != ["raylog"] and (chosen.brokers, chosen.replication) != (1, 1):
        parser.error("--brokers and --replication need --peers raylog")
    if unknown := [item for item in chosen.config if "=" not in item]:
        parser.error(f"--config takes KEY=VALUE, not {unknown[0]}")
    if chosen.config and chosen.peers != ["raylog"]:
        parser.error("--config needs --peers raylog")
    if chosen.window is None:
        chosen.window = TRICKLE_WINDOW_S if chosen.trickle else WINDOW_S
    return chosen


def open_files() -> int:
    """Let the servers open as many files as they need, if the system permits it; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Run:
    """All cases, one after the other."""

    def __init__(self, chosen: argparse.Namespace, scratch: Path) -> None:
        self._chosen = chosen
        self._scratch = scratch
        self._began_s = time.monotonic()
        names = ("brokers", "replication", "deadline", "quiet", "window", "trickle", "config")
        settings = {**{name: getattr(chosen, name) for name in names}, "open files": open_files(), "notes": []}
        self.results = Results(machine.describe(), machine.versions(), settings)

    def measure(self) -> None:
        """Every number of partitions, with every peer."""
        for partitions in self._chosen.partitions:
            for name in self._chosen.peers:
                self._case(name, partitions)

    def _peer(self, name: str, folder: Path) -> AtRest:
        deadline_s = self._chosen.deadline
        if name == "kafka":
            return KafkaAtRest(folder, CACHE, deadline_s)
        return RaylogAtRest(
            folder, self._chosen.brokers, deadline_s, dict(item.split("=", 1) for item in self._chosen.config)
        )

    def _case(self, name: str, partitions: int) -> None:
        """One peer with so many partitions. A mistake in it must not lose the results of the others."""
        chosen, folder = self._chosen, self._scratch / f"{name}-{partitions}"
        what = case_name(partitions, chosen.replication)
        plan = Plan(
            partitions=partitions, replication=chosen.replication, deadline_s=chosen.deadline, quiet_s=chosen.quiet,
            window_s=chosen.window, per_minute=chosen.trickle,
        )  # fmt: skip
        peer = self._peer(name, folder)
        case = Case(peer, plan, lambda text: self._say(f"{name}, {what}: {text}"))
        self.results.measured.append(Measured(SCENARIO, what, name, "memory_mb", [case.outcome]))
        try:
            case.run()
        except Exception as error:  # as above
            traceback.print_exc()
            case.left_out["the rest"] = repr(error)
        finally:
            for measure, why in case.left_out.items():
                self.results.left_out[left_out_name(name, what, measure)] = why
            self.results.versions |= {f"{name}: {item}": text for item, text in peer.describe().items()}
            self.results.settings["notes"] += [
                note for note in peer.notes if note not in self.results.settings["notes"]
            ]
            end_children()
            shutil.rmtree(folder, ignore_errors=True)

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began_s:6.1f} s] {text}", file=sys.stderr, flush=True)


def main(given: Sequence[str]) -> int:
    """Run, print the table, keep it with the JSON."""
    chosen = arguments(given)
    adopt_orphans()
    folder = chosen.results / f"rest-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    with scratch_folder(chosen.data) as scratch:
        run = Run(chosen, scratch)
        try:
            run.measure()
        finally:
            run.results.machine |= machine.at_end()
            run.results.write(folder / "results.json")
            (folder / "results.md").write_text(as_markdown(run.results), encoding="utf-8")
    print(as_markdown(run.results))
    print(f"Kept in {folder}.")
    return 0
