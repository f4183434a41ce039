"""What was sent in which transaction, how each ended as far as its client knows, and the claims about that.

A transaction may be committed once its client has called for the commit, is committed once the call has returned, and
is never committed where the client has not called, or where an abort has returned. Everything between is unknown: then
all of it exists or none. Pure. A broken claim raises :class:`Violation`, where it is entered or at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from raylog.base.ids import TopicPartition
from tests.simulation.world import Violation

At = TopicPartition
VISIBLE: Final = "W24"
WHOLE: Final = "W25"
ONCE: Final = "W26"
OFFSETS: Final = "W27"


class Outcome(Enum):
    """How a transaction ended, as far as its client knows."""

    OPEN = "open"
    """No commit was called for: it may only be aborted."""
    CALLED = "called"
    """A commit was called for, and may happen at any time."""
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Txn:
    """One transaction of one client, or one plain record, which is committed when it is acknowledged."""

    name: str
    outcome: Outcome = Outcome.OPEN
    values: list[tuple[At, bytes]] = field(default_factory=list)
    """What was sent in it, in this order."""
    sources: dict[bytes, tuple[At, int]] = field(default_factory=dict)
    """Partition and offset of the record that each of its values is a copy of."""
    offsets: dict[At, int] = field(default_factory=dict)
    """The group's offsets that are committed with it."""
    seen_by: str = ""
    """A reader of committed records that has got one of its values; "" = none."""

    @property
    def is_known_committed(self) -> bool:
        """Whether it must be complete at the end."""
        return self.outcome is Outcome.COMMITTED or bool(self.seen_by)

    @property
    def may_be_committed(self) -> bool:
        """Whether readers of committed records may get it."""
        return self.outcome in (Outcome.CALLED, Outcome.COMMITTED)


