"""Group commit: appended records are synced soon, once for all that wait, and never after a failure."""

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import cast

from raylog.actors.clock import monotonic_ms
from raylog.actors.flusher import Flusher
from raylog.storage.errors import DescriptorsExhausted
from raylog.storage.log.partition_log import PartitionLog
from tests.waiting import eventually


class Disk:
    """A log with syncs that end on the test's command."""

    def __init__(self) -> None:
        self.end = 0
        self.syncs = 0
        self.error: Exception | None = None
        self.open = threading.Event()
        self.open.set()
        self.behind_since: float | None = None
        self.notes: list[bool] = []

    def checkpoint(self, *, early: bool = False) -> None:
        self.notes.append(early)
        assert self.open.wait(10)
        self.behind_since = None

    def sync_records(self) -> int:
        end = self.end
        self.syncs += 1
        assert self.open.wait(10)
        if self.error is not None:
            raise self.error
        return end


@contextmanager
def held(disk: Disk) -> Iterator[None]:
    disk.open.clear()
    try:
        yield
    finally:
        disk.open.set()


def run(scenario: Callable[[Disk, Flusher, list[int], list[BaseException]], Awaitable[None]]) -> None:
    async def outer() -> None:
        disk, ends, errors = Disk(), list[int](), list[BaseException]()
        flusher = Flusher(cast(PartitionLog, disk), on_synced=ends.append, on_failed=errors.append, name="test")
        flusher.start()
        try:
            await scenario(disk, flusher, ends, errors)
        finally:
            disk.open.set()
            await flusher.stop()

    asyncio.run(outer())


def test_one_sync_serves_all_appends_of_a_turn_of_the_loop() -> None:
    async def scenario(disk: Disk, flusher: Flusher, ends: list[int], _: list[BaseException]) -> None:
        for _turn in range(5):
            disk.end += 1
            flusher.kick()
        await eventually(lambda: bool(ends))
        assert ends == [5]
        assert disk.syncs == 1

    run(scenario)


def test_records_are_reported_before_the_recovery_point_is_written() -> None:
    async def scenario(disk: Disk, flusher: Flusher, ends: list[int], _: list[BaseException]) -> None:
        disk.end = 1
        disk.open.set()
        sync = disk.sync_records

        def sync_then_hang() -> int:
            end = sync()
            disk.open.clear()
            return end

        disk.sync_records = sync_then_hang  # type: ignore[method-assign]
        flusher.kick()
        await eventually(lambda: ends == [1])
        assert flusher.is_idle
        await eventually(lambda: disk.notes == [False])

    run(scenario)


def test_the_recovery_point_is_written_early_once_before_a_rest() -> None:
    async def scenario(disk: Disk, flusher: Flusher, _: list[int], __: list[BaseException]) -> None:
        assert flusher.settle()
        assert disk.notes == []
        disk.behind_since = 0.0
        with held(disk):
            assert not flusher.settle()
            assert not flusher.settle()
        await eventually(flusher.settle)
        assert disk.notes == [True]

    run(scenario)


def test_what_is_appended_during_a_sync_is_synced_by_one_more() -> None:
    async def scenario(disk: Disk, flusher: Flusher, ends: list[int], _: list[BaseException]) -> None:
        with held(disk):
            disk.end = 1
            flusher.kick()
            await eventually(lambda: disk.syncs == 1)
            for _turn in range(3):
                disk.end += 1
                flusher.kick()
                await asyncio.sleep(0)
            assert disk.syncs == 1
        await eventually(lambda: len(ends) == 2)
        assert ends == [1, 4]

    run(scenario)


def test_after_a_failed_sync_nothing_is_promised_any_more() -> None:
    async def scenario(disk: Disk, flusher: Flusher, ends: list[int], errors: list[BaseException]) -> None:
        disk.error = OSError("the disk is lost")
        flusher.kick()
        await eventually(lambda: bool(errors))
        disk.error = None
        flusher.kick()
        await asyncio.sleep(0)
        assert disk.syncs == 1
        assert ends == []

    run(scenario)


def test_a_sync_that_ends_after_the_stop_is_not_reported() -> None:
    async def scenario(disk: Disk, flusher: Flusher, ends: list[int], _: list[BaseException]) -> None:
        with held(disk):
            flusher.kick()
            await eventually(lambda: disk.syncs == 1)
            threading.Timer(0.01, disk.open.set).start()
            await flusher.stop()
        await asyncio.sleep(0)
        assert ends == []

    run(scenario)


async def test_a_kick_before_the_start_is_not_forgotten() -> None:
    disk, ends = Disk(), list[int]()
    disk.end = 7
    flusher = Flusher(cast(PartitionLog, disk), on_synced=ends.append, on_failed=lambda _: None, name="test")
    flusher.kick()
    flusher.start()
    await eventually(lambda: ends == [7])
    await flusher.stop()


def test_a_sync_without_a_descriptor_is_tried_again_and_fails_nothing() -> None:
    async def scenario(disk: Disk, flusher: Flusher, ends: list[int], errors: list[BaseException]) -> None:
        disk.end, disk.error = 3, DescriptorsExhausted("sync", OSError(errno.EMFILE, "Too many open files"))
        flusher.kick()
        await eventually(lambda: disk.syncs == 2)
        assert (ends, errors) == ([], [])
        disk.error = None
        await eventually(lambda: ends == [3])
        assert errors == []

    run(scenario)


def began(flusher: Flusher) -> int | None:
    return flusher.busy_since_ms


def test_a_sync_that_does_not_end_is_known_by_when_it_began() -> None:
    async def scenario(disk: Disk, flusher: Flusher, ends: list[int], errors: list[BaseException]) -> None:
        assert began(flusher) is None
        before = monotonic_ms()
        with held(disk):
            disk.end = 1
            flusher.kick()
            await eventually(lambda: disk.syncs == 1)
            since_ms = began(flusher)
            assert since_ms is not None
            assert before <= since_ms <= monotonic_ms()
            disk.end = 2
            flusher.kick()
            await asyncio.sleep(0.01)
            assert began(flusher) == since_ms, "the oldest counts"
        await eventually(lambda: ends == [1, 2])
        assert began(flusher) is None

    run(scenario)
