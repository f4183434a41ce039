"""How soon a killed group coordinator answers again behind many commits: ``python -m tools.coordinator_load``.

One broker on a real Ray. Groups commit the offsets of all partitions of a topic, again and again, until so many offsets
were committed; the log of the coordinator is cleaned meanwhile as its topic's configuration says. Then the coordinator
is killed, and the time until a group reads its offsets again is printed: a new process, the load, the answer.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import raylog
from raylog.actors.naming import NAMESPACE, coordinator_name

TOPIC, KIND = "orders", "group"


def coordinator_pid() -> int:
    """Return the process of the only group coordinator."""
    import ray

    handle: Any = ray.get_actor(coordinator_name(KIND, 0), namespace=NAMESPACE)
    return int(ray.get(handle.pid.remote(), timeout=60))


def commit(groups: int, partitions: int, commits: int) -> float:
    """Commit so many offsets; returns the seconds that it took."""
    places = [raylog.TopicPartition(TOPIC, number) for number in range(partitions)]
    consumers = [raylog.Consumer(group_id=f"group-{number}") for number in range(groups)]
    began, done = time.monotonic(), 0
    try:
        while done < commits:
            for consumer in consumers:
                consumer.commit(dict.fromkeys(places, 0))
                done += partitions
    finally:
        for consumer in consumers:
            consumer.close()
    return time.monotonic() - began


def answered_again(group: str) -> float:
    """Kill the coordinator; return the seconds until a client that knew it reads the group's offset."""
    with raylog.Consumer(group_id=group) as consumer:
        place = raylog.TopicPartition(TOPIC, 0)
        assert consumer.committed(place) == 0
        killed = coordinator_pid()
        os.kill(killed, signal.SIGKILL)
        began = time.monotonic()
        assert consumer.committed(place) == 0
        took = time.monotonic() - began
        assert coordinator_pid() != killed
        return took


def main() -> None:
    """Commit, kill, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commits", type=int, default=1_000_000, help="offsets committed in all")
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100, help="partitions that each group reads")
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, raylog.start(Path(folder), brokers=1):
        with raylog.Admin() as admin:
            admin.create_topic(TOPIC, partitions=options.partitions, replication_factor=1)
        empty = [answered_after_first_commit(f"first-{number}") for number in range(options.kills)]
        took = commit(options.groups, options.partitions, options.commits)
        print(f"{options.commits:,} offsets of {options.groups * options.partitions:,} keys committed in {took:.0f} s")
        loaded = [answered_again("group-0") for _ in range(options.kills)]
    for what, times in (("with next to no commits", empty), ("behind all of them", loaded)):
        print(f"answers again after {statistics.median(times):.2f} s {what}: {[round(item, 2) for item in times]}")


def answered_after_first_commit(group: str) -> float:
    """As :func:`answered_again`, of a group that has just committed for the first time."""
    with raylog.Consumer(group_id=group) as consumer:
        consumer.commit({raylog.TopicPartition(TOPIC, 0): 0})
    return answered_again(group)


if __name__ == "__main__":
    main()
