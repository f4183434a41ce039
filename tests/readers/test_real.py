"""A few trials on a real Ray with a real Raylog; `python -m tests.readers` runs hundreds, with Spark's readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.readers.lab import Lab, lab
from tests.readers.trials import Fault, Trial

pytestmark = [
    pytest.mark.long,
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray[.]data"),  # Ray warns of what it sets by itself
]

PLAIN = Trial(
    seed=1,
    reader="ray",
    kind="plain",
    partitions=1,
    rows=100_000,
    value_bytes=100,
    batch_rows=2_000,
    replicas=1,
    tasks=1,
    committed=True,
    fails_on_loss=True,
    near=True,
    faults=(),
)


@pytest.fixture(scope="module")
def running() -> Iterator[Lab]:
    """Ray, three brokers, no Spark."""
    with lab() as found:
        yield found


def trial(seed: int, *faults: Fault, **changes: Any) -> Trial:
    return replace(PLAIN, seed=seed, faults=faults, **changes)


KILLED = Fault("worker", 0.2, 0.0)


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        (trial(7, Fault("leader", 0.1, 0.0), KILLED, replicas=3, kind="transactional"), "exact"),
        (trial(3, Fault("compact", 0.1, 0.0), KILLED, fails_on_loss=False), "WorkerCrashedError"),
        (trial(5, Fault("damage", 0.0, 0.0), replicas=3, reader="columns"), "exact"),
    ],
    ids=lambda value: str(value).partition(":")[0],
)
def test_a_read_is_exact_or_an_error(running: Lab, wanted: Trial, word: str) -> None:
    result = running.run(wanted)
    assert not result.outcome.problem, f"{wanted}: {result.outcome.problem}"
    assert result.outcome.word == word
    if "worker" in wanted.kinds:
        assert result.killed > 0
