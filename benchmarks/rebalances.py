"""The load `rebalance`: a group comes together, then one more member joins; how long it takes, and what is read on.

A record goes to some of the partitions every few milliseconds, one after the other. Of each partition that stays with
its member while the last one joins, the longest time without a record is taken: the member has not read it for so long.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.clients.base import Client, Unsupported
from benchmarks.job import Job, Outcome

TRICKLES = 20
"""Partitions that get records while the last member joins: enough to meet many members."""
PAUSE_S = 0.002
"""Between two records, so that each of these partitions gets one every 40 ms."""
SETTLES_S = 60.0
QUIET_S = 1.0
"""How long the gaps are watched before the last member joins, and after it got its partitions."""
POLL_S = 0.02


class Watch:
    """What each member holds, and when each partition was read last."""

    def __init__(self, partitions: int) -> None:
        self.held: dict[int, frozenset[int]] = {}
        self._partitions = partitions
        self._last_s: dict[tuple[int, int], float] = {}
        self._gaps_s: dict[tuple[int, int], float] = {}

    def is_whole(self, members: int) -> bool:
        """Whether each partition has one owner, and each member has partitions."""
        held = list(self.held.values())
        counted = sum(map(len, held))
        return len(held) == members and all(held) and counted == len(frozenset().union(*held)) == self._partitions

    def read_once(self) -> int:
        """How many partitions were read since they came to their member."""
        return sum(1 for member, partition in list(self._last_s) if partition in self.held.get(member, ()))

    def begin(self) -> None:
        """Forget the gaps until now."""
        self._gaps_s.clear()
        now_s = time.monotonic()
        self._last_s = dict.fromkeys(self._last_s, now_s)

    def read(self, member: int, partition: int) -> None:
        """A member got records of a partition."""
        now_s, place = time.monotonic(), (member, partition)
        self._gaps_s[place] = max(self._gaps_s.get(place, 0.0), now_s - self._last_s.get(place, now_s))
        self._last_s[place] = now_s

    def longest_gap_s(self, kept: set[tuple[int, int]]) -> float:
        """The longest time in which a partition that stayed with its member was not read, to the present."""
        now_s = time.monotonic()
        return max(
            (max(self._gaps_s.get(each, 0.0), now_s - self._last_s[each]) for each in kept if each in self._last_s),
            default=0.0,
        )


def rebalance(job: Job, make: Callable[[Job], Client], report_ready: Callable[[], None]) -> Outcome:
    """`connections` members join at once, then one more."""
    if getattr(make(job), "take_by_partition", None) is None:
        raise Unsupported("rebalances are not measured with this client")
    watch, done = Watch(job.partitions), threading.Event()
    group = f"group-{time.time_ns()}"
    members = [_Member(job, make, group, number, watch, done) for number in range(job.connections + 1)]
    trickle = threading.Thread(target=_trickle, args=(make(job), job.partitions, done))
    report_ready()
    trickle.start()
    try:
        began_s = time.monotonic()
        for member in members[:-1]:
            member.start()
        all_joined_s = _wait(lambda: watch.is_whole(job.connections))
        last_join_s = max(member.joined_s for member in members[:-1])
        trickled = len(range(0, job.partitions, max(1, job.partitions // TRICKLES)))
        _wait(lambda: watch.read_once() >= trickled)  # the first record of a partition may have to wake it
        time.sleep(QUIET_S)
        before = {(number, each) for number, held in watch.held.items() for each in held}
        watch.begin()
        time.sleep(QUIET_S)
        still_s = watch.longest_gap_s(before)
        watch.begin()
        members[-1].start()
        whole_s = _wait(lambda: watch.is_whole(job.connections + 1))
        time.sleep(QUIET_S)
        after = {(number, each) for number, held in watch.held.items() for each in held}
        return {
            "records": 0,
            "seconds": whole_s - began_s,
            "join_s": all_joined_s - last_join_s,
            "late_join_s": whole_s - members[-1].joined_s,
            "gap_ms": watch.longest_gap_s(before & after) * 1000,
            "still_gap_ms": still_s * 1000,
            "moved": len(before - after),
        }
    finally:
        done.set()
        for thread in (*members, trickle):
            if thread.ident is not None:
                thread.join(SETTLES_S)


class _Member(threading.Thread):
    """One member on its own thread."""

    def __init__(
        self, job: Job, make: Callable[[Job], Client], group: str, number: int, watch: Watch, done: threading.Event
    ) -> None:
        super().__init__(name=f"member-{number}", daemon=True)
        self._job, self._make, self._group, self._number = job, make, group, number
        self._watch, self._done = watch, done
        self.joined_s = 0.0

    def run(self) -> None:
        """Poll until the end."""
        client: Any = self._make(self._job)
        try:
            client.open_consumer(group=self._group)
            self.joined_s = time.monotonic()
            while not self._done.is_set():
                for partition in client.take_by_partition(POLL_S):
                    self._watch.read(self._number, partition)
                self._watch.held[self._number] = client.held()
        finally:
            client.close()


def _trickle(client: Any, partitions: int, done: threading.Event) -> None:
    client.open_producer()
    try:
        for number in itertools.cycle(range(0, partitions, max(1, partitions // TRICKLES))):
            if done.wait(PAUSE_S):
                break
            client.send_to(number, b"x" * 100)
        client.flush()
    finally:
        client.close()


def _wait(holds: Callable[[], bool]) -> float:
    deadline_s = time.monotonic() + SETTLES_S
    while not holds():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"the group has not come together within {SETTLES_S:.0f} s")
        time.sleep(0.002)
    return time.monotonic()
