"""Half messages: records that are held until their sender, or a checker of its group, has decided about them. Pure.

A half message is named by a group and a txid, and may have several records. Held records are not among the pending
ones, so no round can name them before their decision is in the log. The first decision stands. It is remembered: a
repetition gets the same answer, and a contrary decision is answered with the one that stands.

While a half message has no decision, members of its group are queried: first at the time that its sender named, then at
intervals. Only an answer counts as a check. After the last allowed check the policy decides what happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from raylog.core.scheduling.envelope import HalfId, HalfOutcome
from raylog.core.scheduling.keys import HELD_MS
from raylog.core.scheduling.rows import HalfDecision, HalfState, Verdict

REMEMBERED_MS: Final = 600_000
"""How long a decision is remembered."""
REMEMBERED_MAX: Final = 100_000
"""Most decisions that are remembered."""
SETTLED_BYTES: Final = 512 * 1024
"""About the most bytes of the policy's decisions in one row. A larger decision has a row of its own."""
_DECISION_BYTES: Final = 64
CHECK_INTERVAL_MS: Final = 30_000
CHECK_LIMIT: Final = 15


class Unresolved(StrEnum):
    """What becomes of a half message that was checked in vain as often as allowed."""

    HOLD = "hold"
    """It stays, and an administrator decides."""
    ROLLBACK = "rollback"
    DEAD_LETTER = "dead_letter"
    """Its records go to ``__undeliverable``."""


@dataclass(frozen=True, slots=True)
class HalfPolicy:
    """When half messages are checked, and how often."""

    interval_ms: int = CHECK_INTERVAL_MS
    limit: int = CHECK_LIMIT
    on_unresolved: Unresolved = Unresolved.HOLD


