"""Brokers with as many replicas as they may have: what is refused, and with which sentence, and how room is made."""

import pytest

from raylog.base.errors import InvalidPartitions, TooManyAwake
from raylog.base.ids import TopicPartition
from raylog.core.controller.events import RequestSleep
from raylog.core.controller.wake_queue import REQUEST_LASTS_MS
from raylog.core.metadata.capacity import Capacity
from raylog.protocol.admin import AlterTopicConfigRequest, CreatePartitionsRequest
from tests.unit.core.controller.bench import Bench
from tests.unit.core.controller.sleep_bench import SLEEPS, propose, wake

GIB = 1 << 30
NEVER = {"replica.sleep.after.ms": "-1"}
T1 = TopicPartition("flights", 1)
ROOMY = Capacity(memory_bytes=24 * GIB, cores=2, open_files=65_536, can_doze=True)


def brokers(
    config: dict[str, str] | None = None, count: int = 3, *, capacity: Capacity = ROOMY, node: str = ""
) -> Bench:
    bench = Bench().start(config)
    for broker in range(1, count + 1):
        bench.broker(broker, capacity=capacity, node=node)
    return bench


def two_sleepers(limit: int) -> Bench:
    """Two partitions that sleep, each on brokers 1, 2, 3."""
    bench = brokers({"replica.awake.max": str(limit)})
    bench.create(assignment=[[1, 2, 3], [2, 3, 1]], config=SLEEPS)
    return bench


def awake(bench: Bench) -> list[int]:
    """The numbers of the topic's partitions that are awake."""
    return [state.partition.partition for state in bench.image.topics["flights"].partitions if state.asleep is None]


def run(bench: Bench, partition: int) -> None:
    for broker in (1, 2, 3):
        bench.replica(broker, TopicPartition("flights", partition))


def test_a_full_broker_refuses_a_wake_with_its_numbers() -> None:
    bench = two_sleepers(limit=1)
    wake(bench, partitions=[0])
    run(bench, 0)
    with pytest.raises(TooManyAwake, match=r"flights-1 stays asleep: broker 2 has 1 replicas awake and may have 1 "
                                           r"\(replica\.awake\.max\)") as refusal:  # fmt: skip
        wake(bench, partitions=[1])
    assert refusal.value.details == {"broker": 2, "awake": 1, "limit": 1}
    assert awake(bench) == [0]


def test_a_refused_wake_has_the_leaders_on_the_full_broker_make_room() -> None:
    bench = two_sleepers(limit=1)
    wake(bench, partitions=[0])
    run(bench, 0)
    with pytest.raises(TooManyAwake):
        wake(bench, partitions=[1])
    requested = [(found.session, found.idle_ms) for found in bench.effects if isinstance(found, RequestSleep)]
    assert requested == [(bench.sessions[TopicPartition("flights", 0), 1], 5_000)]


def test_as_many_as_have_room_wake_and_the_answer_counts_them() -> None:
    bench = two_sleepers(limit=1)
    assert wake(bench) == [1]
    assert awake(bench) == [0]


def test_a_broker_with_room_for_all_wakes_all() -> None:
    assert wake(two_sleepers(limit=2)) == [2]


def test_the_brokers_of_one_machine_share_what_it_bears() -> None:
    small = Capacity(memory_bytes=GIB, cores=1, can_doze=True)  # 29 replicas
    alone, together = brokers(capacity=small), brokers(capacity=small, node="node")
    for bench, refused in ((alone, 30), (together, 10)):
        with pytest.raises(InvalidPartitions, match=f"would have {refused} replicas awake and may have {refused - 1} "):
            bench.create(assignment=[[1]] * refused, config=NEVER)
        bench.create(assignment=[[1]] * (refused - 1), config=NEVER)


def test_a_broker_that_is_lost_leaves_its_share_to_the_others() -> None:
    bench = brokers(capacity=Capacity(memory_bytes=GIB, cores=1, can_doze=True), node="node")
    bench.lose(("broker", 3))
    bench.create(assignment=[[1]] * 14, config=NEVER)


