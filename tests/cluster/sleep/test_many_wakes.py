"""Many wakes in a real Ray: the processes that make replicas are replaced, die and hang, and the broker stays as it is.

One cluster of one broker for all tests, in file order; each maker makes ten replicas. How much the broker grows is
measured by `make wakes`: a hundred wakes are fewer than what an allocator takes at once.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import raylog
from raylog import TopicPartition
from raylog.actors.naming import CONTROLLER
from raylog.actors.processes.makers import STARTS_VARIABLE
from tests.cluster.ray_support import AWAKE, actor_names, call_actor, kill
from tests.waiting import wait_for
from tools.wakes import TOPIC, Wakes, cluster_of_its_own, own_kb, processes_below

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STARTS = 10
PARTITIONS = 12
BROKER = "broker-1"


@contextmanager
def waking(starts: int) -> Iterator[Wakes]:
    """A cluster whose makers make so many replicas each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STARTS_VARIABLE, str(starts))
        with cluster_of_its_own(), raylog.Producer() as producer:
            yield Wakes(producer, PARTITIONS)


@pytest.fixture(scope="module")
def wakes() -> Iterator[Wakes]:
    with waking(STARTS) as found:
        yield found


def makers() -> list[int]:
    """Return the processes that make replicas."""
    return [pid for pid, title in processes_below(os.getpid()).items() if title.startswith(f"ray::Maker {BROKER}")]


def process_of(replica: str) -> int:
    """Return the process of the replica whose name begins so."""
    (name,) = (name for name in actor_names() if name.startswith(replica))
    return int(call_actor(name, "status")["pid"])


def stored() -> int:
    """Return how many records there are; wakes nothing."""
    with raylog.Consumer() as consumer:
        return sum(consumer.end_offsets([TopicPartition(TOPIC, number) for number in range(PARTITIONS)]).values())


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and own_kb(pid) > 0


def the_maker(wakes: Wakes) -> int:
    """Wake partitions until there is one maker, and return its process."""
    for _ in range(3 * STARTS):
        if makers():
            break
        wakes.wake()
    wait_for(lambda: len(makers()) == 1, "there is one maker")
    return makers()[0]


def test_the_first_replicas_need_no_maker(wakes: Wakes) -> None:
    for _ in range(STARTS):
        wakes.wake()
    assert makers() == []


def test_a_replica_connects_to_the_controller_and_not_to_its_actor(wakes: Wakes) -> None:
    """What calls the actor of another process leaves something there that Ray never gives back."""
    with raylog.Admin() as admin:
        admin.create_topic("kept", 1, 1, config=AWAKE)
    with raylog.Producer() as producer:
        producer.send("kept", b"x").result(60)
    replica = psutil.Process(process_of("replica:kept-0:"))
    controller = psutil.Process(int(call_actor(CONTROLLER, "pid")))
    listening = {each.laddr.port for each in controller.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    remote = {each.raddr.port for each in replica.net_connections("tcp") if each.status == psutil.CONN_ESTABLISHED}
    assert remote & listening == {call_actor(CONTROLLER, "endpoint")[1]}


def test_makers_follow_each_other(wakes: Wakes) -> None:
    first = the_maker(wakes)
    for _ in range(2 * STARTS):
        wakes.wake()
    wait_for(lambda: first not in makers(), "the first one ends")
    wait_for(lambda: len(makers()) == 1, "there is one maker")


def test_what_one_has_made_sleeps_and_wakes_by_the_next(wakes: Wakes) -> None:
    for _ in range(2 * STARTS):
        wakes.wake()
    assert stored() == wakes.count


def test_a_maker_that_dies_leaves_its_replicas_and_loses_no_wake(wakes: Wakes) -> None:
    maker = the_maker(wakes)
    with raylog.Producer() as producer:
        replica = process_of("replica:kept-0:")
        kill(maker)
        wait_for(lambda: not is_there(maker), "it has ended")
        producer.send("kept", b"y").result(60)
    assert process_of("replica:kept-0:") == replica
    for _ in range(2 * STARTS):
        wakes.wake()
    assert the_maker(wakes) != maker


def test_a_maker_dies_while_replicas_start(wakes: Wakes) -> None:
    for _ in range(3):
        maker = the_maker(wakes)
        sent = wakes.send(6)
        time.sleep(0.03)  # some are being made, others wait for their turn; the test holds wherever it strikes
        kill(maker)
        for future in sent:
            future.result(60)
    assert stored() == wakes.count


def test_a_maker_that_hangs_delays_a_wake_by_seconds_and_ends(wakes: Wakes) -> None:
    maker = the_maker(wakes)
    os.kill(maker, signal.SIGSTOP)
    began = time.monotonic()
    wakes.wake()
    assert time.monotonic() - began < 30
    wait_for(lambda: not is_there(maker), "it was ended")


def test_a_broker_that_dies_takes_its_maker_with_it_and_no_replica(wakes: Wakes) -> None:
    maker = the_maker(wakes)
    replica = process_of("replica:kept-0:")
    broker = int(call_actor(BROKER, "pid"))
    kill(broker)
    wait_for(lambda: int(call_actor(BROKER, "pid")) != broker, "the broker is there again")
    wait_for(lambda: not is_there(maker), "its maker has ended")
    assert process_of("replica:kept-0:") == replica
    wakes.wake()
