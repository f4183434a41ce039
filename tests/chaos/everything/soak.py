"""The same clients without faults, for hours: what every process uses has to be flat.

Called by the command. Retention deletes what was read, so that the data is flat as well; so everything is judged by
what readers got in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

import raylog
from tests.chaos.copies.run import Records
from tests.chaos.copies.worker import RESULTS, SOURCE
from tests.chaos.copies.workload import CopiesWorkload
from tests.chaos.everything import trend, usage
from tests.chaos.everything.run import SOURCE_PAUSE_S, EverythingRun
from tests.chaos.evidence.checker import Anomaly
from tests.chaos.injuries.faults import Nemesis
from tests.chaos.run import DRAIN_S
from tests.chaos.sight import wait_until

SAMPLES: Final = 240
"""In the whole run."""
PAUSE_S: Final = (2.0, 30.0)
"""Shortest and longest time between two."""
RETENTION_MS: Final = 180_000
SHOWN_EVERY: Final = 20


class SoakRun(EverythingRun):
    """State of one run."""

    kills_relays = False
    _grown: Sequence[Anomaly] = ()
    topic_config: ClassVar[Mapping[str, object]] = {
        "segment.bytes": 65_536,
        "retention.ms": RETENTION_MS,
        "file.delete.delay.ms": 5_000,
    }
    cluster_config: ClassVar[Mapping[str, object]] = {"log.retention.check.interval.ms": 15_000}

    def _new_workload(self) -> CopiesWorkload:
        options = self._options
        return CopiesWorkload(
            self._history,
            seed=options.seed,
            partitions=options.partitions,
            sources=1,
            clients=self._arena.clients,
            pause_s=SOURCE_PAUSE_S,
            topics=(SOURCE, RESULTS),
        )

    def _injure(self, nemesis: Nemesis) -> None:
        """Inject nothing, and look at all processes."""
        import ray

        pickled: Any = ray.cloudpickle
        pickled.register_pickle_by_value(usage)  # Ray's workers do not import from this folder
        self._wake(nemesis)
        self._phase = "at rest"
        samples: list[usage.Sample] = []
        span_s = self._options.minutes * 60
        pause_s = min(max(span_s / SAMPLES, PAUSE_S[0]), PAUSE_S[1])
        ends_s = self._history.now_s() + span_s
        encoder = msgspec.json.Encoder()
        with (self._folder / "usage.jsonl").open("wb") as file:
            while self._history.now_s() < ends_s and not self._scene.errors:
                self._over.wait(pause_s)
                sample = usage.take(self._history.now_s(), self._folder / "data")
                samples.append(sample)
                file.write(encoder.encode(sample) + b"\n")
                file.flush()
                if len(samples) % SHOWN_EVERY == 0:
                    print("\n".join(f"  {row}" for row in trend.rows(samples)), flush=True)
        found = trend.rows(samples)
        self._claims += [str(row) for row in found]
        self._grown = trend.anomalies(found)
        if not found:
            self._doubts.append(f"{len(samples)} samples prove nothing")
        self._remarks.append(f"{len(samples)} samples, {pause_s:.0f} s apart")

    def _drained(self, topic: str) -> Records:
        """Wait until no transaction is open in a topic and its reader has got everything; returns what it has got."""
        places = self._places(topic)
        with self._consumer() as committed, raylog.Consumer(**self._arena.clients()) as plain:
            if not wait_until(lambda: committed.end_offsets(places) == plain.end_offsets(places), DRAIN_S):
                self._hangs.append(f"a transaction of {topic} hangs")
            if not wait_until(lambda: self._is_read(committed, places), DRAIN_S):
                self._hangs.append(f"{topic} was not read to its end")
        return self._workload.read_of(topic)

    def _is_read(self, consumer: raylog.Consumer, places: list[raylog.TopicPartition]) -> bool:
        """Whether no record lies behind those that the reader has got."""
        ends = consumer.end_offsets(places)
        consumer.assign(places)
        for place in places:
            consumer.seek(place, max(self._workload.read[place], default=-1) + 1)
        while any(consumer.position(place) < ends[place] for place in places):
            if consumer.poll(300):
                return False
        return True

    def _anomalies(self, inputs: Records, results: Records) -> list[Anomaly]:
        return [*super()._anomalies(inputs, results), *self._grown]
