"""One run: start a cluster, load it, injure it by a seeded schedule, heal it, read everything, judge.

Called by the command (``__main__``). May touch: Ray, the disk below its own folder, processes of its own cluster.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import raylog
from tests.chaos import logs, sight, small_disk
from tests.chaos.checker import Analysis, Anomaly, Verdict, analyse, judge
from tests.chaos.faults import FAULTS, Nemesis, Schedule
from tests.chaos.history import Fault, History
from tests.chaos.report import Result
from tests.chaos.workload import DELIVERY_TIMEOUT_MS, GROUP, MAX_MESSAGE_BYTES, READER, TOPIC, Workload

PROGRESS_S: Final = 5.0
WARM_UP_S: Final = 3.0
DRAIN_S: Final = 90.0
END_S: Final = 30.0
START_S: Final = 180.0
"""Fifteen processes have to start, on a machine that may be busy with other things."""
ENOUGH: Final = 100
"""Acknowledged sends, and records read, below which a run proves nothing."""
SMALL_BROKER: Final = 1
CALM_PAUSE_S: Final = (1.0, 4.0)
STORM_PAUSE_S: Final = (0.2, 2.0)
CLUSTER_CONFIG: Final = {"default.replication.factor": 3, "group.initial.rebalance.delay.ms": 100}
OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to do."""

    minutes: float = 1.0
    seed: int = 1
    brokers: int = 3
    partitions: int = 3
    producers: int = 2
    members: int = 3
    rate: float = 60.0
    """Records a second of each producer."""
    faults: tuple[str, ...] = tuple(FAULTS)
    each_once: bool = False
    """Do each of the faults once, in the order given, instead of drawing for so many minutes."""
    storm: bool = False
    """Do not wait for the cluster to be whole between two faults."""
    out: Path | None = None
    """Where a failed run is kept; default: a new folder for temporary files."""
    keep: bool = False
    """Keep what a run that passed leaves behind, too."""


