"""What is known of the records of compacted topics: each key's last record stays, and any other may go.

Each record has a header that no other has. The books enter what was acknowledged and read; a record that a reader has
passed without reading it must be explained at the end by a later one of its key, or by its own lack of a value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from tests.simulation.whole.compaction.keyed import At, KeyedBooks, Row
from tests.simulation.whole.plan import BRIEF
from tests.simulation.world import Violation

LOST: Final = "W28"


@dataclass
class Tables(KeyedBooks[Row]):
    """The records of all compacted topics of a world that no transaction writes to."""

    passed: list[tuple[str, At, int]] = field(default_factory=list)
    """Reader, partition and offset of known records that a reader went past without reading them."""
    deleted_below: dict[At, int] = field(default_factory=lambda: defaultdict(int))
    """The highest offset below which a client requested the deletion of records."""

    def went(self, reader: str, at: At, known: Iterable[int], read: set[int]) -> None:
        """A reader has read on over all of these known offsets, and got those of `read`."""
        self.passed += [(reader, at, offset) for offset in known if offset not in read]

    def check_passed(self) -> None:
        """Explain each record that was passed."""
        last: dict[tuple[At, bytes], int] = {}
        for at, records in self.content.items():
            for offset, put in records.items():
                last[at, put.key] = max(offset, last.get((at, put.key), -1))
        unseen = {(put.at, put.key) for put in self.rows.values() if put.value is None and put.offset is None}
        for reader, at, offset in self.passed:
            put = self.content[at][offset]
            is_replaced = last[at, put.key] > offset or (at, put.key) in unseen
            if not (is_replaced or put.value is None or offset < self.deleted_below[at]):
                raise Violation(LOST, f"{reader} did not get {put.name!r}, the last record of {put.key!r} at {offset}")

    def removals(self, at: At) -> dict[bytes | None, float]:
        """By key the offset of a removal after which a replica may lack it, or have the key back.

        One that was away while removals were forgotten never learns of them, in Kafka too: so `delete.retention.ms` has
        to be longer than that. Of one that no client knows the offset of, any may be it.
        """
        found: dict[bytes | None, float] = {}
        for put in self.rows.values() if at.topic == BRIEF else ():
            if put.at == at and put.value is None:
                found[put.key] = max(found.get(put.key, -1), inf if put.offset is None else put.offset)
        return found

    def check_table(self, at: At, read: dict[int, bytes]) -> None:
        """A read of the whole partition, names by offset, gives the last value of each key, and no removed one."""
        last: dict[bytes, Row] = {}
        for _, put in sorted(self.content[at].items()):
            last[put.key] = put
        for offset, name in read.items() if at.topic != BRIEF else ():
            put = self.rows[name]
            final = last[put.key]
            if final.value is None and final.offset not in read and put.value is not None:
                raise Violation(LOST, f"{put.name!r} is still at {offset}, and its removal at {final.offset} is not")
