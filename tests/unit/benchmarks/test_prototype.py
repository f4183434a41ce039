"""The bare prototype as a contestant, and how every measurement begins."""

import mmap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import even_start, loads
from benchmarks.bench import CONTESTANTS
from benchmarks.clients.prototype_client import Measured
from benchmarks.job import Job
from benchmarks.peers.processes import Unavailable
from benchmarks.peers.prototype_peer import Prototype
from benchmarks.prototype import records_of


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Prototype]:
    one = Prototype(tmp_path)
    one.start()
    yield one
    one.stop()


def job_on(server: Prototype) -> Job:
    address = server.address()
    return Job(
        load="produce", client="prototype", topic="t", address=address, size=1_000, warmup_s=0.02, seconds=0.1,
        server_pids=server.pids(),
    )  # fmt: skip


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("batch_bytes", [128 << 10, 1 << 20])
def test_everything_that_is_sent_is_appended_before_it_counts(server: Prototype, fsync: bool, batch_bytes: int) -> None:
    server.create_topic("t", 1, 1, fsync=fsync)
    found = loads.produce(replace(job_on(server), batch_bytes=batch_bytes), Measured, lambda: None)
    assert found["records"] == found["stored"] > 0
    (file,) = server.folder().rglob("*.log")
    assert file.stat().st_size > found["bytes"]


def test_its_file_and_its_process_leave_with_its_topic(server: Prototype) -> None:
    server.create_topic("t", 1, 1, fsync=False)
    server.delete_topic("t")
    assert (server.pids(), list(server.folder().rglob("*.log"))) == ([], [])


def test_it_has_no_replicas(server: Prototype) -> None:
    with pytest.raises(Unavailable, match="neither partitions nor replicas"):
        server.create_topic("t", 1, 3, fsync=False)


def test_one_form_has_the_batch_size_of_the_others() -> None:
    sizes = {contestant.batch_bytes for contestant in CONTESTANTS.values() if contestant.peer != "prototype"}
    ours = [contestant.batch_bytes for contestant in CONTESTANTS.values() if contestant.peer == "prototype"]
    assert sizes == {ours[0]}
    assert ours[1] > ours[0]


def test_a_batch_holds_what_fits_and_at_least_one() -> None:
    assert records_of(128 << 10, 1_000) == 130
    assert records_of(10, 1_000) == 1


def test_files_stay_as_they_are_when_their_pages_leave_the_cache(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    path = tmp_path / "deep" / "0.log"
    path.write_bytes(b"v" * 100_000)
    even_start.write_out()
    even_start.warm_memory([tmp_path], 1 << 20)
    assert path.read_bytes() == b"v" * 100_000


def test_memory_is_touched_on_a_kernel_that_cannot_do_it_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even_start, "POPULATE_WRITE", 9_999)
    even_start.touch(2 * mmap.PAGESIZE)
