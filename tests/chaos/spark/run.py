"""One run of a streaming query: load its source, injure it and the cluster, heal, drain, and compare all records.

Called by the command. The sources, the reader and the comparison are those of the part ``copies``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from tests.chaos.arena import LeftOut
from tests.chaos.copies.run import CopiesRun, Records
from tests.chaos.copies.worker import RESULTS, SOURCE
from tests.chaos.evidence.checker import Anomaly
from tests.chaos.run import Options
from tests.chaos.sight import wait_until
from tests.chaos.spark.keeper import Keeper
from tests.chaos.spark.query import QuerySpec
from tests.chaos.spark.strikes import faults_of
from tests.chaos.spark.tally import Tally, tally

FIRST_BATCH_S: Final = 300.0
DRIVER_BACK_S: Final = 300.0
"""A driver takes 20 seconds on an idle machine; three brokers and two executors share two cores with it."""
SHOWN: Final = 5


class SparkRun(CopiesRun):
    """State of one run."""

    whole_within_s = DRIVER_BACK_S
    copied_within_s = DRIVER_BACK_S

    def __init__(self, options: Options) -> None:
        """Make the folder; nothing is started yet. Raises :class:`LeftOut` where this part cannot run."""
        if find_spec("pyspark") is None:
            raise LeftOut("the spark part was left out: PySpark is not installed.")
        super().__init__(options)
        self._keeper = Keeper(self._spec, self._folder / "driver.log")

    def _spec(self, life: int) -> QuerySpec:
        options = self._options
        return QuerySpec(
            bootstrap=self._arena.bootstrap(),  # type: ignore[attr-defined]  # this part's arena is one in Ray
            secret=self._arena.secret(),
            source=SOURCE,
            results=RESULTS,
            checkpoint=str(self._folder / "checkpoint"),
            guarantee="at-least-once" if options.at_least_once else "exactly-once",
            life=life,
        )

    def _prepare_faults(self) -> None:
        self._arena.faults = faults_of(self._arena, self._keeper)  # type: ignore[arg-type]  # likewise

    def _start_workers(self) -> None:
        """Start the query, and wait for its first micro-batch."""
        self._keeper.start()
        self._phase = "waiting for the first micro-batch"
        if not wait_until(lambda: self._keeper.batches > 0, FIRST_BATCH_S):
            self._hangs.append(f"no micro-batch within {FIRST_BATCH_S:.0f} s: {self._keeper.failures[-1:]}")

    def _end_workers(self) -> list[str]:
        keeper = self._keeper
        ended = keeper.end()
        self._remarks.append(
            f"{keeper.life} drivers, {keeper.batches:,} micro-batches with {keeper.rows:,} rows; "
            f"{len(keeper.failures)} drivers ended by an error"
        )
        self._remarks += keeper.failures[:SHOWN]
        return [] if ended else ["the driver"]

    def _uncopied(self, inputs: Records) -> str:
        """Return how many records have no copy yet that the reader has got; "" = each has one."""
        missing = tally(inputs, self._workload.read_of(RESULTS)).lost
        return f"{len(missing):,} records are not copied, the first {missing[0]}" if missing else ""

    def _anomalies(self, inputs: Records, results: Records) -> list[Anomaly]:
        """Every record that is not there exactly once, besides the claims about order and transactions."""
        found: Tally = tally(inputs, results)
        self._remarks.append(f"{found.once:,} records are there once")
        return found.anomalies()
