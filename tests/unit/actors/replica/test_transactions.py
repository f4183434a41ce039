"""Transactions at a leader with a real log: markers, readers of committed records, and what is known of producers."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from raylog.actors.replica.cleaner import Cleaner
from raylog.actors.replica.consumer_reads import NEAR_BYTES_MIN
from raylog.actors.replica.ports import ReplicaRequest
from raylog.actors.replica.runner import ReplicaRunner
from raylog.base.errors import CorruptMessage, InvalidProducerEpoch, InvalidTxnState, TransactionCoordinatorFenced
from raylog.base.ids import LATEST, MAX_TIMESTAMP
from raylog.protocol.message import Empty
from raylog.protocol.replica import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AbortedTxn,
    ActiveProducer,
    DescribeProducersRequest,
    FetchNearRequest,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    ProduceRequest,
    WriteTxnMarkersRequest,
)
from raylog.rpc import machine_number
from raylog.storage.batch.header import TRANSACTIONAL_BIT, iter_headers
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.actors.replica.test_consumer_reads import Answered, leading
from tests.unit.storage.logs import NOW, batch

PRODUCER = 7


class Request(Answered):
    """A request that keeps its answers with their records, and its errors."""

    def __init__(self, payload: bytes = b"") -> None:
        super().__init__(payload)
        self.records = b""
        self.error: BaseException | None = None

    def reply(self, args: object = None, payload: Any = b"") -> None:
        super().reply(args, payload)
        self.records = bytes(payload)

    def fail(self, error: BaseException) -> None:
        self.error = error

    @property
    def answer(self) -> Any:
        """The one answer."""
        assert self.error is None, self.error
        ((args, _),) = self.answers
        return args


def produce(
    runner: ReplicaRunner, value: bytes, *, producer: int = PRODUCER, epoch: int = 0, sequence: int = 0, bits: int = 0
) -> Request:
    """A batch of one record, outside of a transaction unless ``bits`` says otherwise."""
    fields: dict[str, Any] = {
        "producer_id": producer,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "attributes": bits,
    }
    request = Request(batch(value, **(fields if producer >= 0 else {})))
    runner.receive(cast(ReplicaRequest, request), ProduceRequest("id", 0, -1, 1, 1_000, "ledger"))
    return request


def write(runner: ReplicaRunner, value: bytes, *, producer: int = PRODUCER, epoch: int = 0, sequence: int = 0) -> None:
    """A batch of one record in the producer's transaction."""
    answer = produce(runner, value, producer=producer, epoch=epoch, sequence=sequence, bits=TRANSACTIONAL_BIT).answer
    assert answer.base_offset >= 0


def end(
    runner: ReplicaRunner, *, committed: bool, producer: int = PRODUCER, epoch: int = 1, coordinator: int = 3
) -> Request:
    request = Request()
    args = WriteTxnMarkersRequest("id", 0, 3, producer, epoch, coordinator, committed, 1_000)
    runner.receive(cast(ReplicaRequest, request), args)
    return request


def fetch(runner: ReplicaRunner, offset: int, level: int = READ_COMMITTED, *, wait_ms: int = 0) -> Request:
    request = Request()
    args = FetchRequest("id", 0, 3, offset, 1 << 20, 1, wait_ms, level)
    runner.receive(cast(ReplicaRequest, request), args)
    return request


def first_offsets(request: Request) -> list[int]:
    return [header.base_offset for _, header in iter_headers(request.records)]


def listed(runner: ReplicaRunner, timestamp: int, level: int) -> ListOffsetsReply:
    request = Request()
    runner.receive(cast(ReplicaRequest, request), ListOffsetsRequest("id", 0, 3, timestamp, level))
    return cast(ListOffsetsReply, request.answer)


