"""What is claimed of records that expire: W50 to W53 of docs/protocol.md, and of readers that skip them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from tests.chaos.everything.claims.book import Book, Claim, each_once, in_order, none_invented, none_lost, read_forward
from tests.chaos.everything.journal import Seen, Sent
from tests.chaos.evidence.checker import Anomaly

WAITING: Final = "wait"
"""The topic whose records expire into another one."""
EXPIRED: Final = "expired"
OFFERS: Final = "offers"
"""The topic whose reader skips what has expired."""
HELD_MS: Final = 1_000
"""A reader looks at the time when it opens a batch: so long before its user gets the last record of it."""


def claims(book: Book) -> list[Claim]:
    """All claims."""
    return [*_dead_letters(book), *_skipped(book)]


def _dead_letters(book: Book) -> Iterable[Claim]:
    sent, seen = book.sent[WAITING], book.seen[EXPIRED]
    known = [row for row in seen if row.name in sent]
    yield none_lost("TTL: each expired record is a dead letter", "expired lost", book.stored(WAITING), _names(seen))
    yield each_once("TTL: none is twice", "expired twice", seen)
    yield none_invented("TTL: none was never sent", "expired invented", seen, sent)
    yield read_forward("TTL: the reader of dead letters goes forward", "expired read again", seen)
    yield Claim(
        "TTL: none is a dead letter before it expires",
        len(known),
        [
            Anomaly("expired early", f"{row.name} came {sent[row.name].due_ms - row.at_ms} ms early")
            for row in known
            if row.at_ms < sent[row.name].due_ms
        ],
    )
    yield Claim(
        "TTL: the reason is its end",
        len(known),
        [Anomaly("expired reason", f"{row.name}: {row.reason!r}") for row in known if row.reason != "expired"],
    )
    yield in_order(
        "TTL: dead letters are in the order of their partition",
        "expired out of order",
        ((sent[row.name].partition, sent[row.name].offset, row.name) for row in known if sent[row.name].offset >= 0),
    )


def _skipped(book: Book) -> Iterable[Claim]:
    sent, seen = book.sent[OFFERS], book.seen[OFFERS]
    stored = book.stored(OFFERS)
    end_ms = max((row.at_ms for row in seen), default=0)
    lasting = [name for name, record in stored.items() if record.due_ms > end_ms]
    passing = stored.keys() - set(lasting)
    yield none_lost("TTL: a reader that skips gets all that lasts", "offer lost", lasting, _names(seen))
    yield Claim(
        "TTL: it gets none that has expired",
        len(passing),
        [
            Anomaly("expired offer", f"{row.name} came {row.at_ms - sent[row.name].due_ms} ms after its end")
            for row in seen
            if row.name in sent and row.at_ms > sent[row.name].due_ms + HELD_MS
        ],
        f"{len(passing - _names(seen)):,} were left out",
    )
    yield none_invented("TTL: it gets none that was never sent", "offer invented", seen, sent)
    yield each_once("TTL: it gets none at two places", "offer twice", seen)
    yield read_forward("TTL: it goes forward", "offer read again", seen)
    yield _passed_over(seen, sent)


def _passed_over(seen: Iterable[Seen], sent: Mapping[str, Sent]) -> Claim:
    """What lies between two records that it got, and was not over when it got the second, it got as well."""
    at: dict[int, dict[int, Sent]] = defaultdict(dict)
    for record in sent.values():
        if record.offset >= 0:
            at[record.partition][record.offset] = record
    last: dict[int, int] = {}
    wrong = []
    count = 0
    for row in seen:
        for offset in range(last.get(row.partition, -1) + 1, row.offset):
            count += 1
            passed = at[row.partition].get(offset)
            if passed is not None and passed.due_ms > row.at_ms:
                left_ms = passed.due_ms - row.at_ms
                wrong.append(Anomaly("offer passed over", f"{passed.name} had {left_ms} ms left before {row.name}"))
        last[row.partition] = row.offset
    return Claim("TTL: what it passes over has expired", count, wrong)


def _names(rows: Iterable[Seen]) -> set[str]:
    return {row.name for row in rows}
