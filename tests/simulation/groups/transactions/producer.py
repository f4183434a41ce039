"""A transactional producer that commits offsets to a pot, with its transaction coordinator, as one process.

It begins, commits offsets of its partitions in one or two requests, decides, and has the end sent until it is answered;
only then the next transaction begins, as the coordinator parks additions. Reads of the pot, and attempts to delete it,
come between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raylog.base.errors import InvalidProducerEpoch, RaylogError, TransactionCoordinatorFenced
from tests.simulation.groups.member import REQUEST_MS, Member
from tests.simulation.groups.topic import TOPIC, TOPIC_ID
from tests.simulation.groups.transactions.ledgers import FENCED, OUTCOME, POT, Ledger
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.simulation import GroupSimulation

_PARTITIONS = 2
"""Of each producer."""
_POTS = 2
_FIRST_ID = 100
_NOWHERE = -10
"""The slots of these processes."""


class Producer(Member):
    """One transactional id."""

    def __init__(self, simulation: GroupSimulation, number: int) -> None:
        """``number`` counts producers from 0."""
        group = f"{POT}-{number % _POTS}"
        super().__init__(simulation, _NOWHERE - number, 0, group=group, client_id=f"producer-{number}", instance=None)
        places = tuple(range(number * _PARTITIONS, (number + 1) * _PARTITIONS))
        self._ledger = simulation.ledgers.of[_FIRST_ID + number] = Ledger(_FIRST_ID + number, group, places)
        self._id = f"tx-{number}"
        self._epoch = 0
        self._coordinator_epoch = 0
        self._offset = 0
        self._offsets: dict[int, int] = {}
        """Of the open transaction."""
        self._unanswered = 0
        self._is_failed = False

    def start(self) -> None:
        """Begin transactions and reads."""
        self.world.after(self.world.between_us(1, 300), self._begin)
        self.world.after(self.world.between_us(1, 300), self._look)

    # ------------------------------------------------------------ transactions

    def _begin(self) -> None:
        world, places = self.world, self._ledger.partitions
        self._offset += 1
        self._is_failed = False
        some = [place for place in places if world.chance(0.7)]
        self._offsets = dict.fromkeys(some, self._offset)
        requests = [[place] for place in some] if world.chance(0.4) else [some] if some else []
        self._unanswered = len(requests)
        if not requests:
            self._decide(committed=world.chance(0.5))  # the group was added, and no offsets were sent
            return
        self.simulation.ledgers.open(self._ledger)
        for request in requests:
            self._call("txn_offset_commit", self._commit_of(request), REQUEST_MS, self._taken)

    def _commit_of(self, places: list[int], offset: int | None = None) -> list[object]:
        rows = [[TOPIC_ID, TOPIC, place, offset or self._offset, -1, ""] for place in places]
        return [self.group, -1, "", None, self._id, self._ledger.producer_id, self._epoch, rows]

    def _taken(self, result: Any, error: RaylogError | None) -> None:
        if isinstance(error, InvalidProducerEpoch):
            raise Violation(FENCED, f"{self._id} is fenced in epoch {self._epoch}, and is the only one")
        self._is_failed |= error is not None
        if error is None and any(code != 0 for _, _, code in result):
            raise Violation(OUTCOME, f"{result} is the answer to offsets that may be committed")
        self._unanswered -= 1
        if self._unanswered == 0:
            pause_us = self.world.between_us(0.1, 60)
            self.world.after(pause_us, self._decide)

    def _decide(self, *, committed: bool | None = None) -> None:
        if committed is None:
            committed = not self._is_failed and self.world.chance(0.7)
        self.simulation.ledgers.decide(self._ledger, self._offsets, self.world.now_us, committed=committed)
        if not committed and self._offsets and not self.simulation.healed and self.world.chance(0.4):
            # A process that was fenced goes on for a while: nothing of it may ever be seen.
            late = self._commit_of(list(self._offsets), 10**6 + self._offset)
            self._call("txn_offset_commit", late, REQUEST_MS, lambda _, __: None)
        self._end(committed)

    def _end(self, committed: bool) -> None:
        if self.world.chance(0.2):
            self._coordinator_epoch += 1  # another incarnation goes on
        args: list[object] = [
            self.group,
            self._ledger.producer_id,
            self._epoch + 1,
            self._coordinator_epoch,
            committed,
        ]

        def answered(_: Any, error: RaylogError | None) -> None:
            if isinstance(error, (InvalidProducerEpoch, TransactionCoordinatorFenced)):
                raise Violation(OUTCOME, f"the end of epoch {self._epoch} of {self._id} is refused: {error}")
            if error is not None:
                self.world.after(self.world.between_us(5, 60), self._end, committed)
                return
            self.simulation.ledgers.ended(self._ledger)
            self._epoch += 1
            self.world.after(self.world.between_us(1, 150), self._begin)

        self._call("end_txn_offsets", args, REQUEST_MS, answered)

    # ------------------------------------------------------------ reads

    def _look(self) -> None:
        world = self.world
        self.world.after(world.between_us(5, 200), self._look)
        places = [[TOPIC_ID, TOPIC, place] for place in self._ledger.partitions]
        wanted = None if world.chance(0.3) else places
        if world.chance(0.03) and not self.simulation.is_calm:
            self._call("delete_group", [self.group], REQUEST_MS, lambda _, __: None)
        else:
            is_stable = world.chance(0.8)
            self._call("offset_fetch", [self.group, wanted, is_stable], REQUEST_MS, lambda _, __: None)
