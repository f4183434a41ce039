"""Partitions at rest: arithmetic over readings of /proc, the trickle's times, options."""

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.processes import Unavailable
from benchmarks.rest import measure, readings
from benchmarks.rest.command import arguments
from benchmarks.rest.measure import CpuUse, Reading
from benchmarks.rest.trickle import trickle

STAT = (
    "4711 (t-0@1 (of) two) S 4809 4711 4700 0 -1 4194560 5316 0 12 0 30 12 900 800 20 0 14 0 123456 1087 5594 "
    "18446744073709551615 1 1 0 0 0 0 0 16781312 81926 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
)
ACTOR = ["ray::Replica t-0 broker 1", "", ""]
IDLE = ["ray::IDLE", ""]


def test_a_line_of_stat_is_read_whatever_the_name_of_the_process_is() -> None:
    assert measure.read_stat(STAT) == Reading(pid=4711, parent=4809, began=123456, cpu=42)


def test_memory_is_the_proportional_set_size_in_bytes() -> None:
    assert measure.read_pss("7f00-7fff [rollup]\nRss:   2000 kB\nPss:    930 kB\nPss_Dirty:  908 kB\n") == 930 * 1024


def tree(*pairs: tuple[int, int]) -> list[Reading]:
    return [Reading(pid, parent, 0, 0) for pid, parent in pairs]


def test_the_processes_below_one_are_all_its_descendants() -> None:
    found = measure.below(tree((3, 2), (2, 1), (4, 2), (1, 0), (9, 8)), 1)
    assert sorted(reading.pid for reading in found) == [2, 3, 4]


def test_the_children_of_a_process_that_does_not_count_do() -> None:
    found = measure.below(tree((2, 1), (3, 2)), 1, except_for={2})
    assert [reading.pid for reading in found] == [3]


@pytest.mark.parametrize(
    "command",
    [
        ["/site-packages/ray/core/src/ray/gcs/gcs_server", "--log_dir=x"],
        ["/site-packages/ray/core/src/ray/raylet/raylet"],
        ["/bin/python", "-u", "/site-packages/ray/_private/log_monitor.py"],
        ["/tmp/raylog-x/launcher", "/site-packages/ray/_private/workers/default_worker.py"],
        ["ray::DashboardAgent"],
        IDLE,
    ],
)
def test_processes_of_ray_are_apart(command: list[str]) -> None:
    assert measure.is_of_ray(command)


@pytest.mark.parametrize(
    "command",
    [
        ACTOR,
        ["ray::Controller"],
        ["ray::GroupCoordinator"],
        ["python", "-c", "from raylog.actors.processes.fork_server import main; main()", "/tmp/ray/raylog-x"],
        ["java", "-cp", "jars/*", "kafka.Kafka"],
        [],
    ],
)
def test_actors_and_what_makes_them_are_the_server(command: list[str]) -> None:
    assert not measure.is_of_ray(command)


def test_a_process_that_ends_in_the_window_counts_what_it_had() -> None:
    use = CpuUse([Reading(1, 0, 5, 100), Reading(2, 0, 5, 10)])
    use.add([Reading(1, 0, 5, 101), Reading(2, 0, 5, 14)])
    use.add([Reading(1, 0, 5, 102)])
    assert use.ticks() == {(1, 5): 2, (2, 5): 4}


def test_a_process_that_begins_in_the_window_counts_wholly() -> None:
    use = CpuUse([])
    assert use.add([Reading(2, 0, 9, 3)]) == [(2, 9)]
    assert use.add([Reading(2, 0, 9, 5)]) == []
    assert use.ticks() == {(2, 9): 5}


def test_an_id_that_is_used_again_is_another_process() -> None:
    use = CpuUse([Reading(2, 0, 5, 1_000)])
    assert use.add([Reading(2, 0, 9, 3)]) == [(2, 9)]
    assert use.ticks() == {(2, 5): 0, (2, 9): 3}


def test_cpu_time_is_split_between_the_server_and_ray() -> None:
    assert measure.split({(1, 0): 5, (2, 0): 3, (3, 0): 1}, {(1, 0): ACTOR, (2, 0): IDLE}) == (6, 3)


@given(st.integers(2, 20_000))
def test_first_records_go_to_different_partitions_but_the_first(partitions: int) -> None:
    found = measure.first_partitions(partitions)
    assert len(set(found)) == len(found) == min(measure.FIRST_MAX, partitions - 1)
    assert 1 <= min(found) <= max(found) < partitions


@given(st.integers(1, 500), st.sampled_from([0.5, 1.0, 6.0, 60.0]))
def test_a_minute_of_the_trickle_reaches_each_partition_evenly(partitions: int, per_minute: float) -> None:
    count = measure.records_within(120, partitions, per_minute)
    plan = [measure.due(number, partitions, per_minute) for number in range(count)]
    assert count == 2 * partitions * per_minute
    assert {partition for partition, _ in plan} == set(range(partitions))
    own = [after_s for partition, after_s in plan if partition == 0]
    assert all(later - earlier == pytest.approx(60 / per_minute) for earlier, later in pairwise(own))
    assert plan[-1][1] < 120


class Pretended:
    """A writer that acknowledges at once, or refuses, and does not wait."""

    def __init__(self, error: str = "") -> None:
        self.sent: list[int] = []
        self.moments: list[float] = []
        self._error = error

    def send(self, partition: int, value: bytes, timeout_s: float) -> None:
        self.sent.append(partition)

    def send_later(self, partition: int, value: bytes, done: Callable[[str], None]) -> None:
        self.sent.append(partition)
        done(self._error)

    def wait_until(self, moment_s: float) -> None:
        self.moments.append(moment_s)

    def flush(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


def test_the_trickle_sends_each_record_when_it_is_due() -> None:
    writer = Pretended()
    found = trickle(writer, 3, 2.0, 60.0, 1.0, lambda: False)
    assert writer.sent == [0, 1, 2, 0, 1, 2]
    assert [round(moment - writer.moments[0], 6) for moment in writer.moments] == [0, 10, 20, 30, 40, 50]
    assert found["trickle_records"] == 6
    assert found["trickle_p50_ms"] <= found["trickle_p99_ms"] == found["trickle_max_ms"]


def test_a_record_of_the_trickle_that_fails_is_named() -> None:
    with pytest.raises(Unavailable, match="2 of 2 records of the trickle failed, the first because it is full"):
        trickle(Pretended("it is full"), 2, 1.0, 60.0, 1.0, lambda: False)


def test_the_window_counts_processes_below_this_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            both = [readings.at_rest(0.01, left_out, lambda: None) for left_out in ((), (child.pid,))]
        finally:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(30)
    assert both[0]["processes"] - both[1]["processes"] == 1
    assert both[0]["memory_mb"] > both[1]["memory_mb"] >= 0
    assert both[0]["seconds"] >= 0.01


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (["--partitions", "10,many"], "numbers parted by commas"),
        (["--partitions", "1"], "2 or more"),
        (["--peers", "kafak"], "did you mean 'kafka'?"),
        (["--brokers", "3"], "need --peers raylog"),
    ],
)
def test_options_that_cannot_be_are_refused(
    given: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        arguments(given)
    assert complaint in capsys.readouterr().err
