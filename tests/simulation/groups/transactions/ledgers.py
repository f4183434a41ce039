"""I12 and I13 for groups, outside the system: what transactions have decided, and what readers of offsets may see.

Each producer has partitions of its own in a *pot*, a group without members, so that the decisions of one producer are
the history of its partitions. ``producer.py`` reports decisions; ``coordinator.py`` and ``topic.py`` report answers and
rows. The ledgers never look into a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from raylog.base.errors import RaylogError, UnstableOffsetCommit
from raylog.core.groups.records import GROUP_ROWS, OffsetCommitted, OffsetKey, TxnOffsets
from raylog.protocol.rows import Tombstone
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.coordinator import Call
    from tests.simulation.groups.topic import Row

FENCED = "I12"
OUTCOME = "I13"
POT = "pot"
"""How the names of the groups begin that are used with transactions alone."""
Offsets = Mapping[int, int]
"""Offset by partition."""


@dataclass(slots=True)
class Ledger:
    """The partitions of one producer."""

    producer_id: int
    group: str
    partitions: tuple[int, ...]
    states: list[Offsets] = field(default_factory=lambda: [{}])
    """Committed offsets after each decision and each deletion, the first one before all of them."""
    is_open: bool = False
    """Offsets were sent, and the end is not answered."""
    opened: int = 0
    """How many transactions were opened."""
    since_us: int = 0
    """Since when the producer waits for an answer to its end; 0 = it does not."""


Mark = dict[int, tuple[int, int]]
"""For each producer of a pot: how many states there were, and transactions; -1 transactions where one was open."""


class Ledgers:
    """The ledgers of all producers."""

    def __init__(self) -> None:
        """Begin without any."""
        self.of: dict[int, Ledger] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        """The epoch of each row in the log, by group and producer."""
        self._open_rows: set[tuple[str, int]] = set()
        self.commits = 0

    def open(self, ledger: Ledger) -> None:
        """Note that offsets of a transaction are about to be sent."""
        if not ledger.is_open:
            ledger.is_open = True
            ledger.opened += 1

    def decide(self, ledger: Ledger, offsets: Offsets, now_us: int, *, committed: bool) -> None:
        """Note the outcome of a transaction, before any end is sent."""
        ledger.since_us = now_us
        if committed:
            ledger.states.append({**ledger.states[-1], **offsets})
            self.commits += 1

    def ended(self, ledger: Ledger) -> None:
        """Note that the end was answered."""
        ledger.is_open = False
        ledger.since_us = 0

    def overdue(self, now_us: int, limit_us: int) -> str | None:
        """Return which transaction is not ended for too long, or None."""
        for ledger in self.of.values():
            if ledger.since_us and now_us - ledger.since_us > limit_us:
                return f"the end of the transaction of producer {ledger.producer_id} is not answered"
        return None

    # ------------------------------------------------------------ the log

    def stored(self, row: Row) -> None:
        """A row of a pot is durable."""
        match GROUP_ROWS.read(row.key, row.value):
            case OffsetCommitted(key=key, offset=offset):
                known = {state.get(key.partition) for state in self._owner(key.partition).states}
                if offset not in known:
                    raise Violation(OUTCOME, f"offset {offset} of {key} is stored, and no transaction has committed it")
            case Tombstone(kind=kind, key=found) if kind is OffsetCommitted:
                key = OffsetKey(*found)
                pending = sorted(number for group, number in self._open_rows if group == key.group)
                if pending:
                    raise Violation(
                        OUTCOME, f"the offset of {key} is deleted, and producers {pending} have some pending"
                    )
                ledger = self._owner(key.partition)
                last = ledger.states[-1]
                ledger.states.append({place: offset for place, offset in last.items() if place != key.partition})
            case TxnOffsets(key=key, producer_epoch=epoch, offsets=offsets):
                if epoch < self._epochs.get(key, -1):
                    raise Violation(FENCED, f"epoch {epoch} of {key} follows {self._epochs[key]}")
                self._epochs[key] = epoch
                self._open_rows.discard(key)
                if offsets:
                    self._open_rows.add(key)

    def _owner(self, partition: int) -> Ledger:
        return next(ledger for ledger in self.of.values() if partition in ledger.partitions)

    # ------------------------------------------------------------ answers

    def mark(self, group: str) -> Mark:
        """Return how far the transactions of a pot are when a request arrives."""
        return {
            ledger.producer_id: (len(ledger.states), -1 if ledger.is_open else ledger.opened)
            for ledger in self.of.values()
            if ledger.group == group
        }

    def answered(self, call: Call, result: object, error: RaylogError | None) -> None:
        """The coordinator of the highest epoch answers a request about a pot."""
        if call.method != "offset_fetch":
            return
        ledgers = [ledger for ledger in self.of.values() if ledger.group == call.group]
        if isinstance(error, UnstableOffsetCommit):
            if all(call.mark[each.producer_id][1] == each.opened and not each.is_open for each in ledgers):
                raise Violation(OUTCOME, f"offsets of {call.group} are unstable, and no transaction is open")
        elif error is None:
            rows = {row[2]: int(row[3]) for row in cast("list[list[Any]]", result)}
            wanted = None if call.args[1] is None else [place[2] for place in call.args[1]]
            for ledger in ledgers:
                places = [place for place in ledger.partitions if wanted is None or place in wanted]
                self._must_be_seen(ledger, {place: rows.get(place, -1) for place in places}, call)

    def _must_be_seen(self, ledger: Ledger, seen: Offsets, call: Call) -> None:
        if call.args[2]:
            # What was decided before the request came counts; of what is decided meanwhile, a beginning.
            candidates: Sequence[Offsets] = ledger.states[call.mark[ledger.producer_id][0] - 1 :]
            if not any(all(state.get(place, -1) == offset for place, offset in seen.items()) for state in candidates):
                raise Violation(OUTCOME, f"{seen} of {call.group} is stable, and {candidates} was decided")
            return
        for place, offset in seen.items():
            if offset >= 0 and all(state.get(place) != offset for state in ledger.states):
                raise Violation(OUTCOME, f"offset {offset} of {call.group}-{place} is committed, and was not decided")
