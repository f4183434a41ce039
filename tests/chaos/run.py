"""One run: start a cluster, load it, injure it by a seeded schedule, heal it, read everything, judge.

Called by the command (``__main__``), for one part at a time. The arena determines the kind of cluster.
"""

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import raylog
from raylog.base.errors import RaylogError
from tests.chaos import sight
from tests.chaos.arena import CLUSTER_CONFIG, PARTS, Arena, LeftOut, Setup
from tests.chaos.evidence import logs
from tests.chaos.evidence.checker import Analysis, Anomaly, Verdict, analyse, judge
from tests.chaos.evidence.history import Fault, History
from tests.chaos.evidence.report import Result
from tests.chaos.injuries.faults import Nemesis, Schedule
from tests.chaos.sight import wait_until
from tests.chaos.table import COMPACTED, CONFIG, TABLE, Table
from tests.chaos.workload import DELIVERY_TIMEOUT_MS, GROUP, MAX_MESSAGE_BYTES, READER, TOPIC, Workload

PROGRESS_S: Final = 5.0
WARM_UP_S: Final = 3.0
DRAIN_S: Final = 120.0
END_S: Final = 30.0
START_S: Final = 180.0
"""Fifteen processes have to start, on a machine that may be busy."""
ENOUGH: Final = 100
"""Acknowledged sends, and records read, below which a run proves nothing."""
CALM_PAUSE_S: Final = (0.5, 2.0)
STORM_PAUSE_S: Final = (0.2, 2.0)
SEGMENT_BYTES: Final = 262_144
SPARES: Final = (0, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a run."""

    part: str = PARTS[0]
    minutes: float = 1.0
    seed: int = 1
    brokers: int = 3
    partitions: int = 3
    producers: int = 2
    members: int = 3
    rate: float = 600.0
    """Records a second of each producer."""
    spares: int | None = None
    """Spare processes of each broker; None = none or some, by the seed."""
    faults: tuple[str, ...] = ()
    """Kinds to draw from; none = all that the part has."""
    each_once: bool = False
    """Inject each of these faults once, in the order given, instead of drawing for so many minutes."""
    table: bool = False
    """Also write to a compacted topic, whose replicas clean it all the time, and judge what is left of it."""
    storm: bool = False
    """Do not wait for the cluster to be whole between two faults."""
    at_least_once: bool = False
    """Let the streaming query write at-least-once: a control, which has to find repeated records."""
    out: Path | None = None
    """Where a failed run is stored; default: a new temporary folder."""
    keep: bool = False
    """Keep the files of a run that passed, too."""


def arena_for(part: str, setup: Setup, *, full_disk: bool = True) -> Arena:
    """Return the arena of a part; raises :class:`LeftOut` where it cannot run."""
    if part == "network":
        from tests.chaos.injuries.network import Namespaces

        return Namespaces(setup)
    if part == "nodes":
        from tests.chaos.injuries.nodes import RayNodes

        return RayNodes(setup)
    from tests.chaos.injuries.processes import OneNode

    return OneNode(setup, full_disk=full_disk)


class Run:
    """State of one run."""

    fills_disk: ClassVar[bool] = True
    """Whether a broker may have a small disk, to be filled."""
    calm_pause_s: ClassVar[tuple[float, float]] = CALM_PAUSE_S
    """Between two faults, when the cluster is whole."""
    cluster_config: ClassVar[Mapping[str, object]] = {}
    """Settings of the cluster, over those of every run."""

    def __init__(self, options: Options) -> None:
        """Make the folder; nothing is started yet. Raises :class:`LeftOut` where this part cannot run."""
        self._options = options
        self._folder = options.out or Path(tempfile.mkdtemp(prefix=f"raylog-chaos-{options.seed}-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        setup = Setup(
            root=self._folder / "data",
            topic=TOPIC,
            partitions=options.partitions,
            brokers=options.brokers,
            start_s=START_S,
            config={
                **CLUSTER_CONFIG,
                "replica.spares": self._spares(),
                "log.cleaner.backoff.ms": 1_000,
                **self.cluster_config,
            },
        )
        full_disk = self.fills_disk and (not options.faults or "full-disk" in options.faults)
        try:
            self._arena = arena_for(options.part, setup, full_disk=full_disk)
        except LeftOut:
            shutil.rmtree(self._folder)
            raise
        self._history = History(self._folder / "history.jsonl")
        self._phase = "starting"
        self._hangs: list[str] = []
        self._doubts: list[str] = []
        self._remarks: list[str] = []
        self._over = threading.Event()

    def run(self) -> Result:
        """Do the whole run. On every exit, all started processes are ended, and none stays paused."""
        print(f"{self._options.part}: seed {self._options.seed}, folder {self._folder}", flush=True)
        reporter = threading.Thread(target=self._report_progress, name="progress", daemon=True)
        try:
            reporter.start()
            result = self._load_and_injure()
        finally:
            self._over.set()
            reporter.join(PROGRESS_S)
            self._history.close()
            self._arena.close()
        self._clean_up(result)
        return result

    # The course of a run

    def _load_and_injure(self) -> Result:
        options = self._options
        self._arena.start()
        self._wait_for_spares()
        with raylog.Admin(**self._arena.clients()) as admin:
            admin.create_topic(
                TOPIC,
                partitions=options.partitions,
                replication_factor=min(3, options.brokers),
                config={"segment.bytes": SEGMENT_BYTES, "max.message.bytes": MAX_MESSAGE_BYTES},
                timeout_s=START_S,
            )
            table = self._table(admin)
        workload = Workload(
            self._history,
            seed=options.seed,
            partitions=options.partitions,
            producers=options.producers,
            members=options.members,
            rate=options.rate,
            clients=self._arena.clients,
        )
        nemesis = Nemesis(self._history, self._arena)
        workload.start()
        if table is not None:
            table.start()
        try:
            self._injure(nemesis)
        finally:
            nemesis.close()
        self._phase = "healing"
        if not nemesis.wait_whole():
            self._hangs.append(f"the cluster did not become whole: {self._arena.missing()}")
        drained = self._drain(workload)
        wrong = [] if table is None else self._judge_table(table)
        ends = self._ends(workload)
        self._phase = "stopping"
        self._arena.stop()
        return self._judge(workload, ends, wrong, drained=drained)

    def _table(self, admin: raylog.Admin) -> Table | None:
        """Return the writer of a compacted topic, which is to be started; None where the run has none."""
        options = self._options
        if not options.table:
            return None
        admin.create_topic(
            TABLE, partitions=1, replication_factor=min(3, options.brokers), config=CONFIG, timeout_s=START_S
        )
        return Table(options.seed, self._arena.clients)

    def _judge_table(self, table: Table) -> list[Anomaly]:
        """End the table's writer, and read what is left of the table."""
        self._phase = "reading the table"
        if not table.end(2 * DELIVERY_TIMEOUT_MS / 1000):
            self._hangs.append("the writer of the table did not end")
        try:
            wrong, remark = table.judge()
        except RaylogError as error:
            return [Anomaly("table not read", str(error))]
        self._remarks.append(remark)
        return [*wrong, *(Anomaly("client died", error) for error in table.errors)]

    def _spares(self) -> int:
        options = self._options
        if options.part == "network":  # its replicas are no actors
            return 0
        return random.Random(f"{options.seed}-spares").choice(SPARES) if options.spares is None else options.spares

    def _wait_for_spares(self) -> None:
        """Wait for spares, so that the topic is made of them."""
        wanted = self._spares() * self._options.brokers
        if wanted and not wait_until(lambda: len(sight.spares()) >= wanted, START_S):
            self._hangs.append(f"of {wanted} spares {len(sight.spares())} were there after {START_S:.0f} s")
        self._remarks.append(f"{wanted} processes were spares")

    def _kinds(self) -> list[str]:
        known = [kind for kind in self._arena.faults if kind != "kill-spare" or self._spares()]
        self._remarks += [f"{kind} cannot be done here" for kind in self._options.faults if kind not in known]
        return [kind for kind in self._options.faults or known if kind in known]

    def _injure(self, nemesis: Nemesis) -> None:
        options = self._options
        warm = wait_until(lambda: self._history.outcomes["ok"] > 0, END_S)
        if not warm:
            self._hangs.append("no record was acknowledged before the first fault")
            return
        self._phase = "warming up"
        self._over.wait(WARM_UP_S)
        kinds = self._kinds()
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
            if not self._report(faults):
                return
            self._phase = "between two faults" if options.storm else "whole"
            self._over.wait(targets.uniform(*self._pause_s()))
        self._phase = "settling"
        self._remarks += ["in a storm, each fault's times reach to the end of the storm"] if options.storm else []
        self._report(nemesis.settle())

    def _pause_s(self) -> tuple[float, float]:
        """The shortest and longest time until the next fault."""
        if self._options.storm:
            return STORM_PAUSE_S
        return CALM_PAUSE_S if self._options.each_once else self.calm_pause_s

    def _report(self, faults: list[Fault]) -> bool:
        """Print the faults that are over; returns whether the cluster survived them all."""
        for fault in faults:
            after = "never" if fault.whole_s is None else f"{fault.whole_s - fault.at_s:.1f} s later"
            print(f"{fault.at_s:6.1f} s  {fault.kind}: {fault.target}; whole {after}. {fault.note}", flush=True)
            if fault.whole_s is None:
                self._hangs.append(f"{fault.kind} of {fault.target} at {fault.at_s:.1f} s: {fault.note}")
        return all(fault.whole_s is not None for fault in faults)

    def _drain(self, workload: Workload) -> bool:
        """End the producers, and wait until the group and the reader have got everything; returns whether they have."""
        self._phase = "draining"
        late = workload.end_producers(DELIVERY_TIMEOUT_MS / 1000 + END_S)
        self._hangs += [f"{name} did not end" for name in late]
        workload.no_more_changes.set()
        ends = self._high_watermarks()
        reached = self._history.reached

        def behind() -> list[str]:
            return [
                f"{reader} is at {reached.get((reader, partition), 0)} of {end} in partition {partition}"
                for reader in (GROUP, READER)
                for partition, end in ends.items()
                if reached.get((reader, partition), 0) < end
            ]

        if len(ends) < self._options.partitions:
            self._hangs.append("the high watermarks could not be read")
            return False
        if not wait_until(lambda: not behind(), DRAIN_S):
            self._hangs += behind()
            return False
        return True

    def _high_watermarks(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for state in self._arena.replica_states():
            if state["topic"] == TOPIC:
                found[state["partition"]] = max(found.get(state["partition"], 0), state["high_watermark"])
        return found

    def _ends(self, workload: Workload) -> dict[logs.Place, logs.End]:
        """End the readers; then get the state of the partitions, now without writers."""
        self._hangs += [f"{name} did not end" for name in workload.end_readers(2 * END_S)]
        if not wait_until(lambda: not self._arena.missing(), END_S):
            self._doubts.append(f"at the end, {self._arena.missing()}")
        view = self._arena.status()
        states = self._arena.replica_states()
        if view is None:
            self._doubts.append("at the end, the controller did not answer")
            return {}
        found = {}
        for topic, partitions in view["topics"].items():
            for partition in partitions:
                marks = [
                    state["high_watermark"]
                    for state in states
                    if (state["topic"], state["partition"]) == (topic, partition["partition"])
                ]
                found[topic, partition["partition"]] = logs.End(
                    max(marks, default=0), frozenset(partition["isr"]), is_asleep=bool(partition.get("asleep"))
                )
        return found

    def _judge(
        self, workload: Workload, ends: dict[logs.Place, logs.End], wrong: list[Anomaly], *, drained: bool
    ) -> Result:
        self._phase = "judging"
        history = self._history
        found = logs.read_logs(self._arena.directories(), values_of=TOPIC, compacted=COMPACTED)
        reads, holders = logs.as_reads(found, ends, TOPIC, history.shared)
        if not holders:
            self._doubts.append("no log on disk could be compared")
        seen = History(operations=[*history.operations, *reads])
        analysis: Analysis = analyse(seen, readers={GROUP: None, READER: None, **holders}, drained=drained)
        for anomaly in (*wrong, *logs.compare(found, ends, COMPACTED)):
            analysis.add(anomaly)
        for error in workload.errors:
            analysis.add(Anomaly("client died", error))
        verdict = judge(
            analysis,
            hangs=self._hangs,
            doubts=self._doubts,
            sent=history.outcomes["ok"],
            read=history.records_read,
            enough=ENOUGH,
        )
        batches = sum(len(log.batches) for place in ends for log in found.get(place, {}).values())
        return Result(
            verdict,
            analysis,
            history,
            self._hangs,
            self._doubts,
            [*self._arena.remarks, *self._remarks],
            f"{batches:,} batches of {sum(len(found.get(place, {})) for place in ends)} replicas compared",
            part=self._options.part,
            seed=self._options.seed,
        )

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

    def _clean_up(self, result: Result) -> None:
        if self._options.keep or result.verdict is not Verdict.PASSED:
            kept = self._folder / "logs"
            kept.mkdir(exist_ok=True)
            self._arena.keep(kept)
            result.remarks.append(f"history, logs and data are kept in {self._folder}")
            return
        forget = getattr(self._arena, "unmount", None)
        if forget is not None:
            forget()
        shutil.rmtree(self._folder)


def run(kind: type[Run], options: Options) -> Result:
    """Do one run; raises :class:`LeftOut` where the part cannot run."""
    began_s = time.monotonic()
    result = kind(options).run()
    result.remarks.append(f"seed {options.seed}, {time.monotonic() - began_s:.0f} s")
    return result
