"""A day in minutes: its pattern, its settings, what a broker states, and its picture."""

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.report.results import Measured, Results
from benchmarks.rest.day.__main__ import arguments, config
from benchmarks.rest.day.pattern import DAY_S, HABITS, HOUR_S, day, habit_of, moment
from benchmarks.rest.day.picture import draw, samples_of
from benchmarks.rest.day.watching import states

PARTITIONS = 1000


def test_the_same_seed_is_the_same_day_in_order() -> None:
    records = day(PARTITIONS, 1)
    assert records == day(PARTITIONS, 1) == sorted(records)
    assert records != day(PARTITIONS, 2)
    assert all(0 <= record.at_s <= DAY_S and 0 <= record.partition < PARTITIONS for record in records)


def test_a_few_partitions_are_busy_and_most_are_rare() -> None:
    habits = Counter(habit_of(partition, PARTITIONS).name for partition in range(PARTITIONS))
    assert habits == {"busy": 20, "hourly": 80, "rare": 900}
    written = Counter(habit_of(record.partition, PARTITIONS).name for record in day(PARTITIONS, 1))
    for habit in HABITS:
        assert written[habit.name] == pytest.approx(habits[habit.name] * habit.per_day, rel=0.2)


def test_the_night_is_quiet_and_the_morning_has_a_rush() -> None:
    hours = Counter(int(record.at_s // HOUR_S) for record in day(PARTITIONS, 1))
    assert max(hours[hour] for hour in range(6)) < min(hours[hour] for hour in range(7, 18))
    assert max(hours, key=lambda hour: hours[hour]) in (8, 9)


def test_the_first_record_comes_at_midnight_and_the_last_before_the_next() -> None:
    assert moment(0.0) == 0.0
    assert moment(1.0) == DAY_S


def test_all_times_are_divided_as_the_day_is() -> None:
    found = config(arguments(["--minutes", "12", "--sleep-after", "1800", "--doze-after", "60"]))
    assert (found["replica.sleep.after.ms"], found["replica.doze.after.ms"]) == ("15000", "500")


def test_no_replica_dozes_when_that_is_turned_off() -> None:
    assert config(arguments(["--doze-after", "-1"]))["replica.doze.after.ms"] == "-1"


def test_no_time_is_shorter_than_a_broker_takes() -> None:
    found = config(arguments(["--minutes", "1", "--sleep-after", "60", "--doze-after", "0"]))
    assert (found["replica.sleep.after.ms"], found["replica.doze.after.ms"]) == ("1000", "100")


PAGE = """\
# TYPE raylog_replicas gauge
raylog_replicas{broker="1",role="leader"} 7
raylog_replicas{broker="1",role="starting"} 2
raylog_replicas{broker="1",role="asleep"} 991
# TYPE raylog_replicas_dozing gauge
raylog_replicas_dozing{broker="1"} 4
"""


def test_the_states_are_those_that_the_broker_states() -> None:
    assert states(PAGE) == {"awake": 5, "dozing": 4, "asleep": 991}


def results(rounds: list[dict[str, float]]) -> Results:
    measured = [Measured("day", "10 partitions, RF 1", "raylog", "cpu_cores", rounds)]
    return Results({}, {}, {"partitions": 10, "minutes": 12.0}, measured)


def test_a_run_without_samples_has_no_picture() -> None:
    with pytest.raises(ValueError, match="no samples"):
        samples_of(results([]))


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_picture_of_the_same_samples_is_the_same(tmp_path: Path) -> None:
    sample = {"awake": 1.0, "dozing": 2.0, "asleep": 7.0, "cpu_cores": 0.1, "ray_cpu_cores": 0.1}
    rounds = [{"hour": hour, **sample, "memory_mb": 9.0, "ray_memory_mb": 3.0} for hour in (12.0, 24.0)]
    for name in ("one.svg", "two.svg"):
        draw(results(rounds), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
