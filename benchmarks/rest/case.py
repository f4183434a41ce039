"""One peer with one number of partitions: the measures in order, each within its deadline. Used by `command`."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from benchmarks.bench import LEFT_OUT
from benchmarks.job import Outcome
from benchmarks.peers.processes import Unavailable
from benchmarks.rest.measure import first_partitions
from benchmarks.rest.peer import AtRest, Deadline, Request, Writer
from benchmarks.rest.readings import at_rest
from benchmarks.rest.table import CREATE, FIRST, MORE, MORE_PARTITIONS, OVER, REST, SERVE, START, STOP
from benchmarks.rest.trickle import in_percentiles, trickle

TOPIC = "rest"
LATER_TOPIC = "later"
BEFORE = b"before " * 14
AFTER = b"after  " * 14
REPEATED = 3
"""Requests of each kind; the median counts."""
Measure = Callable[[Deadline], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured. Times are in seconds."""

    partitions: int
    replication: int
    deadline_s: float
    quiet_s: float
    window_s: float
    per_minute: float = 0.0
    """Records for each partition during the window; 0 = none."""


class Case:
    """The measures of one peer. `outcome` has their numbers, `left_out` the one that did not finish, and why."""

    def __init__(self, peer: AtRest, plan: Plan, say: Callable[[str], None]) -> None:
        self._peer = peer
        self._plan = plan
        self._say = say
        self.outcome: Outcome = {}
        self.left_out: dict[str, str] = {}

    def run(self) -> None:
        """Take the measures until one does not finish. The peer has ended afterwards."""
        try:
            for name, extra_s, measure in self._measures():
                if not self._within(name, extra_s, measure):
                    break
        finally:
            self._peer.end()

    def _measures(self) -> Iterator[tuple[str, float, Measure]]:
        """Name, seconds beyond the deadline, and the measure itself."""
        yield "first start", 0.0, self._first_start
        yield CREATE, 0.0, self._create
        yield SERVE, 0.0, self._serve
        yield REST, self._plan.quiet_s + self._plan.window_s, self._rest
        for name, request in self._peer.requests(TOPIC, self._plan.partitions).items():
            yield name, 0.0, partial(self._request, name, request)
        yield MORE, 0.0, self._create_more
        if not self._plan.per_minute:  # else every partition was written to
            yield FIRST, 0.0, self._first
        yield STOP, 0.0, self._stop
        yield START, 0.0, self._start

    def _within(self, name: str, extra_s: float, measure: Measure) -> bool:
        deadline = Deadline(self._plan.deadline_s + extra_s)
        try:
            found = measure(deadline)
        except LEFT_OUT as error:
            over = f"{OVER}{self._plan.deadline_s:.0f} s"
            self.left_out[name] = over if deadline.is_over else str(error)
            self._say(f"{name}: {self.left_out[name]} ({error})")
            return False
        self.outcome |= found
        self._say(f"{name}: " + ", ".join(f"{what} {value:.4g}" for what, value in found.items()))
        return True

    def _first_start(self, deadline: Deadline) -> Outcome:
        self._peer.start(deadline)
        return {"first_start_s": deadline.passed_s}

    def _create(self, deadline: Deadline) -> Outcome:
        self._peer.create(TOPIC, self._plan.partitions, self._plan.replication, deadline)
        return {"create_s": deadline.passed_s}

    def _serve(self, deadline: Deadline) -> Outcome:
        has_waited = self._peer.serve(TOPIC, self._plan.partitions, deadline)
        return {"serve_s": deadline.passed_s} if has_waited else {}

    def _create_more(self, deadline: Deadline) -> Outcome:
        """Create further partitions beside those that are there."""
        self._peer.create(LATER_TOPIC, MORE_PARTITIONS, self._plan.replication, deadline)
        self._peer.serve(LATER_TOPIC, MORE_PARTITIONS, deadline)
        return {"more_s": deadline.passed_s}

    def _rest(self, deadline: Deadline) -> Outcome:
        if not self._plan.per_minute:
            time.sleep(self._plan.quiet_s)
            return self._window(deadline)
        with self._writer() as writer:
            time.sleep(self._plan.quiet_s)
            return self._window_with_trickle(writer, deadline)

    def _window(self, deadline: Deadline) -> Outcome:
        check = partial(deadline.check, "the memory of the server's processes was not read")
        return at_rest(self._plan.window_s, self._peer.not_servers(), check)

    def _window_with_trickle(self, writer: Writer, deadline: Deadline) -> Outcome:
        plan, is_over = self._plan, threading.Event()
        with ThreadPoolExecutor(1) as pool:
            try:
                sent = pool.submit(
                    trickle, writer, plan.partitions, plan.per_minute, plan.window_s, plan.deadline_s, is_over.is_set
                )
                return {**self._window(deadline), **sent.result(deadline.left_s)}
            finally:
                is_over.set()

    def _request(self, name: str, request: Request, deadline: Deadline) -> Outcome:
        return {f"{name}_ms": statistics.median(request(deadline) for _ in range(REPEATED)) * 1000}

    def _first(self, deadline: Deadline) -> Outcome:
        took_ms: list[float] = []
        with self._writer() as writer:
            for partition in first_partitions(self._plan.partitions):
                began_s = time.monotonic()
                writer.send(partition, BEFORE, deadline.left_s)
                took_ms.append((time.monotonic() - began_s) * 1000)
        return in_percentiles("first", took_ms)

    def _stop(self, deadline: Deadline) -> Outcome:
        self._peer.stop(deadline)
        return {"stop_s": deadline.passed_s}

    def _start(self, deadline: Deadline) -> Outcome:
        self._peer.start(deadline)
        serves_s = deadline.passed_s
        if (value := self._peer.first_value(TOPIC, deadline)) != BEFORE:
            raise Unavailable(f"partition 0 begins with {value!r} instead of the record that was written first")
        with self._writer(AFTER):
            return {"start_s": deadline.passed_s, "serves_s": serves_s}

    @contextlib.contextmanager
    def _writer(self, value: bytes = BEFORE) -> Iterator[Writer]:
        """A producer that has written a record to partition 0: it is connected and has the metadata."""
        writer = self._peer.writer(TOPIC)
        try:
            writer.send(0, value, self._plan.deadline_s)
            yield writer
        finally:
            writer.close()
