"""What is known of a compacted topic that is written in transactions: each key's last committed record stays.

Each record has a header that no other has: its name. The ledger claims whether a record may be read. The claims here
are that a record is missing only where a later committed one of its key has replaced it, and that one of an aborted
transaction replaces nothing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.simulation.whole.compaction.keyed import At, KeyedBooks, Row
from tests.simulation.whole.compaction.tables import LOST
from tests.simulation.whole.transactions.ledger import ONCE, Txn
from tests.simulation.world import Violation

Read = Mapping[At, Mapping[int, bytes]]
"""What a reader of committed records has got: name by offset."""


@dataclass(slots=True, kw_only=True, eq=False)
class TxnRow(Row):
    """One record that is sent in a transaction."""

    txn: Txn


@dataclass
class Accounts(KeyedBooks[TxnRow]):
    """The records of the compacted topic of a world."""

    passed: list[tuple[str, TxnRow]] = field(default_factory=list)
    """Reader, and a record that was committed before it went past it without getting it."""
    forgets: bool = False
    """Whether removals may be missing: not before all replicas have them."""

    def enter(self, txn: Txn, at: At, key: bytes, value: bytes | None, name: bytes) -> TxnRow:
        """A record is about to be sent."""
        row = self.rows[name] = TxnRow(txn=txn, at=at, key=key, value=value, name=name)
        return row

    # ------------------------------------------------------------ readers under way

    def known(self, at: At, end: int) -> list[TxnRow]:
        """Return the records below `end` that are committed."""
        return [row for offset, row in self.content[at].items() if offset < end and row.txn.is_known_committed]

    def went(self, reader: str, known: list[TxnRow], read: Mapping[int, bytes]) -> None:
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
            last: dict[bytes, TxnRow] = {}
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
