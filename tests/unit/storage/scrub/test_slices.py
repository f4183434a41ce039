"""A scrub finds every bit that changes in closed segments, and nothing else; and makes indexes again."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.storage.batch.header import HEADER_BYTES
from raylog.storage.errors import LogDamaged
from raylog.storage.log.checkpoints import EPOCHS, LOG_START, METADATA, RECOVERY_POINT
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.scrub import slices
from raylog.storage.scrub.log_scrub import LogScrub
from raylog.storage.scrub.plan import Passes, Place, behind
from raylog.storage.scrub.slices import CHECKPOINT, NO_TIMESTAMP, Scrubbed, read_passes, scrub, write_passes
from tests.unit.storage.logs import NOW, batch, open_log, produced

SLICE = 300


def filled(folder: Path) -> PartitionLog:
    log = open_log(folder, segment_bytes=1_200, index_interval_bytes=150)
    for number in range(40):
        payload = batch(b"x" * (7 * number), timestamps=[NOW + number % 7]) if number % 3 else produced(number // 3)
        log.append_as_leader(bytearray(payload), 5 if number < 20 else 6, NOW)
    log.sync()
    return log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    log = filled(tmp_path / "t-0")
    yield log
    log.close()


def whole_pass(log: PartitionLog, size: int = SLICE) -> list[Scrubbed]:
    """All slices of a pass; behind damage the next segment follows."""
    passes, newest, found = Passes(), NO_TIMESTAMP, list[Scrubbed]()
    while (place := passes.next_place(LogScrub(log).stretches())) is not None:
        newest = newest if place.position else NO_TIMESTAMP
        order = LogScrub(log).order_scrub(place, size, newest)
        assert order is not None
        done = scrub(order)
        found.append(done)
        newest = done.newest
        passes = passes.read_to(done.place if done.damage is None else behind(place, LogScrub(log).stretches()))
    return found


def damages(log: PartitionLog) -> list[LogDamaged]:
    return [done.damage for done in whole_pass(log) if done.damage is not None]


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("size", [1, 300, 1 << 20])
def test_nothing_is_found_in_a_whole_log(log: PartitionLog, size: int) -> None:
    assert len(log.segments) > 4
    found = whole_pass(log, size)
    assert all((done.damage, done.wrong_index, done.wrong_aborted) == (None, "", False) for done in found)
    assert found[-1].place.offset == log.log_end_offset == 40, "the open segment, too, as far as it is synced"


def test_batches_that_are_not_synced_are_left_for_later(log: PartitionLog) -> None:
    log.append_as_leader(bytearray(batch(b"new")), 6, NOW)
    assert whole_pass(log)[-1].place.offset == log.segments[-1].base_offset
    assert LogScrub(log).order_scrub(Place(log.segments[-1].base_offset, 0, 0), 9, 0) is None


def test_every_bit_of_the_batches_is_looked_at(log: PartitionLog) -> None:
    segment = log.segments[1]
    right, found = segment.path.read_bytes(), list[LogDamaged]()
    for bit in random.Random(3).sample(range(8 * len(right)), 300):
        flip(segment.path, bit)
        try:
            found = damages(log)
            assert len(found) == 1, f"bit {bit}"
            confirmed = LogScrub(log).confirm_damage(found[0])
        finally:
            segment.path.write_bytes(right)
        assert confirmed is not None, f"bit {bit}"
        position, header = segment.locate(confirmed.offset)
        assert (confirmed.path, confirmed.position) == (str(segment.path), position)
        assert 8 * position <= bit < 8 * (position + header.size)
        assert confirmed.next_offset > confirmed.offset
    assert LogScrub(log).confirm_damage(found[0]) is None, "the bytes are right again"


def test_a_length_that_is_wrong_takes_no_memory(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "CHUNK_BYTES", 200)
    monkeypatch.setattr(slices, "LARGE_CHUNK_BYTES", 90)
    assert not damages(log), "batches that are larger than a chunk are checked in pieces"
    flip(log.segments[1].path, 8 * 500)
    assert len(damages(log)) == 1


def test_damage_below_the_start_of_the_log_is_none(log: PartitionLog) -> None:
    segment = log.segments[1]
    start = segment.base_offset + 3
    log.advance_log_start(start)
    flip(segment.path, 8 * (HEADER_BYTES + 2))
    assert not damages(log)
    flip(segment.path, 8 * (segment.locate(start)[0] + HEADER_BYTES + 2))
    found = damages(log)
    assert [damage.offset for damage in found] == [start]
    log.advance_log_start(start + 1)
    assert LogScrub(log).confirm_damage(found[0]) is None


def test_damage_that_was_cut_meanwhile_is_none(log: PartitionLog) -> None:
    segment = log.segments[2]
    flip(segment.path, 8 * (HEADER_BYTES + 2))
    found = damages(log)
    log.truncate_to(segment.base_offset, NOW)
    assert LogScrub(log).confirm_damage(found[0]) is None


@pytest.mark.parametrize("cut", [0, 1, 61])
def test_a_file_that_is_too_short_is_damaged(log: PartitionLog, cut: int) -> None:
    segment = log.segments[1]
    position = segment.locate(segment.next_offset - 1)[0]
    with segment.path.open("r+b") as file:
        file.truncate(position + cut)
    found = damages(log)
    assert [damage.offset for damage in found] == [segment.next_offset - 1]
    assert LogScrub(log).confirm_damage(found[0]) is not None


def test_a_missing_file_is_damage(log: PartitionLog) -> None:
    log.segments[1].path.unlink()
    found = damages(log)
    assert [damage.offset for damage in found] == [log.segments[1].base_offset]
    confirmed = LogScrub(log).confirm_damage(found[0])
    assert confirmed is not None
    assert confirmed.next_offset == log.segments[2].base_offset


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["bit", "loss", "foreign"])
def test_an_index_that_is_wrong_is_made_again(log: PartitionLog, suffix: str, how: str) -> None:
    segment = log.segments[1]
    path = segment.path.with_suffix(suffix)
    right = path.read_bytes()
    if how == "loss":
        path.unlink()
    elif how == "foreign":  # of another segment: its checksum is right
        path.write_bytes(log.segments[3].path.with_suffix(suffix).read_bytes())
        assert path.read_bytes() != right
    else:
        flip(path, 8 * 11 + 3)
    wrong = [done for done in whole_pass(log) if done.wrong_index]
    assert [done.place.base for done in wrong][:1] == [segment.base_offset]
    assert {done.place.base for done in wrong} == {segment.base_offset}
    assert not damages(log)
    assert LogScrub(log).remake_indexes(wrong[0].place, wrong[0].wrong_index)
    assert path.read_bytes() == right
    assert not any(done.wrong_index for done in whole_pass(log))


def test_passes_go_on_in_the_next_life(tmp_path: Path) -> None:
    assert read_passes(tmp_path) == Passes()
    write_passes(tmp_path, Passes(7, Place(30, 0, 30)))
    assert read_passes(tmp_path) == Passes(7, Place(30, 0, 30))
    write_passes(tmp_path, Passes(9))
    assert read_passes(tmp_path) == Passes(9)
    for bit in range(8 * len((tmp_path / CHECKPOINT).read_bytes())):
        flip(tmp_path / CHECKPOINT, bit)
        assert read_passes(tmp_path) == Passes(), "a pass too many is no harm"
        flip(tmp_path / CHECKPOINT, bit)


@pytest.mark.parametrize("name", [METADATA, EPOCHS, LOG_START, RECOVERY_POINT])
def test_a_small_file_that_is_damaged_is_written_again(log: PartitionLog, name: str) -> None:
    log.advance_log_start(3)
    log.checkpoint(early=True)
    assert LogScrub(log).damaged_files() == []
    right = (log.folder / name).read_bytes()
    flip(log.folder / name, 8 * len(right) // 2)
    assert LogScrub(log).damaged_files() == [name]
    assert LogScrub(log).write_again([name]) == 1
    assert (log.folder / name).read_bytes() == right
