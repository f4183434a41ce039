"""Segment files on the consumer's machine: read in whole batches, and what is wrong is left to the leader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raylog.base.ids import TopicPartition
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.reading.decode import BatchOpener
from raylog.client.reading.local_files import NearReadFailed, Place, SegmentFile, open_places
from raylog.protocol.replica import NearSlice
from raylog.storage.batch.records import BatchMeta, encode_batch

HERE = TopicPartition("flights", 0)


def batches(count: int, size: int = 20) -> list[bytes]:
    return [encode_batch(None, [b"%02d" % at * size], [at], None, BatchMeta(base_offset=at)) for at in range(count)]


def segment(path: Path, data: bytes) -> SegmentFile:
    path.write_bytes(data)
    status = path.stat()
    return SegmentFile(str(path), (status.st_dev, status.st_ino))


def test_a_place_is_read_in_whole_batches_and_at_least_one(tmp_path: Path) -> None:
    stored = batches(5)
    size = len(stored[0])
    place: Place | None = Place(segment(tmp_path / "s", b"".join(stored)), size, 4 * size)
    found: list[list[int]] = []
    for most_bytes in (1, 3 * size - 1, size):
        assert place is not None
        read, place = place.read(most_bytes, 1 + sum(len(each) for each in found))
        found.append([item.header.base_offset for item in read])
    assert found == [[1], [2, 3], [4]]
    assert place is None


def test_batches_of_a_place_that_do_not_follow_are_not_read(tmp_path: Path) -> None:
    """No checksum covers where a batch begins."""
    stored = batches(4)
    size = len(stored[0])
    for bit in range(63):
        data = bytearray(b"".join(stored))
        data[2 * size + 7 - bit // 8] ^= 1 << bit % 8
        read, place = Place(segment(tmp_path / "s", bytes(data)), 0, 4 * size).read(4 * size, 0)
        assert [item.header.base_offset for item in read] == [0, 1]
        assert place is not None
        assert (place.position, place.length) == (2 * size, 2 * size)
        with pytest.raises(NearReadFailed, match="for that of 2"):
            place.read(4 * size, 2)


def test_another_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"x")
    with pytest.raises(NearReadFailed, match="another file"):
        SegmentFile(str(tmp_path / "s"), (1, 2))
    with pytest.raises(NearReadFailed, match="cannot be opened"):
        SegmentFile(str(tmp_path / "nothing"), (1, 2))


def data_directory(root: Path) -> Path:
    """A broker's data directory with one segment of the partition; returns the segment."""
    folder = root / "flights-0"
    folder.mkdir(parents=True)
    (root / "meta.properties").write_text("broker.id=1")
    path = folder / f"{0:020}.log"
    path.write_bytes(b"".join(batches(2)))
    return path


def named(path: Path | str, *, follow: bool = True, called: str = "") -> list[NearSlice]:
    """A leader's description of a file."""
    status = Path(path).stat() if follow else Path(path).lstat()
    return [NearSlice(called or str(path), 0, status.st_size, 1, status.st_dev, status.st_ino)]


def test_a_segment_in_a_brokers_data_directory_is_opened(tmp_path: Path) -> None:
    real = data_directory(tmp_path / "disk")
    (tmp_path / "link").symlink_to(tmp_path / "disk")  # as an operator may have it
    for path in (real, tmp_path / "link" / "flights-0" / real.name):
        (place,) = open_places(named(path), None, HERE)
        assert len(place.read(1 << 20, 0)[0]) == 2


def test_a_leader_cannot_name_any_other_file(tmp_path: Path) -> None:
    real = data_directory(tmp_path / "disk")
    bare = data_directory(tmp_path / "bare")
    (tmp_path / "bare" / "meta.properties").unlink()
    (tmp_path / "disk" / "linked-0").symlink_to(real.parent)
    (real.parent / f"{1:020}.log").symlink_to(real)
    (real.parent / f"{2:020}.index").write_bytes(real.read_bytes())
    os.mkfifo(real.parent / f"{3:020}.log")
    (tmp_path / "disk" / "secret").write_text("hush")
    wrong: list[tuple[str, list[NearSlice]]] = [
        ("cannot be seen to be a broker", named(bare)),
        ("cannot be opened", named(real.parent / f"{1:020}.log")),
        ("no segment", named(real.parent / f"{2:020}.index")),
        ("no regular file", named(real.parent / f"{3:020}.log")),
        ("no segment", named(tmp_path / "disk" / "secret")),
        ("no segment", named(f"{real.parent}/../flights-0/{real.name}")),
        ("no segment", named(real, called=f"flights-0/{real.name}")),
    ]
    for message, rows in wrong:
        with pytest.raises(NearReadFailed, match=message):
            open_places(rows, None, HERE)
    with pytest.raises(NearReadFailed, match="no segment of other-0"):
        open_places(named(real), None, TopicPartition("other", 0))
    with pytest.raises(NearReadFailed, match="folder of linked-0"):
        open_places(named(tmp_path / "disk" / "linked-0" / real.name), None, TopicPartition("linked", 0))
    with pytest.raises(NearReadFailed, match="not the broker's own file"):
        SegmentFile(str(real), (0, 0), owner=os.getuid() + 1)


@pytest.mark.parametrize("damage", ["short", "cut off", "zeros", "between"])
def test_what_is_no_whole_batch_is_not_read(tmp_path: Path, damage: str) -> None:
    stored = batches(1)[0]
    data = {"short": stored[:-1], "cut off": stored[:-1], "zeros": bytes(len(stored)), "between": stored[3:] * 2}
    file = segment(tmp_path / "s", data[damage])
    length = len(stored) - 1 if damage == "cut off" else len(stored)
    with pytest.raises(NearReadFailed):
        Place(file, 0, length).read(1 << 20, 0)


@pytest.mark.parametrize("way", ["take", "take_one", "take_columns"])
def test_a_batch_with_a_wrong_checksum_is_fetched_from_the_leader(tmp_path: Path, way: str) -> None:
    stored = b"".join(batches(2))
    damaged = stored[:-1] + bytes([stored[-1] ^ 1])
    state = PartitionState(HERE, BatchOpener(HERE), Start.POLICY)
    state.move_to(0)
    state.add_places(state.session, [Place(segment(tmp_path / "s", damaged), 0, len(damaged))], 2)
    if way == "take_columns":
        piece = state.take_columns(10, fail=True)
        assert piece is not None
        assert ColumnBatch([piece]).offsets == [0]
        with pytest.raises(NearReadFailed):
            state.take_columns(10, fail=True)
    else:
        assert len(state.take(10)) == 1
        with pytest.raises(NearReadFailed):
            state.take_one() if way == "take_one" else state.take(10)
    assert state.position == 1


def test_what_is_only_located_takes_no_memory(tmp_path: Path) -> None:
    stored = b"".join(batches(3))
    state = PartitionState(HERE, BatchOpener(HERE), Start.POLICY, near_chunk_bytes=1)
    state.move_to(0)
    state.add_places(state.session, [Place(segment(tmp_path / "s", stored), 0, len(stored))], 3)
    assert (state.buffered_bytes, state.memory_bytes, state.has_places) == (len(stored), 0, True)
    assert state.take_columns(10, fail=True, may_read=False) is None
    assert len(state.take(1)) == 1
    assert (state.buffered_bytes, state.memory_bytes) == (len(stored) * 2 // 3, 0)
    state.move_to(0)
    assert (state.buffered_bytes, state.memory_bytes, state.has_places) == (0, 0, False)
