"""A group of the consumer protocol in a real cluster: processes that join, grow, and are killed, members and others."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

import raylog
from tests.cluster.ray_support import call_actor, kill, own_ray
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

TOPIC, PARTITIONS, MORE_PARTITIONS = "flights", 6, 8
GAP_S_MAX = 0.2
CONFIG = {"group.min.session.timeout.ms": "100"}


class Journal:
    """What one member has read and held."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[list[str]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def held(self) -> set[int]:
        found = [row[2] for row in self.rows() if row[0] == "held"]
        return {int(number) for number in found[-1].split(",")} if found and found[-1] != "-" else set()

    def read(self, partition: int) -> list[tuple[int, float]]:
        """Offset and time in seconds of each record."""
        return [(int(row[1]), int(row[2]) / 1e9) for row in self.rows() if row[0] == str(partition)]

    def longest_gap_s(self, partition: int, since_s: float, until_s: float) -> float:
        times = [when for _, when in self.read(partition) if since_s <= when <= until_s]
        return max(after - before for before, after in pairwise([since_s, *times, until_s]))


@contextmanager
def trickle() -> Iterator[None]:
    """A record for each partition, every 10 ms."""
    done = threading.Event()

    def produce() -> None:
        with raylog.Producer() as producer:
            while not done.wait(0.01):
                for number in range(PARTITIONS):
                    producer.send(TOPIC, b"x", partition=number)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(30)


def shared(journals: list[Journal], partitions: int) -> bool:
    held = [journal.held() for journal in journals]
    return all(held) and sorted(number for each in held for number in each) == list(range(partitions))


def test_members_read_on_while_others_and_the_coordinator_are_killed(tmp_path: Path) -> None:
    with own_ray():
        cluster = raylog.start(tmp_path / "data", config=CONFIG)
        with raylog.Admin() as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
            options = {
                "topic": TOPIC, "group_id": "board", "group_protocol": "consumer", "auto_offset_reset": "earliest",
                "auto_commit_interval_ms": 100, "session_timeout_ms": 2_000, "heartbeat_interval_ms": 300,
                "bootstrap": cluster.bootstrap(), "secret": cluster.secret(),
            }  # fmt: skip
            journals = [Journal(tmp_path / f"journal-{number}") for number in range(4)]
            members: list[subprocess.Popen[bytes]] = []

            def start(number: int) -> None:
                command = [sys.executable, "-m", "tests.cluster.groups.group_member"]
                row = json.dumps({**options, "journal": str(journals[number].path)})
                members.append(subprocess.Popen([*command, row]))

            gaps: dict[str, float] = {}

            def watched(what: str, readers: list[Journal], kept: list[set[int]], since_s: float) -> None:
                until_s = time.monotonic()
                found = [
                    reader.longest_gap_s(number, since_s, until_s)
                    for reader, numbers in zip(readers, kept, strict=True)
                    for number in numbers & reader.held() & set(range(PARTITIONS))
                ]
                gaps[what] = round(max(found), 3)

            try:
                with trickle():
                    start(0)
                    start(1)
                    first, second, third, fourth = journals
                    wait_for(lambda: shared([first, second], PARTITIONS), "two members share the topic", 60)
                    wait_for(lambda: all(first.read(n) for n in first.held()), "the first reads all that it has", 30)
                    wait_for(lambda: all(second.read(n) for n in second.held()), "and the second", 30)
                    time.sleep(0.5)

                    began_s, kept = time.monotonic(), [first.held(), second.held()]
                    start(2)
                    wait_for(lambda: shared(journals[:3], PARTITIONS), "a third one joins", 60)
                    watched("a member joins", [first, second], kept, began_s)

                    began_s, kept = time.monotonic(), [first.held(), second.held(), third.held()]
                    epoch = admin.describe_group("board").generation
                    pid = call_actor("group-coordinator-0", "pid")
                    kill(pid)
                    wait_for(lambda: call_actor("group-coordinator-0", "pid") != pid, "another coordinator runs", 60)
                    wait_for(lambda: admin.describe_group("board").state == "Stable", "it knows the group", 60)
                    assert admin.describe_group("board").generation == epoch
                    assert [journal.held() for journal in journals[:3]] == kept
                    watched("the coordinator is killed", journals[:3], kept, began_s)

                    began_s, kept = time.monotonic(), [first.held(), third.held()]
                    members[1].kill()
                    members[1].wait(10)
                    start(3)
                    wait_for(lambda: shared([first, third, fourth], PARTITIONS), "a killed member is replaced", 60)
                    watched("a member is killed", [first, third], kept, began_s)

                    began_s, kept = time.monotonic(), [first.held(), third.held(), fourth.held()]
                    admin.create_partitions(TOPIC, MORE_PARTITIONS)
                    wait_for(lambda: shared([first, third, fourth], MORE_PARTITIONS), "the topic has grown", 60)
                    watched("the topic grows", [first, third, fourth], kept, began_s)
                ends = {n: max(offset for journal in journals for offset, _ in journal.read(n)) for n in range(6)}
            finally:
                for member in members:
                    member.kill()
                    member.wait(10)
            print("longest gaps of partitions that stay, s:", gaps)
            for number, end in ends.items():
                offsets = {offset for journal in journals for offset, _ in journal.read(number)}
                assert offsets >= set(range(end + 1)), f"records of partition {number} were left out"
            assert max(gaps.values()) < GAP_S_MAX, gaps
        cluster.stop()