class Run:
    """State of one run."""

    def __init__(self, options: Options) -> None:
        """Make the folder; nothing is started yet."""
        self._options = options
        self._folder = options.out or Path(tempfile.mkdtemp(prefix=f"raylog-chaos-{options.seed}-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._root = self._folder / "data"
        self._history = History(self._folder / "history.jsonl")
        self._phase = "starting"
        self._cluster: raylog.Cluster | None = None
        self._hangs: list[str] = []
        self._doubts: list[str] = []
        self._remarks: list[str] = []
        self._over = threading.Event()
        self._has_small_disk = False

    def run(self) -> Result:
        """Do all of it. Whatever happens, everything that was started is ended, and nobody stays paused."""
        import ray

        print(f"seed {self._options.seed}, folder {self._folder}", flush=True)
        if "full-disk" in self._options.faults:
            remark = small_disk.mount(self._root / f"broker-{SMALL_BROKER}")
            self._has_small_disk = not remark
            self._remarks += [remark] if remark else []
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
        )
        session = ray.get_runtime_context().get_session_name()
        logs_folder = Path(os.environ["RAY_TMPDIR"]) / "ray" / session / "logs"
        reporter = threading.Thread(target=self._report_progress, name="progress", daemon=True)
        try:
            reporter.start()
            result = self._load_and_injure()
        finally:
            self._over.set()
            reporter.join(PROGRESS_S)
            self._history.close()
            if self._cluster is not None:
                self._cluster.stop()
            ray.shutdown()
        self._clean_up(result, logs_folder)
        return result

    # The course of a run

    def _load_and_injure(self) -> Result:
        options = self._options
        self._start_cluster()
        with raylog.Admin() as admin:
            admin.create_topic(
                TOPIC,
                partitions=options.partitions,
                replication_factor=min(3, options.brokers),
                config={"segment.bytes": 131_072, "max.message.bytes": MAX_MESSAGE_BYTES},
                timeout_s=START_S,
            )
        workload = Workload(
            self._history,
            seed=options.seed,
            partitions=options.partitions,
            producers=options.producers,
            members=options.members,
            rate=options.rate,
        )
        nemesis = Nemesis(
            self._history,
            root=self._root,
            topic=TOPIC,
            partitions=options.partitions,
            brokers=options.brokers,
            restart=self._restart_cluster,
            small_broker=SMALL_BROKER if self._has_small_disk else None,
        )
        workload.start()
        try:
            self._injure(nemesis)
        finally:
            nemesis.close()
        self._phase = "healing"
        if not nemesis.wait_whole():
            self._hangs.append(f"the cluster did not become whole: {sight.missing(options.brokers)}")
        drained = self._drain(workload)
        ends = self._ends(workload)
        self._phase = "stopping"
        if self._cluster is not None:
            self._cluster.stop()
        return self._judge(workload, ends, drained=drained)

    def _injure(self, nemesis: Nemesis) -> None:
        options = self._options
        warm = sight.wait_until(lambda: self._history.outcomes["ok"] > 0, END_S)
        if not warm:
            self._hangs.append("no record was acknowledged before the first fault")
            return
        self._phase = "warming up"
        self._over.wait(WARM_UP_S)
        kinds = [kind for kind in options.faults if kind != "full-disk" or self._has_small_disk]
        targets = random.Random(f"{options.seed}-targets")
        schedule = Schedule(kinds, random.Random(f"{options.seed}-kinds"))
        planned = [[kind] for kind in kinds] if options.each_once else None
        ends_s = self._history.now_s() + options.minutes * 60
        while planned if planned is not None else kinds and self._history.now_s() < ends_s:
            together = planned.pop(0) if planned is not None else schedule.next()
            self._phase = " + ".join(together)
            faults = nemesis.strike(together, targets, storm=options.storm)
            if not faults and not options.storm:
                self._remarks.append(f"{' + '.join(together)} found no target")
            if not self._tell(faults):
                return
            self._phase = "between two faults" if options.storm else "whole"
            self._over.wait(targets.uniform(*(STORM_PAUSE_S if options.storm else CALM_PAUSE_S)))
        self._phase = "settling"
        self._remarks += ["in a storm, each fault's times reach to the end of the storm"] if options.storm else []
        self._tell(nemesis.settle())

    def _tell(self, faults: list[Fault]) -> bool:
        """Print the faults that are over; whether the cluster survived them all."""
        for fault in faults:
            after = "never" if fault.whole_s is None else f"{fault.whole_s - fault.at_s:.1f} s later"
            print(f"{fault.at_s:6.1f} s  {fault.kind}: {fault.target}; whole {after}. {fault.note}", flush=True)
            if fault.whole_s is None:
                self._hangs.append(f"{fault.kind} of {fault.target} at {fault.at_s:.1f} s: {fault.note}")
        return all(fault.whole_s is not None for fault in faults)

    def _start_cluster(self) -> None:
        self._cluster = raylog.start(
            self._root, brokers=self._options.brokers, config=CLUSTER_CONFIG, address="local", timeout_s=START_S
        )

    def _restart_cluster(self) -> None:
        began_s = time.monotonic()
        if self._cluster is not None:
            self._cluster.stop()
        stopped_s = time.monotonic()
        self._start_cluster()
        print(
            f"        stopped in {stopped_s - began_s:.1f} s, started in {time.monotonic() - stopped_s:.1f} s",
            flush=True,
        )

    def _drain(self, workload: Workload) -> bool:
        """End the producers, and wait until the group and the reader have got everything; whether they have."""
        self._phase = "draining"
        late = workload.end_producers(DELIVERY_TIMEOUT_MS / 1000 + END_S)
        self._hangs += [f"{name} did not end" for name in late]
        workload.no_more_changes.set()
        ends = self._high_watermarks()
        reached = self._history.reached

        def everything_read() -> bool:
            return all(
                reached.get((reader, partition), 0) >= end
                for reader in (GROUP, READER)
                for partition, end in ends.items()
            )

        if len(ends) < self._options.partitions:
            self._hangs.append("the high watermarks could not be asked for")
            return False
        if not sight.wait_until(everything_read, DRAIN_S):
            behind = [
                f"{reader} is at {reached.get((reader, partition), 0)} of {end} in partition {partition}"
                for reader in (GROUP, READER)
                for partition, end in ends.items()
                if reached.get((reader, partition), 0) < end
            ]
            self._hangs += behind
            return False
        return True

    def _high_watermarks(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for one in sight.replica_states().values():
            if one["topic"] == TOPIC:
                found[one["partition"]] = max(found.get(one["partition"], 0), one["high_watermark"])
        return found

    def _ends(self, workload: Workload) -> dict[logs.Place, logs.End]:
        """End the readers; then what the cluster says of its partitions, now that nobody writes."""
        self._hangs += [f"{name} did not end" for name in workload.end_readers(2 * END_S)]
        if not sight.wait_until(lambda: not sight.missing(self._options.brokers), END_S):
            self._doubts.append(f"at the end, {sight.missing(self._options.brokers)}")
        view = sight.status()
        states = sight.replica_states().values()
        if view is None:
            self._doubts.append("at the end, the controller did not answer")
            return {}
        found = {}
        for topic, partitions in view["topics"].items():
            for one in partitions:
                marks = [
                    state["high_watermark"]
                    for state in states
                    if (state["topic"], state["partition"]) == (topic, one["partition"])
                ]
                found[topic, one["partition"]] = logs.End(max(marks, default=0), frozenset(one["isr"]))
        return found

    def _judge(self, workload: Workload, ends: dict[logs.Place, logs.End], *, drained: bool) -> Result:
        self._phase = "judging"
        found = logs.read_logs(self._root, values_of=TOPIC)
        reads, holders = logs.as_reads(found, ends, TOPIC)
        if not holders:
            self._doubts.append("no log on disk could be compared")
        before = self._history.operations
        seen = History(operations=[*before, *reads])
        seen.outcomes = dict(self._history.outcomes)
        seen.records_read = self._history.records_read
        analysis: Analysis = analyse(seen, readers={GROUP: None, READER: None, **holders}, drained=drained)
        for anomaly in logs.compare(found, ends):
            analysis.add(anomaly)
        for error in workload.errors:
            analysis.add(Anomaly("client died", error))
        verdict = judge(
            analysis,
            hangs=self._hangs,
            doubts=self._doubts,
            sent=self._history.outcomes["ok"],
            read=self._history.records_read,
            enough=ENOUGH,
        )
        batches = sum(len(log.batches) for place in ends for log in found.get(place, {}).values())
        compared = f"{batches:,} batches of {sum(len(found.get(place, {})) for place in ends)} replicas compared"
        return Result(verdict, analysis, self._history, self._hangs, self._doubts, self._remarks, compared)

    # Around it

    def _report_progress(self) -> None:
        while not self._over.wait(PROGRESS_S):
            history = self._history
            counts = history.outcomes
            print(
                f"{history.now_s():6.1f} s  {counts['ok']:,} ok, {counts['fail']} fail, {counts['unknown']} unknown, "
                f"{history.records_read:,} read; {self._phase}",
                flush=True,
            )

    def _clean_up(self, result: Result, logs_folder: Path) -> None:
        keeps = self._options.keep or result.verdict is not Verdict.PASSED
        if keeps:
            kept = self._folder / "logs"
            kept.mkdir(exist_ok=True)
            for file in sorted(
                [*logs_folder.glob("worker-*"), *logs_folder.glob("raylet*"), *logs_folder.glob("gcs*")]
            ):
                if file.is_file() and file.stat().st_size:
                    shutil.copy(file, kept / file.name)
            if self._has_small_disk:
                small = self._root / f"broker-{SMALL_BROKER}"
                copy = small.with_name(f"{small.name}-kept")
                shutil.copytree(small, copy)
                small_disk.unmount(small)
                small.rmdir()
                copy.rename(small)
            result.remarks.append(f"history, logs and data are kept in {self._folder}")
            return
        if self._has_small_disk:
            small_disk.unmount(self._root / f"broker-{SMALL_BROKER}")
        shutil.rmtree(self._folder)


def run(options: Options) -> Result:
    """Do one run."""
    began_s = time.monotonic()
    result = Run(options).run()
    result.remarks.append(f"seed {options.seed}, {time.monotonic() - began_s:.0f} s")
    return result
