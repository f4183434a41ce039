"""The status is answered in the step in which it is requested, whatever the cluster waits for.

Neither wakes nor starts nor refusals come before it or hold it up.
"""

import pytest

from raylog.base.errors import TooManyAwake
from tests.unit.core.controller.bench import AWAKE, Bench
from tests.unit.core.controller.sleep_bench import SLEEPS, wake

MANY = 300


def brokers_online(bench: Bench, count: int = 3) -> list[object]:
    """Brokers by the status, which :meth:`Bench.described` gets in one step."""
    found = bench.described()["brokers"]
    assert isinstance(found, list)
    assert len(found) == count
    return found


def started(**config: str) -> Bench:
    bench = Bench().start(config)
    for broker in (1, 2, 3):
        bench.broker(broker)
    return bench


def placed(count: int) -> list[list[int]]:
    return [[1 + number % 3, 1 + (number + 1) % 3, 1 + (number + 2) % 3] for number in range(count)]


def test_it_is_answered_while_brokers_are_at_their_limit() -> None:
    bench = started(**SLEEPS, **{"replica.awake.max": "1"})
    bench.create(assignment=placed(3))
    assert wake(bench, partitions=[0]) == [1]
    for number in (1, 2):
        with pytest.raises(TooManyAwake, match="has 1 replicas awake and may have 1"):
            wake(bench, partitions=[number])
        assert bench.described()["asleep_partitions"] == 2
        brokers_online(bench)


def test_it_is_answered_while_many_partitions_start() -> None:
    bench = started(**AWAKE)
    bench.create(assignment=placed(MANY))
    leaderless = bench.described()["leaderless_partitions"]
    assert isinstance(leaderless, list)
    assert len(leaderless) == MANY
    brokers_online(bench)


def test_it_is_answered_between_any_two_replicas_that_start() -> None:
    bench = started(**SLEEPS)
    bench.create(assignment=placed(2))
    wake(bench)
    for broker in (1, 2, 3):
        bench.replica(broker)
        brokers_online(bench)
    assert bench.described()["asleep_partitions"] == 0


def test_it_is_answered_while_all_partitions_wake_and_time_passes() -> None:
    bench = started(**SLEEPS)
    bench.create(assignment=placed(MANY))
    assert wake(bench) == [MANY]
    for _ in range(3):
        bench.wait(1_000)
        brokers_online(bench)
    assert bench.described()["asleep_partitions"] == 0
