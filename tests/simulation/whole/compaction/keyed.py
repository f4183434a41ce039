"""The records of compacted topics as clients know them: what was sent where, and at which offset it is (W3, W4, W14).

Each record has a header that no other has: its name. `tables.py` and `transactions/accounts.py` claim which of the
records have to be there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from raylog.base.ids import TopicPartition
from tests.simulation.world import Violation

At = TopicPartition


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One record of one key; without a value it removes the key."""

    at: At
    key: bytes
    value: bytes | None
    name: bytes
    """Its header."""
    offset: int | None = None
    """Known from its acknowledgement, or from a reader."""


RowT = TypeVar("RowT", bound=Row)


@dataclass
class KeyedBooks(Generic[RowT]):
    """The records of all compacted topics of a world."""

    on_committed: Callable[[At, int, str, bool], None] = lambda *_: None
    """Takes partition, offset behind a stored record, how a client knows, and whether acks=all stored it."""
    rows: dict[bytes, RowT] = field(default_factory=dict)
    """By name."""
    content: dict[At, dict[int, RowT]] = field(default_factory=lambda: defaultdict(dict))
    """The record at each known offset; it stays here when it was cleaned away."""

    def stored(self, row: RowT, offset: int) -> None:
        """A record was acknowledged; where it was sent in a transaction, that may still be aborted."""
        self._at(row, offset, "acknowledged")
        self.on_committed(row.at, offset + 1, f"{row.name!r} was acknowledged", True)

    def seen(self, reader: str, at: At, offset: int, key: bytes | None, value: bytes | None, name: bytes) -> None:
        """A reader received a record."""
        row = self.rows.get(name)
        if row is None or row.at != at or (key, value) != (row.key, row.value):
            raise Violation("W3", f"{reader} read {name!r} of key {key!r} from {at}, where it was never sent: {row}")
        self._at(row, offset, f"read by {reader}")
        self.on_committed(at, offset + 1, f"{reader} read {name!r}", False)

    def _at(self, row: RowT, offset: int, what: str) -> None:
        known = self.content[row.at].setdefault(offset, row)
        if known is not row:
            raise Violation("W4", f"{row.at} has {known.name!r} at {offset}, and {row.name!r} was {what} there")
        if row.offset not in (None, offset):
            raise Violation("W14", f"{row.name!r} was stored at {row.offset} of {row.at}, and {what} at {offset}")
        row.offset = offset
