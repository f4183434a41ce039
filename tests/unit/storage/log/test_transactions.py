"""Transactions in a partition's log: what is stable, what was aborted, and what the next life knows of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.base.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTxnState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from raylog.storage.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, iter_headers
from raylog.storage.batch.marker import BY_ADMINISTRATOR, TxnMarker, decode_marker
from raylog.storage.errors import CorruptBatch
from raylog.storage.log import partition_log
from raylog.storage.log.config import AppendInfo
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.segments.aborted import AbortedTxn, from_bytes, is_as_good, to_bytes
from raylog.storage.segments.segment import TXN_INDEX
from tests.unit.storage.logs import NOW, batch, crashed, open_log

P, Q = 7, 8


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    opened = open_log(tmp_path / "t-0")
    yield opened
    opened.close()


def sent(producer: int = P, epoch: int = 0, sequence: int = 0, count: int = 1, *, transactional: bool = True) -> bytes:
    attributes = TRANSACTIONAL_BIT if transactional else 0
    values = [b"%d" % number for number in range(count)]
    return batch(*values, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, attributes=attributes)


def write(log: PartitionLog, producer: int = P, epoch: int = 0, sequence: int = 0, count: int = 1) -> AppendInfo:
    return log.append_as_leader(sent(producer, epoch, sequence, count), 1, NOW)


def end(
    log: PartitionLog, producer: int = P, epoch: int = 1, *, committed: bool = False, coordinator: int = 3
) -> AppendInfo:
    return log.append_marker(TxnMarker(producer, epoch, coordinator, committed), 1, NOW)


def test_a_marker_is_the_control_record_that_kafka_writes(log: PartitionLog) -> None:
    write(log)
    assert end(log, committed=True) == AppendInfo(1, 2, False, -1, 1)
    data = log.read(1, 1, 2)
    header = next(iter_headers(data))[1]
    assert (header.magic, header.attributes, header.base_sequence) == (2, TRANSACTIONAL_BIT | CONTROL_BIT, -1)
    assert (header.producer_id, header.producer_epoch, header.record_count) == (P, 1, 1)
    assert data[61:] == bytes.fromhex("20 00 00 00 08 00000001 0c 0000 00000003 00".replace(" ", ""))
    assert decode_marker(data, 0, header) == TxnMarker(P, 1, 3, True)


def test_look_ups_by_time_find_no_marker(log: PartitionLog) -> None:
    write(log)
    end(log)
    assert (log.max_timestamp(2), log.offset_for_timestamp(NOW + 1, 2)) == ((0, NOW), None)


def test_the_stable_end_stops_at_the_oldest_transaction_that_is_open(log: PartitionLog) -> None:
    log.append_as_leader(batch(b"plain"), 1, NOW)
    assert (log.last_stable_offset(1), log.has_open_transactions) == (1, False)
    write(log, P)
    write(log, Q)
    assert (log.last_stable_offset(3), log.has_open_transactions) == (1, True)
    assert log.last_stable_offset(1) == 1
    end(log, P)
    assert log.last_stable_offset(4) == 2
    end(log, Q, committed=True)
    assert (log.last_stable_offset(5), log.has_open_transactions) == (5, False)


def test_a_transaction_is_unstable_until_its_marker_is_committed(log: PartitionLog) -> None:
    write(log)
    end(log)
    assert log.last_stable_offset(1) == 0
    assert log.last_stable_offset(2) == 2


def test_a_transaction_that_reaches_below_the_log_start_is_bounded_by_it(log: PartitionLog) -> None:
    write(log, count=1)
    write(log, sequence=1)
    log.advance_log_start(1)
    assert log.last_stable_offset(2) == 1


def test_readers_get_the_aborted_transactions_of_their_offsets(log: PartitionLog) -> None:
    write(log, P)  # 0
    write(log, Q)  # 1
    end(log, Q)  # 2
    end(log, P)  # 3
    write(log, P, epoch=1)  # 4
    end(log, P, epoch=2, committed=True)  # 5
    assert log.aborted_transactions(0, 6) == [(P, 0), (Q, 1)]
    assert log.aborted_transactions(0, 1) == [(P, 0)]
    assert log.aborted_transactions(2, 6) == [(P, 0), (Q, 1)]
    assert log.aborted_transactions(3, 6) == [(P, 0)]
    assert log.aborted_transactions(4, 6) == []


def test_what_a_client_may_not_send_in_a_transaction_is_refused(log: PartitionLog) -> None:
    with pytest.raises(InvalidRecord, match="no producer id"):
        log.append_as_leader(batch(b"a", attributes=TRANSACTIONAL_BIT), 1, NOW)
    with pytest.raises(InvalidRecord, match="control"):
        log.append_as_leader(batch(b"a", producer_id=P, producer_epoch=0, base_sequence=0, attributes=0x30), 1, NOW)
    write(log)
    with pytest.raises(InvalidTxnState):
        log.append_as_leader(sent(sequence=1, transactional=False), 1, NOW)
    with pytest.raises(ConcurrentTransactions):
        write(log, epoch=1)
    with pytest.raises(InvalidTxnState):  # also where the transaction begins in the same request
        log.append_as_leader(sent(Q) + sent(Q, sequence=1, transactional=False), 1, NOW)
    assert write(log) == AppendInfo(0, 1, True, NOW, 1)
    assert log.log_end_offset == 1


def test_a_batch_that_comes_after_the_end_of_its_transaction_is_refused(log: PartitionLog) -> None:
    write(log)
    end(log)
    for sequence in (0, 1):
        with pytest.raises(InvalidProducerEpoch):
            write(log, epoch=0, sequence=sequence)
    with pytest.raises(OutOfOrderSequence):
        write(log, epoch=1, sequence=1)
    assert not write(log, epoch=1).duplicate
    end(log, Q, epoch=1)  # the producer never wrote here, and its batch is still on the way
    with pytest.raises(InvalidProducerEpoch):
        write(log, Q)


def test_a_repeated_marker_does_not_end_the_next_transaction(log: PartitionLog) -> None:
    write(log)
    end(log)
    write(log, epoch=1)
    assert end(log) == AppendInfo(3, 3, True, -1, 1)
    assert (log.log_end_offset, log.last_stable_offset(3)) == (3, 2)
    end(log, epoch=2)
    with pytest.raises(InvalidProducerEpoch):
        end(log, epoch=1)


def test_an_older_coordinator_is_refused_and_an_administrator_is_not(log: PartitionLog) -> None:
    write(log)
    end(log, coordinator=5)
    write(log, epoch=1)
    with pytest.raises(TransactionCoordinatorFenced):
        end(log, epoch=2, coordinator=4)
    end(log, epoch=2, coordinator=BY_ADMINISTRATOR)
    assert (log.last_stable_offset(4), log.aborted_transactions(0, 4)) == (4, [(P, 0), (P, 2)])
    with pytest.raises(TransactionCoordinatorFenced):
        end(log, epoch=3, coordinator=4)


def test_a_follower_knows_what_its_leader_knows(log: PartitionLog, tmp_path: Path) -> None:
    write(log, P)
    write(log, Q)
    end(log, P)
    follower = open_log(tmp_path / "follower")
    follower.append_as_follower(log.read(0, 1 << 20, log.log_end_offset), NOW)
    assert follower.producers == log.producers
    assert follower.aborted_transactions(0, 3) == [(P, 0)]
    follower.close()


def test_a_follower_refuses_a_marker_that_says_nothing(log: PartitionLog) -> None:
    attributes = TRANSACTIONAL_BIT | CONTROL_BIT
    with pytest.raises(CorruptBatch, match="does not say how"):
        log.append_as_follower(batch(b"", producer_id=P, producer_epoch=1, attributes=attributes), NOW)
    assert log.log_end_offset == 0


@pytest.mark.parametrize("segment_bytes", [1 << 20, 300, 1])
@pytest.mark.parametrize("is_clean", [True, False])
def test_the_next_life_knows_all_transactions(tmp_path: Path, segment_bytes: int, is_clean: bool) -> None:
    log = open_log(tmp_path / "log", segment_bytes=segment_bytes)
    for number in range(6):
        write(log, P, epoch=number)
        write(log, Q, sequence=number)
        end(log, P, epoch=number + 1, committed=number % 2 == 1)
        if number == 3:
            log.sync()
    known = (log.aborted_transactions(0, 18), log.last_stable_offset(18), log.producers.transactions.open)
    assert known == ([(P, 0), (P, 6), (P, 12)], 1, {Q: 1})
    if is_clean:
        folder = log.folder
        log.close()
    else:
        folder = crashed(log, tmp_path / "crashed")
    again = open_log(folder, segment_bytes=segment_bytes)
    transactions = again.producers.transactions
    assert (again.aborted_transactions(0, 18), again.last_stable_offset(18), transactions.open) == known
    assert end(again, P, epoch=6).duplicate
    again.close()


@pytest.mark.parametrize("segment_bytes", [1 << 20, 300, 1])
def test_a_cut_takes_the_transactions_with_it(tmp_path: Path, segment_bytes: int) -> None:
    log = open_log(tmp_path / "log", segment_bytes=segment_bytes)
    write(log, P)  # 0
    end(log, P)  # 1
    write(log, P, epoch=1)  # 2
    write(log, Q)  # 3
    end(log, P, epoch=2)  # 4
    end(log, Q)  # 5
    log.truncate_to(4, NOW)
    assert (log.aborted_transactions(0, 4), log.last_stable_offset(4)) == ([(P, 0)], 2)
    log.truncate_to(1, NOW)
    assert (log.aborted_transactions(0, 1), log.last_stable_offset(1)) == ([], 0)
    log.truncate_fully_and_start_at(10, NOW)
    assert (log.aborted_transactions(10, 10), log.last_stable_offset(10)) == ([], 10)
    assert not list(log.folder.glob("*" + TXN_INDEX))
    log.close()


def test_a_producer_stays_known_while_its_transaction_is_open(log: PartitionLog) -> None:
    write(log, P)
    write(log, Q)
    end(log, Q)
    log.apply_retention(NOW + 2 * 86_400_000, 0)
    assert [(producer.producer_id, producer.txn_start_offset) for producer in log.active_producers()] == [(P, 0)]
    assert log.producers.transactions.coordinator_epochs == {}


def test_producers_are_described(log: PartitionLog) -> None:
    write(log, P, count=3)
    write(log, Q, epoch=2)
    end(log, Q, epoch=3)
    assert log.active_producers() == [(P, 0, 2, NOW, -1, 0), (Q, 3, -1, NOW, 3, -1)]


def test_the_index_of_a_removed_segment_goes_with_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=1, retention_ms=1000, file_delete_delay_ms=0)
    write(log)
    end(log)
    log.append_as_leader(batch(b"next"), 1, NOW)
    assert [path.name for path in log.folder.glob("*" + TXN_INDEX)] == [f"{1:020d}{TXN_INDEX}"]
    log.apply_retention(NOW + 2000, 3)
    log.purge_deleted(NOW + 2000)
    assert not list(log.folder.glob("*.txnindex*"))
    assert log.aborted_transactions(log.log_start_offset, 3) == []
    log.close()


def test_a_damaged_index_is_made_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=300)
    for number in range(9):
        write(log, epoch=number)
        end(log, epoch=number + 1)
    known = log.aborted_transactions(0, 18)
    folder = log.folder
    log.close()
    for path in folder.glob("*" + TXN_INDEX):
        data = bytearray(path.read_bytes())
        data[9] ^= 1
        path.write_bytes(data)
    again = open_log(folder, segment_bytes=300)
    assert again.aborted_transactions(0, 18) == known
    assert again.recovered.indexes_rebuilt > 0
    again.close()


def test_a_segment_that_is_last_again_after_a_crash_knows_its_aborted(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=1)
    write(log)  # 0
    end(log)  # 1, in a segment of its own
    log.sync()
    log._write_recovery_point(2)
    log.append_as_leader(batch(b"next"), 1, NOW)  # 2
    folder = crashed(log, tmp_path / "crashed")
    (folder / f"{2:020d}.log").unlink()  # its name was not on disk yet
    assert (folder / f"{2:020d}.snapshot").exists()
    again = open_log(folder, segment_bytes=1)
    assert (again.log_end_offset, again.aborted_transactions(0, 2)) == (2, [(P, 0)])
    again.close()


def test_the_index_of_a_segment_that_was_removed_halfway_goes(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=1)
    write(log)
    end(log)
    log.append_as_leader(batch(b"next"), 1, NOW)
    log.close()
    (log.folder / f"{7:020d}{TXN_INDEX}").write_bytes(b"of a segment that was removed")
    again = open_log(log.folder, segment_bytes=1)
    assert [path.name for path in again.folder.glob("*" + TXN_INDEX)] == [f"{1:020d}{TXN_INDEX}"]
    again.close()


def test_an_index_stays_although_an_older_transaction_was_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=1, file_delete_delay_ms=0)
    write(log, P)  # 0, and this transaction stays open
    write(log, Q)  # 1
    end(log, Q)  # 2, with P's first offset as last stable offset
    log.append_as_leader(batch(b"next"), 1, NOW)  # 3
    log.advance_log_start(1)
    log.apply_retention(NOW, 4)
    kept = log.folder / f"{2:020d}{TXN_INDEX}"
    for path in log.folder.glob("*.snapshot"):  # so that the next life learns of producers from the batches alone
        path.unlink()
    again = open_log(crashed(log, tmp_path / "crashed"), segment_bytes=1)
    assert from_bytes(kept.read_bytes()) == [AbortedTxn(Q, 1, 2, 0)]
    assert (again.folder / kept.name).read_bytes() == kept.read_bytes()
    assert again.aborted_transactions(1, 4) == [(Q, 1)]
    again.close()


def test_lives_that_know_less_leave_no_snapshots_that_know_more(tmp_path: Path) -> None:
    """A crash that scans from a segment behind the start of a transaction learns of it by a later batch."""
    log = open_log(tmp_path / "log", segment_bytes=1, file_delete_delay_ms=0)
    write(log, P)  # 0, and this transaction stays open
    write(log, Q)  # 1
    log.sync()
    log._write_recovery_point(2)
    write(log, P, sequence=1)  # 2
    log.append_as_leader(batch(b"next"), 1, NOW)  # 3
    log.append_as_leader(batch(b"next"), 1, NOW)  # 4
    log.advance_log_start(1)
    log.apply_retention(NOW, 5)
    for path in log.folder.glob("*.snapshot"):  # the newer ones have taken their place
        if int(path.stem) <= 2:
            path.unlink()
    again = open_log(crashed(log, tmp_path / "crashed"), segment_bytes=1, file_delete_delay_ms=0)
    assert again.producers.transactions.open == {Q: 1, P: 2}
    end(again, Q)  # 5, with P's second batch as last stable offset
    again.append_as_leader(batch(b"next"), 1, NOW)  # 6
    kept = again.folder / f"{5:020d}{TXN_INDEX}"
    assert from_bytes(kept.read_bytes()) == [AbortedTxn(Q, 1, 5, 2)]
    again._write_recovery_point(4)
    once_more = open_log(crashed(again, tmp_path / "crashed-again"), segment_bytes=1)
    assert (once_more.folder / kept.name).read_bytes() == kept.read_bytes(), "no life made it again"
    assert once_more.producers.transactions.open == {P: 2}
    once_more.close()


@pytest.mark.parametrize(
    ("kept", "stays"),
    [
        ([AbortedTxn(P, 1, 4, 0), AbortedTxn(Q, 2, 5, 6)], True),
        ([AbortedTxn(P, 1, 4, 2), AbortedTxn(Q, 2, 5, 6)], True),
        ([AbortedTxn(P, 1, 4, 3), AbortedTxn(Q, 2, 5, 6)], False),
        ([AbortedTxn(P, 1, 4, 2)], False),
        ([AbortedTxn(P, 1, 4, 2), AbortedTxn(Q, 3, 5, 6)], False),
    ],
)
def test_an_index_that_hides_no_transaction_may_stay(kept: list[AbortedTxn], stays: bool) -> None:
    assert is_as_good(kept, [AbortedTxn(P, 1, 4, 2), AbortedTxn(Q, 2, 5, 6)]) is stays


def test_the_file_of_aborted_transactions_keeps_its_form() -> None:
    entries = [AbortedTxn(7, 0, 9, 4), AbortedTxn(8, 4, 12, 13)]
    numbers = "0000000000000007 0000000000000000 0000000000000009 0000000000000004"
    numbers += "0000000000000008 0000000000000004 000000000000000c 000000000000000d"
    data = bytes.fromhex("52545831" + numbers.replace(" ", "") + "c142d07f")
    assert to_bytes(entries) == data
    assert from_bytes(data) == entries
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(CorruptBatch):
            from_bytes(bytes(changed))
    with pytest.raises(CorruptBatch):
        from_bytes(b"")


def test_a_segment_of_markers_alone_is_as_old_as_itself(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", retention_ms=1000)
    end(log)
    log.sync()
    assert log.apply_retention(NOW + 1000, high_watermark=1) == []
    assert log.log_start_offset == 0
    assert log.apply_retention(NOW + 1001, high_watermark=1) == [0]
    log.close()


def test_a_segment_ends_before_its_aborted_transactions_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the active segment are in memory, and in each snapshot of the producers."""
    monkeypatch.setattr(partition_log, "ABORTED_MAX", 10)
    log = open_log(tmp_path / "t-0")
    for epoch in range(35):
        log.append_as_leader(sent(P, epoch), 0, NOW)
        log.append_marker(TxnMarker(P, epoch + 1, 1, committed=False), 0, NOW)
        assert len(log.producers.transactions.aborted) <= 11
    assert len(log.segments) == 4
    assert len(log.aborted_transactions(0, log.log_end_offset)) == 35
    log.close()
    again = open_log(tmp_path / "t-0")
    assert len(again.aborted_transactions(0, again.log_end_offset)) == 35
    again.close()


def test_the_first_batch_of_a_transaction_is_recognised(log: PartitionLog) -> None:
    assert log.transaction_of(sent()) == (P, 0, True)
    assert log.transaction_of(sent(transactional=False)) is None
    log.append_as_leader(sent(), 1, NOW)
    assert log.transaction_of(sent(sequence=1)) == (P, 0, False)
    assert log.transaction_of(sent(Q)) == (Q, 0, True)
    log.append_marker(TxnMarker(P, 1, 0, committed=True), 1, NOW)
    assert log.transaction_of(sent(epoch=1)) == (P, 1, True)
    assert log.transaction_of(sent(sequence=1)) is None, "the append refuses it: its epoch has passed"


def test_one_request_is_of_one_transaction(log: PartitionLog) -> None:
    assert log.transaction_of(sent() + sent(sequence=1)) == (P, 0, True)
    log.append_as_leader(sent(), 1, NOW)
    for payload in (sent(sequence=1) + sent(Q), sent(Q) + sent(sequence=1), sent(Q) + sent(Q, epoch=1)):
        with pytest.raises(InvalidRecord, match="several transactions"):
            log.transaction_of(payload)
    assert log.transaction_of(b"no batch") is None