def test_a_reader_of_committed_records_gets_no_open_transaction(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        produce(runner, b"plain", producer=-1)
        write(runner, b"open")
        produce(runner, b"behind", producer=-1)
        seen = fetch(runner, 0)
        assert (first_offsets(seen), seen.answer.last_stable_offset, seen.answer.high_watermark) == ([0], 1, 3)
        everything = fetch(runner, 0, READ_UNCOMMITTED)
        assert first_offsets(everything) == [0, 1, 2]
        assert (everything.answer.last_stable_offset, everything.answer.aborted) == (3, ())


def test_a_commit_shows_a_transaction_to_a_fetch_that_waits(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        write(runner, b"x")
        waiting = fetch(runner, 0, wait_ms=60_000)
        produce(runner, b"behind", producer=-1)
        assert not waiting.answers
        assert end(runner, committed=True).answer == Empty()
        assert first_offsets(waiting) == [0, 1, 2]
        assert (waiting.answer.last_stable_offset, waiting.answer.aborted) == (3, ())


def test_an_abort_is_named_to_readers_of_committed_records_only(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        write(runner, b"x")
        end(runner, committed=False)
        assert fetch(runner, 0).answer.aborted == [AbortedTxn(PRODUCER, 0)]
        assert fetch(runner, 0, READ_UNCOMMITTED).answer.aborted == ()


def keyed(runner: ReplicaRunner, key: bytes, value: bytes, **fields: int) -> None:
    """A batch of one record with a key."""
    request = Request(encode_batch([key], [value], [NOW], None, BatchMeta(**fields)))
    runner.receive(cast(ReplicaRequest, request), ProduceRequest("id", 0, -1, 1, 1_000, "ledger"))
    assert request.answer.base_offset >= 0


async def cleaned(runner: ReplicaRunner) -> None:
    """Clean what lies below the high watermark."""
    cleaner = cast(Cleaner, runner.cleaner)
    cast(PartitionLog, runner.log).sync()
    cleaner.tick(1_000, NOW, runner.log.log_end_offset)
    assert cleaner._task is not None
    async with asyncio.timeout(20):
        await cleaner._task


def test_a_cleaning_takes_aborted_records_out_of_memory_too(tmp_path: Path) -> None:
    """The log does not list their transaction any more: what was read before the cleaning would count as committed."""
    with leading(tmp_path, segment_bytes=300, compaction=CompactionRules(min_cleanable_dirty_ratio=0.0)) as runner:
        keyed(
            runner,
            b"one",
            b"aborted",
            producer_id=PRODUCER,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL_BIT,
        )
        end(runner, committed=False)
        for key in (b"two", b"three", b"four"):
            keyed(runner, key, bytes(200))
        before = fetch(runner, 0)
        assert (first_offsets(before), before.answer.aborted) == ([0, 1, 2, 3, 4], [AbortedTxn(PRODUCER, 0)])
        asyncio.run(cleaned(runner))
        after = fetch(runner, 0)
        assert after.answer.aborted == ()
        with_records = [header.base_offset for _, header in iter_headers(after.records) if not header.is_control]
        assert with_records == [2, 3, 4]


def test_only_those_aborted_transactions_are_named_that_are_in_the_answer(tmp_path: Path) -> None:
    with leading(tmp_path, []) as runner:
        for number in range(3):
            write(runner, bytes(400_000), epoch=number)
            end(runner, committed=False, epoch=number + 1)
        first = fetch(runner, 0)
        assert first_offsets(first) == [0, 1, 2, 3]
        assert first.answer.aborted == [AbortedTxn(PRODUCER, 0), AbortedTxn(PRODUCER, 2)]
        assert fetch(runner, 4).answer.aborted == [AbortedTxn(PRODUCER, 4)]


@pytest.mark.parametrize("batches_too", [False, True])
def test_a_damaged_list_of_aborted_transactions_is_made_again(tmp_path: Path, batches_too: bool) -> None:
    """Without the list its records would be shown: where the batches are damaged as well, the answer is an error."""
    with leading(tmp_path, segment_bytes=1_000) as runner:
        write(runner, bytes(2_000))
        end(runner, committed=False)
        write(runner, bytes(2_000), epoch=1)
        end(runner, committed=True, epoch=2)
        (listed_there, *_) = sorted((tmp_path / "t-0").glob("*.txnindex"))
        listed_there.write_bytes(b"damaged")
        for segment in cast(PartitionLog, runner.log).segments:
            segment._aborted = None
        if batches_too:
            (log, *_) = sorted((tmp_path / "t-0").glob("*.log"))
            log.write_bytes(b"damaged" + log.read_bytes()[7:])
        found = fetch(runner, 0)
        if batches_too:
            assert isinstance(found.error, CorruptMessage)
        else:
            assert found.answer.aborted == [AbortedTxn(PRODUCER, 0)]
            assert first_offsets(fetch(runner, 0, READ_UNCOMMITTED))[0] == 0
        assert not runner.requests, "each was answered"


def test_places_in_files_end_at_the_last_stable_offset(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        write(runner, bytes(NEAR_BYTES_MIN))
        end(runner, committed=False)
        write(runner, b"open", epoch=1)
        request = Request()
        args = FetchNearRequest("id", 0, 3, 0, 1 << 20, 1, 0, READ_COMMITTED, machine_number() or 0)
        runner.receive(cast(ReplicaRequest, request), args)
        (place,) = request.answer.slices
        assert (place.next_offset, request.answer.last_stable_offset) == (2, 2)
        assert request.answer.aborted == [AbortedTxn(PRODUCER, 0)]


def test_committed_records_end_at_the_last_stable_offset(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        produce(runner, b"plain", producer=-1)
        write(runner, b"open")
        assert [listed(runner, LATEST, level).offset for level in (READ_UNCOMMITTED, READ_COMMITTED)] == [2, 1]
        assert [listed(runner, MAX_TIMESTAMP, level).offset for level in (READ_UNCOMMITTED, READ_COMMITTED)] == [0, 0]
        assert listed(runner, NOW + 1, READ_COMMITTED).offset == -1
        end(runner, committed=True)
        assert listed(runner, LATEST, READ_COMMITTED).offset == 3


def test_a_time_is_not_found_in_an_open_transaction(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        write(runner, b"open")
        assert listed(runner, NOW, READ_UNCOMMITTED).offset == 0
        assert listed(runner, NOW, READ_COMMITTED).offset == -1


def test_a_late_repetition_of_a_marker_does_not_end_the_next_transaction(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        write(runner, b"first")
        end(runner, committed=True)
        write(runner, b"second", epoch=1)
        assert end(runner, committed=True).answer == Empty()
        assert runner.log.log_end_offset == 3, "nothing was written"
        assert runner.log.has_open_transactions


def test_a_marker_of_an_earlier_epoch_or_coordinator_is_refused(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        write(runner, b"first")
        end(runner, committed=True, coordinator=3)
        write(runner, b"second", epoch=1)
        assert isinstance(end(runner, committed=False, epoch=2, coordinator=2).error, TransactionCoordinatorFenced)
        assert isinstance(end(runner, committed=False, epoch=0).error, InvalidProducerEpoch)
        assert runner.log.has_open_transactions
        assert not runner.requests, "each was answered"


def test_a_batch_that_arrives_after_the_end_of_its_transaction_is_refused(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        write(runner, b"first")
        end(runner, committed=False)
        late = produce(runner, b"late", sequence=1, bits=TRANSACTIONAL_BIT)
        assert isinstance(late.error, InvalidProducerEpoch)


def test_a_batch_outside_of_its_producers_open_transaction_is_refused(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        write(runner, b"first")
        assert isinstance(produce(runner, b"outside", sequence=1).error, InvalidTxnState)


@pytest.mark.parametrize("committed", [True, False])
def test_producers_are_described_with_their_open_transactions(tmp_path: Path, committed: bool) -> None:
    def described(runner: ReplicaRunner) -> ActiveProducer:
        request = Request()
        runner.receive(cast(ReplicaRequest, request), DescribeProducersRequest("id", 0, 3))
        (found,) = request.answer
        return cast(ActiveProducer, found)

    with leading(tmp_path) as runner:
        produce(runner, b"plain", producer=-1)
        write(runner, b"x")
        assert described(runner) == ActiveProducer(PRODUCER, 0, 0, NOW, -1, 1)
        end(runner, committed=committed)
        found = described(runner)
        assert (found.producer_epoch, found.coordinator_epoch, found.txn_start_offset) == (1, 3, -1)


def test_the_machine_learns_of_open_transactions_with_each_tick(tmp_path: Path) -> None:
    with leading(tmp_path) as runner:
        assert runner.machine is not None
        write(runner, b"x")
        runner.tick()
        assert runner.machine._log.in_transaction
        end(runner, committed=True)
        runner.tick()
        assert not runner.machine._log.in_transaction
