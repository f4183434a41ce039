"""A program that ends with records unsent: it waits until they are stored, and says how many were not."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from tests.unit.client.toy_partition import Fault
from tests.unit.client.toy_server import ToyCluster
from tests.unit.style.sources import ROOT

PROGRAM = """
import sys
from raylog.client.producer.producer import Producer
producer = Producer(bootstrap=sys.argv[1], secret=sys.argv[2], delivery_timeout_ms=int(sys.argv[3]))
for number in range(500):
    producer.send(sys.argv[5], b"value", partition=0)
if sys.argv[4] == "dropped":
    del producer
"""
ASYNCIO = """
import asyncio, sys
from raylog.client.producer.producer import AsyncProducer
async def main():
    global producer
    producer = AsyncProducer(bootstrap=sys.argv[1], secret=sys.argv[2], linger_ms=60_000)
    await producer.start()
    for number in range(500):
        await producer.send(sys.argv[5], b"value", partition=0)
    if sys.argv[4] == "flushed":
        await producer.flush()
    if sys.argv[4] == "dropped":
        del producer
    if sys.argv[4] == "exit":
        sys.exit(0)
asyncio.run(main())
"""
THREADS = """
import sys, threading, time
from raylog.client.producer.producer import Producer
from raylog.client.consumer.consumer import Consumer
options = {"bootstrap": sys.argv[1], "secret": sys.argv[2]}
producer, consumer = Producer(**options), Consumer(sys.argv[5], **options)
def send():
    while True:
        producer.send(sys.argv[5], b"value").result(60)
def poll():
    while True:
        consumer.poll(100)
for work in (send, send, poll):
    threading.Thread(target=work, daemon=True).start()
time.sleep(1)
"""
CHILD = """
import multiprocessing, os, sys, threading, time
from raylog.client.producer.producer import AsyncProducer, Producer
def work():
    producer = Producer(bootstrap=sys.argv[1], secret=sys.argv[2], delivery_timeout_ms=int(sys.argv[3]))
    def send():
        if sys.argv[4] == "thread":
            time.sleep(0.2)
        for number in range(500):
            producer.send(sys.argv[5], b"value", partition=0)
    if sys.argv[4] == "thread":
        threading.Thread(target=send).start()
    else:
        send()
    if sys.argv[4] == "fails":
        raise RuntimeError("as users' code does")
if __name__ == "__main__":
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""
UNAVAILABLE = 6
WAIT_S = 60.0


def run(
    cluster: ToyCluster, delivery_timeout_ms: int, way: str = "held", program: str = PROGRAM, topic: str = "t"
) -> subprocess.Popen[str]:
    secret = cluster.options["secret"]
    key = secret if isinstance(secret, str) else secret.hex()
    arguments = [cluster.bootstrap, key, str(delivery_timeout_ms), way, topic]
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=None
    )


def stored(cluster: ToyCluster, topic: str = "t") -> int:
    return len(cluster.records(topic, 0))


def beside_each_other(
    cluster: ToyCluster, ways: Sequence[str], delivery_timeout_ms: int, program: str, faults: Sequence[Fault] = ()
) -> dict[str, subprocess.Popen[str]]:
    """Start a program once for each way, which its topic is named after: what they wait for, they wait for together."""
    for way in ways:
        cluster.create_topic(way)
        cluster.set_faults(way, 0, faults)
    return {way: run(cluster, delivery_timeout_ms, way, program, way) for way in ways}


def assert_all_wait_for_their_records(cluster: ToyCluster, ways: Sequence[str], program: str, words: str) -> None:
    """Hold the records of each program for a while: it waits, says so, and has them stored."""
    programs = beside_each_other(cluster, ways, 60_000, program, ["hold"])
    for way in ways:
        cluster.wait_held(way, 0, WAIT_S)
    timers = [threading.Timer(2.5, cluster.release, (way, 0)) for way in ways]  # longer than the end waits in silence
    for timer in timers:
        timer.start()
    for way, ended in programs.items():
        _, printed = ended.communicate(timeout=WAIT_S)
        assert ended.returncode == 0, way
        assert stored(cluster, way) == 500, way
        assert f"{words}; the program ends when its records are stored, within 60 seconds" in printed, way
        assert "not stored" not in printed, way
    for timer in timers:
        timer.join()


def test_a_program_that_ends_waits_for_its_records(cluster: ToyCluster) -> None:
    assert_all_wait_for_their_records(cluster, ["held", "dropped"], PROGRAM, "was not closed")


