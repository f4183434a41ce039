"""Wakes that no request waits for: they come as soon as their brokers have room, and not before."""

from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.controller.events import RequestSleep
from raylog.core.controller.liveness import WOKEN_LEADER_WAIT_MS
from raylog.core.controller.wake_queue import STARTS_AT_ONCE
from raylog.protocol.admin import AlterTopicConfigRequest, DeleteTopicRequest
from tests.unit.core.controller.bench import Bench
from tests.unit.core.controller.sleep_bench import SLEEPS, propose, sleeping_topic, wake

AWAKE, ASLEEP = False, True


def sleepers(count: int, limit: int) -> Bench:
    """So many partitions that sleep on brokers 1 and 2; broker 3 has none."""
    bench = Bench().start({"replica.awake.max": str(limit)})
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.create(assignment=[[1, 2]] * count, config=SLEEPS)
    return bench


def states(bench: Bench) -> list[bool]:
    """Whether each partition sleeps."""
    return [state.asleep is not None for state in bench.image.topics["flights"].partitions]


def move(bench: Bench, *numbers: int) -> None:
    """Have these partitions move from broker 2 to broker 3, by one request."""
    bench.reassign_all([("flights", number, (BrokerId(1), BrokerId(3))) for number in numbers])


def with_limit(bench: Bench, limit: int) -> Bench:
    """A later controller begins with this limit."""
    bench.start({"replica.awake.max": str(limit)})
    for broker in (1, 2, 3):
        bench.broker(broker)
    return bench


def test_moves_wake_as_many_partitions_as_have_room() -> None:
    bench = sleepers(3, limit=2)
    move(bench, 0, 1, 2)
    assert states(bench) == [AWAKE, AWAKE, ASLEEP]
    assert all(state.is_moving for state in bench.image.topics["flights"].partitions), "the last one waits"
    bench.wait(30_000)
    assert states(bench) == [AWAKE, AWAKE, ASLEEP]


def test_a_move_that_waits_goes_on_when_another_partition_is_deleted() -> None:
    bench = sleepers(1, limit=1)
    bench.create("gates", assignment=[[1]], config=SLEEPS)
    wake(bench, "gates")
    move(bench, 0)
    assert states(bench) == [ASLEEP]
    bench.call(DeleteTopicRequest(topic="gates"))
    bench.wait(500)
    assert states(bench) == [AWAKE]


def test_full_brokers_are_requested_to_make_room_from_time_to_time() -> None:
    bench = sleepers(1, limit=1)
    bench.create("gates", assignment=[[1]], config=SLEEPS)
    wake(bench, "gates")
    bench.replica(1, TopicPartition("gates", 0))
    move(bench, 0)
    leader = bench.sessions[TopicPartition("gates", 0), 1]
    effects = bench.wait(9_000)
    requests = [(found.session, found.idle_ms) for found in effects if isinstance(found, RequestSleep)]
    assert requests == [(leader, 5_000)], "and once when it began to wait"


def test_a_later_controller_wakes_what_waited_to_move() -> None:
    bench = sleepers(2, limit=1)
    move(bench, 0, 1)
    assert states(bench) == [AWAKE, ASLEEP]
    with_limit(bench, 2).wait(500)
    assert states(bench) == [AWAKE, AWAKE]


def slept(count: int, *brokers: int, limit: int) -> Bench:
    """So many partitions with records that sleep on these brokers."""
    bench = Bench().start({"replica.awake.max": str(count)})
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.create(assignment=[list(brokers)] * count, config=SLEEPS)
    for number in range(count):
        at = TopicPartition("flights", number)
        wake(bench, "flights", [number])
        for broker in brokers:
            bench.replica(broker, at, log_id=f"log of {broker}")
        propose(bench, brokers[0], partition=at)
        for broker in brokers:
            bench.lose_replica(broker, at)
    return with_limit(bench, limit)


def loses_its_logs(bench: Bench, broker: int) -> None:
    """A broker comes back with an empty directory."""
    bench.lose(("broker", broker))
    bench.broker(broker, directory="another")


def test_lost_logs_wake_as_many_partitions_as_have_room() -> None:
    bench = slept(3, 1, 2, limit=2)
    loses_its_logs(bench, 1)
    partitions = bench.image.topics["flights"].partitions
    assert states(bench) == [ASLEEP, ASLEEP, ASLEEP]
    assert [state.leader for state in partitions] == [2, 2, 2], "it has the logs"
    bench.wait(500)
    assert states(bench) == [AWAKE, AWAKE, ASLEEP]
    bench.lose(("broker", 2))
    assert bench.image.topics["flights"].partitions[2].leader == 2, "no broker leads without the log"


def test_a_later_controller_wakes_what_has_lost_a_log() -> None:
    bench = slept(2, 1, 2, limit=1)
    loses_its_logs(bench, 1)
    bench.wait(500)
    assert states(bench) == [AWAKE, ASLEEP]
    bench.start({"replica.awake.max": "2"})
    bench.broker(1, directory="another")
    bench.broker(2)
    bench.wait(500)
    assert states(bench) == [AWAKE, AWAKE]


def test_a_request_wakes_what_waits_with_a_lost_log() -> None:
    bench = slept(1, 1, 2, limit=1)
    loses_its_logs(bench, 1)
    wake(bench, "flights")
    state = bench.image.topics["flights"].partitions[0]
    assert (state.asleep, state.isr) == (None, (2,))


def test_a_single_replica_without_its_log_has_no_leader_once_it_is_awake() -> None:
    bench = slept(1, 1, limit=1)
    loses_its_logs(bench, 1)
    bench.wait(500)
    at = TopicPartition("flights", 0)
    bench.replica(1, at, log_id="another log")
    state = bench.image.topics["flights"].partitions[0]
    assert (state.asleep, state.leader, state.isr) == (None, -1, (1,))
    assert list(bench.image.lost_logs) == [(at, 1)]


def test_a_move_that_waits_can_be_cancelled() -> None:
    bench = sleepers(2, limit=1)
    move(bench, 0, 1)
    bench.reassign_all([("flights", 1, None)])
    state = bench.image.topics["flights"].partitions[1]
    assert state.asleep is not None
    assert (state.replicas, state.is_moving) == ((1, 2), False)


def test_what_has_records_to_remove_waits_for_room_too() -> None:
    bench = with_limit(sleeping_topic(), 0)
    bench.call(AlterTopicConfigRequest(topic="flights", set={"retention.bytes": 1}, delete=()))
    bench.wait(5_000)
    assert states(bench) == [ASLEEP]
    with_limit(bench, 1).wait(500)
    assert states(bench) == [AWAKE]


def test_what_no_request_waits_for_wakes_a_few_at_a_time() -> None:
    bench = sleepers(STARTS_AT_ONCE + 4, limit=100)
    move(bench, *range(STARTS_AT_ONCE + 4))
    assert states(bench).count(AWAKE) == STARTS_AT_ONCE
    bench.wait(WOKEN_LEADER_WAIT_MS + 1_000)
    assert states(bench).count(AWAKE) == STARTS_AT_ONCE + 4, (
        "those that had not started in their time are not waited for"
    )


def test_a_request_wakes_at_once_however_many_others_start() -> None:
    bench = sleepers(STARTS_AT_ONCE + 4, limit=100)
    move(bench, *range(STARTS_AT_ONCE + 4))
    assert wake(bench, "flights", [STARTS_AT_ONCE + 3]) == [1]
    assert states(bench)[-1] == AWAKE