@dataclass(slots=True)
class Half:
    """One half message without decision."""

    id: HalfId
    prepared_ms: int
    """When its first record was sent, by the scheduler's clock as its sender knew it."""
    next_check_ms: int
    checks: int = 0
    """How many were answered without a decision."""
    offsets: list[int] = field(default_factory=list)
    queried_until_ms: int = 0
    """Until when the member that was queried may answer (a lease); not in checkpoints."""

    @property
    def due_ms(self) -> int:
        """Return when a member is queried next."""
        return max(self.next_check_ms, self.queried_until_ms)


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decision did: the outcome now, and the records that it released or dropped."""

    outcome: HalfOutcome
    records: int = 0
    """How many records the half message has, or had when it was decided."""
    released: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    is_dead: bool = False
    """Whether the released records are dead letters."""


class Halves:
    """The half messages of a partition of ``__scheduled``.

    Invariant: no id is in both ``held`` and ``decided``.
    """

    def __init__(self) -> None:
        """Nothing is held."""
        self.policy = HalfPolicy()
        self.held: dict[HalfId, Half] = {}
        self.decided: dict[HalfId, tuple[HalfOutcome, int, int]] = {}
        """The decided ones, oldest decision first: outcome, time of the decision, and number of records."""
        self.worn: dict[HalfId, None] = {}
        """The held ones that were checked as often as allowed."""
        self._checks: dict[str, list[tuple[int, HalfId]]] = {}
        """By group, a heap of check times; an entry is void if it is not its half message's present ``due_ms``."""
        self.committed_count = self.rolled_back_count = self.checked_count = 0
        """Since this leadership began."""

    # ------------------------------------------------------------ the log

    def prepared(self, name: HalfId, offset: int, timestamp_ms: int, check_after_ms: int) -> bool:
        """Hold a record; False = its half message is decided already, and the record is dropped."""
        if name in self.decided:
            return False
        at_ms = timestamp_ms - HELD_MS
        half = self.held.get(name)
        if half is None:
            half = self.held[name] = Half(name, at_ms, at_ms + check_after_ms)
            self._schedule(half)
        half.offsets.append(offset)
        return True

    def decide(self, decision: HalfDecision, at_ms: int) -> Decided:
        """Apply a decision from the log."""
        name = (decision.group, decision.txid)
        half = self.held.get(name)
        if half is None:
            outcome, _, records = self.decided.get(name, (HalfOutcome.NOT_FOUND, 0, 0))
            return Decided(outcome, records)
        if decision.verdict is Verdict.UNKNOWN:
            self._checked(half, decision)
            return Decided(HalfOutcome.HELD, len(half.offsets))
        del self.held[name]
        self.worn.pop(name, None)
        is_committed = decision.verdict is Verdict.COMMIT
        outcome = HalfOutcome.COMMITTED if is_committed else HalfOutcome.ROLLED_BACK
        self.decided[name] = (outcome, at_ms, len(half.offsets))
        self.committed_count += is_committed
        self.rolled_back_count += not is_committed
        is_dead = decision.verdict is Verdict.DEAD_LETTER
        released = tuple(half.offsets) if is_committed or is_dead else ()
        dropped = () if is_committed or is_dead else tuple(half.offsets)
        return Decided(outcome, len(half.offsets), released, dropped, is_dead)

    def _checked(self, half: Half, decision: HalfDecision) -> None:
        if decision.check != half.checks:
            return  # a repetition of an answer that is already counted
        half.checks += 1
        half.next_check_ms, half.queried_until_ms = decision.next_check_ms, 0
        self.checked_count += 1
        self._schedule(half)
        if half.checks >= self.policy.limit:
            self.worn[half.id] = None

    def outcome(self, name: HalfId) -> HalfOutcome:
        """Return what is true of a half message."""
        if name in self.held:
            return HalfOutcome.HELD
        return self.decided.get(name, (HalfOutcome.NOT_FOUND, 0, 0))[0]

    def forget(self, now_ms: int) -> None:
        """Forget decisions that are too old or too many."""
        for name, (_, at_ms, _) in list(self.decided.items()):
            if at_ms > now_ms - REMEMBERED_MS and len(self.decided) <= REMEMBERED_MAX:
                break
            del self.decided[name]

    # ------------------------------------------------------------ checks

    def _schedule(self, half: Half) -> None:
        heapq.heappush(self._checks.setdefault(half.id[0], []), (half.due_ms, half.id))

    def next_check_ms(self, group: str) -> int | None:
        """Return when a member of a group is to be queried next; None = there is nothing to query about."""
        heap = self._checks.get(group, [])
        while heap:
            due_ms, name = heap[0]
            half = self.held.get(name)
            if half is not None and half.due_ms == due_ms and half.checks < self.policy.limit:
                return due_ms
            heapq.heappop(heap)
        self._checks.pop(group, None)
        return None

    def query(self, group: str, now_ms: int, limit: int, lease_ms: int) -> list[Half]:
        """Return the half messages to query a member about; no other one is queried about them for ``lease_ms``."""
        queried: list[Half] = []
        while len(queried) < limit:
            due_ms = self.next_check_ms(group)
            if due_ms is None or due_ms > now_ms:
                break
            _, name = heapq.heappop(self._checks[group])
            half = self.held[name]
            half.queried_until_ms = now_ms + max(1, lease_ms)
            self._schedule(half)
            queried.append(half)
        return queried

    def not_queried(self, halves: Iterable[Half]) -> None:
        """Withdraw a query that did not reach its member."""
        for half in halves:
            half.queried_until_ms = 0
            if half.id in self.held:
                self._schedule(half)

    def to_settle(self) -> tuple[HalfDecision, ...]:
        """Return the decisions that the policy makes."""
        if not self.worn or self.policy.on_unresolved is Unresolved.HOLD:
            return ()
        verdict = Verdict.ROLLBACK if self.policy.on_unresolved is Unresolved.ROLLBACK else Verdict.DEAD_LETTER
        settled: list[HalfDecision] = []
        left = SETTLED_BYTES
        for group, txid in self.worn:
            left -= 4 * (len(group) + len(txid)) + _DECISION_BYTES
            if settled and left < 0:
                break  # the others follow with the next row
            settled.append(HalfDecision(group, txid, verdict))
        return tuple(settled)

    def follow(self, policy: HalfPolicy) -> None:
        """Take another policy; if its limit is higher, half messages that were checked in vain are checked again."""
        if policy == self.policy:
            return
        self.policy = policy
        self.worn = {name: None for name, half in self.held.items() if half.checks >= policy.limit}
        self._checks = {}
        for half in self.held.values():
            self._schedule(half)

    # ------------------------------------------------------------ checkpoints

    @property
    def offsets(self) -> Iterable[int]:
        """The records that are held."""
        return (offset for half in self.held.values() for offset in half.offsets)

    def oldest_ms(self) -> int | None:
        """Return when the oldest held half message was prepared; None = there is none."""
        return min((half.prepared_ms for half in self.held.values()), default=None)

    def state(self) -> tuple[HalfState, ...]:
        """Return what a checkpoint keeps."""
        held = [
            HalfState(*half.id, half.prepared_ms, half.next_check_ms, half.checks, tuple(half.offsets))
            for half in self.held.values()
        ]
        decided = [
            HalfState(*name, at_ms, 0, 0, (), outcome.value, records)
            for name, (outcome, at_ms, records) in self.decided.items()
        ]
        return (*held, *decided)

    def restore(self, states: Sequence[HalfState]) -> None:
        """Begin with what a checkpoint holds."""
        for state in states:
            name = (state.group, state.txid)
            if state.outcome:
                self.decided[name] = (HalfOutcome(state.outcome), state.at_ms, state.records)
                continue
            half = Half(name, state.at_ms, state.next_check_ms, state.checks, list(state.offsets))
            self.held[name] = half
            self._schedule(half)
            if half.checks >= self.policy.limit:
                self.worn[name] = None
