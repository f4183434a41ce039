"""Time in transactions: timeouts, unused ids, and when a coordinator ends; and what a restart changes of them."""

import pytest

from raylog.base.errors import InvalidRequest, NotCoordinator, ProducerFenced, TransactionalIdNotFound
from raylog.core.coordinators.events import SleepRequested
from raylog.core.transactions import events as ev
from raylog.core.transactions.coordinator import EXPIRED_IDS_MAX
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.states import TxnState
from tests.unit.core.transactions.context import BILLS, FIRST_ID, GROUP, NAME, ORDERS, TIMEOUT_MS, Transactions

SLEEP_MS = 300_000
SLEEPS = TxnSettings(sleep_after_ms=SLEEP_MS)
EXPIRES = TxnSettings(id_expiration_ms=1_000, expiration_check_ms=100)

# ---------------------------------------------------------------- timeouts


def test_a_transaction_past_its_timeout_is_aborted_and_fenced(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    txns.tick(TIMEOUT_MS - 1)
    assert txns.state() is TxnState.ONGOING
    txns.tick(1)
    assert txns.state() is TxnState.PREPARE_ABORT
    assert [marker.committed for marker in txns.markers] == [False]
    for request in (txns.end(producer), txns.end(producer, committed=False), txns.add(producer, BILLS)):
        assert txns.error(request) is ProducerFenced
    txns.write_markers()
    assert txns.error(txns.init(producer)) is ProducerFenced
    assert txns.producer().epoch > producer.epoch + 1


def test_the_timeout_counts_from_the_first_partition(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    txns.tick(TIMEOUT_MS // 2)
    txns.reply(txns.add(producer, BILLS))
    txns.tick(TIMEOUT_MS // 2)
    assert txns.state() is TxnState.PREPARE_ABORT


def test_each_transaction_has_a_whole_timeout(txns: Transactions) -> None:
    first = txns.begun(ORDERS)
    txns.tick(TIMEOUT_MS - 1)
    second = txns.identity(txns.end(first))
    txns.write_markers()
    txns.reply(txns.add(second, ORDERS))
    txns.tick(TIMEOUT_MS - 1)
    assert txns.state() is TxnState.ONGOING


def test_a_restart_does_not_prolong_a_transaction(txns: Transactions) -> None:
    txns.begun(ORDERS)
    after = txns.restarted(TIMEOUT_MS - 10)
    after.tick(9)
    assert after.state() is TxnState.ONGOING
    after.tick(1)
    assert after.state() is TxnState.PREPARE_ABORT


def test_a_decided_transaction_never_times_out(txns: Transactions) -> None:
    txns.end(txns.begun(ORDERS))
    txns.tick(10**9)
    assert txns.state() is TxnState.PREPARE_COMMIT


# ---------------------------------------------------------------- restarts


@pytest.mark.parametrize("committed", [True, False])
def test_the_next_life_sends_the_markers_of_decided_transactions(txns: Transactions, committed: bool) -> None:
    producer = txns.begun(ORDERS)
    txns.reply(txns.add_group(producer))
    txns.end(producer, committed=committed)
    (marker,) = txns.markers
    after = txns.restarted()
    (again,) = after.markers
    assert (again.writer, again.marker_epoch, again.committed) == (producer, marker.marker_epoch, committed)
    assert (again.partitions, again.groups) == ((ORDERS,), (GROUP,))
    after.write_markers()
    assert after.state().outcome is committed


def test_an_answer_that_was_lost_with_a_life_is_given_by_the_next(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    answer = txns.reply(txns.end(producer))
    after = txns.restarted()
    assert after.reply(after.end(producer)) == answer


def test_an_open_transaction_goes_on_in_the_next_life(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    after = txns.restarted()
    after.reply(after.add(producer, BILLS))
    after.reply(after.end(producer))
    assert after.markers[0].partitions == (ORDERS, BILLS)


def test_a_machine_that_replays_the_log_equals_the_one_that_wrote_it(txns: Transactions) -> None:
    txns.end(txns.begun(ORDERS))
    txns.begun(BILLS, name="other")
    assert txns.restarted().machine.hard_state() == txns.machine.hard_state()


@pytest.mark.parametrize(
    "row",
    [
        (["txn", NAME], [2, 0]),
        (["other", NAME], None),
        ([5, NAME], None),
        (["txn", NAME], [1, "x", 0, -1, -1, "Empty", 1, -1, -1, -1, [], [], -1, -1]),
        (["txn", NAME], [1, 0, 0, -1, -1, "Unheard", 1, -1, -1, -1, [], [], -1, -1]),
    ],
)
def test_a_record_of_a_later_release_is_not_passed_over(row: tuple[list[object], list[object] | None]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Transactions(log=[row])


def test_fields_of_a_later_release_are_passed_over(txns: Transactions) -> None:
    txns.begun(ORDERS)
    key, value = txns.log[-1]
    assert value is not None
    assert txns.restarted(log=[*txns.log[:-1], (key, [*value, "later"])]).machine.hard_state() == [(key, value)]


# ---------------------------------------------------------------- unused ids


def test_an_unused_id_is_forgotten() -> None:
    txns = Transactions(EXPIRES)
    txns.producer()
    txns.tick(999)
    assert txns.list() != []
    txns.tick(1)
    txns.tick(100)
    assert txns.list() == []
    assert txns.log[-1] == (["txn", NAME], None)
    assert txns.restarted().list() == []


def test_an_id_with_an_open_transaction_is_kept() -> None:
    txns = Transactions(EXPIRES)
    txns.reply(txns.add(txns.identity(txns.init(two_phase=True)), ORDERS))
    txns.end(txns.begun(ORDERS, name="decided"), name="decided")
    txns.tick(10_000)
    assert {row[2] for row in txns.list()} == {"Ongoing", "PrepareCommit"}  # type: ignore[index]


def test_ids_are_forgotten_some_at_a_time() -> None:
    txns = Transactions(EXPIRES)
    for number in range(EXPIRED_IDS_MAX + 1):
        txns.producer(str(number))
    txns.tick(2_000)
    assert len(txns.list()) == 1
    txns.tick(1)
    assert txns.list() == []


def test_a_forgotten_id_comes_back_with_another_producer_id() -> None:
    txns = Transactions(EXPIRES)
    producer = txns.producer()
    txns.tick(2_000)
    assert txns.producer().producer_id != producer.producer_id


# ---------------------------------------------------------------- a coordinator that is not used


def test_a_coordinator_without_open_transactions_ends_when_it_is_not_used() -> None:
    txns = Transactions(SLEEPS)
    producer = txns.begun(ORDERS)
    txns.end(producer)
    txns.write_markers()
    txns.tick(SLEEP_MS - 1)
    assert txns.proposals == 0
    txns.list()
    txns.tick(1)
    assert txns.proposals == 1
    assert txns.error(txns.init()) is NotCoordinator
    txns.refuse_sleep()
    assert txns.reply(txns.init())


def test_an_open_or_decided_transaction_keeps_its_coordinator() -> None:
    txns = Transactions(SLEEPS)
    txns.begun(ORDERS)
    txns.request_sleep()
    assert txns.proposals == 0
    txns.tick(SLEEP_MS)
    assert (txns.state(), txns.proposals) == (TxnState.PREPARE_ABORT, 0)
    txns.tick(SLEEP_MS)
    assert txns.proposals == 0
    txns.write_markers()
    txns.tick(SLEEP_MS)
    assert txns.proposals == 1


def test_a_transaction_that_another_system_decides_on_keeps_none() -> None:
    txns = Transactions(SLEEPS)
    producer = txns.identity(txns.init(two_phase=True))
    txns.reply(txns.add(producer, ORDERS))
    txns.tick(SLEEP_MS)
    assert txns.proposals == 1
    after = txns.restarted()
    assert after.reply(after.end(producer))


def test_a_cluster_that_stops_ends_a_coordinator_that_is_not_in_use() -> None:
    txns = Transactions(SLEEPS)
    txns.producer()
    txns.request_sleep()
    assert txns.proposals == 1


# ---------------------------------------------------------------- lists and descriptions


def test_a_list_has_the_states_and_ages_that_it_is_to_have(txns: Transactions) -> None:
    old = txns.begun(ORDERS, name="old")
    txns.tick(500)
    new = txns.begun(BILLS, name="new")
    empty = txns.producer("empty")
    assert txns.list() == [
        ["empty", empty.producer_id, "Empty"],
        ["new", new.producer_id, "Ongoing"],
        ["old", old.producer_id, "Ongoing"],
    ]
    assert txns.list("Empty", "CompleteCommit") == [["empty", empty.producer_id, "Empty"]]
    assert txns.list(longer_than_ms=500) == [["old", old.producer_id, "Ongoing"]]


def test_a_state_that_does_not_exist_is_refused_with_the_nearest(txns: Transactions) -> None:
    with pytest.raises(AssertionError):
        txns.list("ongoing")
    (error,) = txns.refusals.values()
    assert isinstance(error, InvalidRequest)
    assert "Ongoing" in error.message


def test_a_description_has_the_open_transaction(txns: Transactions) -> None:
    producer = txns.begun(ORDERS)
    txns.reply(txns.add_group(producer))
    assert txns.reply(txns.describe()) == {
        "transactional_id": NAME,
        "coordinator": 0,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "state": "Ongoing",
        "timeout_ms": TIMEOUT_MS,
        "started_ms": txns.wall_ms,
        "partitions": [[ORDERS.topic_id, ORDERS.topic, ORDERS.partition]],
        "groups": [GROUP],
    }
    assert txns.error(txns.describe("unknown")) is TransactionalIdNotFound


def test_the_census_counts_ids_by_state(txns: Transactions) -> None:
    txns.begun(ORDERS)
    txns.producer("a")
    txns.producer("b")
    assert txns.machine.census() == {"Ongoing": 1, "Empty": 2}


def test_the_age_of_the_oldest_open_transaction_is_known(txns: Transactions) -> None:
    assert txns.machine.longest_open_ms(txns.wall_ms) == -1
    txns.begun(ORDERS)
    txns.tick(200)
    txns.begun(BILLS, name="other")
    txns.tick(100)
    assert txns.machine.longest_open_ms(txns.wall_ms) == 300


def test_producer_ids_that_come_while_it_would_sleep_are_taken() -> None:
    """The grant, or its failure, arrives between the proposal to sleep and its refusal."""
    txns = Transactions(TxnSettings(sleep_after_ms=120_000))
    for count in (100, 0):
        txns.holds_grants = True
        request = txns.init(name=f"before-{count}")
        txns.notice(SleepRequested)
        txns.drop(request)
        txns.tick(50)
        first = txns.next_id if count else 0
        txns.notice(ev.ProducerIdsGranted, first=first, count=count)
        txns.refuse_sleep()
        txns.holds_grants = False
        txns.next_id += count
        txns.now_ms += 1_000
        assert txns.producer(f"after-{count}").producer_id >= FIRST_ID
        while not txns.machine._ids.is_empty:  # the next round begins without any
            txns.machine._ids.take()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_transaction_that_was_kept_has_the_whole_timeout(txns: Transactions, restarts: bool) -> None:
    producer = txns.producer(two_phase=True)
    txns.add(producer, ORDERS)
    txns.tick(10 * TIMEOUT_MS)
    held = txns.identity(txns.init(keep=True))
    if restarts:
        txns = txns.restarted()
    txns.tick(TIMEOUT_MS - 1)
    assert txns.state() is TxnState.ONGOING
    if restarts:
        txns.reply(txns.end(held))
        assert txns.state() is TxnState.PREPARE_COMMIT
    else:
        txns.tick(1)
        assert txns.state() is TxnState.PREPARE_ABORT


def test_the_list_names_the_writer_of_an_open_transaction(txns: Transactions) -> None:
    """As a description does; after the writer's last epoch the next producer has another id."""
    producer = txns.begun(ORDERS)
    txns = txns.edit(producer=producer._replace(producer_id=producer.producer_id + 50))
    assert [row[1] for row in txns.list()] == [producer.producer_id]  # type: ignore[index]
