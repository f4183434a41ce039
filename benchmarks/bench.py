"""The harness: servers, contestants, and rounds in turn (A B A B). Used by the scenarios."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import even_start
from benchmarks.clients.run import run
from benchmarks.job import Job, Outcome
from benchmarks.optional import Missing
from benchmarks.peers.base import Peer, QueuePeer
from benchmarks.peers.processes import Unavailable
from benchmarks.report.results import Measured, Results
from raylog.base.errors import RaylogError

GRACE_S = 60.0
"""Grace period of a measurement that runs at the end of the time, before it is aborted."""
LEFT_OUT = (Unavailable, Missing, RaylogError, OSError, subprocess.TimeoutExpired)
"""Expected failures of a server, a client or the connection; any other is a bug of the harness."""


RATES = ("rate", "rate_mb")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A client library, in one of its forms, on a server."""

    name: str
    peer: str
    client: str
    form: str = "records"

    @property
    def is_named_in_goals(self) -> bool:
        """Whether a goal compares with it closely: then it gets all rounds in a quick run too."""
        return self.peer in ("raylog", "") or self.client in ("java", "confluent")

    @property
    def is_needed(self) -> bool:
        """Whether a goal is undecided without it: then it gets a round even when the time is over."""
        return self.is_named_in_goals or self.client == "kafka_python"


JobFor = Callable[[Contestant], Job | None]
"""The job of a contestant on its server's topic; None without such a topic."""
Measure = Callable[[Contestant], Outcome | None]


def of_job(job_for: JobFor, work: Callable[[Job, Contestant], Outcome]) -> Measure:
    """What measures a contestant with its job."""

    def measure(contestant: Contestant) -> Outcome | None:
        job = job_for(contestant)
        return None if job is None else work(job, contestant)

    return measure


def run_for(job_for: JobFor, load: str, **changes: Any) -> Measure:
    """A measurement that is one job in one process."""
    return of_job(job_for, lambda job, _: run(replace(job, load=load, **changes)))


CONTESTANTS = {
    item.name: item
    for item in (
        Contestant("raylog send", "raylog", "raylog"),
        Contestant("raylog send_batch", "raylog", "raylog", "columns"),
        Contestant("raylog records", "raylog", "raylog"),
        Contestant("raylog columns", "raylog", "raylog", "columns"),
        Contestant("raylog arrow", "raylog", "raylog", "arrow"),
        Contestant("kafka java tool", "kafka", "java"),
        Contestant("confluent-kafka", "kafka", "confluent"),
        Contestant("aiokafka", "kafka", "aiokafka"),
        Contestant("kafka-python", "kafka", "kafka_python"),
        Contestant("nats", "nats", "nats"),
        Contestant("redis streams", "redis", "redis"),
        Contestant("ray.util.queue", "ray.util.queue", "ray_queue"),
        Contestant("raylog queue", "raylog", "raylog"),
        Contestant("raylog queue, order by key", "raylog", "raylog", "ordered"),
        Contestant("kafka share group", "kafka", "confluent"),
        Contestant("rabbitmq quorum queue", "rabbitmq", "rabbitmq"),
        Contestant("rabbitmq ttl, dead letters", "rabbitmq", "rabbitmq", "delayed"),
    )
}


@dataclass(frozen=True, slots=True)
class Pace:
    """Duration and number of measurements."""

    rounds: int
    seconds: float
    warmup_s: float
    quick: bool
    slow_rounds: int
    """Rounds of what takes longer than measuring: killing, restarting, filling."""
    limit_s: float
    """Each scenario has its share of this time. No round begins after its share is over, except the first for each
    contestant that a goal names."""
    touched_bytes: int
    """Memory touched and freed before a rate is measured; see `even_start`."""

    @property
    def hard_s(self) -> float:
        """After so many seconds the run is aborted; its results so far are kept."""
        return self.limit_s + GRACE_S


QUICK = Pace(
    rounds=2, seconds=1.2, warmup_s=0.5, quick=True, slow_rounds=1, limit_s=465.0, touched_bytes=512 << 20
)  # fmt: skip
FULL = Pace(
    rounds=5, seconds=5.0, warmup_s=2.0, quick=False, slow_rounds=5, limit_s=6 * 3600.0, touched_bytes=1 << 30
)  # fmt: skip


class TimeIsOver(BaseException):
    """The run's time is over. No Exception, so that no handler takes it for an ordinary failure."""


