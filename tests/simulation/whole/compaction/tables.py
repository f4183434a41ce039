"""What is known of the records of compacted topics: each key's last record stays, and any other may go.

Each record has a header that no other has. The books enter what was acknowledged and read; a record that a reader has
passed without reading it must be explained at the end by a later one of its key, or by its own lack of a value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from raylog.core.ids import TopicPartition
from tests.simulation.whole.plan import BRIEF
from tests.simulation.world import Violation

At = TopicPartition
LOST: Final = "W28"


@dataclass(slots=True)
class Put:
    """One record of one key; without a value it removes the key."""

    at: At
    key: bytes
    value: bytes | None
    name: bytes
    """Its header."""
    offset: int | None = None
    """Known from its acknowledgement, or from a reader."""


@dataclass
class Tables:
    """The records of all compacted topics of a world."""

    on_committed: Callable[[At, int, str, bool], None]
    """Takes partition, offset behind a committed record, how a client knows, and whether acks=all stored it."""
    puts: dict[bytes, Put] = field(default_factory=dict)
    content: dict[At, dict[int, Put]] = field(default_factory=lambda: defaultdict(dict))
    """The record at each known offset; it stays here when it was cleaned away."""
    passed: list[tuple[str, At, int]] = field(default_factory=list)
    """Reader, partition and offset of known records that a reader went past without reading them."""
    deleted_below: dict[At, int] = field(default_factory=lambda: defaultdict(int))
    """The highest offset below which a client requested the deletion of records."""

    def stored(self, put: Put, offset: int) -> None:
        """A record was acknowledged."""
        self._at(put, offset, "acknowledged")
        self.on_committed(put.at, offset + 1, f"{put.name!r} was acknowledged", True)

    def seen(self, reader: str, at: At, offset: int, key: bytes | None, value: bytes | None, name: bytes) -> None:
        """A reader received a record."""
        put = self.puts.get(name)
        if put is None or put.at != at or (key, value) != (put.key, put.value):
            raise Violation("W3", f"{reader} read {name!r} of key {key!r} from {at}, where it was never sent: {put}")
        self._at(put, offset, f"read by {reader}")
        self.on_committed(at, offset + 1, f"{reader} read {name!r}", False)

    def _at(self, put: Put, offset: int, what: str) -> None:
        known = self.content[put.at].setdefault(offset, put)
        if known is not put:
            raise Violation("W4", f"{put.at} has {known.name!r} at {offset}, and {put.name!r} was {what} there")
        if put.offset not in (None, offset):
            raise Violation("W14", f"{put.name!r} was stored at {put.offset} of {put.at}, and {what} at {offset}")
        put.offset = offset

    def went(self, reader: str, at: At, known: Iterable[int], read: set[int]) -> None:
        """A reader has read on over all of these known offsets, and got those of `read`."""
        self.passed += [(reader, at, offset) for offset in known if offset not in read]

    def check_passed(self) -> None:
        """Explain each record that was passed."""
        last: dict[tuple[At, bytes], int] = {}
        for at, records in self.content.items():
            for offset, put in records.items():
                last[at, put.key] = max(offset, last.get((at, put.key), -1))
        unseen = {(put.at, put.key) for put in self.puts.values() if put.value is None and put.offset is None}
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
        for put in self.puts.values() if at.topic == BRIEF else ():
            if put.at == at and put.value is None:
                found[put.key] = max(found.get(put.key, -1), inf if put.offset is None else put.offset)
        return found

    def check_table(self, at: At, read: dict[int, bytes]) -> None:
        """A read of the whole partition, names by offset, gives the last value of each key, and no removed one."""
        last: dict[bytes, Put] = {}
        for _, put in sorted(self.content[at].items()):
            last[put.key] = put
        for offset, name in read.items() if at.topic != BRIEF else ():
            put = self.puts[name]
            final = last[put.key]
            if final.value is None and final.offset not in read and put.value is not None:
                raise Violation(LOST, f"{put.name!r} is still at {offset}, and its removal at {final.offset} is not")
