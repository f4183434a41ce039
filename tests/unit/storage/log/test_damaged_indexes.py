"""Index files with any bit flipped, cut off anywhere, or of an earlier version: every answer stays right."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, batch, open_log

BATCHES = 11
MOMENTS = [NOW + (number * 37) % 90 for number in range(BATCHES)]
"""Of one record each, not rising: the time index holds the largest before each of its offsets."""


def opened(folder: Path) -> PartitionLog:
    return open_log(folder, segment_bytes=600, index_interval_bytes=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a closed log with a sealed segment of some batches."""
    log = opened(tmp_path / "t-0")
    for number, moment in enumerate(MOMENTS):
        log.append_as_leader(batch(b"%d" % number, timestamps=[moment]), 1, NOW)
    assert len(log.segments[0].indexes()[1]) >= 4
    log.close()
    return log.folder


def answers(log: PartitionLog) -> Iterator[object]:
    """All look-ups that go through an index."""
    for moment in sorted({NOW - 1, *MOMENTS, NOW + 91}):
        yield log.offset_for_timestamp(moment, BATCHES)
    for upper in range(BATCHES + 1):
        yield log.max_timestamp(upper)
        for offset in range(upper):
            yield log.read(offset, 250, upper)
    yield [segment.max_timestamp for segment in log.segments]


def expected(folder: Path) -> list[object]:
    log = opened(folder)
    found = list(answers(log))
    log.close()
    return found


NAMES = [f"{0:020d}.index", f"{0:020d}.timeindex"]


@pytest.mark.parametrize("name", NAMES)
def test_no_flipped_bit_and_no_lost_end_of_an_index_changes_an_answer(folder: Path, name: str) -> None:
    path, right = folder / name, expected(folder)
    whole = path.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for data in [*flipped, *(whole[:size] for size in range(0, len(whole), 4))]:
        path.write_bytes(data)
        assert expected(folder) == right, f"{data.hex()} in place of {whole.hex()}"


@pytest.mark.parametrize("name", NAMES)
def test_an_index_without_a_checksum_is_made_again(folder: Path, name: str) -> None:
    path, right = folder / name, expected(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4])
    log = opened(folder)
    assert (log.recovered.clean, log.recovered.indexes_rebuilt, path.read_bytes()) == (True, 1, whole)
    assert list(answers(log)) == right
    log.close()
