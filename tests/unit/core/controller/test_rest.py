"""A stop of the cluster is about to come: all partitions sleep for it, and those that never sleep wake again."""

from raylog.core.controller.events import RequestSleep, RestRequested
from raylog.core.sleeping.queue import REST_LASTS_MS
from tests.unit.core.controller.bench import GRACE_MS, Bench, running_topic
from tests.unit.core.controller.sleep_bench import configure, end_processes, propose, sleeping_topic, wake


def rest(bench: Bench) -> list[object]:
    return bench.step(RestRequested(cause="test", now_ms=bench.now))


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
    requests = [found for found in rest(bench) if isinstance(found, RequestSleep)]
    assert [(found.idle_ms, found.for_stop) for found in requests] == [(0, True)]


def test_they_stay_asleep_until_the_stop_has_had_its_time() -> None:
    bench = at_rest()
    bench.wait(REST_LASTS_MS - 1_000)
    assert sleeps(bench)


def test_they_wake_when_no_stop_has_followed() -> None:
    bench = at_rest()
    bench.wait(REST_LASTS_MS + 1_000)
    assert not sleeps(bench)


def test_another_request_to_rest_begins_the_time_again() -> None:
    bench = at_rest()
    bench.wait(REST_LASTS_MS - 1_000)
    rest(bench)
    bench.wait(REST_LASTS_MS - 1_000)
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
