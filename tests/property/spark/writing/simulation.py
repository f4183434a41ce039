"""Queries that write exactly once, with everything that may go wrong between two of their requests.

A query runs batch after batch: tasks in several attempts, late ones among them, then the commit. What is sent may be
repeated because its answer was lost; tasks and drivers die or go on although they were given up; transactions time out;
batches are repeated; another query starts with the same prefix. At the end everything that still runs is let run, and
the queries finish without further faults: each batch has to be visible once, and nothing may be left open.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from raylog.base.errors import InvalidTxnState, RaylogError
from raylog.spark.writing import commits
from raylog.spark.writing.commits import Prepared
from tests.property.spark.writing.toy_coordinators import Record, ToyCoordinators, Write

PREFIX = "q"
TASKS = 2
RECORDS = 2
STEPS_MAX = 20_000
Talk = Generator[Any, Any, Any]
Done = Callable[[Any], None]


class Actor:
    """A conversation that is under way."""

    def __init__(self, talk: Talk, done: Done, task: int = -1) -> None:
        self._talk, self._done, self.task = talk, done, task
        self._answers: list[Any] = []
        self._left: list[int] = []
        self.requests: tuple[Any, ...] = ()
        self.is_over = False
        self.go_on(None)

    def step(self, world: ToyCoordinators, chance: random.Random, trouble: float) -> None:
        """Send one of the requests that may be sent now."""
        place = self._left.pop(chance.randrange(len(self._left)))
        request = self.requests[place]
        self._answers[place] = world.answer(request)
        if chance.random() < trouble and not isinstance(request, Write):  # the answer is lost: it is sent again
            self._answers[place] = world.answer(request)
        if not self._left:
            self.go_on(self._answers)

    def go_on(self, answers: list[Any] | None) -> None:
        """Hand the answers over, up to the next requests."""
        try:
            self.requests = self._talk.send(answers) if answers is not None else next(self._talk)
            while not self.requests:
                self.requests = self._talk.send([])
        except StopIteration as end:
            self.is_over = True
            self._done(end.value)
        except RaylogError as error:
            self.is_over = True
            self._done(error)
        else:
            self._answers, self._left = [None] * len(self.requests), list(range(len(self.requests)))


@dataclass
class Query:
    """A query (or a batch job) with its checkpoint."""

    owner: str
    batches: int
    is_job: bool = False
    takes_over: bool = False
    committed: int = 0
    """Batches in the checkpoint."""
    runs: int = 0
    attempts: Counter[int] = field(default_factory=Counter)
    reports: dict[int, Prepared | None] = field(default_factory=dict)
    acting: list[Actor] = field(default_factory=list)
    """Of the present run."""
    is_running: bool = False
    is_committing: bool = False
    stopped_by: RaylogError | None = None

    @property
    def is_over(self) -> bool:
        return self.committed >= self.batches or self.stopped_by is not None


class Simulation:
    """One run, from a seed."""

    def __init__(self, seed: int, queries: list[Query], *, steps: int = 150, trouble: float = 0.15) -> None:
        self.chance = random.Random(seed)
        self.world = ToyCoordinators(PREFIX, self.chance)
        self.queries = queries
        self.late: list[Actor] = []
        """Actors that were given up, and go on."""
        self._steps, self._trouble = steps, trouble

    def run(self) -> None:
        """Trouble, then the end without."""
        for _ in range(self._steps):
            self._begin_what_is_due()
            self._step(self._trouble)
            if self.chance.random() < self._trouble:
                self._fault()
        for _ in range(STEPS_MAX):
            self._begin_what_is_due()
            if not self._step(0.0):
                break
        self._sweep()
        self.check()

    def _begin_what_is_due(self) -> None:
        for query in self.queries:
            if not query.is_over and not query.is_running:
                self._begin_batch(query)

    def _begin_batch(self, query: Query) -> None:
        query.runs += 1
        query.is_running, query.is_committing = True, False
        query.attempts, query.reports, query.acting = Counter(), {}, []
        for task in range(TASKS):
            self._begin_task(query, task)

    def _begin_task(self, query: Query, task: int) -> None:
        attempt = query.attempts[task]
        query.attempts[task] += 1
        batch, run = query.committed, query.runs

        def done(result: Any) -> None:
            if run != query.runs or query.is_committing:
                return
            if isinstance(result, InvalidTxnState):
                self._failed(query, result)
            elif isinstance(result, RaylogError):
                if query.attempts[task] >= 4:
                    self._failed(query, None)
                elif task not in query.reports:
                    self._begin_task(query, task)
            elif task not in query.reports:
                query.reports[task] = result
                if len(query.reports) == TASKS:
                    self._begin_commit(query)

        query.acting.append(Actor(self._task(query, batch, run, task, attempt), done, task))

    def _task(self, query: Query, batch: int, run: int, task: int, attempt: int) -> Talk:
        name = commits.task_id(PREFIX, task, attempt)
        number = None if query.is_job else batch
        identity = yield from commits.begin_task(query.owner, number, name, takes_over=query.takes_over)
        if identity is None:
            return None
        for record in range(RECORDS):
            answer = (yield (Write(name, identity, (query.owner, batch, run, task, record)),))[0]
            if isinstance(answer, RaylogError):
                raise answer
        return Prepared(name, *identity)

    def _begin_commit(self, query: Query) -> None:
        query.is_committing = True
        batch, run = query.committed, query.runs
        prepared = [each for each in query.reports.values() if each is not None]

        def done(result: Any) -> None:
            if run != query.runs:
                return
            if isinstance(result, RaylogError):
                self.late.append(Actor(commits.abort(prepared), lambda _: None))
                self._failed(query, result if isinstance(result, InvalidTxnState) else None)
            else:
                query.committed, query.is_running = batch + 1, False

        number = None if query.is_job else batch
        query.acting.append(Actor(commits.commit(query.owner, number, prepared, takes_over=query.takes_over), done))

    def _failed(self, query: Query, error: RaylogError | None) -> None:
        """The run is at its end; a job does not start again, nor does a query that was refused."""
        if error is None and query.is_job:
            error = RaylogError("The job has died.")
        query.stopped_by = error
        self._give_up(query)

    def _give_up(self, query: Query) -> None:
        """The run ends; some of its processes do not know."""
        self.late += [each for each in query.acting if not each.is_over and self.chance.random() < 0.6]
        query.acting, query.is_running = [], False
        query.runs += 1

    def _step(self, trouble: float) -> bool:
        actors = [each for query in self.queries for each in query.acting] + self.late
        live = [each for each in actors if not each.is_over]
        if not live:
            return any(not query.is_over for query in self.queries)
        self.chance.choice(live).step(self.world, self.chance, trouble)
        self.late = [each for each in self.late if not each.is_over]
        return True

    def _fault(self) -> None:
        query = self.chance.choice(self.queries)
        match self.chance.randrange(4):
            case 0 if query.is_running:  # the driver is lost
                self._failed(query, None)
            case 1 if query.is_running and not query.is_committing:  # an executor is lost, or seems to be
                task = self.chance.randrange(TASKS)
                if query.attempts[task] < 4 and task not in query.reports:
                    if self.chance.random() < 0.5:
                        query.acting = [each for each in query.acting if each.task != task]
                    self._begin_task(query, task)
            case 2 if self.late:
                self.late.pop(self.chance.randrange(len(self.late)))
            case 3 if self.chance.random() < 0.3:
                self.world.pass_time()

    def _sweep(self) -> None:
        last = Actor(commits.sweep(PREFIX, self.world.open_ids()), lambda _: None)
        while not last.is_over:
            last.step(self.world, self.chance, 0.0)

    def check(self) -> None:
        """Raise AssertionError unless each batch is visible once or not at all, and nothing is open."""
        seen = Counter(self.world.visible)
        twice = [record for record, times in seen.items() if times > 1]
        assert not twice, f"visible twice: {twice}"
        for query in self.queries:
            assert query.is_over, f"{query.owner} does not end"
            runs: dict[int, set[int]] = {}
            records: dict[int, list[Record]] = {}
            for record in seen:
                if record[0] == query.owner:
                    runs.setdefault(record[1], set()).add(record[2])
                    records.setdefault(record[1], []).append(record)
            for batch in range(query.batches):
                found = records.get(batch, [])
                whole = len(found) == TASKS * RECORDS and len(runs[batch]) == 1
                assert whole or (not found and batch >= query.committed), f"{query.owner} batch {batch}: {found}"
        left = [name for name in self.world.open_ids() if commits.is_task_id(PREFIX, name)]
        assert not left, f"left open: {left}"
