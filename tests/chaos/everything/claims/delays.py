"""What is claimed of delayed records: W30 to W33 of docs/protocol.md, their order and their lateness. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from tests.chaos.everything.claims.book import (
    Book,
    Claim,
    Spans,
    each_once,
    in_order,
    is_touched,
    is_within,
    none_invented,
    none_lost,
    read_forward,
)
from tests.chaos.everything.journal import Seen
from tests.chaos.evidence.checker import Anomaly
from tests.chaos.evidence.report import percentile

FEATURE: Final = "due"
TOPIC: Final = "due"
LATE_MS: Final = 10_000
"""Beyond that a record is late where nothing is broken from its due time on: two cores run everything, which costs
seconds at times, and the next fault may meet what is still on its way."""
ACCEPTED_MS: Final = 500
"""A record that is acknowledged within so long of its time may have been accepted behind it, and has no order then."""


def claims(book: Book, broken: Spans) -> list[Claim]:
    """All claims."""
    sent, seen, cancelled = book.sent[FEATURE], book.seen[TOPIC], book.withdrawn[FEATURE]
    wanted = book.stored(FEATURE).keys() - cancelled - book.doubtful[FEATURE]
    known = [row for row in seen if row.name in sent]
    in_time = [row for row in known if sent[row.name].done_ms + ACCEPTED_MS < sent[row.name].due_ms]
    calm = [row for row in in_time if not is_within(sent[row.name].due_ms, broken)]
    waited = {row.name: (sent[row.name].due_ms, min(row.at_ms, sent[row.name].due_ms + LATE_MS)) for row in calm}
    undisturbed = [row for row in calm if not is_touched(*waited[row.name], broken)]
    late = sorted(row.at_ms - sent[row.name].due_ms for row in undisturbed)
    return [
        none_lost("delays: each record comes", "delayed lost", wanted, {row.name for row in seen}),
        each_once("delays: none comes twice", "delayed twice", seen),
        none_invented("delays: none comes that was cancelled or never sent", "delayed invented", seen, sent, cancelled),
        read_forward("delays: the reader goes forward", "delayed read again", seen),
        Claim(
            "delays: none comes before it is due",
            len(known),
            [
                Anomaly("delayed early", f"{row.name} came {sent[row.name].due_ms - row.at_ms} ms early")
                for row in known
                if row.at_ms < sent[row.name].due_ms
            ],
        ),
        Claim(
            "delays: its timestamp is its due time",
            len(in_time),
            [
                Anomaly("delayed stamp", f"{row.name} has {row.stamp_ms}, and was due at {sent[row.name].due_ms}")
                for row in in_time
                if row.stamp_ms != sent[row.name].due_ms
            ],
        ),
        in_order(
            "delays: records of a partition come by their times, where nothing is broken",
            "delayed out of order",
            (
                ((row.topic, row.partition), row.stamp_ms, f"{row.name}, due at {row.stamp_ms},")
                for row in _by_offset(calm)
            ),
        ),
        Claim(
            f"delays: none is more than {LATE_MS / 1000:.0f} s late, where nothing is broken",
            len(late),
            [
                Anomaly("delayed late", f"{row.name} came {row.at_ms - sent[row.name].due_ms} ms late")
                for row in undisturbed
                if row.at_ms - sent[row.name].due_ms > LATE_MS
            ],
            _spread(late),
        ),
    ]


def _by_offset(rows: Iterable[Seen]) -> list[Seen]:
    return sorted(rows, key=lambda row: (row.partition, row.offset))


def _spread(late: Sequence[int]) -> str:
    if not late:
        return ""
    middle, most = statistics.median(late), percentile(late, 0.99)
    return f"late by {middle:.0f} ms at the median, {most:.0f} at p99, {late[-1]} at most"
