"""Comparing the replicas' logs on disk: real partition folders, written by the storage engine and then spoilt."""

from pathlib import Path

from raylog.storage.batch.records import encode_batch
from raylog.storage.log.partition_log import LogConfig, PartitionLog
from tests.chaos.evidence.logs import End, as_reads, compare, read_logs

PLACE = ("t", 0)


def write(root: Path, broker: int, batches: list[list[bytes]], *, segment_bytes: int = 1 << 20) -> Path:
    """One replica with these batches; returns its folder."""
    folder = root / f"broker-{broker}" / "t-0"
    log = PartitionLog.open(
        folder, LogConfig(segment_bytes=segment_bytes), topic_id="i" * 32, topic="t", partition=0, now_ms=0
    )
    for values in batches:
        log.append_as_leader(encode_batch(None, list(values), [0] * len(values)), 1, 0)
    log.sync()
    log.close()
    return folder


def directories(root: Path) -> dict[int, Path]:
    return {int(folder.name.removeprefix("broker-")): folder for folder in root.glob("broker-*")}


def kinds(root: Path, high_watermark: int, in_sync: set[int]) -> list[str]:
    found = compare(read_logs(directories(root), values_of="t"), {PLACE: End(high_watermark, frozenset(in_sync))})
    return [anomaly.kind for anomaly in found]


def test_equal_logs_are_equal_however_they_are_cut_into_segments(tmp_path: Path) -> None:
    write(tmp_path, 1, [[b"a", b"b"], [b"c"]])
    write(tmp_path, 2, [[b"a", b"b"], [b"c"]], segment_bytes=100)
    assert len(list((tmp_path / "broker-2" / "t-0").glob("*.log"))) > 1
    assert kinds(tmp_path, 3, {1, 2}) == []


def test_logs_may_differ_only_above_the_high_watermark(tmp_path: Path) -> None:
    write(tmp_path, 1, [[b"a"], [b"b"]])
    write(tmp_path, 2, [[b"a"], [b"x"]])
    assert kinds(tmp_path, 2, {1, 2}) == ["replicas differ"]
    assert kinds(tmp_path, 1, {1, 2}) == []


def test_an_in_sync_log_that_ends_below_the_high_watermark_is_behind(tmp_path: Path) -> None:
    write(tmp_path, 1, [[b"a"], [b"b"]])
    write(tmp_path, 2, [[b"a"]])
    assert kinds(tmp_path, 2, {1, 2}) == ["replica behind"]
    assert kinds(tmp_path, 2, {1}) == []


def test_a_replica_without_a_folder_is_missing(tmp_path: Path) -> None:
    write(tmp_path, 1, [[b"a"]])
    assert kinds(tmp_path, 1, {1, 2}) == ["replica missing"]


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    folder = write(tmp_path, 1, [[b"a"], [b"b"]])
    [segment] = folder.glob("*.log")
    content = bytearray(segment.read_bytes())
    content[-1] ^= 1
    segment.write_bytes(content)
    assert "damaged log" in kinds(tmp_path, 2, {1})


def test_an_in_sync_log_counts_as_a_read_up_to_the_high_watermark(tmp_path: Path) -> None:
    for broker in (1, 2):
        write(tmp_path, broker, [[b"a", b"b  padding"], [b"c"]])
    reads, holders = as_reads(read_logs(directories(tmp_path), values_of="t"), {PLACE: End(2, frozenset({1}))}, "t")
    assert [poll.records for poll in reads] == [((0, 0, "a"), (0, 1, "b"))]
    assert holders == {"the log of broker 1": {0}}
