"""The comparison at the end of a run of copies: each committed record has one copy, and no other record has any."""

import pytest

import raylog
from tests.chaos.copies.run import Records, find_anomalies
from tests.chaos.copies.worker import RESULTS, SOURCE, copy_of, source_of
from tests.simulation.whole.transactions.ledger import Ledger

FROM = raylog.TopicPartition(SOURCE, 0)
TO = raylog.TopicPartition(RESULTS, 0)


def ledger_of(*values: bytes, committed: bool = True) -> Ledger:
    ledger = Ledger()
    txn = ledger.begin("source")
    for value in values:
        ledger.sends(txn, FROM, value)
    ledger.commits(txn)
    if committed:
        ledger.committed(txn)
    return ledger


def results(*offsets: int) -> Records:
    return {TO: {at: copy_of(0, offset, f"w.{at}", b"x") for at, offset in enumerate(offsets)}}


def test_a_copy_names_its_source() -> None:
    assert source_of(copy_of(3, 17, "1.99.5", b"a|b@c")) == (3, 17)


def test_one_copy_of_each_committed_record_is_right() -> None:
    assert find_anomalies(ledger_of(b"a", b"b"), {FROM: {0: b"a", 1: b"b"}}, results(0, 1)) == []


@pytest.mark.parametrize(
    ("inputs", "copies", "claim"),
    [
        ({0: b"a"}, (0,), "lacks"),
        ({0: b"a", 1: b"b"}, (0,), "not copied"),
        ({0: b"a", 1: b"b"}, (0, 1, 1), "twice"),
        ({0: b"a", 1: b"b"}, (0, 1, 2), "no committed record"),
    ],
    ids=["a lost record", "a lost copy", "two copies", "a copy of an aborted record"],
)
def test_a_wrong_result_is_found(inputs: dict[int, bytes], copies: tuple[int, ...], claim: str) -> None:
    [found] = find_anomalies(ledger_of(b"a", b"b"), {FROM: inputs}, results(*copies))
    assert claim in found.claim
