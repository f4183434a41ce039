"""The dump shows what is there and reports damage instead of raising."""

from pathlib import Path

from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import encode_batch
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.log.config import CompactionRules
from raylog.storage.segments.dump import BatchRow, ProblemRow, RecordRow, check_indexes, dump_folder, dump_segment
from tests.unit.storage.logs import NOW, batch, open_log


def made(folder: Path) -> Path:
    log = open_log(folder, segment_bytes=1500, index_interval_bytes=1)
    for number in range(20):
        log.append_as_leader(encode_batch([b"k"], [b"v%d" % number], [NOW + number], [[("h", b"x")]]), 2, NOW)
    log.close()
    return folder / "00000000000000000000.log"


def test_every_batch_and_record_is_a_row(tmp_path: Path) -> None:
    made(tmp_path / "t-0")
    rows = list(dump_folder(tmp_path / "t-0", records=True))
    batches = [row for row in rows if isinstance(row, BatchRow)]
    records = [row for row in rows if isinstance(row, RecordRow)]
    assert [row.base_offset for row in batches] == [row.offset for row in records] == list(range(20))
    assert all(row.crc_valid and row.leader_epoch == 2 and row.compression == "none" for row in batches)
    assert (records[3].key, records[3].value, records[3].headers) == (b"k", b"v3", [("h", b"x")])
    assert len(rows) == 40


def test_damage_is_reported_with_its_position(tmp_path: Path) -> None:
    path = made(tmp_path / "t-0")
    data = bytearray(path.read_bytes())
    rows = [row for row in dump_segment(path) if isinstance(row, BatchRow)]
    data[rows[2].position + 70] ^= 1
    data[rows[5].position + 16] = 9
    path.write_bytes(data)
    found = list(dump_segment(path, records=True))
    assert [row.crc_valid for row in found if isinstance(row, BatchRow)] == [True, True, False, True, True]
    assert isinstance(found[-1], ProblemRow)
    assert (found[-1].position, "magic 9" in found[-1].reason) == (rows[5].position, True)
    path.write_bytes(path.read_bytes()[:30])
    assert [type(row) for row in dump_segment(path)] == [ProblemRow]
    assert [type(row) for row in dump_segment(tmp_path / "missing.log")] == [ProblemRow]


def test_wrong_indexes_are_reported(tmp_path: Path) -> None:
    path = made(tmp_path / "t-0")
    assert list(check_indexes(path)) == []
    index, times = path.with_suffix(".index"), path.with_suffix(".timeindex")
    data = bytearray(index.read_bytes())
    data[7] ^= 1
    index.write_bytes(data)
    data = bytearray(times.read_bytes())
    data[7] ^= 1
    times.write_bytes(data)
    assert {row.file for row in check_indexes(path)} == {index.name, times.name}


def test_a_batch_that_cannot_be_opened_is_a_problem_row(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_follower(batch(b"a", attributes=0x10, partition_leader_epoch=1), NOW)
    path = log.segments[0].path
    rows = list(dump_segment(path))
    assert isinstance(rows[0], BatchRow)
    assert rows[0].is_transactional
    log.close()


def test_markers_say_what_they_end_and_their_index_is_checked(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=200)
    for epoch, committed in enumerate((False, True, False)):
        sent = batch(b"v", producer_id=7, producer_epoch=epoch, base_sequence=0, attributes=TRANSACTIONAL_BIT)
        log.append_as_leader(sent, 1, NOW)
        log.append_marker(TxnMarker(7, epoch + 1, 0, committed), 1, NOW)
    log.append_as_leader(batch(b"next"), 1, NOW)
    log.close()
    rows = [row for row in dump_folder(tmp_path / "t-0") if isinstance(row, BatchRow)]
    assert [row.marker for row in rows] == [None, "abort", None, "commit", None, "abort", None]
    first, *_, last = sorted((tmp_path / "t-0").glob("*.txnindex"))
    assert not list(check_indexes(first.with_suffix(".log")))
    first.write_bytes(last.read_bytes())
    assert "aborts at 5, and it does not" in next(check_indexes(first.with_suffix(".log"))).reason
    first.write_bytes(b"nothing")
    assert "wrong magic" in next(check_indexes(first.with_suffix(".log"))).reason


def test_what_a_cleaner_has_left_is_dumped_with_its_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    for number in range(9):
        log.append_as_leader(encode_batch([b"k"], [b"%d" % number], [NOW]), 0, NOW)
    log.sync()
    order = LogCleaning(log).order_cleaning(9, NOW, CompactionRules())
    assert order is not None
    assert LogCleaning(log).take_cleaned(clean(order), NOW)
    log.close()
    rows = list(dump_folder(tmp_path / "t-0", records=True))
    assert not [row for row in rows if isinstance(row, ProblemRow)]
    assert 0 < len([row for row in rows if isinstance(row, RecordRow)]) < 9
    assert next(row.record_count for row in rows if isinstance(row, BatchRow)) == 0
