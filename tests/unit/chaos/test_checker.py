"""The chaos checker finds each anomaly in a history made by hand, and nothing in one that is right."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.evidence.checker import Analysis, Anomaly, Verdict, analyse, judge
from tests.chaos.evidence.history import Commit, Fault, History, Moved, Operation, Outcome, Poll, Seen, Send

READER = "reader"


def sent(value: str, offset: int = -1, outcome: Outcome = "ok", *, number: int = 0, process: str = "p") -> Send:
    """A send to partition 0."""
    return Send(process, number, value, outcome, 0, offset)


def read(*records: tuple[int, str], client: str = READER, reader: str = READER) -> Poll:
    """A poll of partition 0."""
    seen: tuple[Seen, ...] = tuple((0, offset, value) for offset, value in records)
    return Poll(client, reader, seen)


def kinds(*operations: Operation, drained: bool = True, readers: Sequence[str] = (READER,)) -> dict[str, int]:
    """What the checker finds in these operations."""
    return dict(analyse(History(operations=operations), readers=dict.fromkeys(readers), drained=drained).counts)


def test_a_history_in_which_all_went_well_has_no_anomaly() -> None:
    assert kinds(sent("a", 0, number=0), sent("b", 1, number=1), read((0, "a"), (1, "b"))) == {}


def test_an_empty_history_has_no_anomaly() -> None:
    assert kinds() == {}


def test_two_values_at_one_offset_are_inconsistent() -> None:
    found = kinds(sent("a", 0, number=0), sent("b", 0, number=1, process="q"), read((0, "a")), drained=False)
    assert found["inconsistent offsets"] == 1


def test_one_value_at_two_offsets_is_a_duplicate() -> None:
    assert kinds(sent("a", 0), read((0, "a"), (1, "a"))) == {"duplicate": 1}


def test_a_record_that_lies_elsewhere_than_acknowledged_is_a_duplicate() -> None:
    assert kinds(sent("x", 0, number=0, process="q"), sent("a", 1), read((0, "x"), (2, "a")))["duplicate"] == 1


def test_an_acknowledged_record_that_a_reader_passed_over_is_a_lost_write() -> None:
    found = kinds(sent("a", 0, number=0), sent("b", 1, number=1), read((1, "b")))
    assert found == {"lost write": 1}


def test_a_record_that_one_of_two_readers_never_got_is_lost_for_it() -> None:
    operations = (sent("a", 0, number=0), sent("b", 1, number=1))
    found = kinds(*operations, read((0, "a"), (1, "b")), read((1, "b"), client="m", reader="g"), readers=[READER, "g"])
    assert found == {"lost write": 1}


def test_a_refused_record_that_is_read_is_an_aborted_read() -> None:
    assert kinds(sent("a", outcome="fail"), read((0, "a"))) == {"aborted read": 1}


def test_a_record_of_unknown_outcome_may_be_read_or_not() -> None:
    assert kinds(sent("a", outcome="unknown", number=0), sent("b", outcome="unknown", number=1), read((0, "a"))) == {}


def test_a_value_that_was_never_sent_is_found() -> None:
    assert kinds(read((0, "ghost"))) == {"unknown value": 1}


def test_a_client_that_goes_back_polls_nonmonotonically() -> None:
    operations = (sent("a", 0, number=0), sent("b", 1, number=1))
    assert kinds(*operations, read((0, "a"), (1, "b")), read((0, "a"))) == {"nonmonotonic poll": 1}
    assert kinds(*operations, read((0, "a"), (1, "b"), (1, "b"))) == {"nonmonotonic poll": 1}


def test_a_client_that_jumps_over_a_record_skips() -> None:
    operations = [sent(value, offset, number=offset) for offset, value in enumerate("abc")]
    everything = read((0, "a"), (1, "b"), (2, "c"), client="other")
    assert kinds(*operations, everything, read((0, "a"), (2, "c"))) == {"poll skip": 1}


def test_going_back_is_no_anomaly_after_a_rebalance_or_a_seek() -> None:
    operations: list[Operation] = [sent(value, offset, number=offset) for offset, value in enumerate("abc")]
    first, again = read((0, "a"), (1, "b"), (2, "c")), read((0, "a"))
    assert kinds(*operations, first, Moved(READER, READER, "assigned", (0,)), again) == {}
    assert kinds(*operations, first, Moved(READER, READER, "seek", (0,)), again) == {}
    assert kinds(*operations, first, Moved(READER, READER, "seek", (1,)), again) == {"nonmonotonic poll": 1}


def test_records_of_a_process_stored_out_of_order_are_nonmonotonic_sends() -> None:
    operations = (sent("first", 1, number=0), sent("second", 0, number=1))
    assert kinds(*operations, read((0, "second"), (1, "first"))) == {"nonmonotonic send": 1}


def test_the_order_of_sends_counts_for_unknown_outcomes_once_read() -> None:
    operations = (sent("first", outcome="unknown", number=0), sent("second", 0, number=1))
    assert kinds(*operations, read((0, "second"), (1, "first"))) == {"nonmonotonic send": 1}


def test_records_of_two_processes_may_lie_in_any_order() -> None:
    operations = (sent("a", 1, number=0, process="p"), sent("b", 0, number=1, process="q"))
    assert kinds(*operations, read((0, "b"), (1, "a"))) == {}


def test_an_unread_acknowledged_record_is_unseen_only_after_the_drain() -> None:
    operations = (sent("a", 0, number=0), sent("b", 1, number=1), read((0, "a")))
    assert kinds(*operations) == {"unseen": 1}
    assert kinds(*operations, drained=False) == {}


def test_a_record_acknowledged_without_an_offset_has_to_be_read_too() -> None:
    assert kinds(sent("a", 0, number=0), sent("b", -1, number=1), read((0, "a"))) == {"unseen": 1}


def test_a_hole_in_the_offsets_is_a_gap() -> None:
    assert kinds(sent("a", 0, number=0), sent("c", 2, number=1), read((0, "a"), (2, "c"))) == {"offset gap": 1}


def test_a_member_that_begins_below_the_commit_shows_a_rollback() -> None:
    sends = [sent(value, offset, number=offset) for offset, value in enumerate("abc")]
    first: list[Operation] = [
        Moved("m1", "g", "assigned", (0,), at_s=1.0),
        read((0, "a"), (1, "b"), client="m1", reader="g"),
        Commit("m1", "g", {0: 2}, "ok", 2.0, 2.1),
        Moved("m2", "g", "assigned", (0,), at_s=3.0),
    ]
    right = read((2, "c"), client="m2", reader="g")
    wrong = read((1, "b"), (2, "c"), client="m2", reader="g")
    assert kinds(*sends, *first, right, readers=["g"]) == {}
    assert kinds(*sends, *first, wrong, readers=["g"]) == {"commit moved back": 1}


def test_a_commit_of_unknown_outcome_binds_no_reader() -> None:
    operations = (
        sent("a", 0),
        Moved("m1", "g", "assigned", (0,), at_s=1.0),
        read((0, "a"), client="m1", reader="g"),
        Commit("m1", "g", {0: 1}, "unknown", 2.0, 2.1),
        Moved("m2", "g", "assigned", (0,), at_s=3.0),
        read((0, "a"), client="m2", reader="g"),
    )
    assert kinds(*operations, readers=["g"]) == {}


def test_a_reader_whose_position_is_refused_has_lost_it() -> None:
    refused = Poll(READER, READER, outcome="fail", error="OffsetOutOfRange: 7 lies behind the end, 5")
    assert kinds(refused) == {"position lost": 1}


@pytest.mark.parametrize(
    ("broken", "hangs", "doubts", "sent_count", "verdict"),
    [
        (False, [], [], 100, Verdict.PASSED),
        (True, ["a thread"], ["a doubt"], 0, Verdict.FAILED),
        (False, ["a thread"], ["a doubt"], 0, Verdict.HANG),
        (False, [], ["a doubt"], 0, Verdict.NODATA),
        (False, [], ["a doubt"], 100, Verdict.UNKNOWN),
    ],
)
def test_the_worst_finding_is_the_verdict(
    broken: bool, hangs: list[str], doubts: list[str], sent_count: int, verdict: Verdict
) -> None:
    analysis = Analysis()
    if broken:
        analysis.add(Anomaly("duplicate", "made up"))
    assert judge(analysis, hangs=hangs, doubts=doubts, sent=sent_count, read=100, enough=10) is verdict


def test_a_history_is_read_back_without_its_truncated_last_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    operations: list[Operation] = [
        sent("a", 0),
        read((0, "a")),
        Moved("m", "g", "assigned", (0,), at_s=1.0),
        Commit("m", "g", {0: 1}, "ok"),
        Fault("kill-leader", "t-0", 1.0, 1.0, None),
    ]
    history = History(path, operations)
    history.close()
    with path.open("ab") as file:
        file.write(b'{"type":"send","proc')
    loaded = History.load(path)
    assert loaded.operations == operations
    assert loaded.outcomes == {"ok": 1, "fail": 0, "unknown": 0}
    assert loaded.reached == {("reader", 0): 1}
