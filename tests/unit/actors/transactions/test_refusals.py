"""What a transaction coordinator refuses for what it knows is proved first: a deposed one does not know it all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.transactions.runner import TransactionRunner
from raylog.base.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    LimitReached,
    NotCoordinator,
    ProducerFenced,
    RaylogError,
    TransactionalIdNotFound,
)
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.transactions.coordinator import TransactionMachine, TxnSettings
from tests.unit.actors.coordinators.incarnations import Incarnation, StateLog

SETTINGS = TxnSettings(ids_max=2)
ORDERS = ["o" * 32, "orders", 0]
Step = Callable[[Incarnation], Any]


def new_runner(ports: Any) -> Any:
    runner: Any = TransactionRunner(TransactionMachine(settings=SETTINGS, share=EVERY_KEY), ports)
    return runner


class Pair:
    """A coordinator that was cut off, and its successor."""

    def __init__(self, folder: Path) -> None:
        self._log = StateLog(folder)
        self.deposed = Incarnation(self._log, 0, new_runner)

    def succeeded(self) -> Incarnation:
        """Have the successor load."""
        return Incarnation(self._log, 1, new_runner)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path / "log")


def nothing(_: Incarnation) -> None:
    """Nothing was stored before."""


def request(method: str, *args: object) -> Step:
    return lambda coordinator: coordinator.done(method, *args)


def init(name: str, *held: int) -> Step:
    """Initialise; the first id is 5."""

    def step(coordinator: Incarnation) -> Any:
        sent = coordinator.send("init_transactions", name, 60_000, *held)
        if not sent.answers:
            runner: Any = coordinator.runner
            runner.producer_ids(5, 10)
        coordinator.store()
        (answer,) = sent.answers
        return answer

    return step


def steps(*each: Step) -> Step:
    return lambda coordinator: [step(coordinator) for step in each]


ADD = request("add_partitions_to_txn", "etl", 5, 0, [ORDERS])
END = request("end_txn", "etl", 5, 0, True)
ABORT = request("end_txn", "etl", 5, 0, False)

CASES: dict[str, tuple[Step, Step, Step, type[RaylogError] | list[object]]] = {
    "describe": (nothing, init("etl"), request("describe_transaction", "etl"), TransactionalIdNotFound),
    "list": (nothing, init("etl"), request("list_transactions", [], -1, ""), []),
    "add_unknown": (nothing, init("etl"), ADD, InvalidProducerIdMapping),
    "end_unknown": (nothing, steps(init("etl"), ADD), END, InvalidProducerIdMapping),
    "end_unbegun": (init("etl"), ADD, END, InvalidTxnState),
    "add_fenced": (
        init("etl"),
        init("etl"),
        request("add_partitions_to_txn", "etl", 5, 1, [ORDERS]),
        ProducerFenced,
    ),
    "init_fenced": (init("etl"), init("etl"), init("etl", 5, 1), ProducerFenced),
    "offsets_fenced": (init("etl"), init("etl"), request("add_offsets_to_txn", "etl", 5, 1, "g"), ProducerFenced),
    "claim_unadded": (
        init("etl"),
        ADD,
        request("verify_transaction", "etl", 5, 0, *ORDERS[::2]),
        InvalidTxnState,
    ),
    "claim_old": (
        steps(init("etl"), init("etl")),
        nothing,
        request("verify_transaction", "etl", 5, 0, *ORDERS[::2]),
        InvalidProducerEpoch,
    ),
    "full": (steps(init("a"), init("b")), nothing, init("c"), LimitReached),
}


@pytest.mark.parametrize(("before", "later", "requested", "expected"), CASES.values(), ids=CASES)
def test_a_deposed_coordinator_states_nothing(
    pair: Pair, before: Step, later: Step, requested: Step, expected: object
) -> None:
    before(pair.deposed)
    later(pair.succeeded())
    answer = requested(pair.deposed)
    assert isinstance(answer, NotCoordinator), answer


@pytest.mark.parametrize(("before", "later", "requested", "expected"), CASES.values(), ids=CASES)
def test_one_that_leads_answers_with_a_row(
    pair: Pair, before: Step, later: Step, requested: Step, expected: Any
) -> None:
    before(pair.deposed)
    pair.deposed.batches.clear()
    answer = requested(pair.deposed)
    assert isinstance(answer, expected) if isinstance(expected, type) else answer == expected, answer
    assert pair.deposed.batches == [1]


AT_ONCE: dict[str, tuple[Step, str, tuple[object, ...], type[RaylogError]]] = {
    "no_id": (nothing, "describe_transaction", ("",), InvalidRequest),
    "timeout": (nothing, "init_transactions", ("etl", 0), InvalidTransactionTimeout),
    "state": (nothing, "list_transactions", (["Sleepy"], -1, ""), InvalidRequest),
    "no_partition": (init("etl"), "add_partitions_to_txn", ("etl", 5, 0, []), InvalidRequest),
    "still_ending": (steps(init("etl"), ADD, END), "end_txn", ("etl", 5, 1, False), ConcurrentTransactions),
}


@pytest.mark.parametrize(("before", "method", "args", "error"), AT_ONCE.values(), ids=AT_ONCE)
def test_what_is_no_statement_waits_for_nothing(
    pair: Pair, before: Step, method: str, args: tuple[object, ...], error: type[RaylogError]
) -> None:
    before(pair.deposed)
    (answer,) = pair.deposed.send(method, *args).answers
    assert isinstance(answer, error)
