"""A transaction coordinator's runner: answers and markers after their rows, and ports called as the machine decides."""

from typing import Any

import pytest

from raylog.actors.coordinators.runner import fence_row
from raylog.actors.transactions.runner import TransactionRunner
from raylog.base.errors import ConnectionFailed, InvalidRequest, NotCoordinator
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.transactions.coordinator import TransactionMachine, TxnSettings
from raylog.core.transactions.events import EndTxn
from raylog.core.transactions.states import TxnState
from raylog.protocol.transactions import TxnPartition
from tests.unit.actors.coordinators.incarnations import SentRequest

Row = tuple[list[object], list[object] | None]
ORDERS = TxnPartition("o" * 32, "orders", 0)


class Ports:
    """A stopped clock, and a log in memory that stores on the test's command."""

    def __init__(self, log: list[Row] | None = None) -> None:
        self.time_ms = 0
        self.log: list[Row] = list(log or [])
        self.ended: list[EndTxn] = []
        self.wanted_ids: list[int] = []
        self.proposals = 0
        self.reasons: list[str] = []
        machine = TransactionMachine(settings=TxnSettings(sleep_after_ms=100), share=EVERY_KEY)
        self.runner: TransactionRunner[SentRequest, Row] = TransactionRunner(machine, self)
        for key, value in self.log:
            self.runner.replay(key, value)
        self.runner.serve()

    def now_ms(self) -> int:
        return self.time_ms

    def wall_ms(self) -> int:
        return self.time_ms

    def row(self, key: list[object], value: list[object] | None) -> tuple[Row, int]:
        return (key, value), 100

    def row_bytes_max(self) -> int:
        return 1_000_000

    def tick_at(self, due_ms: int) -> None:
        """Nothing: the test ticks."""

    def wake_writer(self) -> None:
        pass

    def end_transaction(self, effect: EndTxn) -> None:
        self.ended.append(effect)

    def request_producer_ids(self, count: int) -> None:
        self.wanted_ids.append(count)

    def propose_sleep(self) -> None:
        self.proposals += 1

    def fatal(self, reason: str) -> None:
        self.reasons.append(reason)

    def send(self, method: str, *args: object) -> SentRequest:
        request = SentRequest(method, list(args))
        self.runner.receive(request)
        return request

    def store(self) -> None:
        """Store everything that waits."""
        while rows := self.runner.take_batch(10_000):
            self.log += rows
            self.runner.stored()

    def done(self, method: str, *args: object) -> Any:
        """Send a request, store its rows, and return its answer."""
        request = self.send(method, *args)
        self.store()
        (answer,) = request.answers
        return answer


@pytest.fixture
def ports() -> Ports:
    """A coordinator with a producer (5, 0) of the id ``etl``."""
    ports = Ports()
    request = ports.send("init_transactions", "etl", 60_000)
    ports.runner.producer_ids(5, 10)
    ports.store()
    assert request.answers == [[5, 0, -1, -1]]
    return ports


def test_producer_ids_are_requested_once_for_all_that_wait() -> None:
    ports = Ports()
    requests = [ports.send("init_transactions", name, 60_000) for name in ("a", "b")]
    assert len(ports.wanted_ids) == 1
    ports.runner.producer_ids(5, ports.wanted_ids[0])
    ports.store()
    assert [request.answers[0][0] for request in requests] == [5, 6]


def test_no_answer_and_no_marker_leaves_before_the_outcome_is_stored(ports: Ports) -> None:
    assert ports.done("add_partitions_to_txn", "etl", 5, 0, [ORDERS]) == []
    ending = ports.send("end_txn", "etl", 5, 0, True)
    assert ending.answers == []
    assert ports.ended == []
    ports.store()
    assert ending.answers == [[5, 1]]
    (effect,) = ports.ended
    assert (effect.partitions, effect.committed) == ((ORDERS,), True)


def test_the_last_participants_marker_ends_it_and_lets_the_next_begin(ports: Ports) -> None:
    ports.done("add_partitions_to_txn", "etl", 5, 0, [ORDERS])
    ports.done("add_offsets_to_txn", "etl", 5, 0, "workers")
    ports.done("end_txn", "etl", 5, 0, False)
    waiting = ports.send("add_offsets_to_txn", "etl", 5, 1, "workers")
    (effect,) = ports.ended
    ports.runner.marker_written("etl", effect.writer, ORDERS)
    ports.store()
    assert waiting.answers == []
    ports.runner.marker_written("etl", effect.writer, "workers")
    assert waiting.answers == [], "the row of its transaction is not stored yet"
    ports.store()
    assert waiting.answers == [[]]
    assert ports.done("describe_transaction", "etl")["groups"] == ["workers"]


def test_a_load_begins_with_the_markers_that_may_be_missing(ports: Ports) -> None:
    ports.done("add_partitions_to_txn", "etl", 5, 0, [ORDERS])
    ports.done("end_txn", "etl", 5, 0, True)
    after = Ports([(fence_row(1), None), *ports.log])
    assert [effect.writer for effect in after.ended] == [effect.writer for effect in ports.ended]
    assert after.runner.census() == {TxnState.PREPARE_COMMIT.value: 1}
    assert after.runner.rows_replayed == len(ports.log)


def test_a_request_whose_connection_closed_waits_no_more(ports: Ports) -> None:
    ports.done("add_partitions_to_txn", "etl", 5, 0, [ORDERS])
    ports.done("end_txn", "etl", 5, 0, True)
    waiting = ports.send("add_partitions_to_txn", "etl", 5, 1, [ORDERS])
    waiting.is_deserted = True
    ports.runner.tick()
    ports.runner.marker_written("etl", ports.ended[0].writer, ORDERS)
    ports.store()
    assert ports.runner.census() == {TxnState.COMPLETE_COMMIT.value: 1}


def test_requests_that_wait_are_redirected_at_the_end_of_a_load(ports: Ports) -> None:
    ports.done("add_partitions_to_txn", "etl", 5, 0, [ORDERS])
    ending = ports.send("end_txn", "etl", 5, 0, True)
    ports.runner.end()
    assert [type(answer) for answer in ending.answers] == [NotCoordinator]
    assert [type(answer) for answer in ports.send("list_transactions").answers] == [NotCoordinator]
    assert ports.ended == []


def test_a_malformed_request_is_refused(ports: Ports) -> None:
    assert [type(answer) for answer in ports.send("init_transactions", 5).answers] == [InvalidRequest]
    of_another_endpoint = ports.send("join_group", "g")
    assert [type(answer) for answer in of_another_endpoint.answers] == [ConnectionFailed]


def test_an_unused_coordinator_proposes_to_end(ports: Ports) -> None:
    ports.time_ms = 100
    ports.runner.tick()
    assert ports.proposals == 1
    ports.runner.sleep_refused()
    ports.runner.sleep_requested()
    ports.runner.tick()
    assert ports.proposals == 2
