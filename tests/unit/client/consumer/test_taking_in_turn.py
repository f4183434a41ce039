"""Which partition is read next, where records lie in files: one is continued before another is begun."""

from pathlib import Path

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.consumer import assignment as assignments
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.decode import BatchOpener
from raylog.client.reading.local_files import Place, SegmentFile
from raylog.storage.batch.records import BatchMeta, encode_batch

PARTITIONS = [TopicPartition("flights", number) for number in range(3)]


def reading(folder: Path, batches: int, *, chunk_bytes: int = 1) -> Assignment:
    """Three partitions, each a file of batches with four records."""

    def new_state(partition: TopicPartition, start: Start) -> PartitionState:
        return PartitionState(partition, BatchOpener(partition), start, near_chunk_bytes=chunk_bytes)

    found = Assignment(new_state)
    found.assign(PARTITIONS, Start.POLICY)
    for state in found.states.values():
        stored = b"".join(
            encode_batch(None, [b"v"] * 4, [1] * 4, None, BatchMeta(base_offset=4 * at)) for at in range(batches)
        )
        path = folder / str(state.partition.partition)
        path.write_bytes(stored)
        status = path.stat()
        segment = SegmentFile(str(path), (status.st_dev, status.st_ino))
        state.move_to(0)
        state.add_places(state.session, [Place(segment, 0, len(stored))], 4 * batches)
    return found


def turns(found: Assignment, limit: int, calls: int) -> list[list[int]]:
    return [[item.partition for item in found.take(limit)] for _ in range(calls)]


def test_a_batch_is_taken_whole_before_the_next_partition_is_read(tmp_path: Path) -> None:
    assert turns(reading(tmp_path, 2), 2, 9) == [[0], [0], [1], [1], [2], [2], [0], [0], [1]]


def test_what_was_read_at_once_is_taken_before_the_next_partition_is_read(tmp_path: Path) -> None:
    found = reading(tmp_path, 2, chunk_bytes=1 << 20)
    assert turns(found, 2, 5) == [[0], [0], [0], [0], [1]]
    assert [state.has_places for state in found.states.values()] == [False, False, True]


def test_every_partition_has_its_turn_and_all_is_read(tmp_path: Path) -> None:
    found = reading(tmp_path, 5)
    offsets: dict[TopicPartition, list[int]] = {partition: [] for partition in PARTITIONS}
    while taken := found.take(3):
        for partition, records in taken.items():
            offsets[partition] += [record.offset for record in records]
    assert offsets == {partition: list(range(20)) for partition in PARTITIONS}


def test_columns_read_no_more_of_files_than_fits_into_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "COLUMNS_BYTES", 150)
    found = reading(tmp_path, 3)
    taken = [found.take_columns(1_000) for _ in range(4)]
    first, second, third = PARTITIONS
    assert [batch.partitions for batch in taken] == [[first], [second], [third], [first, second]]
    assert [len(batch) for batch in taken] == [8, 8, 8, 8]


def test_a_paused_partition_is_not_fetched() -> None:
    state = PartitionState(PARTITIONS[0], BatchOpener(PARTITIONS[0]), Start.POLICY)
    state.move_to(0)
    assert state.wants_fetch(1)
    state.paused = True
    assert not state.wants_fetch(1)
