"""The judges of compacted topics: replicas hold equal records, and the last acknowledged one of each key is there."""

from __future__ import annotations

from pathlib import Path

from benchmarks.compaction import cleaned, opened
from raylog.storage.batch.header import TRANSACTIONAL_BIT, parse_header, stamp_all
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import BatchMeta, encode_batch
from tests.chaos.evidence.logs import End, compare, read_logs
from tests.chaos.table import Table
from tests.compacted import Row, difference, rows_of

VALUE = Row(b"k", b"v", 0, None)
LATER = VALUE._replace(value=b"later")
REMOVAL = VALUE._replace(value=None)
OTHER = VALUE._replace(key=b"other")


def test_a_superseded_record_may_be_on_one_side_alone() -> None:
    assert difference({0: VALUE, 1: LATER}, {1: LATER}, {}) == ""
    assert difference({1: LATER}, {0: VALUE, 1: LATER}, {}) == ""


def test_records_of_aborted_transactions_are_none() -> None:
    """A cleaner removes them, on one replica sooner than on another."""
    of_seven = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL_BIT}
    log = bytearray()
    for offset, data in enumerate(
        (
            encode_batch([b"k"], [b"aborted"], [0], None, BatchMeta(**of_seven)),
            encode_batch([b"k"], [b"plain"], [0], None, BatchMeta()),
            TxnMarker(7, 1, 3, committed=False).encode(),
            encode_batch([b"k"], [b"committed"], [0], None, BatchMeta(**{**of_seven, "producer_epoch": 1})),
            TxnMarker(7, 2, 3, committed=True).encode(),
            encode_batch([b"k"], [b"open"], [0], None, BatchMeta(**{**of_seven, "producer_epoch": 2})),
        )
    ):
        batch = memoryview(bytearray(data))
        stamp_all(batch, [(0, parse_header(batch))], offset, 1)
        log += batch
    assert {offset: row.value for offset, row in rows_of(bytes(log)).items()} == {
        1: b"plain",
        3: b"committed",
        5: b"open",
    }


def test_the_last_record_of_a_key_is_on_both_sides() -> None:
    assert "the last of its key" in difference({0: VALUE}, {}, {})
    assert "the last of its key" in difference({0: VALUE, 1: LATER}, {0: VALUE}, {})
    assert "the last of its key" in difference({0: VALUE, 1: OTHER}, {1: OTHER}, {})


def test_a_record_is_the_same_wherever_it_is() -> None:
    assert "at 0 one has" in difference({0: VALUE}, {0: LATER}, {})


def test_a_removal_may_be_missing_only_together_with_its_key() -> None:
    assert difference({0: VALUE, 1: REMOVAL}, {}, {}) == ""
    assert "the removal of" in difference({0: VALUE, 1: REMOVAL}, {0: VALUE}, {})
    assert difference({0: VALUE, 1: REMOVAL}, {0: VALUE}, {b"k": 1}) == "", "where one may have missed it"


def test_a_record_without_a_key_is_never_missing() -> None:
    assert "one side alone" in difference({0: VALUE._replace(key=None)}, {}, {})


def test_a_cleaned_log_equals_one_that_is_not_cleaned_yet(tmp_path: Path) -> None:
    for broker in (1, 2):
        log = opened(tmp_path / f"broker-{broker}" / "t-0", 300)
        for number in range(12):
            log.append_as_leader(encode_batch([b"k"], [b"%d" % number], [0], None, BatchMeta()), 0, 0)
        log.sync()
        if broker == 1:
            assert cleaned(log).records_after < 12
        log.close()
    logs = read_logs({broker: tmp_path / f"broker-{broker}" for broker in (1, 2)}, values_of="", compacted=("t",))
    ends = {("t", 0): End(12, frozenset({1, 2}))}
    assert list(compare(logs, ends, ("t",))) == []
    assert [found.kind for found in compare(logs, ends)] == ["replicas differ"], "as if the topic were not compacted"
    first, second = logs["t", 0][1], logs["t", 0][2]
    del first.rows[11]
    assert [found.kind for found in compare({("t", 0): {1: first, 2: second}}, ends, ("t",))] == ["replicas differ"]


def table() -> Table:
    made = Table(1, dict)
    made._sent = {"1": (b"a", True), "2": (b"a", True), "3": (b"b", False), "4": (b"b", True)}
    made._acked = {10: "1", 11: "2", 12: "3"}
    return made


def kinds(found: dict[int, str]) -> list[str]:
    return [anomaly.kind for anomaly in table()._compared(found)]


def test_the_last_acknowledged_record_of_each_key_or_a_later_one_is_there() -> None:
    assert kinds({11: "2", 12: "3"}) == []
    assert kinds({11: "2", 13: "4"}) == [], "it was never acknowledged, and is stored nevertheless"
    assert kinds({10: "1", 12: "3"}) == ["table lost"]
    assert kinds({}) == ["table lost", "table lost"]


def test_a_record_stays_at_its_offset() -> None:
    assert kinds({11: "1", 12: "3"}) == ["table changed"]
