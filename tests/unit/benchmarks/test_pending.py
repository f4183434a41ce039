"""The benchmark of many pending records: its log is one that a leader begins with, and memory does not grow with it."""

from pathlib import Path

from benchmarks.delays import pending


def test_a_leader_begins_with_many_pending_records(tmp_path: Path) -> None:
    found = pending.run(200_000, tmp_path)
    assert found["log_mb"] >= 1
    assert 0 < found["restored_ms"] <= found["first_due_ms"]
    assert found["memory_peak_mb"] < 50
    assert found["taken_per_second"] > 0
