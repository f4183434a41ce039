"""What is known of a compacted topic that is written in transactions: each key's last committed record stays.

Each record has a header that no other has: its name. The ledger claims whether a record may be read. The claims here
are that a record is missing only where a later committed one of its key has replaced it, and that one of an aborted
transaction replaces nothing. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from raylog.core.ids import TopicPartition
from tests.simulation.whole.compaction.tables import LOST
from tests.simulation.whole.transactions.ledger import ONCE, Txn
from tests.simulation.world import Violation

At = TopicPartition
Read = Mapping[At, Mapping[int, bytes]]
"""What a reader of committed records has got: name by offset."""


@dataclass(slots=True, eq=False)
class Row:
    """One record of one key; without a value it removes the key."""

    txn: Txn
    at: At
    key: bytes
    value: bytes | None
    name: bytes
    """Its header."""
    offset: int | None = None
    """Known from its acknowledgement, or from a reader."""


@dataclass
class Accounts:
    """The records of the compacted topic of a world."""

    on_committed: Callable[[At, int, str, bool], None] = lambda *_: None
    """Takes partition, offset behind a stored record, how a client knows, and whether acks=all stored it."""
    rows: dict[bytes, Row] = field(default_factory=dict)
    content: dict[At, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    """The record at each known offset; it stays here when it was cleaned away."""
    passed: list[tuple[str, Row]] = field(default_factory=list)
    """Reader, and a record that was committed before it went past it without getting it."""
    forgets: bool = False
    """Whether removals may be missing: not before all replicas have them."""

    def enter(self, txn: Txn, at: At, key: bytes, value: bytes | None, name: bytes) -> Row:
        """A record is about to be sent."""
        row = self.rows[name] = Row(txn, at, key, value, name)
        return row

    def stored(self, row: Row, offset: int) -> None:
        """A record was acknowledged; its transaction may still be aborted."""
        self._at(row, offset, "acknowledged")
        self.on_committed(row.at, offset + 1, f"{row.name!r} was acknowledged", True)

    def seen(self, reader: str, at: At, offset: int, key: bytes | None, value: bytes | None, name: bytes) -> None:
        """A reader received a record."""
        row = self.rows.get(name)
        if row is None or row.at != at or (key, value) != (row.key, row.value):
            raise Violation("W3", f"{reader} read {name!r} of key {key!r} from {at}, where it was never sent: {row}")
        self._at(row, offset, f"read by {reader}")
        self.on_committed(at, offset + 1, f"{reader} read {name!r}", False)

    def _at(self, row: Row, offset: int, what: str) -> None:
        known = self.content[row.at].setdefault(offset, row)
        if known is not row:
            raise Violation("W4", f"{row.at} has {known.name!r} at {offset}, and {row.name!r} was {what} there")
        if row.offset not in (None, offset):
            raise Violation("W14", f"{row.name!r} was stored at {row.offset} of {row.at}, and {what} at {offset}")
        row.offset = offset

    # ------------------------------------------------------------ readers under way

    def known(self, at: At, end: int) -> list[Row]:
        """Return the records below `end` that are committed."""
        return [row for offset, row in self.content[at].items() if offset < end and row.txn.is_known_committed]

    def went(self, reader: str, known: list[Row], read: Mapping[int, bytes]) -> None:
        """A reader has read on over all of these records, and got those of `read`."""
        self.passed += [
            (reader, row) for row in known if row.offset not in read and not (self.forgets and row.value is None)
        ]

    def check_passed(self) -> None:
        """Explain each record that was passed by a later one of its key, which may be committed."""
        last: dict[tuple[At, bytes], float] = {}
        for row in self.rows.values():
            if row.txn.may_be_committed:
                end = float("inf") if row.offset is None else row.offset
                last[row.at, row.key] = max(end, last.get((row.at, row.key), -1))
        for reader, row in self.passed:
            if last.get((row.at, row.key), -1) <= (row.offset or 0):
                raise Violation(LOST, f"{reader} did not get {row.name!r}, the last record of {row.key!r} in {row.at}")

    # ------------------------------------------------------------ at the end

    def replaced(self, read: Read) -> set[bytes]:
        """Return the names of records that may be missing: a later one of their key is there."""
        last: dict[tuple[At, bytes], int] = {}
        for at, found in read.items():
            for offset, name in found.items():
                place = at, self.rows[name].key
                last[place] = max(offset, last.get(place, -1))
        return {row.name for row in self.rows.values() if (row.offset or 0) < last.get((row.at, row.key), -1)}

    def check_last(self, read: Read) -> None:
        """The last committed record of each key is there, also once nothing else of it has to be."""
        for at, found in read.items():
            last: dict[bytes, Row] = {}
            for _, row in sorted(self.content[at].items()):
                if row.txn.is_known_committed:
                    last[row.key] = row
            there = {self.rows[name].key: offset for offset, name in sorted(found.items())}
            for key, row in last.items():
                offset = there.get(key)
                if offset == row.offset or (offset is None and row.value is None and self.forgets):
                    continue
                raise Violation(
                    LOST, f"{row.name!r} at {row.offset} of {at} is the last record of {key!r}, and {offset} is there"
                )

    def check_sums(self, read: Read, sums: Mapping[tuple[At, bytes], bytes]) -> None:
        """Each of these keys has this value: it was written in the same transactions as what it sums up."""
        for (at, key), wanted in sums.items():
            values = [row.value for _, name in sorted(read[at].items()) if (row := self.rows[name]).key == key]
            if (values[-1] if values else b"0") != wanted:
                raise Violation(ONCE, f"{key!r} of {at} has {values[-1:]}, and the group has committed {wanted!r}")
