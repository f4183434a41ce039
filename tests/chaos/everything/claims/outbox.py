"""What is claimed of an outbox: O1 and O3 of docs/time-and-queues.md. Pure."""

from __future__ import annotations

from typing import Final

from tests.chaos.everything.claims.book import Book, Claim, each_once, in_order, none_invented, none_lost, read_forward
from tests.chaos.everything.journal import number_of

FEATURE: Final = "transfers"
TOPIC: Final = "transfers"


def claims(book: Book) -> list[Claim]:
    """All claims."""
    sent, seen, undone = book.sent[FEATURE], book.seen[TOPIC], book.withdrawn[FEATURE]
    known = [row for row in seen if row.name in sent]
    return [
        none_lost("outbox: each committed row is there", "row lost", book.stored(FEATURE), {row.name for row in seen}),
        each_once("outbox: none is twice", "row twice", seen),
        none_invented("outbox: none of a transaction that rolled back", "row of no commit", seen, sent, undone),
        in_order(
            "outbox: rows of a key are in the order of their commits",
            "rows out of order",
            ((sent[row.name].key, number_of(row.name), row.name) for row in known),
        ),
        read_forward("outbox: its reader goes forward", "row read again", seen),
    ]
