"""All claims about a journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.everything.claims import churn, delays, expiry, outbox, queues
from tests.chaos.everything.claims.book import Book, Claim, Spans
from tests.chaos.everything.journal import Event


def find_claims(events: Iterable[Event], broken: Spans = ()) -> list[Claim]:
    """Judge a journal; ``broken``: when faults were in effect, and the cluster was not whole yet."""
    book = Book.of(events)
    return [
        *queues.claims(book),
        *delays.claims(book, broken),
        *expiry.claims(book),
        *outbox.claims(book),
        *churn.claims(book),
    ]
