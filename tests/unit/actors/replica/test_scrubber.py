"""The scrub of a replica: at which pace, in turns with other replicas, and what it does about what it finds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from raylog.actors.clock import monotonic_ms, since_boot_ms, wall_ms
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.scrubber import RETRY_MS, TURNS, Scrubber
from raylog.actors.settings import ScrubPace, scrub_pace
from raylog.storage.errors import LogDamaged
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.scrub import plan
from raylog.storage.scrub.plan import Passes
from raylog.storage.scrub.slices import CHECKPOINT, read_passes
from tests.unit.storage.logs import NOW, batch, open_log

FAST = ScrubPace(bytes_per_s=1 << 40, interval_ms=1)
WEEKLY = ScrubPace(bytes_per_s=1 << 40, interval_ms=7 * 86_400_000)
SLOW = ScrubPace(bytes_per_s=1_000, interval_ms=1)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SLICE_BYTES", 2_000)


def filled(folder: Path) -> PartitionLog:
    """A log of several segments, as a later life opens it."""
    log = open_log(folder, segment_bytes=3_000)
    for number in range(12):
        log.append_as_leader(bytearray(batch(b"%d" % number * 400)), 0, NOW)
    log.close()
    return open_log(folder, segment_bytes=3_000)


def scrubber_of(log: PartitionLog, pace: ScrubPace) -> Scrubber:
    return Scrubber(log, log.folder.parent, log.folder.name, pace, ReplicaCounters())


@asynccontextmanager
async def scrubbed(*made: Scrubber) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for each in made:
            await each.stop()
            each.log.close()


async def ticked(scrubber: Scrubber, now_ms: int) -> None:
    """A tick, and what it begins."""
    scrubber.tick(now_ms, wall_ms())
    if scrubber._task is not None:
        await asyncio.wait((scrubber._task,))


async def test_a_pass_reads_the_whole_log_and_is_noted(tmp_path: Path) -> None:
    scrubber = scrubber_of(filled(tmp_path / "t-0"), WEEKLY)
    async with scrubbed(scrubber):
        await ticked(scrubber, 0)
        counters = scrubber.counters
        assert (counters.scrub_passes, counters.scrub_damages, counters.scrub_remade) == (1, 0, 0)
        assert counters.scrub_bytes >= scrubber.log.size_bytes
        assert abs(read_passes(scrubber.log.folder).last_ms - wall_ms()) < 60_000
        assert scrubber.figures().last_ms == read_passes(scrubber.log.folder).last_ms
        await ticked(scrubber, RETRY_MS)
        assert counters.scrub_passes == 1, "not before the interval is over"
    later = scrubber_of(filled(tmp_path / "t-0"), WEEKLY)
    async with scrubbed(later):
        await ticked(later, 0)
        assert later.counters.scrub_bytes == 0, "nor in a later life"


async def test_a_new_log_is_not_scrubbed_at_once(tmp_path: Path) -> None:
    scrubber = scrubber_of(open_log(tmp_path / "t-0"), WEEKLY)
    async with scrubbed(scrubber):
        await ticked(scrubber, 0)
        assert not (scrubber.log.folder / CHECKPOINT).exists()
        assert not (tmp_path / TURNS).exists()


async def test_a_rate_of_0_is_no_scrub(tmp_path: Path) -> None:
    scrubber = scrubber_of(filled(tmp_path / "t-0"), scrub_pace({"log.scrub.bytes.per.second": "0"}))
    async with scrubbed(scrubber):
        scrubber.tick(0, wall_ms())
        assert not scrubber.is_busy


async def test_slices_wait_for_their_turns_and_the_replica_may_rest_meanwhile(tmp_path: Path) -> None:
    scrubber = scrubber_of(filled(tmp_path / "t-0"), SLOW)
    async with scrubbed(scrubber):
        now_ms = monotonic_ms()
        await ticked(scrubber, now_ms)
        first = scrubber.counters.scrub_bytes
        assert first > 0
        assert scrubber.counters.scrub_passes == 0
        await ticked(scrubber, now_ms + 1_000)
        assert scrubber.counters.scrub_bytes == first, "2,000 bytes are two seconds"
        free_ms = int((tmp_path / TURNS).read_text())
        assert free_ms - since_boot_ms() > first * 1_000 / SLOW.bytes_per_s


async def test_replicas_of_a_broker_share_the_rate(tmp_path: Path) -> None:
    both = [scrubber_of(filled(tmp_path / name), SLOW) for name in ("t-0", "t-1")]
    async with scrubbed(*both):
        now_ms = monotonic_ms()
        for scrubber in both:
            await ticked(scrubber, now_ms)
        assert both[0].counters.scrub_bytes > 0
        assert both[1].counters.scrub_bytes == 0, "its turn is behind those of the first"


async def test_damage_is_handed_on_and_the_rest_of_the_log_is_read(tmp_path: Path) -> None:
    log, found = filled(tmp_path / "t-0"), list[LogDamaged]()
    scrubber = scrubber_of(log, FAST)
    reported = list[str]()
    scrubber.when_damaged(found.append)
    scrubber.when_remade(reported.append)
    hurt = log.segments[1]
    with hurt.path.open("r+b") as file:
        file.seek(200)
        file.write(b"\x00\x01")
    hurt.path.with_suffix(".index").unlink()
    log.segments[0].path.with_suffix(".timeindex").write_bytes(b"")
    async with scrubbed(scrubber):
        await ticked(scrubber, 0)
        assert [(damage.path, damage.offset) for damage in found] == [(str(hurt.path), hurt.base_offset)]
        assert found[0].next_offset > hurt.base_offset
        assert scrubber.counters.scrub_damages == 1
        assert scrubber.counters.scrub_remade == 1, "only where the batches are whole"
        assert [text.startswith("the indexes of the segment at 0: ") for text in reported] == [True]
        assert log.segments[0].path.with_suffix(".timeindex").stat().st_size > 0
        assert scrubber.counters.scrub_passes == 1


async def test_a_snapshot_of_producers_that_is_damaged_is_removed_and_named(tmp_path: Path) -> None:
    log, reported = filled(tmp_path / "t-0"), list[str]()
    snapshots = sorted(log.folder.glob("*.snapshot"))
    hurt = snapshots[0]
    data = bytearray(hurt.read_bytes())
    data[-1] ^= 1
    hurt.write_bytes(data)
    scrubber = scrubber_of(log, FAST)
    scrubber.when_remade(reported.append)
    async with scrubbed(scrubber):
        await ticked(scrubber, 0)
        assert reported == [f"{hurt.name}: the content was wrong; made again"]
        assert sorted(log.folder.glob("*.snapshot")) == snapshots[1:]
        await ticked(scrubber, RETRY_MS)
        assert len(reported) == 1


async def test_a_disk_that_cannot_be_read_is_tried_again_and_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scrubber = scrubber_of(filled(tmp_path / "t-0"), FAST)

    def refused(_: object) -> object:
        raise OSError("the disk is away")

    async with scrubbed(scrubber):
        with monkeypatch.context() as patched:
            patched.setattr("raylog.actors.replica.scrubber.scrub", refused)
            for turn in range(3):
                await ticked(scrubber, turn * RETRY_MS)
        assert len(caplog.records) == 1
        await ticked(scrubber, 3 * RETRY_MS)
        assert scrubber.counters.scrub_passes == 1


async def test_a_pass_goes_on_in_the_next_life(tmp_path: Path) -> None:
    scrubber = scrubber_of(filled(tmp_path / "t-0"), SLOW)
    async with scrubbed(scrubber):
        await ticked(scrubber, 0)
        assert scrubber.figures().offset >= 0
    assert read_passes(tmp_path / "t-0").place is not None
    later = scrubber_of(filled(tmp_path / "t-0"), FAST)
    async with scrubbed(later):
        (tmp_path / TURNS).unlink()
        await ticked(later, 0)
        assert later.counters.scrub_passes == 1
        assert read_passes(tmp_path / "t-0") == Passes(last_ms=later.figures().last_ms)
