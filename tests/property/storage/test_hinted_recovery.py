"""A recovery that believes indexes and snapshot comes to the same log as one that scans everything, its dumb twin."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raylog.storage.log import partition_log as log_module
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.segments import segment as segment_module
from tests.property.storage import in_memory
from tests.unit.storage.logs import NOW, batch, crashed, open_log, produced, whole

calm = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory where there is one; hints and recovery points are written often."""
    monkeypatch.setattr(segment_module, "HINT_BYTES", 600)
    monkeypatch.setattr(log_module, "CHECKPOINT_SECONDS", 0.0)
    folder = Path(tempfile.mkdtemp(prefix="log-", dir=in_memory.FOLDER))
    yield folder
    shutil.rmtree(folder)


def state_of(log: PartitionLog) -> tuple[object, ...]:
    segments = [
        (segment.base_offset, segment.next_offset, segment.size, segment.max_timestamp) for segment in log.segments
    ]
    offsets, times = log.segments[-1].indexes()
    last = (offsets.to_bytes(), times.to_bytes())
    producers = {key: (entry.epoch, entry.batches) for key, entry in log.producers.producers.items()}
    return segments, last, log.epochs.entries, producers, log.log_start_offset, whole(log)


def filled(folder: Path, batches: list[int], synced: int, segment_bytes: int) -> PartitionLog:
    """A log with one batch a number, which says how many records it has; the first `synced` batches are synced."""
    log = open_log(folder, segment_bytes=segment_bytes, index_interval_bytes=100)
    sequences = [0, 0]
    for number, count in enumerate(batches):
        producer = number % 2
        data = produced(sequences[producer], count, producer=producer)
        log.append_as_leader(data, 1 + number // 20, NOW + number)
        sequences[producer] += count
        if number < synced:
            log.sync()
    return log


@given(
    batches=st.lists(st.integers(1, 4), min_size=1, max_size=60),
    synced=st.integers(0, 60),
    segment_bytes=st.sampled_from([2_000, 1 << 20]),
    torn=st.binary(max_size=90),
    again=st.booleans(),
)
@calm
def test_believing_and_scanning_come_to_the_same_log(
    scratch: Path, batches: list[int], synced: int, segment_bytes: int, torn: bytes, again: bool
) -> None:
    folder = Path(tempfile.mkdtemp(dir=scratch))
    log = filled(folder / "a", batches, synced, segment_bytes)
    believing = crashed(log, folder / "believing")
    with open(max(believing.glob("*.log")), "ab") as file:
        file.write(torn)
    if again:  # what a first recovery leaves behind serves a second one
        believing = crashed(open_log(believing, segment_bytes=segment_bytes, index_interval_bytes=100), folder / "b")
    scanning = folder / "scanning"
    shutil.copytree(believing, scanning)
    for path in [*scanning.glob("*.index"), *scanning.glob("*.snapshot")]:
        path.unlink()
    found = open_log(believing, segment_bytes=segment_bytes, index_interval_bytes=100)
    twin = open_log(scanning, segment_bytes=segment_bytes, index_interval_bytes=100)
    assert state_of(found) == state_of(twin)
    assert found.recovered.bytes_scanned <= twin.recovered.bytes_scanned
    found.close()
    twin.close()


def test_a_large_synced_segment_is_not_scanned(scratch: Path) -> None:
    log = filled(scratch / "a", [3] * 200, 200, 1 << 20)
    size = log.size_bytes
    found = open_log(crashed(log, scratch / "crashed"), segment_bytes=1 << 20, index_interval_bytes=100)
    assert found.recovered.segments_scanned == 1
    assert found.recovered.bytes_scanned < size / 10
    found.close()


@pytest.mark.parametrize("name", ["00000000000000000000.index", "00000000000000000000.timeindex"])
@pytest.mark.parametrize("content", [b"", b"\0" * 160, os.urandom(163), os.urandom(160)])
def test_an_index_that_is_not_right_is_not_believed(scratch: Path, name: str, content: bytes) -> None:
    log = filled(scratch / "a", [3] * 100, 100, 1 << 20)
    data = whole(log)
    folder = crashed(log, scratch / "crashed")
    assert (folder / name).exists()
    (folder / name).write_bytes(content)
    found = open_log(folder, segment_bytes=1 << 20, index_interval_bytes=100)
    assert whole(found) == data
    assert found.log_end_offset == 300
    found.close()


def test_an_old_index_does_not_find_what_was_cut_and_written_again(scratch: Path) -> None:
    log = filled(scratch / "a", [3] * 100, 100, 1 << 20)
    log.truncate_to(150, NOW)
    for number in range(100):
        log.append_as_leader(produced(number * 2, 2, producer=9), 50, NOW)
        log.sync()
    data = whole(log)
    found = open_log(crashed(log, scratch / "crashed"), segment_bytes=1 << 20, index_interval_bytes=100)
    assert whole(found) == data
    assert [found.read(offset, 1, 350) != b"" for offset in range(350)] == [True] * 350
    found.close()


@pytest.mark.parametrize("left", [0, 12, 36])
def test_a_time_index_that_was_cut_off_is_not_believed(scratch: Path, left: int) -> None:
    log = open_log(scratch / "t-0", index_interval_bytes=100)
    for number in range(40):
        log.append_as_leader(batch(b"%d" % number, timestamps=[NOW if number else NOW + 1000]), 1, NOW)
        log.sync()
    copy = crashed(log, scratch / "crash")
    times = copy / "00000000000000000000.timeindex"
    times.write_bytes(times.read_bytes()[:left])
    again = open_log(copy, index_interval_bytes=100)
    assert again.offset_for_timestamp(NOW + 500, 40) == (0, NOW + 1000)
    again.close()
