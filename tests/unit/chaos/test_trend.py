"""Whether what processes use is flat: growth beyond its bound is found, noise and a warm-up are not."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.chaos.everything import trend
from tests.chaos.everything.usage import CLIENT, Sample, Used, kind_of

COUNT = 80
FLAT = Used(20_000, 50, 9, 30)
FILES = {"log files": 100, "log kB": 1_000, "data kB": 30_000}
Shape = Callable[[int], Used]


def samples(
    shape: Shape,
    process: str = "broker|Broker broker-1|7",
    files: Callable[[int], dict[str, int]] = lambda number: FILES,
) -> list[Sample]:
    """A process that uses what `shape` says at each sample, and another one that is flat."""
    return [
        Sample(30.0 * number, {process: shape(number), "broker|Broker broker-2|8": FLAT}, files(number))
        for number in range(COUNT)
    ]


def growing(found: list[Sample]) -> list[tuple[str, str]]:
    return [(row.kind, row.figure) for row in trend.rows(found) if row.is_judged and not row.is_flat]


def test_noise_around_a_value_is_flat() -> None:
    draw = random.Random(1)
    found = samples(lambda _: Used(20_000 + draw.randint(-3_000, 3_000), 50 + draw.randint(0, 9), 9, 30))
    assert growing(found) == []
    assert trend.anomalies(trend.rows(found)) == []


def test_a_process_may_grow_to_what_it_keeps_and_no_further() -> None:
    def store(end_kb: int) -> list[Sample]:
        return samples(
            lambda number: Used(40_000 + number * (end_kb - 40_000) // COUNT, 50, 9, 30), "store|gcs_server|7"
        )

    assert growing(store(trend.KEPT_KB["store"])) == []
    assert growing(store(trend.KEPT_KB["store"] * 2)) == [("store", "own_kb")]


def test_a_warm_up_is_left_out() -> None:
    assert growing(samples(lambda number: Used(min(20_000, 2_000 * number), 50, min(9, number), 30))) == []


@pytest.mark.parametrize(
    ("figure", "shape"),
    [
        ("own_kb", lambda number: Used(60_000 + 150 * number, 50, 9, 30)),
        ("descriptors", lambda number: Used(20_000, 50 + number // 4, 9, 30)),
        ("threads", lambda number: Used(20_000, 50, 9 + number // 10, 30)),
        ("tasks", lambda number: Used(20_000, 50, 9, 30 + number // 5)),
    ],
)
def test_a_leak_of_one_process_is_found_and_named(figure: str, shape: Shape) -> None:
    found = samples(shape)
    assert growing(found) == [("broker", figure)]
    (anomaly,) = trend.anomalies(trend.rows(found))
    assert "Broker broker-1|7" in anomaly.what


def test_the_clients_memory_is_shown_and_not_judged() -> None:
    shape = [lambda number: Used(20_000 + 1_000 * number, 50, 9, 30), lambda number: Used(20_000, 50 + number, 9, 30)]
    assert growing(samples(shape[0], f"{CLIENT}|{CLIENT}|1")) == []
    assert growing(samples(shape[1], f"{CLIENT}|{CLIENT}|1")) == [(CLIENT, "descriptors")]


@pytest.mark.parametrize("name", FILES)
def test_files_that_grow_are_found(name: str) -> None:
    found = samples(lambda _: FLAT, files=lambda number: {**FILES, name: FILES[name] * (1 + 20 * number)})
    assert growing(found) == [("files", name)]


def test_logs_that_brokers_keep_are_no_growth() -> None:
    found = samples(lambda _: FLAT, files=lambda number: {**FILES, "log files": 60 * number, "log kB": 1_000 * number})
    assert growing(found) == []


def test_processes_that_become_more_are_found() -> None:
    found = [
        Sample(sample.at_s, sample.processes | {f"maker|Maker {n}|{100 + n}": FLAT for n in range(index // 8)}, FILES)
        for index, sample in enumerate(samples(lambda _: FLAT))
    ]
    assert growing(found) == [("maker", "processes")]


def test_tasks_that_are_not_known_are_no_row() -> None:
    found = trend.rows(samples(lambda _: Used(20_000, 50, 9), "relay|raylog outbox run|9"))
    assert [row.figure for row in found if row.kind == "relay"] == ["own_kb", "descriptors", "threads", "processes"]


def test_few_samples_prove_nothing() -> None:
    assert trend.rows(samples(lambda _: FLAT)[:5]) == []


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("ray::Replica jobs-0 broker 2", "replica"),
        ("ray::Replica spare", "spare"),
        ("ray::Broker broker-1 (3 replicas awake, 0 dozing, 0 asleep)", "broker"),
        ("ray::CopyWorker.__init__", "copier"),
        ("/usr/bin/python -m raylog outbox run sqlite:///x --name bank", "relay"),
        ("/usr/lib/ray/core/src/ray/raylet/raylet --raylet_socket_name=x", "raylet"),
        ("sleep 5", "other"),
    ],
)
def test_processes_have_kinds(title: str, kind: str) -> None:
    assert kind_of(title) == kind
