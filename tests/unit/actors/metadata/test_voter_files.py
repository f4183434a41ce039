"""A voter's files after a crash between any two steps, and after damage."""

from collections.abc import Callable
from pathlib import Path

import pytest

from raylog.actors.metadata.codec import encoded
from raylog.actors.metadata.snapshot import SNAPSHOT, MetadataSnapshot, read_snapshot, write_snapshot
from raylog.actors.metadata.voter_files import VoterFiles, VoterState, drop_prefix, note_end, open_files, restart_log
from raylog.base.ids import BrokerId, ControllerEpoch, Incarnation
from raylog.core.metadata.records import BrokerRegistered, ControllerStarted, MetadataRecord
from raylog.storage.log.partition_log import PartitionLog


def record(number: int) -> MetadataRecord:
    return BrokerRegistered(
        broker=BrokerId(number), incarnation=Incarnation(number), node_id="n", host="h", port=1, directory_id="d"
    )


def voter(folder: Path, *epochs: int) -> VoterFiles:
    """A voter's folder with one record in each of these epochs."""
    files = open_files(folder)
    state = VoterState("me", max(epochs, default=0), "c", True)
    state.write(folder)
    for number, epoch in enumerate(epochs):
        files.log.append_as_leader(encoded([record(number)]), epoch, 1)
    files.log.sync()
    note_end(folder, files.log.log_end_offset)
    return files


def snapshot(end: int, epoch: int) -> MetadataSnapshot:
    return MetadataSnapshot.of([ControllerStarted(controller_epoch=ControllerEpoch(1))], end, epoch)


def reopened(folder: Path, log: PartitionLog) -> VoterFiles:
    log.close()
    files = open_files(folder)
    files.log.close()
    return files


def test_a_snapshot_is_read_as_written_and_every_flipped_bit_is_noticed() -> None:
    taken = snapshot(7, 2)
    data = taken.to_bytes()
    assert MetadataSnapshot.from_bytes(data) == taken
    assert taken.image().version == 7
    for place in range(len(data)):
        wrong = bytearray(data)
        wrong[place] ^= 0x10
        with pytest.raises(ValueError):
            MetadataSnapshot.from_bytes(bytes(wrong))
    with pytest.raises(ValueError):
        MetadataSnapshot.from_bytes(data[:-1])


def test_a_log_that_was_not_dropped_in_time_is_dropped_when_it_is_opened(tmp_path: Path) -> None:
    folder = tmp_path / "metadata"
    files = voter(folder, 1, 1, 2, 2)
    write_snapshot(folder, snapshot(3, 2).to_bytes())
    again = reopened(folder, files.log)
    assert (again.history.start, again.history.end, again.history.epoch_before(3)) == (3, 4, 2)
    assert again.state is not None
    assert again.state.identity == "me"
    assert again.log.log_start_offset == 3


@pytest.mark.parametrize(("end", "epoch"), [(3, 3), (9, 3), (4, 3)])
def test_another_log_does_not_stay_behind_the_snapshot(tmp_path: Path, end: int, epoch: int) -> None:
    folder = tmp_path / "metadata"
    files = voter(folder, 1, 1, 2, 2)
    write_snapshot(folder, snapshot(end, epoch).to_bytes())
    again = reopened(folder, files.log)
    assert (again.history.start, again.history.end, again.history.epoch_before(end)) == (end, end, epoch)
    assert again.state is not None
    assert again.state.identity == "me"
    assert again.log.log_end_offset == end


class Crash(Exception):
    """The process ends here."""


def crash_before(log: PartitionLog, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise Crash

    monkeypatch.setattr(log, name, crash)


@pytest.mark.parametrize("step", ["truncate_to", "truncate_fully_and_start_at"])
def test_a_restart_of_the_log_that_was_interrupted_is_finished(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "metadata"
    files = voter(folder, 1, 1, 2, 2)
    write_snapshot(folder, snapshot(2, 3).to_bytes())
    crash_before(files.log, step, monkeypatch)
    with pytest.raises(Crash):
        restart_log(folder, files.log, 2)
    again = reopened(folder, files.log)
    assert (again.history.epochs, again.history.start, again.history.end) == ([(3, 1)], 2, 2)
    assert again.log.log_end_offset == 2


def test_the_log_goes_on_behind_the_snapshot_and_old_segments_go(tmp_path: Path) -> None:
    folder = tmp_path / "metadata"
    files = voter(folder)
    batch = encoded([record(number) for number in range(200)])
    while len(files.log.segments) < 3:
        files.log.append_as_leader(batch, 1, 1)
    end = files.log.log_end_offset
    files.log.sync()
    note_end(folder, end)
    write_snapshot(folder, snapshot(end, 1).to_bytes())
    drop_prefix(files.log, end)
    assert len(list(folder.glob("*/*.log*"))) == 1
    files.log.append_as_leader(encoded([record(1)]), 5, 1)
    files.log.sync()
    again = reopened(folder, files.log)
    assert again.history.epochs == [(1, end - 1), (5, end)]
    assert (again.history.start, again.history.end) == (end, end + 1)


def missing(folder: Path) -> None:
    (folder / SNAPSHOT).unlink()


def older(folder: Path) -> None:
    write_snapshot(folder, snapshot(2, 1).to_bytes())


def flipped(folder: Path) -> None:
    data = bytearray((folder / SNAPSHOT).read_bytes())
    data[-1] ^= 1
    (folder / SNAPSHOT).write_bytes(data)


@pytest.mark.parametrize("damage", [missing, older, flipped])
def test_a_copy_without_its_snapshot_is_set_aside(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = tmp_path / "metadata"
    files = voter(folder, 1, 1, 2, 2)
    write_snapshot(folder, snapshot(3, 2).to_bytes())
    drop_prefix(files.log, 3)
    files.log.close()
    damage(folder)
    again = open_files(folder)
    again.log.close()
    assert again.state is None
    assert (again.history.start, again.history.end) == (0, 0)
    assert read_snapshot(folder) is None
    assert (tmp_path / "metadata.damaged.1").is_dir()
