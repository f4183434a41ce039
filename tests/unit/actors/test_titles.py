"""Titles of the processes of replicas and brokers in ps, top and Ray."""

import subprocess
import sys

from raylog.actors.titles import SHORT_CHARACTERS, broker_title, replica_titles

SHOWN = """
import os, ray
from raylog.actors.titles import replica_titles, wear
if {absent}:
    del ray._raylet.setproctitle
wear(*replica_titles("flights", 0, 1))
wear(*replica_titles("flights", 0, 2))
if not {absent}:
    ray._raylet.setproctitle("ray::Replica")  # as Ray does after each call
print(open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0))[0], open("/proc/self/comm").read(), sep="|")
"""


def shown(*, absent: bool) -> str:
    code = SHOWN.format(absent=absent)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_replica_shows_topic_partition_and_broker_and_keeps_to_it() -> None:
    assert shown(absent=False).strip() == "ray::Replica flights-0 broker 2|flights-0@2"


def test_without_rays_function_nothing_changes_and_nothing_fails() -> None:
    assert shown(absent=True).startswith(sys.executable)


def test_a_long_topic_leaves_room_for_partition_and_broker() -> None:
    title, short = replica_titles("a-very-long-topic-name", 12, 3)
    assert title == "ray::Replica a-very-long-topic-name-12 broker 3"
    assert short == "a-very-lon-12@3"
    assert len(short) == SHORT_CHARACTERS


def test_a_broker_counts_the_replicas_that_have_no_running_process() -> None:
    assert broker_title("broker-2", 3, 40, 957) == "ray::Broker broker-2 (3 replicas awake, 40 dozing, 957 asleep)"
