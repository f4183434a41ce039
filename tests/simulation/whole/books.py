"""Observations of a world's clients, and the claims that are checked at each entry.

The books have no access to the servers: only to sent, acknowledged, read and committed records. A broken claim raises
:class:`Violation` where it is entered, which ends the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from raylog.base.ids import TopicPartition
from tests.simulation.whole.plan import UNCLEAN
from tests.simulation.world import Violation

At = TopicPartition

SLACK_S: Final = 3.0
"""Longest delay of a client's call beyond its deadline: other callbacks run first."""


@dataclass(slots=True)
class Sent:
    """One record in flight."""

    producer: str
    at: At
    acks: object
    idempotent: bool
    sent_s: float
    order: int
    offset: int | None = None
    acked_s: float | None = None
    failed: str = ""


@dataclass
class Books:
    """All observations of the clients of one world."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    waiting: dict[int, tuple[float, str]] = field(default_factory=dict)
    """Calls in progress: deadline and name, by number."""
    content: dict[At, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """The records seen by any reader, by offset."""
    delivered: dict[tuple[str, At], set[int]] = field(default_factory=lambda: defaultdict(set))
    """Offsets delivered to any member of a group."""
    commits: dict[tuple[str, At], int] = field(default_factory=dict)
    """The highest acknowledged commit."""
    owners: dict[tuple[str, int, At], str] = field(default_factory=dict)
    """The owner of a partition in a generation."""
    deleted_below: dict[At, int] = field(default_factory=dict)
    """The highest offset below which a client requested the deletion of records."""
    low_watermarks: dict[At, int] = field(default_factory=dict)
    """The low watermark promised by an acknowledged deletion."""
    assignments: dict[At, tuple[int, ...]] = field(default_factory=dict)
    """Replicas of the last accepted reassignment."""
    partitions: dict[str, int] = field(default_factory=dict)
    """Created topics, with their current number of partitions."""
    doomed: set[str] = field(default_factory=set)
    """Topics with a requested deletion."""
    deleted: set[str] = field(default_factory=set)
    """Topics with an acknowledged deletion."""
    on_committed: Callable[[At, int, str, bool], None] = lambda *_: None
    """Takes partition, offset behind a committed record, how a client knows, and whether acks=all stored it."""
    on_written: Callable[[At, int, str, float], None] = lambda *_: None
    """Takes partition, offset behind a record that acks=1 stored, how a client knows, and when it was sent."""
    acked: int = 0
    read: int = 0
    calls: int = 0

    # ------------------------------------------------------------ calls

    def begin(self, deadline_s: float, what: str) -> int:
        """Enter a call that must end by its deadline."""
        self.calls += 1
        self.waiting[self.calls] = (deadline_s + SLACK_S, what)
        return self.calls

    def end(self, number: int) -> None:
        """A call has returned or failed."""
        self.waiting.pop(number, None)

    def excuse(self, prefix: str, by_s: float) -> None:
        """The client with this prefix of calls is paused, for a time or permanently."""
        for number, (deadline_s, what) in list(self.waiting.items()):
            if what.startswith(prefix):
                self.waiting[number] = (deadline_s + by_s, what)

    def check_deadlines(self, now_s: float) -> None:
        """Every call returns by its deadline."""
        for deadline_s, what in self.waiting.values():
            if now_s > deadline_s:
                raise Violation("W1", f"{what} did not return by its deadline, {now_s - deadline_s:.1f} s ago")

    # ------------------------------------------------------------ records

    def stored(self, value: bytes, at: At, offset: int, now_s: float) -> None:
        """A record was acknowledged."""
        record = self.sent[value]
        record.offset, record.acked_s = offset, now_s
        self.acked += 1
        if at != record.at:
            raise Violation("W2", f"{value!r} was sent to {record.at} and acknowledged at {at}")
        if offset >= 0 and record.acks == "all":
            self._same(at, offset, value, "acknowledged")
            self.on_committed(at, offset + 1, f"{value[:40]!r} was acknowledged", True)
        elif offset >= 0:
            self.on_written(at, offset + 1, f"{value[:40]!r} was acknowledged", record.sent_s)

    def seen(self, reader: str, at: At, offset: int, value: bytes) -> None:
        """A reader received a record."""
        self.read += 1
        record = self.sent.get(value)
        if record is None or record.at != at:
            raise Violation("W3", f"{reader} read {value!r} from {at}, where it was never sent")
        self._same(at, offset, value, f"read by {reader}")
        self.on_committed(at, offset + 1, f"{reader} read {value[:40]!r}", False)

    def _same(self, at: At, offset: int, value: bytes, what: str) -> None:
        if at.topic == UNCLEAN:
            return
        known = self.content[at].setdefault(offset, value)
        if known != value:
            raise Violation("W4", f"{at} has {known!r} at {offset}, and {value!r} was {what} there")

    def step(self, reader: str, at: At, last: int | None, offset: int) -> None:
        """A reader moves from one offset to the next, or over deleted records."""
        if last is None or offset == last + 1:
            return
        if offset <= last:
            raise Violation("W5", f"{reader} got {offset} of {at} after {last}")
        if offset > self.deleted_below.get(at, 0):
            raise Violation("W5", f"{reader} got {offset} of {at} after {last}; nothing in between was deleted")

    # ------------------------------------------------------------ groups

    def owns(self, group: str, generation: int, at: At, member: str) -> None:
        """A member was assigned a partition."""
        owner = self.owners.setdefault((group, generation, at), member)
        if owner != member:
            raise Violation("W6", f"{at} of {group} has two owners in generation {generation}: {owner} and {member}")

    def group_ended(self, group: str) -> None:
        """A group was deleted: a later one of the same name counts its generations from 1 again."""
        self.owners = {key: owner for key, owner in self.owners.items() if key[0] != group}

    def begins(self, group: str, at: At, offset: int, committed: int, member: str) -> None:
        """A member's first record of a partition; ``committed``: the acknowledged offset before it got it."""
        if offset < committed:
            raise Violation("W7", f"{member} begins {at} at {offset}, below the committed {committed} of {group}")

    def fetched(self, group: str, at: At, committed: int, found: int | None) -> None:
        """The group's offset was fetched; ``committed``: the offset acknowledged before."""
        if found is None and committed:
            raise Violation("W7", f"{committed} of {at} was committed by {group}, and nothing is there")
        if found is not None and found < committed:
            raise Violation("W7", f"{committed} of {at} was committed by {group}, and {found} is there")

    def committed(self, group: str, at: At, offset: int) -> None:
        """A commit was acknowledged."""
        key = (group, at)
        self.commits[key] = max(self.commits.get(key, 0), offset)
