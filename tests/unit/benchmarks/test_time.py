"""The time of a run: each scenario's share, what is kept when it is over, and topics that leave in time."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import even_start, page
from benchmarks.bench import QUICK, Bench, Contestant, TimeIsOver
from benchmarks.job import Outcome
from benchmarks.peers.processes import Unavailable
from benchmarks.report.results import Results
from benchmarks.scenarios import registry

OURS = Contestant("raylog send", "raylog", "raylog")
OTHER = Contestant("aiokafka", "kafka", "aiokafka")
NEEDED = Contestant("kafka-python", "kafka", "kafka_python")


class Pretended:
    """A server that remembers its topics."""

    name = "raylog"

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.is_up = False
        self.starts = 0

    def start(self) -> None:
        self.is_up = True
        self.starts += 1

    def stop(self) -> None:
        self.is_up = False

    def runs(self) -> bool:
        return self.is_up

    def address(self) -> dict[str, str]:
        return {}

    def create_topic(self, name: str, partitions: int, replication: int, *, fsync: bool) -> None:
        self.topics.append(name)

    def delete_topic(self, name: str) -> None:
        self.topics.remove(name)

    def pids(self) -> list[int]:
        return []

    def replica_pids(self) -> list[int]:
        return []

    def kill_leader(self, topic: str) -> None:
        raise Unavailable(topic)

    def heal(self) -> None:
        pass

    def folder(self) -> Path:
        return Path()

    def describe(self) -> dict[str, str]:
        return {}


@pytest.fixture
def server() -> Pretended:
    return Pretended()


@pytest.fixture(autouse=True)
def _nothing_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even_start, "write_out", lambda: None)  # of the whole machine


@pytest.fixture
def bench(server: Pretended, tmp_path: Path) -> Bench:
    made = Bench([server], replace(QUICK, limit_s=100.0, touched_bytes=0), Results({}, {}, {}), tmp_path)
    made.start()
    return made


def one_second(_: Contestant) -> Outcome:
    return {"rate": 1.0}


def test_the_shares_of_all_scenarios_are_the_whole_time() -> None:
    names = list(registry.SCENARIOS)
    left, parts = 1.0, []
    for number, name in enumerate(names):
        parts.append(left * registry.share_of(name, names[number + 1 :]))
        left -= parts[-1]
    assert sum(parts) == pytest.approx(1.0)
    assert left == pytest.approx(0.0)


def test_every_scenario_has_a_weight() -> None:
    assert registry.WEIGHTS.keys() == registry.SCENARIOS.keys()


def test_past_its_share_a_goal_has_one_round_and_others_state_why_none(bench: Bench) -> None:
    bench.begin(0.0)
    assert bench.is_late()
    bench.rounds("produce", "a case", [OURS, OTHER, NEEDED], one_second)
    ours, other, needed = bench.results.measured
    assert (len(ours.rounds), len(other.rounds), other.left_out) == (1, 0, "the time was over")
    assert len(needed.rounds) == 1


def test_the_next_scenario_has_time_again(bench: Bench) -> None:
    bench.begin(0.0)
    bench.begin(1.0)
    assert not bench.is_late()


def test_a_server_that_has_ended_is_started_again_for_the_next_scenario(bench: Bench, server: Pretended) -> None:
    server.is_up = False
    bench.begin(1.0)
    assert (server.is_up, server.starts) == (True, 2)


def test_a_quick_run_uses_a_topic_again_until_topics_are_dropped(bench: Bench, server: Pretended) -> None:
    for _ in range(2):
        with bench.topic([OURS], 1, 1):
            assert server.topics == ["bench-1"]
    bench.drop_topics()
    assert server.topics == []
    with bench.topic([OURS], 1, 1):
        assert server.topics == ["bench-2"]


def test_a_fresh_topic_leaves_at_once(bench: Bench, server: Pretended) -> None:
    with bench.topic([OURS], 1, 1, fresh=True):
        assert len(server.topics) == 1
    assert server.topics == []


def run_scenarios(bench: Bench, monkeypatch: pytest.MonkeyPatch, **found: Callable[[Bench], None]) -> dict[str, str]:
    monkeypatch.setattr(page, "SCENARIOS", found)
    monkeypatch.setattr(registry, "WEIGHTS", dict.fromkeys(found, 1))
    page.measure(bench, list(found))
    return bench.results.left_out


def test_a_run_that_is_broken_off_keeps_what_it_has_and_names_the_rest(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begins(bench: Bench) -> None:
        bench.rounds("create", "a case", [OURS], one_second)
        bench.break_off()

    left_out = run_scenarios(bench, monkeypatch, create=begins, failover=lambda _: None, restart=lambda _: None)
    assert list(left_out) == ["the rest of create", "scenario failover", "scenario restart"]
    assert bench.results.measured[0].rounds


def test_nothing_takes_the_end_of_the_time_for_its_own_failure(bench: Bench) -> None:
    with pytest.raises(TimeIsOver):
        bench.rounds("produce", "a case", [OURS], lambda _: bench.break_off())


def test_after_a_run_was_broken_off_no_topic_is_waited_for(bench: Bench, server: Pretended) -> None:
    with pytest.raises(TimeIsOver), bench.topic([OURS], 1, 1, fresh=True):
        bench.break_off()
    assert server.topics == ["bench-1"]


def test_a_scenario_that_fails_says_why_and_the_next_one_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Bench) -> None:
        raise ValueError("a mistake")

    ran = []
    left_out = run_scenarios(bench, monkeypatch, create=fail, restart=lambda _: ran.append(time.monotonic()))
    assert left_out == {"scenario create": "a mistake"}
    assert ran