@pytest.mark.parametrize(
    ("config", "capacity", "count", "why"),
    [
        ({}, ROOMY, 717, r"may have 716 \(70 % of its machine's 24\.0 GiB of memory, 24 MiB each\)"),
        ({"replica.doze.after.ms": "-1"}, ROOMY, 201, r"may have 200 \(100 for each of its machine's 2 cores, as"),
        ({}, Capacity(memory_bytes=24 * GIB, cores=1), 101, r"may have 100 \(100 for each of its machine's 1 cores"),
        ({}, Capacity(open_files=1_024), 129, r"may have 128 \(half of the 1,024 files"),
        ({"replica.awake.max": "4"}, ROOMY, 5, r"may have 4 \(replica\.awake\.max\)"),
        ({"replica.awake.max": "900"}, Capacity(open_files=1_024), 129, r"may have 128 \(half of the 1,024 files"),
    ],
)
def test_what_never_sleeps_is_refused_with_the_bound_that_counts(
    config: dict[str, str], capacity: Capacity, count: int, why: str
) -> None:
    bench = brokers(config, count=1, capacity=capacity)
    with pytest.raises(InvalidPartitions, match=why):
        bench.create(assignment=[[1]] * count, config=NEVER)
    assert "flights" not in bench.image.topics
    bench.create(assignment=[[1]] * (count - 1), config=NEVER)
    more = CreatePartitionsRequest(topic="flights", count=count, assignments=None)
    with pytest.raises(InvalidPartitions, match=why):
        bench.call(more)


def test_partitions_that_sleep_are_bounded_by_what_their_metadata_cost() -> None:
    bench = brokers(count=1, capacity=Capacity(memory_bytes=GIB // 256, cores=1, can_doze=True))  # 4 MiB: 26
    with pytest.raises(
        InvalidPartitions, match=r"would have 27 replicas and may have 26 \(10 % of its machine's 0\.0 "
    ):
        bench.create(assignment=[[1]] * 27, config=SLEEPS)
    bench.create(assignment=[[1]] * 26, config=SLEEPS)
    with pytest.raises(InvalidPartitions, match="would have 27 replicas and may have 26"):
        bench.create("more", assignment=[[1]], config=SLEEPS)


def test_a_broker_that_reports_nothing_is_not_bounded() -> None:
    bench = brokers(count=1, capacity=Capacity())
    bench.create(assignment=[[1]] * 500, config=NEVER)


def configure(bench: Bench, config: dict[str, str]) -> None:
    bench.call(AlterTopicConfigRequest(topic="flights", set=config, delete=()))


def test_a_topic_that_sleeps_may_not_stay_awake_where_it_has_no_room() -> None:
    bench = two_sleepers(limit=1)
    with pytest.raises(InvalidPartitions, match=r"1 would have 2 replicas awake and may have 1 \(replica\.awake"):
        configure(bench, NEVER)
    assert bench.image.topics["flights"].config == SLEEPS


def test_a_topic_that_sleeps_may_stay_awake_where_it_has_room() -> None:
    bench = two_sleepers(limit=2)
    wake(bench, partitions=[0])
    configure(bench, NEVER)
    configure(bench, {"retention.ms": "5"})


def three_of_which_one_is_awake() -> Bench:
    """Three partitions on one broker, of which one may be awake and is."""
    bench = brokers({"replica.awake.max": "1", **SLEEPS})
    bench.create(assignment=[[1]] * 3, config=SLEEPS)
    wake(bench, partitions=[0])
    bench.replica(1, TopicPartition("flights", 0))
    return bench


def refused(bench: Bench, partition: int) -> str:
    with pytest.raises(TooManyAwake) as refusal:
        wake(bench, partitions=[partition])
    return refusal.value.message


def test_room_goes_to_the_oldest_request() -> None:
    bench = three_of_which_one_is_awake()
    refused(bench, 1)
    refused(bench, 2)
    propose(bench, 1, partition=TopicPartition("flights", 0))
    assert "has 0 replicas awake and may have 1 (replica.awake.max), and others were requested" in refused(bench, 2)
    bench.wait(500)
    assert awake(bench) == [1]


def test_a_request_that_is_not_repeated_loses_its_place() -> None:
    bench = three_of_which_one_is_awake()
    refused(bench, 1)
    bench.wait(REQUEST_LASTS_MS + 500)
    refused(bench, 2)
    propose(bench, 1, partition=TopicPartition("flights", 0))
    bench.wait(500)
    assert awake(bench) == [2]


def test_a_coordinator_that_starts_takes_no_room_of_an_earlier_request() -> None:
    bench = three_of_which_one_is_awake()
    refused(bench, 1)
    propose(bench, 1, partition=TopicPartition("flights", 0))
    bench.ensure()
    assert bench.state(TopicPartition("__consumer_offsets", 0)).asleep is not None
    bench.wait(500)
    assert awake(bench) == [1]
