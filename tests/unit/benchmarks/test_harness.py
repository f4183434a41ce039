"""The harness without servers: options, rounds in turn, and what happens to a contestant that fails."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks import even_start, loads
from benchmarks.bench import QUICK, Bench, Contestant
from benchmarks.clients.base import Client, Unsupported
from benchmarks.job import Job, Outcome
from benchmarks.page import make_peers
from benchmarks.peers.processes import ServerProcess, Unavailable
from benchmarks.report.results import Results

A, B = Contestant("a", "", ""), Contestant("b", "", "")
ONCE = Contestant("c", "redis", "redis")


PACE = replace(QUICK, rounds=2, touched_bytes=0)


@pytest.fixture(autouse=True)
def _nothing_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even_start, "write_out", lambda: None)  # of the whole machine


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench([], PACE, Results({}, {}, {}), tmp_path)


def test_contestants_are_measured_in_turn(bench: Bench) -> None:
    order = []

    def measure(one: Contestant) -> Outcome:
        order.append(one.name)
        return {"rate": 1.0, "records": 1}

    bench.rounds("produce", "a case", [A, B], measure)
    assert order == ["a", "b", "a", "b"]
    assert [len(row.rounds) for row in bench.results.measured] == [2, 2]


def test_cases_that_are_compared_take_turns_too(bench: Bench) -> None:
    order = []

    def measuring(case: str) -> Callable[[Contestant], Outcome]:
        def measure(one: Contestant) -> Outcome:
            order.append(one.name + case)
            return {"rate": 1.0}

        return measure

    bench.rounds_in_turn("growth", {"1": measuring("1"), "2": measuring("2")}, [A, B])
    assert order == ["a1", "b1", "a2", "b2"] * 2


def test_one_that_fails_in_a_case_goes_on_in_the_others(bench: Bench) -> None:
    def fail(_: Contestant) -> Outcome:
        raise Unavailable("the disk is full")

    bench.rounds_in_turn("growth", {"1": fail, "2": lambda _: {"rate": 1.0}}, [A])
    assert [(row.case, row.left_out, len(row.rounds)) for row in bench.results.measured] == [
        ("1", "the disk is full", 0),
        ("2", "", 2),
    ]


def test_a_quick_run_measures_once_what_no_goal_names(bench: Bench) -> None:
    bench.rounds("produce", "a case", [A, ONCE], lambda _: {"rate": 1.0})
    assert [len(row.rounds) for row in bench.results.measured] == [2, 1]


def test_when_the_time_is_over_every_case_that_began_has_one_round(tmp_path: Path) -> None:
    late = Bench([], replace(PACE, limit_s=0.0), Results({}, {}, {}), tmp_path)
    late.rounds("produce", "a case", [A, B], lambda _: {"rate": 1.0})
    assert [len(row.rounds) for row in late.results.measured] == [1, 1]


def test_one_that_fails_is_left_out_with_its_reason_and_the_other_goes_on(bench: Bench) -> None:
    def measure(one: Contestant) -> Outcome:
        if one is A:
            raise Unavailable("it is not here")
        return {"rate": 1.0}

    bench.rounds("produce", "a case", [A, B], measure)
    first, second = bench.results.measured
    assert (first.left_out, first.rounds, len(second.rounds)) == ("it is not here", [], 2)


def test_the_queue_of_ray_brings_raylog_along(tmp_path: Path) -> None:
    names = [peer.name for peer in make_peers(["ray.util.queue"], tmp_path, 1)]
    assert names == ["raylog", "ray.util.queue"]


def test_a_server_that_ends_is_unavailable_with_its_last_words(tmp_path: Path) -> None:
    server = ServerProcess("a server", ["sh", "-c", "echo no such setting"], tmp_path / "out")
    server.start()
    with pytest.raises(Unavailable, match="a server ended: no such setting"):
        server.wait_until(lambda: False, 30)
    server.stop()


class Pretended(Client):
    """Stores what it is sent in a list that all clients share."""

    stored_values: list[bytes] = []  # noqa: RUF012  # shared on purpose: it is the server

    def open_producer(self) -> None:
        pass

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        self.stored_values.extend(payloads)

    def flush(self) -> None:
        pass

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        self.at = len(self.stored_values) if at_end else 0

    def take(self, timeout_s: float) -> tuple[int, int]:
        values = self.values(timeout_s)
        return len(values), sum(map(len, values))

    def values(self, timeout_s: float) -> list[bytes]:
        found = self.stored_values[self.at :]
        self.at += len(found)
        return found

    def rewind(self) -> None:
        self.at = 0

    def stored(self) -> int:
        return len(self.stored_values)

    def close(self) -> None:
        pass


@pytest.fixture
def job() -> Job:
    Pretended.stored_values.clear()
    return Job(load="", client="", topic="t", warmup_s=0.01, seconds=0.02)


def test_a_producer_counts_what_is_stored_and_leaves_the_warm_up_out(job: Job) -> None:
    found = loads.produce(job, Pretended, lambda: None)
    assert found["records"] == found["stored"] > 0
    assert Pretended.stored_values[found["records"] :], "the warm-up has sent something, too"


class InParts(Pretended):
    """Gives ten values at a time."""

    def values(self, timeout_s: float) -> list[bytes]:
        found = self.stored_values[self.at : self.at + 10]
        self.at += len(found)
        return found


def test_a_consumer_reads_the_topic_again_until_its_time_is_over(job: Job) -> None:
    Pretended.stored_values.extend([b"v" * 10] * 100)
    found = loads.consume(replace(job, count=100, seconds=0.5), InParts, lambda: None)
    assert found["once"] == 100
    assert found["bytes"] == 10 * found["records"] > 10 * found["once"]


def test_the_first_records_of_a_pass_are_not_measured(job: Job) -> None:
    Pretended.stored_values.extend([b"v" * 10] * 100)
    found = loads.consume(replace(job, count=100, seconds=5.0, once=True), InParts, lambda: None)
    assert (found["once"], found["records"], found["bytes"]) == (100, 90, 900)
    assert found["seconds"] < 5


def test_a_slow_consumer_is_measured_with_what_it_has_read_in_its_time(job: Job) -> None:
    class Slow(InParts):
        def values(self, timeout_s: float) -> list[bytes]:
            time.sleep(0.01)
            return super().values(timeout_s)

    Pretended.stored_values.extend([b"v" * 10] * 100_000)
    found = loads.consume(replace(job, count=100_000), Slow, lambda: None)
    assert "once" not in found
    assert 0 < found["records"] < 1_000


def test_a_consumer_that_misses_records_has_no_rate(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "SILENCE_S", 0.01)
    Pretended.stored_values.extend([b"v"] * 99)
    with pytest.raises(Unsupported, match="read 99 of 100 records"):
        loads.consume(replace(job, count=100, warmup_s=0.0, seconds=5.0), Pretended, lambda: None)


def test_latency_counts_from_the_due_time_and_excludes_the_warm_up(job: Job) -> None:
    now_ns = time.monotonic_ns()
    late = [loads.STAMP.pack(now_ns - 50_000_000, True), loads.STAMP.pack(now_ns - 9_000_000_000, False)]

    class Late(Pretended):
        def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
            self.at = 0
            self.polls = 0

        def values(self, timeout_s: float) -> list[bytes]:
            self.polls += 1
            return late if self.polls == 2 else []

    found = loads.follow(replace(job, count=2), Late, lambda: None)
    assert 50 <= found["p50_ms"] == found["max_ms"] < 5_000


def test_a_pace_sends_every_record_at_or_after_its_time(job: Job) -> None:
    loads.pace(replace(job, rate=10_000, count=100, warmup_s=0.005, size=32), Pretended, lambda: None)
    stamps = [loads.STAMP.unpack_from(value) for value in Pretended.stored_values]
    assert len(stamps) == 100
    assert [later - earlier for (earlier, _), (later, _) in pairwise(stamps)] == [100_000] * 99
    assert [counts for _, counts in stamps] == [False] * 50 + [True] * 50


def test_files_stay_as_they_are_when_their_pages_leave_the_cache(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "0.log"
    path.write_bytes(b"v" * 100_000)
    even_start.warm_memory([tmp_path], 1 << 20)
    assert path.read_bytes() == b"v" * 100_000