class Bench:
    """One run."""

    def __init__(
        self, peers: Sequence[Peer], pace: Pace, results: Results, scratch: Path, cache: Path | None = None
    ) -> None:
        """`cache`: where fetched jars are kept for the next run; default: with everything else in `scratch`."""
        self.cache = cache or scratch
        self._all = {peer.name: peer for peer in peers}
        self.peers: dict[str, Peer] = {}
        self.pace = pace
        self.results = results
        self.scratch = scratch
        self._no_topic: dict[str, str] = {}
        self._kept: dict[tuple[int, int, bool, str], str] = {}
        self._made: set[tuple[str, str]] = set()
        self._numbers = itertools.count(1)
        self._began_s = time.monotonic()
        self._share_ends_s = self._began_s + pace.limit_s
        self.is_broken_off = False

    # Time

    def begin(self, share: float) -> None:
        """Begin a scenario with this share of the remaining time; restart servers that have ended."""
        now_s = time.monotonic()
        self._share_ends_s = now_s + max(0.0, self._began_s + self.pace.limit_s - now_s) * share
        for name, peer in self.peers.items():
            if not peer.runs():
                self.say(f"{name} has ended and is started again")
                with contextlib.suppress(*LEFT_OUT):
                    peer.stop()
                    peer.start()

    def is_late(self) -> bool:
        """Whether the scenario's share of the time is over."""
        return time.monotonic() > self._share_ends_s

    def break_off(self) -> None:
        """Raise TimeIsOver, at any point of the run; resources made for it are left as they are."""
        self.is_broken_off = True
        raise TimeIsOver

    # Servers

    def start(self) -> None:
        """Start every server; unavailable ones are reported and left out."""
        for name, peer in self._all.items():
            began_s = time.monotonic()
            try:
                peer.start()
                self.peers[name] = peer
                self.results.versions |= {f"{name}: {what}": text for what, text in peer.describe().items()}
                self.say(f"{name} serves after {time.monotonic() - began_s:.1f} s")
            except LEFT_OUT as error:
                self.leave_out(name, error)
                peer.stop()

    def stop(self) -> None:
        """Stop every server, the last started first."""
        for peer in reversed(list(self._all.values())):
            with contextlib.suppress(*LEFT_OUT):
                peer.stop()

    def leave_out(self, what: str, error: Exception) -> None:
        """Report once that a contestant or server is left out, with the reason."""
        if what not in self.results.left_out:
            self.results.left_out[what] = str(error)
            self.say(f"left out: {what}, because {error}")

    def say(self, text: str) -> None:
        """Progress, with the time since the beginning."""
        print(f"[{time.monotonic() - self._began_s:6.1f} s] {text}", file=sys.stderr, flush=True)

    # Contestants

    def among(self, *names: str) -> list[Contestant]:
        """Those of the contestants whose server runs."""
        return [CONTESTANTS[name] for name in names if CONTESTANTS[name].peer in self.peers]

    @contextlib.contextmanager
    def topic(
        self,
        contestants: Sequence[Contestant],
        partitions: int,
        replication: int,
        *,
        fsync: bool = False,
        holds: str = "",
        fresh: bool = False,
        is_queue: bool = False,
    ) -> Iterator[JobFor]:
        """A topic on each contestant's server; returns the job of a contestant, None without such a topic.

        A quick run reuses topics of the same kind until `drop_topics`, because creating and deleting them takes longer
        than measuring; `fresh` requests a new topic. Topics whose contents matter are of different kinds when they
        differ in `holds`. With `is_queue` it is a work queue, on servers that have such a thing.
        """
        kind = (partitions, replication, fsync, holds)
        is_kept = self.pace.quick and not fresh
        name = (self._kept.get(kind) if is_kept else None) or f"bench-{next(self._numbers)}"
        if is_kept:
            self._kept[kind] = name
        jobs: dict[str, Job] = {}
        for peer in {contestant.peer: self.peers[contestant.peer] for contestant in contestants}.values():
            try:
                if (peer.name, name) not in self._made:
                    if is_queue and isinstance(peer, QueuePeer):
                        peer.create_queue(name, replication)
                    else:
                        peer.create_topic(name, partitions, replication, fsync=fsync)
                    self._made.add((peer.name, name))
            except LEFT_OUT as error:
                self._no_topic[peer.name] = str(error)
                continue
            jobs[peer.name] = Job(
                load="",
                client="",
                topic=name,
                address=peer.address(),
                partitions=partitions,
                replication=replication,
                warmup_s=self.pace.warmup_s,
                seconds=self.pace.seconds,
                server_pids=peer.pids(),
            )

        try:
            yield lambda contestant: _job_of(jobs, contestant)
        finally:
            if not is_kept:
                self._delete(name)

    def drop_topics(self) -> None:
        """Delete the topics that a quick run has kept: idle replicas would slow the next measurement."""
        for name in self._kept.values():
            self._delete(name)
        self._kept.clear()

    def _delete(self, topic: str) -> None:
        """Delete a topic from every server that has it."""
        for peer_name in [worker for worker, name in self._made if name == topic]:
            self._made.discard((peer_name, topic))
            if self.is_broken_off:  # the servers are about to be stopped, with all their topics
                continue
            try:
                self.peers[peer_name].delete_topic(topic)
            except LEFT_OUT as error:
                self.say(f"{peer_name} keeps the topic {topic}, because {error}")

    # Rounds

    def rounds(
        self,
        scenario: str,
        case: str,
        contestants: Sequence[Contestant],
        measure: Measure,
        metric: str = "rate",
        count: int | None = None,
        *,
        forgets: bool = False,
    ) -> None:
        """Measure the contestants in turn, round by round. One that fails is left out of the rest, with the reason.

        `forgets`: data of earlier rounds is not needed, and leaves the page cache before each measurement.
        """
        self.rounds_in_turn(scenario, {case: measure}, contestants, metric, count, forgets=forgets)

    def rounds_in_turn(
        self,
        scenario: str,
        cases: Mapping[str, Measure],
        contestants: Sequence[Contestant],
        metric: str = "rate",
        count: int | None = None,
        *,
        forgets: bool = False,
    ) -> None:
        """As `rounds`, with several cases to compare: each round has all of them."""
        rows = {
            (case, contestant.name): Measured(scenario, case, contestant.name, metric)
            for case in cases
            for contestant in contestants
        }
        self.results.measured += rows.values()
        for number in range(self.pace.rounds if count is None else count):
            for (case, measure), contestant in itertools.product(cases.items(), contestants):
                row = rows[case, contestant.name]
                if row.left_out or (number and (self._is_once(contestant) or self.is_late())):
                    continue
                if not number and self.pace.quick and self.is_late() and not contestant.is_needed:
                    row.left_out = "the time was over"
                    continue
                self._measure(row, contestant, measure, forgets=forgets)
        for case in cases:
            self._say_medians(scenario, case, [row for (of, _), row in rows.items() if of == case], metric)

    def warm_up(self, contestant: Contestant, measure: Measure) -> None:
        """One measurement that does not count; one that fails will fail again where it is reported."""
        with contextlib.suppress(*LEFT_OUT):
            measure(contestant)

    def _is_once(self, contestant: Contestant) -> bool:
        return self.pace.quick and not contestant.is_named_in_goals

    def _measure(self, row: Measured, contestant: Contestant, measure: Measure, *, forgets: bool) -> None:
        even_start.write_out()
        if row.metric in RATES:
            even_start.warm_memory(
                [peer.folder() for peer in self.peers.values()] if forgets else [], self.pace.touched_bytes
            )
        try:
            outcome = measure(contestant)
        except LEFT_OUT as error:
            row.left_out = str(error)
            self.say(f"{row.scenario}, {row.case}: {contestant.name} left out, because {error}")
            return
        if outcome is None:
            row.left_out = self._no_topic.get(contestant.peer, "its server has no such topic")
            return
        row.rounds.append(with_costs(outcome))

    def _say_medians(self, scenario: str, case: str, rows: Sequence[Measured], metric: str) -> None:
        medians = {row.contestant: statistics.median(found) for row in rows if (found := row.numbers())}
        text = ", ".join(f"{name} {value:,.6g}" for name, value in medians.items())
        self.say(f"{scenario}, {case} [{metric}]: {text or 'no contestant took part'}")


def _job_of(jobs: Mapping[str, Job], contestant: Contestant) -> Job | None:
    job = jobs.get(contestant.peer)
    return None if job is None else replace(job, client=contestant.client, form=contestant.form)


def with_costs(outcome: Outcome) -> Outcome:
    """The outcome with CPU as microseconds per record (seconds per million records), and bytes as a rate."""
    records = outcome.get("records") or 0
    for side in ("client", "server"):
        if records and f"{side}_cpu_s" in outcome:
            outcome[f"{side}_cpu_us"] = outcome[f"{side}_cpu_s"] / records * 1e6
    if {"client_cpu_us", "server_cpu_us"} <= outcome.keys():
        outcome["cpu_us"] = outcome["client_cpu_us"] + outcome["server_cpu_us"]
    if outcome.get("bytes") and outcome.get("seconds"):
        outcome["rate_mb"] = outcome["bytes"] / outcome["seconds"] / 1e6
    return outcome