def test_a_program_says_how_many_records_were_not_stored(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, [UNAVAILABLE] * 10_000)
    program = run(cluster, 1_500)
    _, printed = program.communicate(timeout=WAIT_S)
    assert stored(cluster) == 0
    assert "500 records of producer 'raylog' were not stored" in printed


def test_an_interrupt_ends_the_wait_and_says_what_is_lost(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["lose_reply"] * 10_000)
    program = run(cluster, 60_000)
    assert program.stderr is not None
    line = program.stderr.readline()
    while "the program ends when its records are stored" not in line:
        assert line
        line = program.stderr.readline()
    program.send_signal(signal.SIGINT)
    _, printed = program.communicate(timeout=WAIT_S)
    assert "were not stored: it was not closed or flushed." in printed
    assert "Traceback" not in printed


def test_a_program_whose_records_are_stored_at_once_says_nothing(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    program = run(cluster, 60_000)
    _, printed = program.communicate(timeout=WAIT_S)
    assert stored(cluster) == 500
    assert printed == ""


def test_an_asyncio_program_says_how_many_records_were_not_stored(cluster: ToyCluster) -> None:
    for way, program in beside_each_other(cluster, ["held", "exit", "dropped", "flushed"], 60_000, ASYNCIO).items():
        _, printed = program.communicate(timeout=WAIT_S)
        lost = 500 - stored(cluster, way)
        is_reported = "500 records of producer 'raylog' were not stored: it was not stopped or flushed." in printed
        assert is_reported == (lost == 500), printed
        assert lost == (0 if way == "flushed" else 500), way


def test_daemon_threads_that_send_and_poll_end_with_their_program(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    program = run(cluster, 60_000, program=THREADS)
    _, printed = program.communicate(timeout=WAIT_S)
    assert stored(cluster)
    assert program.returncode == 0
    assert "Traceback" not in printed, printed  # what was sent at the end itself is counted as not stored


STOPPED = """
import asyncio, sys, threading
from raylog.client.producer.producer import AsyncProducer
async def main():
    global producer
    options = {"bootstrap": sys.argv[1], "secret": sys.argv[2], "delivery_timeout_ms": int(sys.argv[3])}
    producer = AsyncProducer(**options, linger_ms=500)
    await producer.start()
    for number in range(500):
        await producer.send(sys.argv[5], b"value", partition=0)
loop = asyncio.new_event_loop()
if sys.argv[4].startswith("running"):
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(main(), loop).result()
else:
    loop.run_until_complete(main())
if sys.argv[4].endswith("dropped"):
    del producer
"""
WAYS = ("stopped", "stopped-dropped", "running", "running-dropped")


def test_a_loop_that_is_not_closed_sends_what_is_left(cluster: ToyCluster) -> None:
    assert_all_wait_for_their_records(cluster, WAYS, STOPPED, "was not stopped")


def test_a_loop_that_is_not_closed_says_what_was_lost(cluster: ToyCluster) -> None:
    for way, program in beside_each_other(cluster, WAYS, 2_500, STOPPED, [UNAVAILABLE] * 10_000).items():
        _, printed = program.communicate(timeout=WAIT_S)
        assert stored(cluster, way) == 0, way
        assert "500 records of producer 'raylog' were not stored: it was not stopped or flushed." in printed, way


def test_an_interrupt_of_a_loop_that_is_not_closed_says_what_is_lost(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["lose_reply"] * 10_000)
    program = run(cluster, 60_000, "stopped", STOPPED)
    assert program.stderr is not None
    line = program.stderr.readline()
    while "the program ends when its records are stored" not in line:
        assert line
        line = program.stderr.readline()
    program.send_signal(signal.SIGINT)
    _, printed = program.communicate(timeout=WAIT_S)
    assert "were not stored: it was not stopped or flushed." in printed
    assert "Traceback" not in printed


def test_a_forked_child_waits_for_its_records(cluster: ToyCluster) -> None:
    """It ends by `os._exit`, which calls no exit handlers."""
    for way, program in beside_each_other(cluster, ["returns", "fails", "thread"], 60_000, CHILD).items():
        program.communicate(timeout=WAIT_S)
        assert program.returncode == (way == "fails"), way
        assert stored(cluster, way) == 500, way


def test_a_forked_child_says_how_many_records_were_not_stored(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, [UNAVAILABLE] * 10_000)
    _, printed = run(cluster, 1_500, "returns", CHILD).communicate(timeout=WAIT_S)
    assert stored(cluster) == 0
    assert "500 records of producer 'raylog' were not stored" in printed
