"""Which batches of an answer are hidden from readers of committed records."""

from pathlib import Path

from raylog.client.reading.isolation import AbortedBatches, aborted_batches
from raylog.client.reading.local_files import Place, SegmentFile
from raylog.protocol.replica import AbortedTxn
from raylog.storage.batch.header import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, parse_header
from raylog.storage.batch.records import BatchMeta, encode_batch

PLAIN, RECORDS, MARKER = 0, TRANSACTIONAL_BIT, TRANSACTIONAL_BIT | CONTROL_BIT


def batch(offset: int, producer: int, kind: int = RECORDS, count: int = 1) -> bytes:
    meta = BatchMeta(producer, 0, base_offset=offset, attributes=kind)
    return encode_batch(None, [b"x"] * count, [0] * count, meta=meta)


def header(offset: int, producer: int, kind: int = RECORDS, count: int = 1) -> BatchHeader:
    return parse_header(batch(offset, producer, kind, count))


def hidden(aborted: list[AbortedTxn], *headers: BatchHeader) -> list[int]:
    """Return the offsets of the hidden ones of these batches."""
    found = AbortedBatches(aborted)
    return [each.base_offset for each in headers if found.hides(each)]


def test_an_answer_without_aborted_transactions_needs_no_look() -> None:
    assert aborted_batches([]) is None
    assert aborted_batches([AbortedTxn(1, 0)]) is not None


def test_a_producers_batches_are_hidden_up_to_its_marker() -> None:
    assert hidden([AbortedTxn(1, 0)], header(0, 1), header(1, 1), header(2, 1, MARKER), header(3, 1)) == [0, 1]


def test_a_batch_that_a_cleaner_has_emptied_ends_no_transaction() -> None:
    """A cleaner takes aborted records away as soon as it meets them, and what is left in their place is no marker."""
    emptied = header(1, 1, MARKER)._replace(record_count=0)
    assert hidden([AbortedTxn(1, 0)], header(0, 1), emptied, header(2, 1), header(3, 1, MARKER)) == [0, 2]


def test_batches_of_other_producers_are_not_hidden() -> None:
    assert hidden([AbortedTxn(1, 0)], header(0, 1), header(1, 2), header(2, -1, PLAIN), header(3, 1)) == [0, 3]


def test_a_batch_outside_of_transactions_is_not_hidden() -> None:
    assert hidden([AbortedTxn(1, 0)], header(0, 1), header(1, 1, PLAIN), header(2, 1, MARKER)) == [0]


def test_a_marker_is_not_an_aborted_batch() -> None:
    assert hidden([AbortedTxn(1, 0)], header(0, 1, MARKER)) == []


def test_a_transaction_that_began_before_the_answer_is_hidden() -> None:
    assert hidden([AbortedTxn(1, 3)], header(70, 1), header(71, 1, MARKER), header(72, 1)) == [70]


def test_a_committed_transaction_before_an_aborted_one_is_shown() -> None:
    rows = [header(0, 1), header(1, 1, MARKER), header(2, 1), header(3, 1, MARKER), header(4, 1)]
    assert hidden([AbortedTxn(1, 2)], *rows) == [2]


def test_aborted_transactions_of_one_producer_follow_one_another() -> None:
    rows = [header(0, 1), header(1, 1, MARKER), header(2, 1), header(3, 1, MARKER), header(4, 1), header(5, 1, MARKER)]
    assert hidden([AbortedTxn(1, 4), AbortedTxn(1, 0)], *rows) == [0, 4]


def test_transactions_of_several_producers_may_interleave() -> None:
    rows = [header(0, 1), header(1, 2), header(2, 1, MARKER), header(3, 2), header(4, 1), header(5, 2, MARKER)]
    assert hidden([AbortedTxn(1, 0), AbortedTxn(2, 1)], *rows) == [0, 1, 3]


def test_a_batch_of_several_records_is_hidden_whole() -> None:
    assert hidden([AbortedTxn(1, 0)], header(0, 1, count=5), header(5, 1, MARKER)) == [0]


def test_places_of_one_answer_are_filtered_in_order(tmp_path: Path) -> None:
    """A transaction that began in one place ends in the next, and each is read in several pieces."""
    aborted = aborted_batches([AbortedTxn(1, 0)])
    found: list[tuple[int, bool]] = []
    for number, rows in enumerate([[batch(0, 1), batch(1, 1), batch(2, 2)], [batch(3, 1, MARKER), batch(4, 1)]]):
        path = tmp_path / str(number)
        path.write_bytes(b"".join(rows))
        file = SegmentFile(str(path), (path.stat().st_dev, path.stat().st_ino))
        place: Place | None = Place(file, 0, path.stat().st_size, aborted)
        while place is not None:
            batches, place = place.read(len(rows[0]), found[-1][0] + 1 if found else 0)
            found += [(each.header.base_offset, each.is_aborted) for each in batches]
    assert found == [(0, True), (1, True), (2, False), (3, False), (4, False)]
