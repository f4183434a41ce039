"""Topics share the room of full brokers: a reader of many partitions does not keep those of others asleep."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.base.errors import TooManyAwake
from raylog.base.ids import TopicPartition
from raylog.core.controller.events import RequestSleep
from raylog.core.controller.wake_queue import in_turns
from tests.unit.core.controller.bench import Bench
from tests.unit.core.controller.sleep_bench import SLEEPS, propose, wake

ROOM, MANY = 4, 20
Idle = Callable[[int], int]
"""For how long a partition of the large topic has not been used, by its number, in milliseconds."""


def is_awake(bench: Bench, topic: str, number: int) -> bool:
    return bench.image.topics[topic].partitions[number].asleep is None


def request(bench: Bench, topic: str, number: int) -> None:
    if not is_awake(bench, topic, number):
        try:
            wake(bench, topic, [number])
        except TooManyAwake:
            pass  # a broker repeats it
    if is_awake(bench, topic, number):
        at = TopicPartition(topic, number)
        if (at, 1) not in bench.sessions:
            bench.replica(1, at)


def crowded() -> Bench:
    """A broker whose room one topic has taken."""
    bench = Bench().start({"replica.awake.max": str(ROOM)})
    bench.broker(1)
    bench.create("many", assignment=[[1]] * MANY, config=SLEEPS)
    bench.create("few", assignment=[[1]] * 3, config=SLEEPS)
    for number in range(MANY):
        request(bench, "many", number)
    return bench


def a_second_passes(bench: Bench, idle_ms: Idle) -> None:
    """Leaders of the large topic do what the controller requests, and its reader requests all that sleeps."""
    requested = {(found.session, found.idle_ms) for found in bench.wait(1_000) if isinstance(found, RequestSleep)}
    for number in range(MANY):
        at = TopicPartition("many", number)
        session = bench.sessions.get((at, 1))
        if is_awake(bench, "many", number) and any(
            session_of == session and idle_ms(number) >= least_ms for session_of, least_ms in requested
        ):
            propose(bench, 1, partition=at)
            bench.lose_replica(1, at)
    for number in range(MANY):
        request(bench, "many", number)


@pytest.mark.parametrize(
    ("idle_ms", "within_s"),
    [(6_000, 8), (3_000, 8), (0, 18)],
    ids=["what is read once", "what is read each three seconds", "what is read without a pause"],
)
def test_the_first_partition_of_another_topic_waits_for_one_place(idle_ms: int, within_s: int) -> None:
    bench = crowded()
    assert not any(is_awake(bench, "few", number) for number in range(3))
    for _ in range(within_s):
        request(bench, "few", 0)
        a_second_passes(bench, lambda number: idle_ms)
        if is_awake(bench, "few", 0):
            break
    assert is_awake(bench, "few", 0)


def test_each_topic_gets_an_equal_part_and_a_busy_one_keeps_its_own() -> None:
    bench = crowded()
    for _ in range(60):
        for number in range(3):
            request(bench, "few", number)
        a_second_passes(bench, lambda number: 0)
    assert sum(is_awake(bench, "few", number) for number in range(3)) == ROOM // 2, "and no more: the others are used"
    assert sum(is_awake(bench, "many", number) for number in range(MANY)) == ROOM // 2


def test_nothing_is_pressed_where_no_topic_has_more_than_a_share() -> None:
    bench = Bench().start({"replica.awake.max": "2"})
    bench.broker(1)
    for topic in ("a", "b", "c"):
        bench.create(topic, assignment=[[1]], config=SLEEPS)
        request(bench, topic, 0)
    effects = []
    for _ in range(30):
        request(bench, "c", 0)
        effects += bench.wait(1_000)
    assert {found.idle_ms for found in effects if isinstance(found, RequestSleep)} == {5_000}


@pytest.fixture(scope="module")
def five_topics() -> Bench:
    """Five topics of ten partitions that sleep, but for two of the first."""
    bench = Bench().start()
    bench.broker(1)
    for number in range(5):
        bench.create(f"t{number}", assignment=[[1]] * 10, config=SLEEPS)
    wake(bench, "t0", [8, 9])
    return bench


@given(rows=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 7)), unique=True, max_size=30))
def test_none_waits_for_more_than_one_place_of_each_other_topic(
    five_topics: Bench, rows: list[tuple[int, int]]
) -> None:
    states = [five_topics.image.topics[f"t{topic}"].partitions[number] for topic, number in rows]
    order = in_turns(states, five_topics.image)
    assert len(order) == len(states)
    held = Counter({"t0": 2})
    for state in order:
        topic = state.partition.topic
        rest = [each for each in states if each not in order[: order.index(state)]]
        assert state == next(each for each in rest if each.partition.topic == topic), "the first request first"
        assert held[topic] == min(held[each.partition.topic] for each in rest)
        held[topic] += 1
