"""Arithmetic over readings of /proc: the processes below one, their CPU time over a window, their memory. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

PSS: Final = "Pss:"
RAY_TITLES: Final = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::SPILL_", "ray::RESTORE_")
"""Titles of Ray's workers that are no actors of Raylog: idle ones, agents, and those that move objects."""
RAY_PROGRAMS: Final = ("gcs_server", "raylet")
RAY_FOLDER: Final = "/ray/"
"""In the path of each Python program of Ray, such as its log monitor, or a worker that has no title yet."""
FIRST_MAX: Final = 100
"""Partitions that get a first record: so many that one of them is above the 99th percentile."""

Key = tuple[int, int]
"""A process: its id, and when it began in clock ticks, because ids are used again."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One line of /proc/PID/stat. Times are in clock ticks; the beginning is since the system's."""

    pid: int
    parent: int
    began: int
    cpu: int

    @property
    def key(self) -> Key:
        """The process, apart from an earlier one with the same id."""
        return self.pid, self.began


def read_stat(text: str) -> Reading:
    """Decode the line. The name in it is in parentheses and may itself have spaces and parentheses."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Reading(
        pid=int(head.split(" ", 1)[0]),
        parent=int(fields[1]),
        began=int(fields[19]),
        cpu=int(fields[11]) + int(fields[12]),
    )


def read_pss(text: str) -> int:
    """Bytes of the proportional set size in /proc/PID/smaps_rollup; 0 without one, as of a process that has ended."""
    for line in text.splitlines():
        if line.startswith(PSS):
            return int(line.split()[1]) * 1024
    return 0


def below(readings: Iterable[Reading], root: int, except_for: Collection[int] = ()) -> list[Reading]:
    """The descendants of a process, without some of them; the children of those are included."""
    children: dict[int, list[Reading]] = {}
    for reading in readings:
        children.setdefault(reading.parent, []).append(reading)
    found, parents = [], [root]
    while parents:
        for reading in children.pop(parents.pop(), ()):
            parents.append(reading.pid)
            if reading.pid not in except_for:
                found.append(reading)
    return found


def is_of_ray(command: Sequence[str]) -> bool:
    """Whether a process with this command line is Ray's own; the fork server of Raylog and its actors are not."""
    if not command:
        return False
    if command[0].startswith(RAY_TITLES) or command[0].rpartition("/")[2] in RAY_PROGRAMS:
        return True
    return any(RAY_FOLDER in word and word.endswith(".py") for word in command)


class CpuUse:
    """CPU time of processes since a first reading. One that has ended counts with what its last reading had."""

    def __init__(self, first: Iterable[Reading]) -> None:
        self._before = {reading.key: reading.cpu for reading in first}
        self._last = dict(self._before)

    def add(self, readings: Iterable[Reading]) -> list[Key]:
        """Take another reading; returns the processes that no earlier one had. All of their time counts."""
        now = {reading.key: reading.cpu for reading in readings}
        new = [key for key in now if key not in self._last]
        self._last |= now
        return new

    def ticks(self) -> dict[Key, int]:
        """Clock ticks of each process that was ever read."""
        return {key: cpu - self._before.get(key, 0) for key, cpu in self._last.items()}


def split(ticks: Mapping[Key, int], commands: Mapping[Key, Sequence[str]]) -> tuple[int, int]:
    """Clock ticks of the server, and of Ray's own processes."""
    of_ray = sum(used for key, used in ticks.items() if is_of_ray(commands.get(key, ())))
    return sum(ticks.values()) - of_ray, of_ray


def first_partitions(partitions: int) -> list[int]:
    """Up to 100 partitions, evenly spread; never partition 0, which connects the producer."""
    count = min(FIRST_MAX, partitions - 1)
    return [1 + number * (partitions - 1) // count for number in range(count)]


def due(number: int, partitions: int, per_minute: float) -> tuple[int, float]:
    """Partition, and seconds since the beginning, of a record of the trickle: the partitions take turns evenly."""
    return number % partitions, number * 60.0 / (partitions * per_minute)


def records_within(seconds: float, partitions: int, per_minute: float) -> int:
    """Number of records of the trickle in so many seconds."""
    return round(seconds * partitions * per_minute / 60.0)