class Ledger:
    """All transactions of a run."""

    def __init__(self) -> None:
        """None yet."""
        self.txns: list[Txn] = []
        self._of: dict[bytes, Txn] = {}
        self._jumps: dict[At, list[tuple[str, int, int]]] = defaultdict(list)
        """Reader, the position it had, and the offset of its next record, where these are not the same."""
        self._moved: dict[At, list[Txn]] = defaultdict(list)
        """Transactions that commit an offset of a partition."""
        self._stable: dict[At, int] = {}
        """The highest last stable offset that a client was given."""

    # ------------------------------------------------------------ what clients do

    def begin(self, name: str) -> Txn:
        """Enter a transaction that begins."""
        txn = Txn(name)
        self.txns.append(txn)
        return txn

    def sends(self, txn: Txn, at: At, value: bytes, source: tuple[At, int] | None = None) -> None:
        """A value is about to be sent; ``source``: the record that it is a copy of."""
        txn.values.append((at, value))
        self._of[value] = txn
        if source is not None:
            txn.sources[value] = source

    def moves(self, txn: Txn, offsets: Mapping[At, int]) -> None:
        """Offsets of the group are about to be sent to a transaction."""
        for at, offset in offsets.items():
            txn.offsets[at] = offset
            self._moved[at].append(txn)

    def commits(self, txn: Txn) -> None:
        """The commit is about to be called for."""
        txn.outcome = Outcome.CALLED

    def committed(self, txn: Txn) -> None:
        """The call has returned."""
        txn.outcome = Outcome.COMMITTED

    def aborted(self, txn: Txn) -> None:
        """An abort has returned."""
        if txn.is_known_committed:
            raise Violation(WHOLE, f"{txn.name} was aborted, after {txn.seen_by or 'its client'} saw it committed")
        txn.outcome = Outcome.ABORTED

    # ------------------------------------------------------------ what readers of committed records get

    def seen(self, reader: str, at: At, offset: int, value: bytes) -> None:
        """A reader of committed records got a record."""
        txn = self._of.get(value)
        if txn is None:
            return  # sent outside of all transactions
        if not txn.may_be_committed:
            raise Violation(VISIBLE, f"{reader} got {value[:40]!r} at {offset} of {at}; {txn.name} is {txn.outcome}")
        txn.seen_by = txn.seen_by or reader

    def step(self, reader: str, at: At, position: int, offset: int) -> None:
        """A reader went on from a position to the next record, or to the end of what is stable."""
        if offset < position:
            raise Violation("W5", f"{reader} got {offset} of {at} after {position - 1}")
        if offset > position:
            self._jumps[at].append((reader, position, offset))

    def stable(self, at: At, offset: int) -> None:
        """A client was given a partition's last stable offset, in the order of its requests."""
        before = self._stable.get(at, 0)
        if offset < before:
            raise Violation(VISIBLE, f"the last stable offset of {at} was {before}, and is {offset}")
        self._stable[at] = offset

    # ------------------------------------------------------------ the group's offsets

    def known_offset(self, at: At) -> int:
        """Return the highest offset that a transaction is known to have committed."""
        return max((txn.offsets[at] for txn in self._moved[at] if txn.is_known_committed), default=0)

    def fetched(self, at: At, known: int, found: int | None) -> None:
        """The group's stable offset was fetched; ``known``: what :meth:`known_offset` returned before."""
        offset = found or 0
        if offset < known:
            raise Violation(OFFSETS, f"{known} of {at} was committed in a transaction, and {found} is there")
        if not offset:
            return
        if not any(txn.offsets[at] == offset and txn.may_be_committed for txn in self._moved[at]):
            raise Violation(OFFSETS, f"{found} of {at} is committed, and no transaction that may be has committed it")

    # ------------------------------------------------------------ at the end

    def finish(self, read: Mapping[At, Mapping[int, bytes]], replaced: Container[bytes] = frozenset()) -> None:
        """Compare everything with what a last reader of committed records has got: value by offset.

        What is `replaced` by a later record of its key may be missing, in a compacted topic.
        """
        where: dict[bytes, tuple[At, int]] = {}
        for at, records in read.items():
            for offset, value in records.items():
                self.seen("the last reader", at, offset, value)
                if value in where:
                    raise Violation(WHOLE, f"{value[:40]!r} is stored twice: {where[value]} and {offset} of {at}")
                where[value] = (at, offset)
        for txn in self.txns:
            self._check_whole(txn, where, replaced)
        self._check_jumps(read)

    def _check_whole(self, txn: Txn, where: Mapping[bytes, tuple[At, int]], replaced: Container[bytes]) -> None:
        there = [(at, value) for at, value in txn.values if value in where]
        missing = [value for _, value in txn.values if value not in where and value not in replaced]
        if missing and (txn.is_known_committed or there):
            raise Violation(
                WHOLE,
                f"{txn.name} ({txn.outcome.value}, seen by {txn.seen_by or 'none'}) lacks {len(missing)} of "
                f"{len(txn.values)} records, the first {missing[0][:40]!r}",
            )
        last: dict[At, int] = {}
        for at, value in there:
            found, offset = where[value]
            if found != at or offset <= last.get(at, -1):
                raise Violation(WHOLE, f"{value[:40]!r} was sent to {at}, and is at {offset} of {found}")
            last[at] = offset

    def _check_jumps(self, read: Mapping[At, Mapping[int, bytes]]) -> None:
        """No reader jumped over a committed record."""
        for at, jumps in self._jumps.items():
            records = read.get(at, {})
            for reader, position, offset in jumps:
                for passed in range(position, offset):
                    if passed in records:
                        raise Violation(
                            WHOLE, f"{reader} went from {position} to {offset} of {at}, over {records[passed][:40]!r}"
                        )

    def uncopied(self, inputs: Mapping[At, Iterable[int]], outputs: Mapping[At, Mapping[int, bytes]]) -> str:
        """Return a committed input record without a committed copy; "" = each has exactly one, in order."""
        copies: dict[tuple[At, int], bytes] = {}
        for at, records in outputs.items():
            last: dict[At, int] = {}
            for offset in sorted(records):
                value = records[offset]
                txn = self._of.get(value)
                source = None if txn is None else txn.sources.get(value)
                if source is None:
                    raise Violation("W3", f"{value[:40]!r} at {offset} of {at} is a copy of nothing")
                if source in copies:
                    raise Violation(ONCE, f"{source} was copied twice: {copies[source][:40]!r} and {value[:40]!r}")
                if source[1] <= last.get(source[0], -1):
                    raise Violation(ONCE, f"{source} was copied to {offset} of {at}, behind that of a later record")
                last[source[0]] = source[1]
                copies[source] = value
        wanted = {(at, offset) for at, offsets in inputs.items() for offset in offsets}
        extra = copies.keys() - wanted
        if extra:
            raise Violation(ONCE, f"{min(extra)} was copied, and is no committed record")
        missing = wanted - copies.keys()
        return f"{len(missing)} records were not copied, the first {min(missing)}" if missing else ""
