"""Laws of stream reads: over any growth, limits and restarts every record is read once; repeated batches are equal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from raylog.base.errors import InvalidConfig
from raylog.base.ids import TopicPartition
from raylog.spark.reading.admission import Admission, Limits, limited, parse_duration_ms
from raylog.spark.reading.stream_offsets import (
    Selection,
    Span,
    StreamOffsets,
    from_json,
    initial,
    known_begins,
    losses,
    spans_between,
)

PLACES = st.builds(TopicPartition, st.sampled_from(["a", "b", "orders.eu"]), st.integers(0, 12))
BACKLOGS = st.dictionaries(PLACES, st.tuples(st.integers(0, 2**62), st.integers(0, 10**7)), max_size=8)


@given(backlogs=BACKLOGS, limit=st.integers(1, 10**6))
@settings(max_examples=200, deadline=None)
def test_a_limit_is_kept_and_starves_no_partition(backlogs: dict[TopicPartition, tuple[int, int]], limit: int) -> None:
    begins = {place: begin for place, (begin, _) in backlogs.items()}
    ends = {place: begin + size for place, (begin, size) in backlogs.items()}
    found = limited(limit, begins, ends)
    taken = {place: found[place] - begins[place] for place in ends}
    waiting = {place for place, (_, size) in backlogs.items() if size}
    assert found.keys() == ends.keys()
    assert all(found[place] <= ends[place] for place in ends)
    assert all(taken[place] >= 1 for place in waiting)
    small = sum(1 for place in waiting if taken[place] == 1)
    assert sum(taken.values()) <= limit + small
    if sum(size for _, size in backlogs.values()) <= limit:
        assert found == ends
    elif limit >= len(waiting):
        assert sum(taken.values()) > limit - len(waiting)  # rounding loses less than one offset for each


@given(
    offsets=st.dictionaries(PLACES, st.integers(0, 2**63 - 1), max_size=8),
    began=st.none() | st.dictionaries(PLACES, st.integers(0, 2**63 - 1), max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_offsets_survive_their_json_and_have_one_spelling(
    offsets: dict[TopicPartition, int], began: dict[TopicPartition, int] | None
) -> None:
    one = StreamOffsets(offsets, {place.topic: f"id-{place.topic}" for place in offsets}, began)
    text = json.dumps(one.to_json())
    assert from_json(json.loads(text)) == one
    other = StreamOffsets(dict(reversed(offsets.items())), dict(reversed(list(one.ids.items()))), began)
    assert json.dumps(other.to_json()) == text


@given(amount=st.integers(0, 10**6), unit=st.sampled_from(["", "us", "ms", "s", "m", "min", "h", "d"]))
@settings(max_examples=50, deadline=None)
def test_durations_are_read_as_spark_reads_them(amount: int, unit: str) -> None:
    length_us = {"": 1e3, "us": 1, "ms": 1e3, "s": 1e6, "m": 6e7, "min": 6e7, "h": 3.6e9, "d": 8.64e10}[unit]
    assert parse_duration_ms("maxTriggerDelay", f" {amount}{unit.upper()} ") == amount * length_us // 1000


@given(text=st.text(max_size=6).filter(lambda text: not text.strip()[:1].isdecimal()))
@settings(max_examples=50, deadline=None)
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="maxTriggerDelay must"):
        parse_duration_ms("maxTriggerDelay", text)


class SparkQuery(RuleBasedStateMachine):
    """A query as Spark runs it, over logs that grow, with a crash before or after any batch.

    Kept as Spark keeps it: the end of each batch is journaled before it runs; its begin is the end before it, and the
    first begin is not kept at all.
    """

    SELECTION = Selection(pattern="t.*")

    def __init__(self) -> None:
        super().__init__()
        self.logs: dict[TopicPartition, int] = {}
        self.ids: dict[str, str] = {}
        self.read: dict[TopicPartition, int] = {}
        """Up to where each partition was read, from `first`; a batch that goes on elsewhere fails the test."""
        self.first: dict[TopicPartition, int] = {}
        self.journal: list[Any] = []
        self.committed = 0
        self.admission = Admission()
        self.now_ms = 0
        self.start_at_latest = False
        self.ran: dict[int, list[Span]] = {}

    @initialize(partitions=st.integers(0, 3), size=st.integers(0, 20), at_latest=st.booleans())
    def begin(self, partitions: int, size: int, at_latest: bool) -> None:
        self.start_at_latest = at_latest
        for partition in range(partitions):
            self._add("t0", partition, size)
        self.first = dict.fromkeys(self.logs, size if at_latest else 0)
        self.start_json = self._initial_json()

    @rule(chosen=st.integers(0, 100), records=st.integers(1, 50))
    def grow(self, chosen: int, records: int) -> None:
        if self.logs:
            self.logs[sorted(self.logs)[chosen % len(self.logs)]] += records

    @rule(topic=st.sampled_from(["t0", "t1", "t2"]), records=st.integers(0, 9))
    def add_partition(self, topic: str, records: int) -> None:
        self._add(topic, sum(place.topic == topic for place in self.logs), records)

    @rule(limit=st.none() | st.integers(1, 40), minimum=st.none() | st.integers(1, 60), wait_ms=st.integers(0, 700))
    def trigger(self, limit: int | None, minimum: int | None, wait_ms: int) -> None:
        """Plan a batch, journal its end, run it, and commit it, as one that no crash meets."""
        if self._journal_next(limit, minimum, wait_ms):
            self._run_last()
            self.committed = len(self.journal)

    @rule(limit=st.none() | st.integers(1, 40))
    def crash_in_a_batch(self, limit: int | None) -> None:
        """The next run repeats the batch with other starting offsets, and perhaps more partitions and records."""
        if self._journal_next(limit, None, 0):
            self._run_last()
        self.restart()

    @rule()
    def restart(self) -> None:
        """A new process: nothing but the journal is left."""
        self.admission = Admission()
        self.start_json = self._initial_json()
        if self.committed < len(self.journal):
            self._run_last()
            self.committed = len(self.journal)

    @invariant()
    def nothing_is_read_before_it_exists(self) -> None:
        assert all(end <= self.logs[place] for place, end in self.read.items())

    def teardown(self) -> None:
        """Without limits, one more trigger reads all that is left."""
        if self._journal_next(None, None, 0):
            self._run_last()
        assert {place: self.read.get(place, self.first.get(place, 0)) for place in self.logs} == self.logs

    def _add(self, topic: str, partition: int, records: int) -> None:
        self.ids.setdefault(topic, f"id of {topic}")
        self.logs[TopicPartition(topic, partition)] = records

    def _initial_json(self) -> Any:
        """What `initialOffset` returns now; with `latest` another value at each call."""
        return initial(
            {place: end if self.start_at_latest else 0 for place, end in self.logs.items()}, self.ids
        ).to_json()

    def _journal_next(self, limit: int | None, minimum: int | None, wait_ms: int) -> bool:
        self.now_ms += wait_ms
        given = self.journal[-1] if self.journal else self.start_json
        start = from_json(json.loads(json.dumps(given)))
        now = StreamOffsets(dict(self.logs), dict(self.ids))
        assert not list(losses(start, now, self.SELECTION))
        begins = dict.fromkeys(self.logs, 0) | known_begins(start, now.ids)
        limits = Limits(max_offsets=limit, min_offsets=minimum, max_delay_ms=1_000)
        end = self.admission.end(start, now, begins, limits, self.now_ms)
        if limit is not None:
            taken = sum(offset - begins[place] for place, offset in end.offsets.items())
            assert taken <= limit + len(self.logs)
        if self.journal and end is start:
            return False
        if not self.journal:  # Spark runs the first batch even when it is empty
            self.first = dict(start.offsets)
        self.journal.append(end.to_json())
        return True

    def _run_last(self) -> None:
        """Read the last journaled batch; one that was read before must be the same."""
        batch = len(self.journal) - 1
        start = from_json(self.journal[batch - 1] if batch else self._initial_json())
        spans = spans_between(start, from_json(json.loads(json.dumps(self.journal[batch]))))
        if batch in self.ran:
            assert spans == self.ran[batch]
            return
        self.ran[batch] = spans
        for span in spans:
            begin = 0 if span.begin is None else span.begin
            assert begin == self.read.get(span.place, self.first.get(span.place, 0))
            assert begin <= span.end
            self.read[span.place] = span.end


TestSparkQuery = SparkQuery.TestCase
TestSparkQuery.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
