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
from tests.cluster.ray_support import call_actor, kill
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
def trickle() -> Iterator[list[float]]:
    """A record for each partition, every 10 ms; gives the longest time in which this process made none, in seconds.

    On a machine that is busy with other work this process waits for its turn, and what was not made is not read; the
    broker and the members wait for theirs as long once more.
    """
    done = threading.Event()
    longest_s = [0.0]

    def produce() -> None:
        with raylog.Producer() as producer:
            before_s = time.monotonic()
            while not done.wait(0.01):
                for number in range(PARTITIONS):
                    producer.send(TOPIC, b"x", partition=number)
                now_s = time.monotonic()
                longest_s[0], before_s = max(longest_s[0], now_s - before_s), now_s

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield longest_s
    finally:
        done.set()
        thread.join(30)


def shared(journals: list[Journal], partitions: int) -> bool:
    held = [journal.held() for journal in journals]
    return all(held) and sorted(number for each in held for number in each) == list(range(partitions))


class Board:
    """The group under test: its processes, what they have written, and the longest gaps."""

    def __init__(self, cluster: raylog.Cluster, admin: raylog.Admin, folder: Path) -> None:
        self.admin = admin
        self.journals = [Journal(folder / f"journal-{number}") for number in range(4)]
        self.members: list[subprocess.Popen[bytes]] = []
        self.gaps: dict[str, float] = {}
        self.silent_s = [0.0]
        """The longest time without a new record, in the present watch."""
        self.too_long: list[str] = []
        self.options = {
            "topic": TOPIC, "group_id": "board", "group_protocol": "consumer", "auto_offset_reset": "earliest",
            "auto_commit_interval_ms": 100, "session_timeout_ms": 2_000, "heartbeat_interval_ms": 300,
            "bootstrap": cluster.bootstrap(), "secret": cluster.secret(),
        }  # fmt: skip

    def start(self, number: int) -> None:
        """Start a process that writes into this journal."""
        command = [sys.executable, "-m", "tests.cluster.groups.group_member"]
        row = json.dumps({**self.options, "journal": str(self.journals[number].path)})
        self.members.append(subprocess.Popen([*command, row]))

    def kill(self, number: int) -> None:
        """Kill a member's process."""
        self.members[number].kill()
        self.members[number].wait(10)

    def settles(self, what: str, *readers: int, partitions: int = PARTITIONS) -> None:
        """Wait until these members share the topic."""
        journals = [self.journals[number] for number in readers]
        wait_for(lambda: shared(journals, partitions), what, 60)

    @contextmanager
    def watched(self, what: str, *readers: int) -> Iterator[None]:
        """Take the longest gap, during the block, of partitions that stay with one of these members."""
        began_s, self.silent_s[0] = time.monotonic(), 0.0
        kept = [(self.journals[number], self.journals[number].held()) for number in readers]
        yield
        until_s = time.monotonic()
        found = [
            journal.longest_gap_s(number, began_s, until_s)
            for journal, held in kept
            for number in held & journal.held() & set(range(PARTITIONS))
        ]
        self.gaps[what] = round(max(found), 3)
        if max(found) >= GAP_S_MAX + 2 * self.silent_s[0]:
            self.too_long.append(f"{what}: {max(found):.3f} s, and {self.silent_s[0]:.3f} s without a record")

    def nothing_is_left_out(self) -> None:
        """Each record was read by some member, up to the last one that was read."""
        for number in range(PARTITIONS):
            offsets = {offset for journal in self.journals for offset, _ in journal.read(number)}
            assert offsets == set(range(len(offsets))), f"records of partition {number} were left out"


def troubles(board: Board) -> None:
    """Members join and are killed, the coordinator is killed, the topic grows."""
    board.start(0)
    board.start(1)
    board.settles("two members share the topic", 0, 1)
    for journal in board.journals[:2]:
        wait_for(lambda journal=journal: all(journal.read(n) for n in journal.held()), "both read all they have", 30)  # type: ignore[misc]
    with board.watched("a member joins", 0, 1):
        board.start(2)
        board.settles("a third one joins", 0, 1, 2)
    with board.watched("the coordinator is killed", 0, 1, 2):
        the_coordinator_is_killed(board)
    with board.watched("a member is killed", 0, 2):
        board.kill(1)
        board.start(3)
        board.settles("a killed member is replaced", 0, 2, 3)
    with board.watched("the topic grows", 0, 2, 3):
        board.admin.create_partitions(TOPIC, MORE_PARTITIONS)
        board.settles("the topic has grown", 0, 2, 3, partitions=MORE_PARTITIONS)


def the_coordinator_is_killed(board: Board) -> None:
    """Another one goes on in the same epoch."""
    epoch, held = board.admin.describe_group("board").generation, [each.held() for each in board.journals]
    pid = call_actor("group-coordinator-0", "pid")
    kill(pid)
    wait_for(lambda: call_actor("group-coordinator-0", "pid") != pid, "another coordinator runs", 60)
    wait_for(lambda: board.admin.describe_group("board").state == "Stable", "it knows the group", 60)
    assert board.admin.describe_group("board").generation == epoch
    assert [each.held() for each in board.journals] == held


def test_members_read_on_while_others_and_the_coordinator_are_killed(shared_ray: None, tmp_path: Path) -> None:
    with raylog.start(tmp_path / "data", config=CONFIG) as cluster, raylog.Admin() as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        board = Board(cluster, admin, tmp_path)
        try:
            with trickle() as board.silent_s:
                troubles(board)
        finally:
            for number in range(len(board.members)):
                board.kill(number)
        print("longest gaps of partitions that stay, s:", board.gaps)
        board.nothing_is_left_out()
        assert board.too_long == []
