"""One run of copies: load the cluster with sources and workers, injure it, heal it, drain, and compare all records.

Called by the command. The arena, the schedule of faults and the report are those of the other runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import raylog
from raylog.actors.naming import NAMESPACE
from tests.chaos.copies import worker
from tests.chaos.copies.strikes import WORKER_PREFIX, faults_of
from tests.chaos.copies.worker import GROUP, RESULTS, SOURCE, CopyWorker, source_of
from tests.chaos.copies.workload import CopiesWorkload
from tests.chaos.evidence.checker import Analysis, Anomaly, Verdict, judge
from tests.chaos.evidence.report import Result
from tests.chaos.injuries.faults import WHOLE_WITHIN_S, Nemesis
from tests.chaos.run import DRAIN_S, END_S, ENOUGH, START_S, Options, Run
from tests.chaos.sight import wait_until
from tests.simulation.whole.transactions.ledger import Ledger
from tests.simulation.world import Violation

WORKERS: Final = 3
SOURCES: Final = 2
CALL_S: Final = 30.0
Records = dict[raylog.TopicPartition, dict[int, bytes]]


class CopiesRun(Run):
    """State of one run."""

    whole_within_s = WHOLE_WITHIN_S
    """How soon what was killed has to work again."""
    copied_within_s = DRAIN_S
    """How soon the last record has its copy."""
    workers = WORKERS
    copier_pause_s = 0.0
    topic_config: ClassVar[Mapping[str, object]] = {"segment.bytes": 262_144}
    """Of source and results."""

    def __init__(self, options: Options) -> None:
        """Make the folder; nothing is started yet. Raises :class:`LeftOut` where this part cannot run."""
        super().__init__(options)
        self._workers: list[Any] = []
        self._wrong_table: list[Anomaly] = []
        self._claims: list[str] = []
        self._workload: CopiesWorkload

    def _load_and_injure(self) -> Result:
        options = self._options
        self._arena.start()
        self._prepare_faults()
        with raylog.Admin(**self._arena.clients()) as admin:
            for topic in (SOURCE, RESULTS):
                admin.create_topic(
                    topic,
                    partitions=options.partitions,
                    replication_factor=min(3, options.brokers),
                    config=self.topic_config,
                    timeout_s=START_S,
                )
            self._prepare_guests(admin)
            table = self._table(admin)
        workload = self._workload = self._new_workload()
        nemesis = Nemesis(self._history, self._arena, whole_within_s=self.whole_within_s)
        workload.start()
        if table is not None:
            table.start()
        try:
            self._start_guests()
            self._start_workers()
            self._injure(nemesis)
        finally:
            nemesis.close()
        self._phase = "healing"
        if not nemesis.wait_whole():
            self._hangs.append(f"the cluster did not become whole: {self._arena.missing()}")
        self._phase = "draining"
        self._hangs += [f"{name} did not end" for name in workload.end_sources(CALL_S + END_S)]
        inputs = self._drained(SOURCE)
        if not wait_until(lambda: not self._uncopied(inputs), self.copied_within_s):
            self._hangs.append(self._uncopied(inputs))
        results = self._drained(RESULTS)
        self._hangs += [f"{name} did not end" for name in self._end_workers()]
        self._end_guests()
        if not wait_until(lambda: _count(workload.read_of(RESULTS)) >= _count(results), END_S):
            self._hangs.append(f"the reader has {_count(workload.read_of(RESULTS))} of {_count(results)} results")
        self._hangs += [f"{name} did not end" for name in workload.end_reader(END_S)]
        self._wrong_table = [] if table is None else self._judge_table(table)
        self._phase = "stopping"
        self._arena.stop()
        return self._verdict(workload, inputs, results)

    def _new_workload(self) -> CopiesWorkload:
        options = self._options
        return CopiesWorkload(
            self._history,
            seed=options.seed,
            partitions=options.partitions,
            sources=SOURCES,
            clients=self._arena.clients,
        )

    # Guests beside the copies: none in this part

    def _prepare_guests(self, admin: raylog.Admin) -> None:
        """Create what they need."""

    def _start_guests(self) -> None:
        """Begin their work."""

    def _end_guests(self) -> None:
        """End it, once everything has happened that has to."""

    # Workers

    def _prepare_faults(self) -> None:
        self._arena.faults = faults_of(self._arena)  # type: ignore[arg-type]  # this part's arena is one in Ray

    def _start_workers(self) -> None:
        import ray

        pickled: Any = ray.cloudpickle
        pickled.register_pickle_by_value(worker)  # Ray's workers do not import from this folder
        actor: Any = ray.remote(CopyWorker)
        for number in range(self.workers):
            options = actor.options(
                name=f"{WORKER_PREFIX}{number}", namespace=NAMESPACE, num_cpus=0, max_restarts=-1, max_concurrency=4
            )
            self._workers.append(options.remote(number, self._arena.clients(), self.copier_pause_s))

    def _end_workers(self) -> list[str]:
        """End the workers; returns the names of those that did not end by themselves."""
        import ray

        late = []
        for number, handle in enumerate(self._workers):
            try:
                has_ended = ray.get(handle.end.remote(), timeout=CALL_S)
            except ray.exceptions.RayError:
                has_ended = False
            if not has_ended:
                late.append(f"{WORKER_PREFIX}{number}")
            ray.kill(handle, no_restart=True)
        return late

    # The end

    def _consumer(self, **options: Any) -> raylog.Consumer:
        return raylog.Consumer(
            isolation_level="read_committed", auto_offset_reset="earliest", enable_auto_commit=False,
            max_poll_records=50_000,
            **options, **self._arena.clients(),
        )  # fmt: skip

    def _places(self, topic: str) -> list[raylog.TopicPartition]:
        return [raylog.TopicPartition(topic, number) for number in range(self._options.partitions)]

    def _drained(self, topic: str) -> Records:
        """Wait until no transaction is open in a topic, and return its committed records."""
        places = self._places(topic)
        with self._consumer() as committed, raylog.Consumer(**self._arena.clients()) as plain:

            def is_open() -> bool:
                return committed.end_offsets(places) != plain.end_offsets(places)

            if not wait_until(lambda: not is_open(), DRAIN_S):
                self._hangs.append(f"a transaction of {topic} hangs")
            ends = committed.end_offsets(places)
            committed.assign(places)
            found: Records = {place: {} for place in places}

            def is_read() -> bool:
                for place, records in committed.poll(300).items():
                    found[place].update({record.offset: record.value for record in records})
                return all(committed.position(place) >= ends[place] for place in places)

            if not wait_until(is_read, DRAIN_S):
                self._hangs.append(f"{topic} could not be read to its end")
        return found

    def _uncopied(self, inputs: Records) -> str:
        """Return a partition whose records the group has not all committed; "" = there is none."""
        with self._consumer(group_id=GROUP) as group:
            for place, records in inputs.items():
                wanted, found = max(records, default=-1) + 1, group.committed(place)
                if (found or 0) < wanted:
                    return f"the copiers are at {found} of {wanted} of partition {place.partition}"
        return ""

    def _anomalies(self, inputs: Records, results: Records) -> list[Anomaly]:
        """What else is wrong with the results; nothing in this part."""
        return []

    def _verdict(self, workload: CopiesWorkload, inputs: Records, results: Records) -> Result:
        self._phase = "judging"
        analysis = Analysis()
        violations = [*workload.violations, *find_anomalies(workload.ledger, inputs, results)]
        for violation in violations:
            analysis.add(Anomaly(violation.rule, violation.claim))
        self._claims.append(_claim("transactions: each committed record has one copy, in order", violations, inputs))
        if self._options.table:
            self._claims.append(_claim("table: the last record of each key is there", self._wrong_table, {}))
        for anomaly in (*self._anomalies(inputs, results), *self._wrong_table):
            analysis.add(anomaly)
        if not self._hangs and workload.read_of(RESULTS) != results:
            analysis.add(Anomaly("other results", "the reader got other results than those that are there at the end"))
        for error in workload.errors:
            analysis.add(Anomaly("client died", error))
        verdict: Verdict = judge(
            analysis,
            hangs=self._hangs,
            doubts=self._doubts,
            sent=self._history.outcomes["ok"],
            read=self._history.records_read,
            enough=ENOUGH,
        )
        return Result(
            verdict,
            analysis,
            self._history,
            self._hangs,
            self._doubts,
            [*self._arena.remarks, *self._remarks],
            f"{_count(inputs):,} committed records and {_count(results):,} results compared",
            part=self._options.part,
            seed=self._options.seed,
            claims=self._claims,
        )


def find_anomalies(ledger: Ledger, inputs: Records, results: Records) -> list[Violation]:
    """Compare what was sent with what is committed, and that with its copies; each list has one entry at most."""
    found = []
    try:
        ledger.finish(inputs)
        for place, records in results.items():
            for offset, value in records.items():
                partition, source = source_of(value)
                copy = ledger.begin(f"the copy at {offset} of {place}")
                ledger.sends(copy, place, value, (raylog.TopicPartition(SOURCE, partition), source))
        if missing := ledger.uncopied(inputs, results):
            raise Violation("W26", missing)
    except Violation as violation:
        found.append(violation)
    return found


def _claim(text: str, wrong: Sequence[object], records: Records) -> str:
    """Return a line of the report."""
    count = f", of {_count(records):,}" if records else ""
    return f"{text}: {f'{len(wrong)} times not' if wrong else 'kept'}{count}"


def _count(records: Records) -> int:
    return sum(len(found) for found in records.values())
