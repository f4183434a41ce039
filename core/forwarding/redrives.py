"""Rows of ``__forwarding``: forwarders' progress, redrives, and where the next redrive of a topic begins.

Used by the machine of forwarders' states (``states.py``). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from raylog.protocol.message import Message, replace
from raylog.protocol.rows import Row, RowKinds

RUNNING: Final = "running"
HOLDING: Final = "holding"
CANCELLING: Final = "cancelling"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
KEPT_MS: Final = 7 * 86_400_000
"""How long a redrive that has ended is listed."""


class Span(Message, frozen=True):
    """What a redrive sends on of one partition: ``start`` to ``end``; what is below ``position`` is done."""

    start: int
    end: int
    position: int
    sent: int


class Outcome(NamedTuple):
    """How a redrive ended in one partition."""

    position: int
    sent: int
    skipped: int
    """The first record that was left for a later redrive; -1 = none."""


class ForwarderState(Row, frozen=True):
    """What a forwarder has decided last, encoded, and the epoch of the owner that stored it."""

    KIND = "state"
    KEY = 1
    VERSION = None

    name: str
    owner_epoch: int
    progress: bytes


class Frontier(Row, frozen=True):
    """What redrives have sent of the partitions of one topic.

    ``behind``: by partition, where the next redrive begins. ``unsent``: by partition, the first earlier record that
    still has to be sent; -1 = none.
    """

    KIND = "frontier"
    KEY = 1
    VERSION = None

    topic_id: str
    behind: tuple[int, ...] = ()
    unsent: tuple[int, ...] = ()

    def behind_of(self, partition: int) -> int:
        """Return where the next redrive of a partition begins."""
        return self.behind[partition] if partition < len(self.behind) else 0

    def unsent_of(self, partition: int) -> int:
        """Return the first earlier record of a partition that still has to be sent; -1 = none."""
        return self.unsent[partition] if partition < len(self.unsent) else -1


class Redrive(Row, frozen=True):
    """One redrive. Times in milliseconds since 1970; ``ended_ms`` -1 = it runs.

    ``to``: another topic; empty = each record goes to the topic that it came from. ``rate``: records per second of each
    partition; 0 = no limit. ``sent_below``: by partition, the offset below which earlier redrives have sent all
    records, except those without an origin.
    """

    KIND = "redrive"
    KEY = 1
    VERSION = None

    number: int
    topic: str
    topic_id: str
    to: str
    where: Mapping[str, str]
    rate: int
    state: str
    started_ms: int
    ended_ms: int
    spans: tuple[Span, ...]
    from_start: bool = False
    sent_below: tuple[int, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it is done, or was cancelled."""
        return self.state in (DONE, CANCELLED)

    def sent_below_of(self, partition: int) -> int:
        """Return the offset of a partition below which earlier redrives have sent all records with an origin."""
        return self.sent_below[partition] if partition < len(self.sent_below) else 0

    def ended(self, outcomes: Mapping[int, Outcome], wall_ms: int) -> Redrive:
        """Return it as it has ended."""
        spans = tuple(
            replace(span, position=outcomes[at].position, sent=outcomes[at].sent) for at, span in enumerate(self.spans)
        )
        is_done = all(span.position >= span.end for span in spans)
        return replace(self, state=DONE if is_done else CANCELLED, ended_ms=wall_ms, spans=spans)

    def frontier(self, before: Frontier, outcomes: Mapping[int, Outcome]) -> Frontier:
        """Return what has been sent of the topic once this redrive has ended.

        Partitions where nothing was sent stay to be sent, for example to another topic (:func:`after_redrive`).
        """
        reached: list[tuple[int, int]] = []
        for partition in range(len(self.spans)):
            position, sent, skipped = outcomes[partition]
            was, below = before.behind_of(partition), 0 if self.from_start else before.behind_of(partition)
            if self.from_start and not sent and skipped < 0:
                skipped = before.unsent_of(partition)  # cancelled before it reached that record
            reached.append(after_redrive(was, below, position, sent, skipped))
        return Frontier(self.topic_id, tuple(each for each, _ in reached), tuple(unsent for _, unsent in reached))


ROWS: Final = RowKinds("__forwarding", (ForwarderState, Redrive, Frontier))


def spans_from(bounds: Sequence[tuple[int, int]], before: Frontier) -> tuple[Span, ...]:
    """Return what a redrive sends on of partitions with these first and end offsets."""
    spans: list[Span] = []
    for partition, (first, end) in enumerate(bounds):
        behind, unsent = before.behind_of(partition), before.unsent_of(partition)
        start = min(end, max(first, behind if unsent < 0 else min(unsent, behind)))
        spans.append(Span(start, end, start, 0))
    return tuple(spans)


def after_redrive(before: int, sent_below: int, position: int, sent: int, skipped: int) -> tuple[int, int]:
    """Return where the next redrive of a partition begins, and the first earlier record that still has to be sent.

    That record is -1 if there is none. ``before``: where this redrive was to begin. ``sent_below``: it left out records
    below this offset, because they had been sent. ``position``: how far it came. ``sent``: how many records it sent.
    ``skipped``: the first record that it left; -1 = none.
    """
    behind = max(sent_below, position) if sent else before
    if 0 <= skipped < behind:
        return behind, skipped
    return behind, position if position < sent_below else -1
