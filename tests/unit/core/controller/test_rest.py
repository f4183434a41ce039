"""A stop of the cluster is about to come: all partitions sleep for it, and those that never sleep wake again."""

from collections.abc import Sequence

from raylog.base.ids import TopicPartition
from raylog.core.controller.events import RequestSleep, RestRequested
from raylog.core.controller.rest import ANSWERS_WITHIN_MS, AT_ONCE, LASTS_MS
from tests.unit.core.controller.bench import GRACE_MS, Bench, running_topic
from tests.unit.core.controller.sleep_bench import configure, end_processes, propose, sleeping_topic, wake


def rest(bench: Bench) -> Sequence[object]:
    return bench.step(RestRequested(cause="test", now_ms=bench.now))


def requests(effects: Sequence[object]) -> int:
    return sum(isinstance(found, RequestSleep) for found in effects)


def at_rest() -> Bench:
    """One partition that never sleeps has fallen asleep for a stop."""
    bench = running_topic()
    rest(bench)
    propose(bench)
    end_processes(bench)
    return bench


def sleeps(bench: Bench) -> bool:
    return bench.state().asleep is not None


def test_leaders_are_requested_to_sleep_even_if_they_never_do_otherwise() -> None:
    bench = running_topic()
    found = [each for each in rest(bench) if isinstance(each, RequestSleep)]
    assert [(each.idle_ms, each.for_stop) for each in found] == [(0, True)]


def test_a_few_replicas_of_a_broker_fall_asleep_at_a_time() -> None:
    bench = Bench().start()
    bench.broker(1)
    bench.create(assignment=[[1]] * (AT_ONCE + 2))
    for state in list(bench.image.topics["flights"].partitions):
        bench.replica(1, state.partition)
    assert [requests(rest(bench)), requests(bench.wait(250))] == [AT_ONCE, 0]
    propose(bench, partition=TopicPartition("flights", 0))
    assert requests(bench.wait(250)) == 0, "it sleeps, and its process has not ended"
    bench.lose_replica(1, TopicPartition("flights", 0))
    assert requests(bench.wait(250)) == 1
    assert requests(bench.wait(ANSWERS_WITHIN_MS)) == 1, "the others have had their time"


def test_a_leader_that_did_not_propose_is_requested_again() -> None:
    bench = running_topic()
    assert requests(rest(bench)) == 1
    assert requests(rest(bench)) == 0, "it has its time"
    bench.wait(ANSWERS_WITHIN_MS)
    assert requests(rest(bench)) == 1


def test_they_stay_asleep_until_the_stop_has_had_its_time() -> None:
    bench = at_rest()
    bench.wait(LASTS_MS - 1_000)
    assert sleeps(bench)


def test_they_wake_when_no_stop_has_followed() -> None:
    bench = at_rest()
    bench.wait(LASTS_MS + 1_000)
    assert not sleeps(bench)


def test_another_request_to_rest_begins_the_time_again() -> None:
    bench = at_rest()
    bench.wait(LASTS_MS - 1_000)
    rest(bench)
    bench.wait(LASTS_MS - 1_000)
    assert sleeps(bench)


def test_a_request_wakes_one_during_the_rest() -> None:
    bench = at_rest()
    assert wake(bench) == [1]
    assert not sleeps(bench)


def test_the_next_controller_wakes_them_once_their_brokers_are_there() -> None:
    bench = at_rest()
    bench.start()
    bench.broker(1)
    bench.broker(2)
    bench.wait(GRACE_MS // 2)
    assert sleeps(bench), "broker 3 would not be in the ISR"
    bench.broker(3)
    bench.wait(500)
    assert not sleeps(bench)
    assert bench.state().isr == (1, 2, 3)


def test_the_next_controller_waits_no_longer_for_a_broker_than_its_grace() -> None:
    bench = at_rest()
    bench.start()
    bench.broker(1)
    bench.broker(2)
    bench.wait(GRACE_MS + 500)
    assert not sleeps(bench)


def test_a_topic_wakes_that_never_sleeps_from_now_on() -> None:
    bench = sleeping_topic(sleeps=True)
    bench.start()
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.wait(500)
    assert sleeps(bench)
    configure(bench, {"replica.sleep.after.ms": "-1"})
    assert not sleeps(bench)
