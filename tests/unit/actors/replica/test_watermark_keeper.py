"""When the high watermark is written, and that a slow or full disk delays nothing."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from raylog.actors.replica.watermark_keeper import KEEP_MS, WatermarkKeeper
from raylog.base.ids import TopicPartition
from raylog.storage.errors import DiskFull
from raylog.storage.log.kept_watermark import KeptWatermark

T0 = TopicPartition("t", 0)
STATE, OTHER = object(), object()


def kept(folder: Path) -> int:
    return KeptWatermark(folder, 1000).offset


def full(self: KeptWatermark, *, durable: bool = False) -> None:
    raise DiskFull("write to a file", OSError(28, "No space left on device"))


async def written(keeper: WatermarkKeeper) -> None:
    async with asyncio.timeout(10):
        while keeper._writing is not None:
            await asyncio.wait([keeper._writing])
            await asyncio.sleep(0)  # the keeper is called back in a turn of its own


async def test_it_is_written_now_and_then_and_at_once_on_a_new_state(tmp_path: Path) -> None:
    keeper = WatermarkKeeper(T0, tmp_path, 1000)
    for now_ms, watermark, state, expected in (
        (1_000, 10, STATE, 10),
        (1_100, 20, STATE, 10),
        (1_200, 30, OTHER, 30),
        (1_200 + KEEP_MS - 1, 40, OTHER, 30),
        (1_200 + KEEP_MS, 50, OTHER, 50),
    ):
        keeper.tick(now_ms, watermark, state)
        await written(keeper)
        assert kept(tmp_path) == expected, now_ms
    await keeper.stop(60)
    assert kept(tmp_path) == 60


async def test_it_is_written_before_a_rest_though_it_is_not_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = WatermarkKeeper(T0, tmp_path, 1000)
    assert keeper.settle(0)
    assert not keeper.settle(10)
    await written(keeper)
    assert keeper.settle(10)
    assert kept(tmp_path) == 10
    with monkeypatch.context() as patched:
        patched.setattr(KeptWatermark, "keep", full)
        assert not keeper.settle(20)
        await written(keeper)
        assert keeper.settle(20), "a full disk keeps no replica awake"
    await keeper.stop(20)


async def test_a_disk_that_hangs_holds_up_neither_ticks_nor_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, hung = threading.Event(), threading.Event()
    real: Callable[..., None] = KeptWatermark.keep

    def keep(self: KeptWatermark, *, durable: bool = False) -> None:
        hung.set()
        goes_on.wait(10)
        real(self, durable=durable)

    monkeypatch.setattr(KeptWatermark, "keep", keep)
    keeper = WatermarkKeeper(T0, tmp_path, 1000)
    keeper.tick(1_000, 10, STATE)
    await asyncio.to_thread(hung.wait, 10)
    keeper.tick(9_000, 20, STATE)
    assert kept(tmp_path) == 0
    goes_on.set()
    await written(keeper)
    await keeper.stop(20)
    assert kept(tmp_path) == 20


async def test_a_full_disk_is_logged_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = WatermarkKeeper(T0, tmp_path, 1000)
    with monkeypatch.context() as patched:
        patched.setattr(KeptWatermark, "keep", full)
        for now_ms in (1_000, 1_000 + KEEP_MS, 1_000 + 2 * KEEP_MS):
            keeper.tick(now_ms, 10, STATE)
            await written(keeper)
    assert len([record for record in caplog.records if "not kept" in record.message]) == 1
    keeper.tick(1_000 + 3 * KEEP_MS, 10, STATE)
    await written(keeper)
    assert kept(tmp_path) == 10
    await keeper.stop(None)
