"""What is known of the records of a queue, group by group: handed out, acknowledged, rejected, to be retried."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.world import Violation

HANDED_AGAIN: Final = "W40"
OVERTAKEN: Final = "W41"
UNFINISHED: Final = "W42"
DEAD_LETTERS: Final = "W43"
EARLY: Final = "W44"
KEPT: Final = "W45"
COPIED: Final = "W46"
ABORTED: Final = "W47"
CLOCK_MS: Final = 50
"""Rounding, and the way between a worker and its leader."""

COPY_MS: Final = 1_100
"""Copies are due by the time of `__scheduled`'s leader, which may be a second from that of the queue's."""
ON_THE_WAY_MS: Final = 12_000
"""So long a hand-out may be on the way to a worker, whose record another one finishes meanwhile."""

At = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True)
class Job:
    """One record in one group."""

    name: bytes
    key: bytes | None
    holders: set[str] = field(default_factory=set)
    """The workers that got it, and have not given it back."""
    is_closed: bool = False
    """Whether a worker has tried to finish it: acknowledged or rejected, whatever the answer."""
    acknowledged: tuple[int, int] | None = None
    """With which hand-out's count, and when, an acknowledgement was answered."""
    left_order: bool = False
    """Whether a worker wants it again so late that a copy waits."""
    is_copy: bool = False
    """Whether the copy was handed out."""
    is_rejected: bool = False
    """Whether a rejection was answered."""
    is_unsure: bool = False
    """Whether the outcome of an acknowledgement is not known: then it may be finished, or come again."""
    may_be_dead: bool = False
    """Whether a worker has tried to reject it."""
    not_before_ms: int = 0
    retried: int = 0
    """The count of the hand-out after which it waits until then."""


@dataclass
class Group:
    """One group's records, by place."""

    by_key: bool
    jobs: dict[At, Job] = field(default_factory=dict)
    of_key: dict[tuple[int, bytes], list[int]] = field(default_factory=lambda: defaultdict(list))

    def handed(
        self, worker: str, at: At, name: bytes, key: bytes | None, tries: int, came_ms: int, *, is_copy: bool = False
    ) -> Job:
        """A worker takes a record, which was handed out so often, and has come to it then."""
        job = self.jobs.get(at)
        if job is None:
            job = self.jobs[at] = Job(name, key)
            if key is not None:
                self.of_key[at[0], key].append(at[1])
        if job.acknowledged is not None:
            known, answered_ms = job.acknowledged
            if tries > known or came_ms > answered_ms + ON_THE_WAY_MS:
                raise Violation(HANDED_AGAIN, f"{worker} got {name!r} ({tries}), acknowledged as {job.acknowledged}")
        if is_copy != job.is_copy and not (is_copy and job.left_order and tries > 1):
            raise Violation(COPIED, f"{worker} got {name!r} at {at} ({tries}), which is at a copy now")
        job.is_copy |= is_copy
        if tries > job.retried and came_ms + (COPY_MS if is_copy else CLOCK_MS) < job.not_before_ms:
            raise Violation(EARLY, f"{worker} got {name!r} {job.not_before_ms - came_ms} ms before its time")
        if self.by_key and key is not None and not is_copy:
            self._check_order(worker, at, key)
        job.holders.add(worker)
        return job

    def _check_order(self, worker: str, at: At, key: bytes) -> None:
        for offset in self.of_key[at[0], key]:
            earlier = self.jobs[at[0], offset]
            is_open = not (earlier.is_closed or earlier.left_order)
            if offset < at[1] and is_open and worker not in earlier.holders:
                raise Violation(OVERTAKEN, f"{worker} got {at}, and {earlier} at {offset} is not finished")


@dataclass
class Jobs:
    """The queue's topic, its groups, and its dead letters."""

    groups: dict[str, Group] = field(default_factory=dict)
    sent: set[bytes] = field(default_factory=set)
    """What was stored, and committed where it was sent in a transaction."""
    aborted: set[bytes] = field(default_factory=set)
    """What was sent in transactions that are not to be committed."""
    letters: dict[tuple[str, bytes], int] = field(default_factory=dict)
    """The offset of each dead letter, by group and name."""

    def letter(self, group: str, name: bytes, offset: int) -> None:
        """A reader of the dead letters received one."""
        before = self.letters.setdefault((group, name), offset)
        if before != offset:
            raise Violation(DEAD_LETTERS, f"the dead letter of {name!r} in {group} is at {before} and at {offset}")
        job = next((job for job in self.groups[group].jobs.values() if job.name == name), None)
        if job is None or not job.may_be_dead:
            raise Violation(DEAD_LETTERS, f"{name!r} is a dead letter of {group}, and no worker has rejected it")
        if job.acknowledged is not None and not job.is_rejected:
            raise Violation(DEAD_LETTERS, f"{name!r} is a dead letter of {group}, and was acknowledged")

    def unfinished(self) -> str:
        """Say what is still to be done; empty = nothing."""
        for name, group in self.groups.items():
            done = {
                job.name
                for job in group.jobs.values()
                if job.acknowledged is not None or job.is_unsure or (name, job.name) in self.letters
            }
            if missing := sorted(self.sent - done):
                known = [(at, job) for at, job in group.jobs.items() if job.name == missing[0]]
                return f"{name} has not finished {len(missing)} records, such as {missing[0]!r}: {known}"
        return self.missing_letters()

    def missing_letters(self) -> str:
        """Say which rejected record is no dead letter; empty = each is one."""
        for name, group in self.groups.items():
            for job in group.jobs.values():
                if job.is_rejected and (name, job.name) not in self.letters:
                    return f"{job.name!r} was rejected in {name}, and is no dead letter"
        return ""
