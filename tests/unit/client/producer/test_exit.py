"""A program that ends with records unsent: it waits until they are stored, and says how many were not."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from tests.unit.client.toy_server import ToyCluster
from tests.unit.style.sources import ROOT

PROGRAM = """
import sys
from raylog.client.producer.producer import Producer
producer = Producer(bootstrap=sys.argv[1], secret=sys.argv[2], delivery_timeout_ms=int(sys.argv[3]))
for number in range(500):
    producer.send("t", b"value", partition=0)
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
        await producer.send("t", b"value", partition=0)
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
producer, consumer = Producer(**options), Consumer("t", **options)
def send():
    while True:
        producer.send("t", b"value").result(60)
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
            producer.send("t", b"value", partition=0)
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
    cluster: ToyCluster, delivery_timeout_ms: int, way: str = "held", program: str = PROGRAM
) -> subprocess.Popen[str]:
    secret = cluster.options["secret"]
    arguments = [cluster.bootstrap, secret if isinstance(secret, str) else secret.hex(), str(delivery_timeout_ms), way]
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True, env=None
    )


def stored(cluster: ToyCluster) -> int:
    return len(cluster.records("t", 0))


@pytest.mark.parametrize("way", ["held", "dropped"])
def test_a_program_that_ends_waits_for_its_records(cluster: ToyCluster, way: str) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    program = run(cluster, 60_000, way)
    cluster.wait_held("t", 0, WAIT_S)
    timer = threading.Timer(2.5, cluster.release, ("t", 0))  # longer than the end waits in silence
    timer.start()
    _, printed = program.communicate(timeout=WAIT_S)
    timer.join()
    assert program.returncode == 0
    assert stored(cluster) == 500
    assert "was not closed; the program ends when its records are stored, within 60 seconds" in printed
    assert "not stored" not in printed


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


@pytest.mark.parametrize("way", ["held", "exit", "dropped", "flushed"])
def test_an_asyncio_program_says_how_many_records_were_not_stored(cluster: ToyCluster, way: str) -> None:
    cluster.create_topic("t")
    program = run(cluster, 60_000, way, ASYNCIO)
    _, printed = program.communicate(timeout=WAIT_S)
    lost = 500 - stored(cluster)
    is_reported = "500 records of producer 'raylog' were not stored: it was not stopped or flushed." in printed
    assert is_reported == (lost == 500), printed
    assert lost == (0 if way == "flushed" else 500)


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
        await producer.send("t", b"value", partition=0)
loop = asyncio.new_event_loop()
if sys.argv[4].startswith("running"):
    threading.Thread(target=loop.run_forever, daemon=True).start()
    asyncio.run_coroutine_threadsafe(main(), loop).result()
else:
    loop.run_until_complete(main())
if sys.argv[4].endswith("dropped"):
    del producer
"""
WAYS = pytest.mark.parametrize("way", ["stopped", "stopped, dropped", "running", "running, dropped"])


@WAYS
def test_a_loop_that_is_not_closed_sends_what_is_left(cluster: ToyCluster, way: str) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, ["hold"])
    program = run(cluster, 60_000, way, STOPPED)
    cluster.wait_held("t", 0, WAIT_S)
    timer = threading.Timer(2.5, cluster.release, ("t", 0))  # longer than the end waits in silence
    timer.start()
    _, printed = program.communicate(timeout=WAIT_S)
    timer.join()
    assert program.returncode == 0
    assert stored(cluster) == 500
    assert "was not stopped; the program ends when its records are stored, within 60 seconds" in printed
    assert "not stored" not in printed


@WAYS
def test_a_loop_that_is_not_closed_says_what_was_lost(cluster: ToyCluster, way: str) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, [UNAVAILABLE] * 10_000)
    program = run(cluster, 2_500, way, STOPPED)
    _, printed = program.communicate(timeout=WAIT_S)
    assert stored(cluster) == 0
    assert "500 records of producer 'raylog' were not stored: it was not stopped or flushed." in printed


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


@pytest.mark.parametrize("way", ["returns", "fails", "thread"])
def test_a_forked_child_waits_for_its_records(cluster: ToyCluster, way: str) -> None:
    """It ends by `os._exit`, which calls no exit handlers."""
    cluster.create_topic("t")
    program = run(cluster, 60_000, way, CHILD)
    program.communicate(timeout=WAIT_S)
    assert program.returncode == (way == "fails")
    assert stored(cluster) == 500


def test_a_forked_child_says_how_many_records_were_not_stored(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    cluster.set_faults("t", 0, [UNAVAILABLE] * 10_000)
    _, printed = run(cluster, 1_500, "returns", CHILD).communicate(timeout=WAIT_S)
    assert stored(cluster) == 0
    assert "500 records of producer 'raylog' were not stored" in printed
