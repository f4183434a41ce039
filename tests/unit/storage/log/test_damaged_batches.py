"""A closed segment with a flipped bit anywhere: what is whole is read, and the damage is named with its end."""

import random
from pathlib import Path

import pytest

from raylog.storage.batch.header import iter_headers
from raylog.storage.errors import LogDamaged
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, batch, open_log, values_of

BATCHES = 100
RECORDS = 2 * BATCHES
GOOD = [(offset, b"value %d" % offset) for offset in range(RECORDS)]


def opened(folder: Path) -> PartitionLog:
    return open_log(folder, segment_bytes=4_000, index_interval_bytes=500)


def filled(folder: Path) -> PartitionLog:
    log = opened(folder)
    for number in range(BATCHES):
        log.append_as_leader(batch(*[value for _, value in GOOD[2 * number : 2 * number + 2]]), 1, NOW + number)
    log.sync()
    assert len(log.segments) > 2
    return log


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def read_on(log: PartitionLog, max_bytes: int) -> tuple[list[tuple[int, bytes | None]], list[LogDamaged]]:
    """All records that can be read, passing over what is damaged, and the errors."""
    found, errors, offset = [], [], 0
    while offset < log.log_end_offset:
        try:
            data = log.read(offset, max_bytes, log.log_end_offset)
        except LogDamaged as damage:
            errors.append(damage)
            offset = max(offset + 1, damage.next_offset)
            continue
        found += [pair for pair in values_of(data) if pair[0] >= offset]
        offset = [header for _, header in iter_headers(data)][-1].next_offset
    return found, errors


@pytest.mark.parametrize("seed", range(40))
def test_all_but_the_damaged_batches_is_read(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    log = filled(tmp_path / "t-0")
    closed = dice.choice(log.segments[:-1])
    flip(closed.path, dice.randrange(closed.size), dice.randrange(8))
    if dice.random() < 0.5:
        log.close()
        try:
            log = opened(tmp_path / "t-0")
        except LogDamaged:
            return  # found at once: the replica is rebuilt before it serves
    found, errors = read_on(log, dice.choice([1, 300, 1 << 20]))
    assert errors, "the flipped bit was not met"
    assert all(error.next_offset > error.offset for error in errors), errors
    assert set(found) <= set(GOOD)
    assert found == sorted(set(found))
    lost = RECORDS - len(found)
    assert lost <= 20, "no more than lies between two entries of the index"
    log.close()


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_one_damaged_body_hides_one_batch(tmp_path: Path, max_bytes: int) -> None:
    log = filled(tmp_path / "t-0")
    position, header = log.segments[0].locate(11)
    flip(log.segments[0].path, position + header.size - 3)
    found, errors = read_on(log, max_bytes)
    assert [offset for offset, _ in GOOD if (offset, b"value %d" % offset) not in found] == [10, 11]
    assert [(error.offset, error.next_offset) for error in errors] == [(10, 12)]
    log.close()


def test_a_damaged_length_hides_what_the_index_does_not_know(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0")
    position, _ = log.segments[0].locate(11)
    flip(log.segments[0].path, position + 11, 5)
    found, errors = read_on(log, 1 << 20)
    assert errors[0].offset == 10
    assert 0 < errors[0].next_offset - 10 <= 16
    assert found[-1] == GOOD[-1]
    log.close()


def test_a_look_up_by_time_reports_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=4_000, index_interval_bytes=500)
    for number in range(BATCHES):
        log.append_as_leader(batch(b"v", timestamps=[NOW + number]), 1, NOW + number)
    position, header = log.segments[0].locate(11)
    flip(log.segments[0].path, position + header.size - 1)
    with pytest.raises(LogDamaged) as caught:
        log.offset_for_timestamp(NOW + 11, BATCHES)
    assert (caught.value.offset, caught.value.next_offset) == (11, 12)
    assert log.offset_for_timestamp(NOW + 12, BATCHES) == (12, NOW + 12)
    log.close()
