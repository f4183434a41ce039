"""The ledgers must be able to fail: hand-made histories of transactions, rows and answers."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from raylog.base.errors import UnstableOffsetCommit
from raylog.core.groups.records import OffsetCommitted, OffsetKey, TxnKey, TxnOffsets
from raylog.protocol.groups import OffsetCommitPartition
from raylog.protocol.rows import Tombstone
from tests.simulation.groups.coordinator import Call
from tests.simulation.groups.topic import TOPIC, TOPIC_ID, Row
from tests.simulation.groups.transactions.ledgers import FENCED, OUTCOME, Ledger, Ledgers
from tests.simulation.world import Violation

POT = "pot-0"


class Pot:
    """The ledgers of a pot with one producer of two partitions."""

    def __init__(self) -> None:
        self.ledgers = Ledgers()
        self.ledger = self.ledgers.of[7] = Ledger(7, POT, (0, 1))

    def decide(self, offset: int, *, committed: bool = True, partitions: tuple[int, ...] = (0, 1)) -> None:
        self.ledgers.open(self.ledger)
        self.ledgers.decide(self.ledger, dict.fromkeys(partitions, offset), 1, committed=committed)

    def request(self, *, stable: bool = True) -> Call:
        places = [[TOPIC_ID, TOPIC, place] for place in (0, 1)]
        call = SimpleNamespace(method="offset_fetch", group=POT, args=[POT, places, stable])
        call.mark = self.ledgers.mark(POT)
        return cast(Call, call)

    def answer(self, call: Call, *offsets: int) -> None:
        rows: list[Any] = [[TOPIC_ID, TOPIC, place, offset, -1, ""] for place, offset in enumerate(offsets)]
        self.ledgers.answered(call, rows, None)

    def store(self, record: OffsetCommitted | TxnOffsets | Tombstone) -> None:
        key, value = record.to_wire()
        self.ledgers.stored(Row(key, value, 0, 0, 0, None))

    def store_offset(self, offset: int) -> None:
        key = OffsetKey(POT, TOPIC_ID, TOPIC, 0)
        self.store(OffsetCommitted(*key, offset=offset, leader_epoch=-1, metadata="", committed_ms=0))

    def store_pending(self, epoch: int, *, is_open: bool) -> None:
        offsets = (OffsetCommitPartition(TOPIC_ID, TOPIC, 0, 5, -1, ""),) if is_open else ()
        key = TxnKey(POT, 7)
        self.store(TxnOffsets(*key, producer_epoch=epoch, coordinator_epoch=0, offsets=offsets, changed_ms=0))


def test_a_stable_offset_is_the_last_that_was_decided() -> None:
    pot = Pot()
    early = pot.request()
    pot.answer(early, -1, -1)
    pot.decide(5)
    pot.answer(early, -1, -1)
    pot.answer(early, 5, 5)
    pot.answer(pot.request(), 5, 5)
    for wrong in ((-1, -1), (5, -1), (6, 5)):
        with pytest.raises(Violation, match=OUTCOME):
            pot.answer(pot.request(), *wrong)
    with pytest.raises(Violation, match=OUTCOME):
        pot.answer(early, 5, -1)


def test_offsets_of_an_aborted_transaction_are_never_seen() -> None:
    pot = Pot()
    pot.decide(5, committed=False)
    for stable in (True, False):
        with pytest.raises(Violation, match=OUTCOME):
            pot.answer(pot.request(stable=stable), 5, 5)
    with pytest.raises(Violation, match="no transaction has committed it"):
        pot.store_offset(5)
    pot.decide(6)
    pot.store_offset(6)


def test_an_offset_that_is_not_stable_may_be_an_earlier_one() -> None:
    pot = Pot()
    pot.decide(5)
    pot.decide(6)
    pot.answer(pot.request(stable=False), 5, 6)
    with pytest.raises(Violation, match=OUTCOME):
        pot.answer(pot.request(stable=False), 5, 7)


def test_offsets_are_unstable_only_while_a_transaction_is_open() -> None:
    pot = Pot()
    quiet = pot.request()
    with pytest.raises(Violation, match="no transaction is open"):
        pot.ledgers.answered(quiet, None, UnstableOffsetCommit())
    pot.decide(5)
    during = pot.request()
    pot.ledgers.answered(quiet, None, UnstableOffsetCommit())
    pot.ledgers.ended(pot.ledger)
    pot.ledgers.answered(during, None, UnstableOffsetCommit())
    with pytest.raises(Violation, match="no transaction is open"):
        pot.ledgers.answered(pot.request(), None, UnstableOffsetCommit())


def test_epochs_of_a_producer_do_not_fall() -> None:
    pot = Pot()
    pot.store_pending(2, is_open=True)
    pot.store_pending(3, is_open=False)
    pot.store_pending(3, is_open=True)
    with pytest.raises(Violation, match=FENCED):
        pot.store_pending(2, is_open=True)


def test_nothing_is_deleted_while_offsets_are_pending() -> None:
    pot = Pot()
    pot.decide(5)
    deleted = Tombstone(OffsetCommitted, OffsetKey(POT, TOPIC_ID, TOPIC, 0))
    pot.store_pending(2, is_open=True)
    with pytest.raises(Violation, match="have some pending"):
        pot.store(deleted)
    pot.store_pending(3, is_open=False)
    pot.store(deleted)
    pot.answer(pot.request(), -1, 5)


def test_an_end_that_is_not_answered_shows() -> None:
    pot = Pot()
    pot.decide(5)
    assert pot.ledgers.overdue(50, 100) is None
    assert pot.ledgers.overdue(102, 100) is not None
    pot.ledgers.ended(pot.ledger)
    assert pot.ledgers.overdue(102, 100) is None
