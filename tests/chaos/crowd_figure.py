"""What a crowd of silent connections costs: `python -m tests.chaos.crowd_figure`.

One cluster of three brokers, a topic with three replicas, one producer with acks=all that sends as fast as it can.
Rounds of equal length follow each other in turns, without and with 1,000 connections at the leader that never
authenticate; the ratio of acknowledged records is taken round by round. The leader's process has to be the same at the
end.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import raylog
from tests.chaos import sight
from tests.chaos.arena import Setup
from tests.chaos.injuries.crowd import CROWD, Crowd
from tests.chaos.injuries.processes import OneNode

TOPIC: Final = "crowded"
GOAL: Final = 0.8
VALUE: Final = bytes(100)
UNDER_WAY: Final = 20_000


def acknowledged(producer: raylog.Producer, seconds: float) -> int:
    """Send for this long; return how many records were acknowledged."""
    waiting: deque[Any] = deque()
    end_s = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end_s:
        waiting.append(producer.send(TOPIC, VALUE, partition=0))
        if len(waiting) >= UNDER_WAY:
            waiting.popleft().result(30)
            count += 1
    for future in waiting:
        future.result(30)
    return count + len(waiting)


def main() -> int:
    """Measure and print; 1 when the goal is missed or the leader was replaced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rlc"))
    os.environ["RAY_TMPDIR"] = str(folder / "ray")
    arena = OneNode(Setup(root=folder / "data", topic=TOPIC, partitions=1, brokers=3), full_disk=False)
    try:
        arena.start()
        with raylog.Admin() as admin:
            admin.create_topic(TOPIC, 1, 3)
        with raylog.Producer() as producer:
            producer.send(TOPIC, VALUE, partition=0).result(60)
            return report(producer, options.rounds, options.seconds)
    finally:
        arena.close()
        shutil.rmtree(folder, ignore_errors=True)


def report(producer: raylog.Producer, rounds: int, seconds: float) -> int:
    """Measure in turns and print a line a round."""
    view = sight.status()
    assert view is not None, "the controller does not answer"
    name = sight.replica_of(TOPIC, 0, view["topics"][TOPIC][0]["leader"])
    assert name is not None, "the topic has no leader"
    pid, endpoint = sight.pid_of(name), sight.call(name, "endpoint")
    acknowledged(producer, seconds)
    ratios = []
    for number in range(rounds):
        alone = acknowledged(producer, seconds)
        crowd = Crowd(*endpoint)
        crowd.start()
        try:
            crowded = acknowledged(producer, seconds)
        finally:
            crowd.end()
        ratios.append(crowded / alone)
        print(f"round {number + 1}: {alone:9,} alone, {crowded:9,} beside {CROWD} silent connections: {ratios[-1]:.2f}")
    median, same = statistics.median(ratios), sight.pid_of(name) == pid
    print(f"median {median:.2f} (goal {GOAL}); the leader's process is {'the same' if same else 'another'}")
    return 0 if median >= GOAL and same else 1


if __name__ == "__main__":
    raise SystemExit(main())
